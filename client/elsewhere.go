package client

import (
	"context"
	"sync"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// liesElsewhere reports whether attributes only say in which subtree the rest is: the
// shard that answered does not own it.
func liesElsewhere(a *Attr) bool { return a.Version == 0 && a.Nlink == 0 && a.Subtree != 0 }

// allRights are those of a capability for what is looked up in another subtree.
const allRights = uint32(canopyv1.DataRight_DATA_RIGHT_READ | canopyv1.DataRight_DATA_RIGHT_WRITE)

// complete asks for the attributes of an answer about what lies elsewhere, as the lookup
// of its name by cred would have brought them, and for those of all fragments of a split
// directory.
func (c *Client) complete(ctx context.Context, cred Cred, res *canopyv1.Result) (err error) {
	switch {
	case res.Attr == nil:
		return nil
	case isPartial(res.Attr):
		res.Attr, err = c.gather(ctx, base.Ino(res.Attr.Ino), res, base.SubtreeID(res.Attr.Subtree))
		return err
	case !liesElsewhere(res.Attr):
		return nil
	}
	full, err := c.askAttr(ctx, cred, base.SubtreeID(res.Attr.Subtree), base.Ino(res.Attr.Ino))
	if err != nil {
		return err
	}
	res.Attr, res.Capability, res.DataRights = full.Attr, full.Capability, full.DataRights
	return nil
}

// askAttr asks a subtree for what it has under a number, and then all fragments of what
// is a split directory.
func (c *Client) askAttr(ctx context.Context, cred Cred, subtree base.SubtreeID, ino base.Ino) (*canopyv1.Result, error) {
	res, in, err := c.doIn(ctx, opGetAttr, &canopyv1.Op{Subtree: uint64(subtree), Cred: cred.wire(),
		Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: uint64(ino)}, DataRights: allRights}}})
	if err == nil && (res.Attr == nil || liesElsewhere(res.Attr)) {
		err = fserr.New(fserr.Malformed, "getattr", nil)
	}
	if err == nil && isPartial(res.Attr) {
		res.Attr, err = c.gather(ctx, ino, res, in.subtree)
	}
	return res, err
}

// completers bounds how many attributes of one page are asked for at a time.
const completers = 64

// completePage asks for the attributes of the entries that lie in subtrees which the
// directory's shard does not own, and of split directories, many at a time. What cannot
// be had stays without: it may be gone since.
func (c *Client) completePage(ctx context.Context, entries []*DirEntry) {
	var missing []*DirEntry
	for _, e := range entries {
		if isPartial(e.Attr) {
			e.Subtree, e.Attr = e.Attr.Subtree, nil
		}
		if e.Attr == nil && e.Subtree != 0 {
			missing = append(missing, e)
		}
	}
	var wg sync.WaitGroup
	for first := range min(completers, len(missing)) {
		wg.Go(func() {
			for i := first; i < len(missing); i += completers {
				e := missing[i]
				if res, err := c.askAttr(ctx, Cred{}, base.SubtreeID(e.Subtree), base.Ino(e.Ino)); err == nil {
					e.Attr = res.Attr
				}
			}
		})
	}
	wg.Wait()
}
