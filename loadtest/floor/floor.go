// Package floor measures what the parts of Canopy do by themselves on this
// machine: a gRPC stream with messages of the same size and batching, and the
// disk. What is built on them cannot be faster; how much slower it is, is what
// reports say. (The file system in memory is package memfs, the bare log is
// shard/raftgroup/floor.)
package floor

import (
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
)

// Result is what a measurement found.
type Result struct {
	Ops     int64
	Seconds float64
	Hist    *hist.Histogram
	// OpsPerMessage is how many operations a message of a stream carried.
	OpsPerMessage float64
	// ClientCPU and ServerCPU are CPU times of a stream's two ends.
	ClientCPU, ServerCPU time.Duration
}

// Rate returns operations per second.
func (r *Result) Rate() float64 { return float64(r.Ops) / max(r.Seconds, 1e-9) }
