package client

import (
	"cmp"
	"context"
	"errors"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Fragment is a range of a directory's names, as the subtree says that holds it.
type Fragment struct {
	shard.Range
	Subtree base.SubtreeID
	Shard   base.ShardID // the subtree's, as the client knows it
	Epoch   base.Epoch
	// Entries and Subdirs are what the subtree has of the directory, in all of its ranges.
	Entries, Subdirs uint64
}

// errFragmentsMove: while a directory's fragments were asked for, one was split or merged.
var errFragmentsMove = errors.New("its fragments changed meanwhile")

// Fragments returns the fragments of a directory in the order of their ranges, which
// cover all names. An unsplit one has one. What each subtree says of itself counts, what
// it says of others leads there.
func (c *Client) Fragments(ctx context.Context, dir *Inode) ([]Fragment, error) {
	for try := 0; ; try++ {
		all, err := c.fragmentsOnce(ctx, dir)
		if err == nil || !errors.Is(err, errFragmentsMove) {
			return all, err
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

func (c *Client) fragmentsOnce(ctx context.Context, dir *Inode) ([]Fragment, error) {
	if _, err := c.fetchAttr(ctx, dir); err != nil { // which finds it, wherever it went
		return nil, err
	}
	var all []Fragment
	next := dir.subtreeID()
	for asked := map[base.SubtreeID]bool{}; ; {
		at, attr, err := c.askFragment(ctx, next, dir.ino)
		if err != nil {
			return nil, err
		}
		hints := shard.FragmentsOf(attr.Fragments)
		switch {
		case len(attr.Fragments) == 0 && len(all) == 0:
			return []Fragment{c.fragmentOf(shard.WholeRange, base.SubtreeID(attr.Subtree), attr)}, nil
		case len(attr.Fragments) > 0 && hints == nil:
			return nil, fserr.New(fserr.Malformed, "fragments", nil)
		case hints == nil, asked[at]: // merged; or it gave something away that leads back to it
			return nil, errFragmentsMove
		}
		asked[at] = true
		for _, r := range hints.In(at) {
			all = append(all, c.fragmentOf(r, at, attr))
		}
		hole, err := uncovered(all)
		if err != nil || hole == shard.BorderEnd {
			return all, err
		}
		next = hints.Of(hole)
	}
}

// askFragment asks a subtree for its part of a directory, and tells which answered.
func (c *Client) askFragment(ctx context.Context, subtree base.SubtreeID, dir base.Ino) (base.SubtreeID, *Attr, error) {
	res, in, err := c.doOnce(ctx, opGetAttr, &canopyv1.Op{Subtree: uint64(subtree), Cred: superuser,
		Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: uint64(dir)}}}})
	switch {
	case fserr.KindOf(err) == fserr.Stale:
		return 0, nil, errFragmentsMove
	case err != nil:
		return 0, nil, err
	case res.Attr == nil:
		return 0, nil, fserr.New(fserr.Malformed, "getattr", nil)
	}
	return in.subtree, res.Attr, nil
}

func (c *Client) fragmentOf(r shard.Range, subtree base.SubtreeID, attr *Attr) Fragment {
	f := Fragment{Range: r, Subtree: subtree, Entries: attr.Size, Subdirs: uint64(max(attr.Nlink, 2) - 2)}
	if to, ok, _ := c.routes.find(subtree); ok {
		f.Shard, f.Epoch = to.shard, to.epoch
	}
	return f
}

// uncovered puts fragments in order and returns the first border hash that none of them
// has.
func uncovered(all []Fragment) (hole uint32, err error) {
	slices.SortFunc(all, func(a, b Fragment) int { return cmp.Compare(a.Lo, b.Lo) })
	for _, f := range all {
		switch {
		case f.Lo > hole:
			return hole, nil
		case f.Lo < hole:
			return 0, errFragmentsMove // two have it, by answers of two moments
		}
		hole = f.Hi
	}
	return hole, nil
}
