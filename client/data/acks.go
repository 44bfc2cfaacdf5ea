package data

import (
	"errors"
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// ErrLost is the cause of Sync's error of kind IO when bytes that were
// acknowledged before may be gone: the only data server that had them came back
// without what it had not synced. Write them again, or report the loss.
var ErrLost = errors.New("acknowledged bytes may be lost: the machine of their last data server crashed before they were synced")

// Ack says that a placement group acknowledged a write under an epoch.
type Ack struct {
	Pool  base.PoolID
	PG    base.PGID
	Epoch uint64
}

// Acks are the acknowledgements of writes that are not known to be durable: per
// placement group the one of the lowest epoch. Whoever writes keeps them until a
// Sync that was given them succeeds. The zero value is empty.
type Acks []Ack

// Merge takes in further ones.
func (a *Acks) Merge(more Acks) {
	for _, m := range more {
		a.add(m)
	}
}

func (a *Acks) add(ack Ack) {
	for i, have := range *a {
		if have.Pool == ack.Pool && have.PG == ack.PG {
			(*a)[i].Epoch = min(have.Epoch, ack.Epoch)
			return
		}
	}
	*a = append(*a, ack)
}

// lostUnder reports whether what the group acknowledged may be gone by the given
// state of it.
func (a Acks) lostUnder(pool base.PoolID, pg *canopyv1.PlacementGroup) bool {
	for _, ack := range a {
		if ack.Pool == pool && uint32(ack.PG) == pg.Pg {
			return ack.Epoch < pg.LossEpoch
		}
	}
	return false
}

// Safe returns the acknowledgements that still count by the newest pool map: if
// some are missing, what they acknowledged may be gone. It asks nobody, so a loss
// shows with the map's delay; Sync's answer is exact.
func (d *Data) Safe(acks Acks) Acks {
	m := d.watcher.Current()
	if m == nil {
		return acks
	}
	for i, ack := range acks {
		pg := m.PG(ack.Pool, ack.PG)
		if pg == nil || ack.Epoch >= pg.LossEpoch {
			continue
		}
		safe := append(Acks(nil), acks[:i]...)
		return append(safe, d.Safe(acks[i+1:])...)
	}
	return acks
}

func lostError(pool base.PoolID, pg *canopyv1.PlacementGroup) error {
	return fserr.New(fserr.IO, "sync", fmt.Errorf("pg %d.%d, epoch %d: %w", pool, pg.Pg, pg.LossEpoch, ErrLost))
}
