package raftgroup

import (
	"context"
	"errors"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// View is the state of a shard at one moment at which this replica held the lease.
// What it shows was so then; nobody says that it still is. It is for who reads for
// long, as a check does: Read would have to begin again if the lease went meanwhile.
type View struct {
	shard.Snapshot
	g        *Group
	installs uint64
}

// TakeView returns the state as it is now. It must be closed, and not be held for
// longer than it is read: the store keeps what is overwritten meanwhile.
func (g *Group) TakeView(ctx context.Context) (*View, error) {
	var v *View
	err := g.Read(ctx, func(shard.Reader) error {
		var before error
		if v != nil { // the lease had gone
			before = v.Close()
		}
		v = &View{g: g, installs: g.sm.installs.Load()}
		v.Snapshot = g.host.cfg.Store.NewScan()
		return before
	})
	if err != nil && v != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, err
}

// Whole returns an error if a Raft snapshot was installed since the view was taken:
// what is read since can be missing.
func (v *View) Whole() error {
	if v.installs != v.g.sm.installs.Load() {
		return v.g.err(fserr.NotHolder, "read")
	}
	return nil
}
