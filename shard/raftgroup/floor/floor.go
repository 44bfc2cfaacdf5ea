// Package floor measures what Dragonboat alone can do here: bare group commit,
// with a state machine that only counts. Reports print the ratio of Canopy to
// it. It needs nothing of raftgroup and leaves nothing behind.
package floor

import (
	"context"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Options of a measurement.
type Options struct {
	Dir         string // where to make the temporary directory; "" is the system's
	Replicas    int    // 1, 3 or 5, each with a host of its own in this process, on loopback
	Callers     int    // concurrent callers, each waits for its record
	RecordBytes int
	Duration    time.Duration
	Warmup      time.Duration
}

// Result is what was measured: a record counts once it is applied.
type Result struct {
	OpsPerSec           float64
	P50, P95, P99, P999 time.Duration
	Ops                 int64
	RecordsPerEntry     float64
}

// Run measures bare group commit.
func Run(ctx context.Context, o Options) (Result, error) { return Result{}, fserr.Internal }
