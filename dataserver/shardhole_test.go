package dataserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
)

// killAll ends all servers at once: none hears of the end of another. The directories
// are then what they were before: what an ending server still does is not of a kill.
func (c *testCluster) killAll() {
	c.t.Helper()
	for _, s := range c.servers {
		s.server.cancel()
		if err := os.CopyFS(s.dir()+".killed", os.DirFS(s.dir())); err != nil {
			c.t.Fatal(err)
		}
	}
	defer func() {
		for _, s := range c.servers {
			if err := errors.Join(os.RemoveAll(s.dir()), os.Rename(s.dir()+".killed", s.dir())); err != nil {
				c.t.Fatal(err)
			}
		}
	}()
	var wg sync.WaitGroup
	for _, s := range c.servers {
		wg.Go(func() { s.kill(false) })
	}
	wg.Wait()
}

// TestWriteHole: all servers stop after each number of changes of files amid a write,
// and one of them is then away. The rows are what they were or what was written, also
// the blocks that are made from the others, and what lies beside the write is what it
// was: no row has blocks of two versions (PROTOCOLS J3). When the one that was away comes
// back it is put right.
func TestWriteHole(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{} // what became of the rows: n new, o old
	t.Run("away", func(t *testing.T) {
		for away := range 3 {
			t.Run(fmt.Sprint(away), func(t *testing.T) {
				t.Parallel() // most of it is waiting
				h := newWriteHole(t, away)
				for n := int64(away); ; n += 3 {
					rows, acknowledged := h.stopAfter(n)
					mu.Lock()
					seen[rows]++
					mu.Unlock()
					if acknowledged && n > 3 {
						return
					}
				}
			})
		}
	})
	if seen["nn"] == 0 || seen["oo"] == 0 {
		t.Errorf("what became of the rows: %v; the write is not cut in all places", seen)
	}
}

// writeHole is a cluster whose servers stop after a number of steps.
type writeHole struct {
	t     *testing.T
	c     *testCluster
	d     *data.Data
	f     data.File
	away  *testServer
	steps atomic.Int64
	old   []byte
}

func newWriteHole(t *testing.T, away int) *writeHole {
	h := &writeHole{t: t, f: shardFile(100), old: randomBytes(1, 64<<10)}
	h.steps.Store(math.MaxInt64)
	h.c = newCluster(t, clusterOptions{servers: 3, replicas: 1, data: 2, parity: 1, pgs: 1, power: true, lease: 500 * time.Millisecond})
	for _, s := range h.c.servers {
		s.fs.steps = &h.steps
	}
	h.away = h.c.servers[away]
	h.d = h.c.client(1)
	mustWrite(t, h.d, h.f, h.old, 0)
	return h
}

// stopAfter writes, stops all after n steps, and looks at what there is.
func (h *writeHole) stopAfter(n int64) (rows string, acknowledged bool) {
	// The end of one row and the beginning of the next.
	const off, length, rowBytes = 6000, 8000, 8192
	t, c := h.t, h.c
	now := bytes.Clone(h.old)
	copy(now[off:], randomBytes(uint64(n+2), length))
	h.steps.Store(n)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	_, err := h.d.WriteAt(ctx, h.f, now[off:off+length], off)
	cancel()
	acknowledged = err == nil
	c.killAll()
	h.steps.Store(math.MaxInt64)
	c.endLease(h.away)
	for _, s := range c.servers {
		if s != h.away {
			s.start()
		}
	}
	got := mustRead(t, h.d, h.f, len(h.old), 0)
	for row := 0; row < len(h.old); row += rowBytes {
		isNow, isOld := bytes.Equal(got[row:row+rowBytes], now[row:row+rowBytes]), bytes.Equal(got[row:row+rowBytes], h.old[row:row+rowBytes])
		switch {
		case isOld && isNow:
		case isNow:
			rows += "n"
		case isOld && !acknowledged:
			rows += "o"
		default:
			t.Fatalf("after %d steps, with server %d away: row at %d is neither old nor new (acknowledged: %v)", n, h.away.id, row, acknowledged)
		}
	}
	h.old = got
	h.away.start()
	c.waitMap(h.d, "all in sync", allInSync)
	c.requireWholeRows(h.d)
	requireBytes(t, mustRead(t, h.d, h.f, len(got), 0), got, "when all are back")
	return rows, acknowledged
}

// endLease ends the lease of a server that was killed, so that nobody waits for it.
func (c *testCluster) endLease(s *testServer) {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+c.layAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	answer, err := canopyv1.NewLayoutServiceClient(conn).HeartbeatServer(testContext(c.t), &canopyv1.HeartbeatServerRequest{
		Server: s.id, Incarnation: s.server.store.Identity().Incarnation, Leaving: true,
	})
	if err != nil || answer.Error != 0 {
		c.t.Fatalf("the end of a lease: %v, %v", answer, err)
	}
}
