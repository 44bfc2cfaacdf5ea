package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Quota bounds what lies below a directory, however deep.
type Quota = canopyv1.Quota

// SetQuota sets the bounds of directory dir, in place of those that it has; 0 is no
// bound, and not both can be. Root alone may. A large directory is counted first,
// beside all that goes on in it; its bounds hold from then on.
func (c *Client) SetQuota(ctx context.Context, cred Cred, dir *Inode, maxBytes, maxInodes uint64) (*Quota, error) {
	res, err := c.setQuota(ctx, cred, dir, &canopyv1.SetQuotaCall{MaxBytes: maxBytes, MaxInodes: maxInodes})
	if err != nil {
		return nil, err
	}
	if len(res.Quotas) != 1 {
		return nil, fserr.New(fserr.Malformed, "set_quota", nil)
	}
	return res.Quotas[0], nil
}

// RemoveQuota ends the bounds of directory dir: kind NoData if it has none.
func (c *Client) RemoveQuota(ctx context.Context, cred Cred, dir *Inode) error {
	_, err := c.setQuota(ctx, cred, dir, &canopyv1.SetQuotaCall{Remove: true})
	return err
}

func (c *Client) setQuota(ctx context.Context, cred Cred, dir *Inode, call *canopyv1.SetQuotaCall) (*canopyv1.Result, error) {
	if !dir.isDir {
		return nil, &fserr.Error{Kind: fserr.NotDir, Op: "set_quota", Ino: dir.ino}
	}
	call.Dir = uint64(dir.ino)
	op := dir.op(cred)
	op.Call = &canopyv1.Op_SetQuota{SetQuota: call}
	return c.do(ctx, opSetQuota, op)
}

// Quotas returns the quotas that hold for n, the innermost first.
func (c *Client) Quotas(ctx context.Context, n *Inode) ([]*Quota, error) {
	res, err := c.getQuota(ctx, n)
	return res.GetQuotas(), err
}

func (c *Client) getQuota(ctx context.Context, n *Inode) (*canopyv1.Result, error) {
	asked := time.Now()
	op := n.op(Cred{})
	op.Call = &canopyv1.Op_GetQuota{GetQuota: &canopyv1.GetQuotaCall{Place: n.place()}}
	res, err := c.do(ctx, opGetQuota, op)
	if err != nil {
		return nil, err
	}
	n.movedTo(res.Place, res.Attr)
	n.see(res.Attr)
	c.cache.putAttr(res.Attr, asked)
	return res, nil
}

// AllQuotas returns all quotas of the file system.
func (c *Client) AllQuotas(ctx context.Context) ([]*Quota, error) {
	var all []*Quota
	for _, subtree := range c.routes.subtrees() {
		res, err := c.do(ctx, opListQuotas, &canopyv1.Op{Subtree: uint64(subtree), Cred: superuser,
			Call: &canopyv1.Op_ListQuotas{ListQuotas: &canopyv1.ListQuotasCall{}}})
		if err != nil {
			return nil, err
		}
		all = append(all, res.Quotas...)
	}
	return all, nil
}

// DirPath returns the path of a directory by its number, as it is now.
func (c *Client) DirPath(ctx context.Context, dir base.Ino) (string, error) {
	subtree := base.RootSubtree
	if m := c.inodes.dirs.find(dir); m != nil {
		subtree = m.Home()
	}
	return c.dirPath(ctx, dir, subtree)
}

// dirPath is DirPath of a directory that is believed to be in a subtree.
func (c *Client) dirPath(ctx context.Context, dir base.Ino, subtree base.SubtreeID) (string, error) {
	path := ""
	for at := dir; at != base.RootIno; {
		res, err := c.do(ctx, opParent, &canopyv1.Op{Subtree: uint64(subtree), Cred: superuser,
			Call: &canopyv1.Op_Parent{Parent: &canopyv1.ParentCall{Dir: uint64(at)}}})
		if err != nil {
			return "", err
		}
		path = "/" + string(res.GetPlace().GetName()) + path
		if strings.Count(path, "/") > maxDirDepth {
			return "", fserr.New(fserr.Loop, "path", fmt.Errorf("of directory %v", dir))
		}
		at, subtree = base.Ino(res.GetPlace().GetDir()), base.SubtreeID(res.GetAttr().GetSubtree())
	}
	if path == "" {
		return "/", nil
	}
	return path, nil
}

// maxDirDepth bounds a walk up while directories move.
const maxDirDepth = 1 << 16
