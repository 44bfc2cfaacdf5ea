package mds

import (
	"context"
	"sync/atomic"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// usageInterval is how old the figures of statfs may be.
const usageInterval = 2 * time.Second

// usage is the data path's capacity.
type usage struct{ total, free uint64 }

// usageCache asks the data path for its capacity now and then, so that statfs
// never waits for it.
type usageCache struct {
	data DataPlane
	last atomic.Pointer[usage]
}

func newUsageCache(data DataPlane) *usageCache { return &usageCache{data: data} }

func (u *usageCache) loop(ctx context.Context, layout *canopyv1.Layout) {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*usageInterval)
		total, free, err := u.data.Usage(attempt, base.PoolID(layout.GetPool()))
		cancel()
		if err == nil {
			u.last.Store(&usage{total, free})
		}
		if !pause(ctx, usageInterval) {
			return
		}
	}
}

// fill puts the capacity into an answer. What waits for deletion counts as free
// already (FUSE K17). In a quota it is the quota's, as far as there is space for it.
func (u *usageCache) fill(result *canopyv1.Result, waitingBytes uint64) {
	now := u.last.Load()
	if now == nil || result.Error != 0 {
		return
	}
	if result.Statfs == nil {
		result.Statfs = &canopyv1.StatFs{}
	}
	result.Statfs.TotalBytes = now.total
	result.Statfs.FreeBytes = min(now.free+waitingBytes, now.total)
	result.Statfs.WaitingBytes = result.Statfs.FreeBytes - min(now.free, now.total)
	if s := result.Statfs; s.QuotaBytes > 0 {
		s.TotalBytes, s.FreeBytes = s.QuotaBytes, min(s.FreeBytes, s.QuotaFreeBytes)
	}
}
