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
	c := newCluster(t, clusterOptions{servers: 3, replicas: 1, data: 2, parity: 1, pgs: 1, power: true, lease: 500 * time.Millisecond})
	var steps atomic.Int64
	steps.Store(math.MaxInt64)
	for _, s := range c.servers {
		s.fs.steps = &steps
	}
	d := c.client(1)
	f := shardFile(100)
	old := randomBytes(1, 64<<10)
	mustWrite(t, d, f, old, 0)
	// The end of one row and the beginning of the next.
	const off, length = 6000, 8000
	seen := map[string]int{}
	for n := int64(0); ; n++ {
		now := bytes.Clone(old)
		copy(now[off:], randomBytes(uint64(n+2), length))
		steps.Store(n)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := d.WriteAt(ctx, f, now[off:off+length], off)
		cancel()
		acknowledged := err == nil
		c.killAll()
		steps.Store(math.MaxInt64)
		away := c.servers[n%3]
		for _, s := range c.servers {
			if s != away {
				s.start()
			}
		}
		got := mustRead(t, d, f, len(old), 0)
		rows := ""
		for row := 0; row < len(old); row += 8192 {
			isNow, isOld := bytes.Equal(got[row:row+8192], now[row:row+8192]), bytes.Equal(got[row:row+8192], old[row:row+8192])
			switch {
			case isOld && isNow:
			case isNow:
				rows += "n"
			case isOld && !acknowledged:
				rows += "o"
			default:
				t.Fatalf("after %d steps, with server %d away: row at %d is neither old nor new (acknowledged: %v)", n, away.id, row, acknowledged)
			}
		}
		seen[rows]++
		old = got
		away.start()
		c.waitMap(d, "all in sync", allInSync)
		c.requireWholeRows(d)
		requireBytes(t, mustRead(t, d, f, len(old), 0), old, "when all are back")
		if acknowledged && n > 3 {
			break
		}
	}
	if seen["nn"] == 0 || seen["oo"] == 0 {
		t.Errorf("what became of the rows: %s; the write is not cut in all places", fmt.Sprint(seen))
	}
}
