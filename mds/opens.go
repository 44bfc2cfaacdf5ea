package mds

import (
	"context"
	"errors"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/service"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// maxOpens bounds what is kept of one client's open files in one shard. Beyond
// it everything counts as open by that client, so that nothing is purged under it.
const maxOpens = 1 << 20

// openTable is one client's open files, as it reported them in this term
// (PROTOCOLS H1).
type openTable struct {
	reported bool // a full report came in this term, with all its parts (PROTOCOLS H2)
	partial  bool // parts of a full report are missing
	number   uint64
	overflow bool
	inos     map[base.Ino]struct{}
}

// holds tells whether the client may have the inode open.
func (o *openTable) holds(ino base.Ino) bool {
	if o.overflow {
		return true
	}
	_, ok := o.inos[ino]
	return ok
}

// apply takes a report; false: a full report is needed first.
func (o *openTable) apply(report *canopyv1.ReportOpensRequest) bool {
	if !report.Full && !o.reported && !o.partial {
		return false
	}
	if (o.reported || o.partial) && report.Number <= o.number && report.Number != 0 {
		return true // late: a newer one was taken
	}
	o.number = report.Number
	if report.Full {
		o.reported, o.partial, o.overflow = false, true, false
		o.inos = make(map[base.Ino]struct{}, len(report.Opened))
	}
	for _, p := range report.Closed {
		delete(o.inos, base.Ino(p.GetIno()))
	}
	for _, p := range report.Opened {
		if len(o.inos) >= maxOpens {
			o.overflow = true
			break
		}
		o.inos[base.Ino(p.GetIno())] = struct{}{}
	}
	if o.partial && !report.More {
		o.reported, o.partial = true, false
	}
	return true
}

// ReportOpens takes a client's report of open files (PROTOCOLS H1, H2), and
// answers where those are that moved. Kind Again asks for a full report.
func (m *metadataService) ReportOpens(ctx context.Context, report *canopyv1.ReportOpensRequest) (*canopyv1.ReportOpensResponse, error) {
	refuse := func(kind fserr.Kind) (*canopyv1.ReportOpensResponse, error) {
		answer := &canopyv1.ReportOpensResponse{Error: uint32(kind)}
		if kind == fserr.NotHolder || kind == fserr.UnknownShard {
			answer.Redirect = m.server.redirect(base.ShardID(report.Shard), 0)
		}
		return answer, nil
	}
	id := service.IdentityOf(ctx).Client
	if id == 0 || !validPlaces(report.Opened) || !validPlaces(report.Closed) {
		return refuse(fserr.Malformed)
	}
	h := m.server.lookup(base.ShardID(report.Shard))
	if h == nil {
		return refuse(fserr.UnknownShard)
	}
	t := h.tenure()
	if t == nil {
		return refuse(fserr.NotHolder)
	}
	if !t.hasSession(id) {
		return refuse(fserr.SessionExpired)
	}
	// Where things are is read before the report counts: what moves between is
	// covered by the grace.
	moved, subtrees, err := t.movedPlaces(ctx, report.Opened)
	if err != nil {
		return refuse(fserr.KindOf(err))
	}
	t.mu.Lock()
	c := t.clientLocked(id)
	taken := c.opens.apply(report)
	t.mu.Unlock()
	t.touch(c)
	if !taken {
		return refuse(fserr.Again)
	}
	t.activity.Add(1)
	return &canopyv1.ReportOpensResponse{Moved: moved, MovedSubtrees: subtrees}, nil
}

func validPlaces(places []*canopyv1.Place) bool {
	for _, p := range places {
		if p.Ino == 0 || !validPlace(p) {
			return false
		}
	}
	return true
}

// movedPlaces returns the new places of those reported inodes that are not where
// the report says, and the subtree of each.
func (t *tenure) movedPlaces(ctx context.Context, opened []*canopyv1.Place) (moved []*canopyv1.Place, in []uint64, err error) {
	if len(opened) == 0 {
		return nil, nil, nil
	}
	err = t.h.group.Read(ctx, func(r shard.Reader) error {
		moved, in = nil, nil
		subtrees, err := t.subtrees(r)
		if err != nil {
			return err
		}
		for _, place := range opened {
			now, subtree, err := t.present(r, subtrees, place)
			if err != nil {
				return err
			}
			if now != nil && (now.Dir != place.Dir || string(now.Name) != string(place.Name)) {
				moved, in = append(moved, now), append(in, uint64(subtree))
			}
		}
		return nil
	})
	return moved, in, err
}

// present returns where an inode is, as far as the subtrees know; else nil. One that
// has it counts before one that knows only where it went.
func (t *tenure) present(r shard.Reader, subtrees []base.SubtreeID, place *canopyv1.Place) (now *canopyv1.Place, in base.SubtreeID, err error) {
	for _, subtree := range subtrees {
		at, err := t.h.machine.Locate(r, subtree, place)
		var went *namespace.MovedError
		switch kind := fserr.KindOf(err); {
		case err == nil:
			return at, subtree, nil
		case errors.As(err, &went):
			if to := went.Result; to.Place != nil && now == nil {
				now, in = to.Place, base.SubtreeID(to.Redirect.GetSubtree())
			}
		case kind != fserr.Stale && kind != fserr.NotFound:
			return nil, 0, err
		}
	}
	return now, in, nil
}
