package mds_test

import (
	"testing"
	"time"

	"github.com/canopyfs/canopy/placement"
)

// BenchmarkRenameOverShards: a file goes to another shard and back, and within one
// directory: what a transaction costs.
func BenchmarkRenameOverShards(b *testing.B) {
	c := newCluster(b, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 3}, nil)
	a := c.asker(0xa1)
	dirs := a.spreadDirs(2)
	a.create(dirs[0], "f")
	a.create(dirs[0], "l")
	for _, v := range []struct {
		name   string
		to     place2
		rename func(from, to place2)
	}{
		{"local", dirs[0], func(from, to place2) {
			a.rename(dirs[0], "l", dirs[0], "m", 0)
			a.rename(dirs[0], "m", dirs[0], "l", 0)
		}},
		{"shards", dirs[1], func(from, to place2) {
			a.rename(dirs[0], "f", dirs[1], "f", 0)
			a.rename(dirs[1], "f", dirs[0], "f", 0)
		}},
	} {
		b.Run(v.name, func(b *testing.B) {
			began := time.Now()
			for b.Loop() {
				v.rename(dirs[0], v.to)
			}
			b.ReportMetric(float64(time.Since(began).Microseconds())/float64(2*b.N), "us/rename")
		})
	}
}
