package mds_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// TestRenamesSurviveKills: two clients rename files and directories back and forth
// over shards while nodes are killed: each gets an answer that is none of the
// protocol's, nothing is lost or there twice, and no lock stays (PROTOCOLS D1).
func TestRenamesSurviveKills(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 3}, nil)
	setup := c.asker(0xa1)
	dirs := setup.spreadDirs(3)
	const each = 4
	type item struct {
		name string
		ino  uint64
		at   int
	}
	items := make([][]*item, 2)
	for who := range items {
		for i := range each {
			x := &item{name: fmt.Sprintf("w%d-%d", who, i)}
			if i == 0 {
				x.ino = setup.mkdir(dirs[0], x.name).ino
			} else {
				x.ino = setup.create(dirs[0], x.name)
			}
			items[who] = append(items[who], x)
		}
	}
	var nodes sync.RWMutex // shared while an operation is sent: the harness's list changes with each kill
	var stop atomic.Bool
	var moves atomic.Int64
	var all sync.WaitGroup
	for who := range items {
		a := c.asker(base.ClientID(0xb1 + who))
		all.Go(func() {
			for round := 0; !stop.Load(); round++ {
				x := items[who][round%each]
				to := (x.at + 1 + round%2) % len(dirs)
				op := a.write(&canopyv1.Op{Subtree: dirs[x.at].subtree, Cred: root, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
					SrcDir: dirs[x.at].ino, SrcName: []byte(x.name), DstDir: dirs[to].ino, DstName: []byte(x.name), DstSubtree: dirs[to].subtree}}})
				r := a.through(&nodes, dirs[x.at], op)
				if r.Error != 0 || r.Attr.GetIno() != x.ino {
					t.Errorf("%s from %d to %d: %v %v", x.name, x.at, to, fserr.Kind(r.Error), r)
					return
				}
				x.at = to
				moves.Add(1)
			}
		})
	}
	for i := range 6 {
		before := moves.Load()
		eventually(t, "renames go on", func() bool { return moves.Load() >= before+6 })
		nodes.Lock()
		c.kill(i % 3)
		nodes.Unlock()
		before = moves.Load()
		eventually(t, "renames go on with a node less", func() bool { return moves.Load() >= before+3 })
		nodes.Lock()
		c.start(i % 3)
		nodes.Unlock()
	}
	stop.Store(true)
	all.Wait()
	t.Logf("%d renames", moves.Load())
	for _, list := range items {
		for _, x := range list {
			for i, d := range dirs {
				want := uint64(0)
				if i == x.at {
					want = x.ino
				}
				setup.is(d, x.name, want)
			}
		}
	}
}

// through is run for a client that others' kills disturb.
func (a *asker) through(nodes *sync.RWMutex, d place2, op *canopyv1.Op) *canopyv1.Result {
	for {
		if !a.open[d.shard] {
			open := a.write(&canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Host: "test", Mount: "/mnt"}}})
			if r := a.round(nodes, d.shard, open); r == nil || r.Error != 0 {
				continue
			}
			a.open[d.shard] = true
		}
		r := a.round(nodes, d.shard, op)
		if r == nil || fserr.Kind(r.Error).IsProtocol() {
			continue
		}
		return r
	}
}

// round asks each node once; nil: none answered.
func (a *asker) round(nodes *sync.RWMutex, shard uint64, op *canopyv1.Op) (out *canopyv1.Result) {
	for i := range 3 {
		nodes.RLock()
		n := a.c.nodes[i]
		if n == nil {
			nodes.RUnlock()
			continue
		}
		answer := a.send(n, base.ShardID(shard), op)[0]
		nodes.RUnlock()
		r, ok := <-answer
		if !ok {
			a.mu.Lock()
			delete(a.pipes, n)
			a.mu.Unlock()
			continue
		}
		switch fserr.Kind(r.Error) {
		case fserr.NotHolder, fserr.NotReady, fserr.Busy, fserr.TimedOut, fserr.UnknownShard:
			continue
		}
		return r
	}
	return nil
}
