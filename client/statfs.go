package client

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// StatFS returns the size of the file system, or of the quota that leaves the least
// where n is.
func (c *Client) StatFS(ctx context.Context, n *Inode) (*StatFS, error) {
	op := n.op(Cred{})
	op.Call = &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{Place: n.place()}}
	c.opens.tellClosed(ctx) // the space of a file that was open a moment ago, and is deleted, counts as free
	res, in, err := c.doIn(ctx, opStatFS, op)
	if err != nil {
		return nil, err
	}
	if res.Statfs == nil {
		return &StatFS{}, nil
	}
	if c.routes.split.Load() {
		c.addShards(ctx, res.Statfs, in.link.shard)
	}
	return res.Statfs, nil
}

// statfsPatience bounds how long df waits for a shard beside the one that is asked.
const statfsPatience = 2 * time.Second

// addShards adds to the answer of one shard what the others have: their inodes, and
// what waits in them for deletion (FUSE K17). One that does not answer is left out.
func (c *Client) addShards(ctx context.Context, s *StatFS, asked base.ShardID) {
	ctx, cancel := context.WithTimeout(ctx, statfsPatience)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for shard, subtree := range c.routes.oneSubtreeEach() {
		if shard == asked {
			continue
		}
		wg.Go(func() {
			res, err := c.do(ctx, opStatFS, &canopyv1.Op{Subtree: uint64(subtree), Cred: superuser,
				Call: &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{}}})
			if err != nil || res.Statfs == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if used := res.Statfs.Files - res.Statfs.FreeFiles; s.QuotaBytes == 0 {
				s.Files += used
				s.FreeBytes = min(s.FreeBytes+res.Statfs.WaitingBytes, s.TotalBytes)
			}
		})
	}
	wg.Wait()
}
