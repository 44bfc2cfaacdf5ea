package client

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// SetPolicy changes the layout policy of a directory: first what clear names
// goes, then what set has comes. The pools that it names must be there. Only the
// superuser may.
func (c *Client) SetPolicy(ctx context.Context, cred Cred, dir *Inode, set *canopyv1.LayoutPolicy, clear []string) error {
	op := dir.op(cred)
	op.Call = &canopyv1.Op_SetPolicy{SetPolicy: &canopyv1.SetPolicyCall{Dir: uint64(dir.ino), Set: set, Clear: clear}}
	_, err := c.do(ctx, opSetPolicy, op)
	c.cache.dropAttr(dir.ino)
	return err
}

// Policies returns what is set on a directory and on all above it in its subtree,
// whose root, the last, has what it inherited.
func (c *Client) Policies(ctx context.Context, dir *Inode) ([]*canopyv1.DirPolicy, error) {
	op := dir.op(Cred{})
	op.Call = &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{Dir: uint64(dir.ino)}}
	res, err := c.do(ctx, opGetPolicy, op)
	if err == nil && res.Place != nil {
		var top string
		top, err = c.dirPath(ctx, base.Ino(res.Place.Ino), dir.subtreeID())
		for _, p := range res.Policies {
			p.Path = below(top, p.Path)
		}
	}
	return res.GetPolicies(), err
}

// below returns the path of what has a path from the root of a subtree, which is at
// top.
func below(top string, path []byte) []byte {
	if len(path) <= 1 {
		return []byte(top)
	}
	return append([]byte(top), path...)
}

// AllPolicies returns the directories that have a policy, in no order.
func (c *Client) AllPolicies(ctx context.Context) ([]*canopyv1.DirPolicy, error) {
	var all []*canopyv1.DirPolicy
	for _, subtree := range c.routes.subtrees() {
		res, err := c.do(ctx, opGetPolicy, &canopyv1.Op{Subtree: uint64(subtree), Cred: superuser,
			Call: &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{}}})
		if err != nil {
			return nil, err
		}
		for _, p := range res.Policies {
			if subtree == base.RootSubtree {
				break // the paths are whole
			}
			path, err := c.dirPath(ctx, base.Ino(p.Dir), subtree)
			if err != nil {
				return nil, err
			}
			p.Path = []byte(path)
		}
		all = append(all, res.Policies...)
	}
	return all, nil
}
