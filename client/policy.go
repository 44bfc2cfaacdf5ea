package client

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
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

// Policies returns what is set on a directory and on all above it, the root last.
func (c *Client) Policies(ctx context.Context, dir *Inode) ([]*canopyv1.DirPolicy, error) {
	op := dir.op(Cred{})
	op.Call = &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{Dir: uint64(dir.ino)}}
	res, err := c.do(ctx, opGetPolicy, op)
	return res.GetPolicies(), err
}

// AllPolicies returns the directories that have a policy, in no order.
func (c *Client) AllPolicies(ctx context.Context) ([]*canopyv1.DirPolicy, error) {
	op := c.Root().op(Cred{})
	op.Call = &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{}}
	res, err := c.do(ctx, opGetPolicy, op)
	return res.GetPolicies(), err
}
