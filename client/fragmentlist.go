package client

import (
	"context"

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

// Fragments returns the fragments of a directory in the order of their ranges, which
// cover all names. An unsplit one has one. What each subtree says of itself counts, what
// it says of others leads there.
func (c *Client) Fragments(ctx context.Context, dir *Inode) ([]Fragment, error) {
	res, in, err := c.doIn(ctx, opGetAttr, &canopyv1.Op{Subtree: uint64(dir.subtreeID()), Cred: superuser,
		Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: uint64(dir.ino)}}}})
	switch {
	case err != nil:
		return nil, err
	case res.Attr == nil:
		return nil, fserr.New(fserr.Malformed, opGetAttr.String(), nil)
	case !isPartial(res.Attr):
		return []Fragment{c.fragmentOf(shard.WholeRange, base.SubtreeID(res.Attr.Subtree), res.Attr)}, nil
	}
	m, parts, err := c.gatherParts(ctx, dir.ino, res, in.subtree)
	if err != nil {
		return nil, err
	}
	var all []Fragment
	for i, f := range m {
		all = append(all, c.fragmentOf(m.Range(i), f.Subtree, parts[f.Subtree].Attr))
	}
	return all, nil
}

func (c *Client) fragmentOf(r shard.Range, subtree base.SubtreeID, attr *Attr) Fragment {
	f := Fragment{Range: r, Subtree: subtree, Entries: attr.Size, Subdirs: uint64(max(attr.Nlink, 2) - 2)}
	if to, ok, _ := c.routes.find(subtree); ok {
		f.Shard, f.Epoch = to.shard, to.epoch
	}
	return f
}
