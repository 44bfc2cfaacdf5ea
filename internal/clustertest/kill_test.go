package clustertest

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// writeDuring runs the writer that journals what was acknowledged while disturb
// works, and compares the journal with the namespace afterwards. args are further
// ones of the writer.
func (c *cluster) writeDuring(t *testing.T, duration time.Duration, disturb func(), args ...string) {
	t.Helper()
	journal := filepath.Join(t.TempDir(), "journal")
	writer := start(t, "loadtest", append([]string{"meta", "--cluster", c.address, "--durable-check", "--journal", journal,
		"--for", duration.String(), "--op-timeout", "60s", "--workers", "16", "--quiet", "--with-floor=no"}, args...)...)
	writer.waitOutput(t, "ops/s")
	disturb()
	select {
	case <-writer.done:
	case <-time.After(duration + patience):
		t.Fatal("the writer does not end")
	}
	if writer.err != nil {
		t.Fatalf("the writer: %v", writer.err)
	}
	t.Logf("%s", tail(writer.out.String(), 12))
	out := must(t, "loadtest", "verify", "--cluster", c.address, "--journal", journal, "--quiet")
	t.Logf("%s", out)
}

// kill kills a node's process and waits until it was started again.
func (c *cluster) kill(t *testing.T, node uint64, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the killed node is back", func() error {
		for _, n := range c.placement(t).Nodes {
			if n.Node == node && int(n.Pid) != pid && n.Alive {
				return nil
			}
		}
		return fmt.Errorf("node %d is not back", node)
	})
}

// TestKillNodes: kill -9 of the holder, then of any other node, while a program
// writes. No acknowledged operation is lost and none is done twice; the killed
// nodes catch up, and all replicas are equal.
func TestKillNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false, "--nodes", "3", "--replicas", "3", "--shards", "2")
	c.writeDuring(t, 20*time.Second, func() {
		for range 2 {
			node, pid := c.holderPid(t, 1)
			c.kill(t, node, pid)
		}
		holder, _ := c.holderPid(t, 1)
		for _, n := range c.placement(t).Nodes {
			if n.Node != holder {
				c.kill(t, n.Node, int(n.Pid))
				break
			}
		}
	})
	for _, shard := range []string{"1", "2"} {
		eventually(t, "the replicas of shard "+shard+" are equal", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "checksum", shard)
			if code != 0 {
				return errors.New(out + errOut)
			}
			return nil
		})
	}
	c.mdsctl(t, "fsck")
	c.mdsctl(t, "status")
	c.stop(t)
}

// TestDrainNode: a drained node hands its leases on; nobody gets an error.
func TestDrainNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false, "--nodes", "3", "--replicas", "3")
	c.writeDuring(t, 8*time.Second, func() {
		node, _ := c.holderPid(t, 1)
		c.mdsctl(t, "node", "drain", "--leases-only", fmt.Sprint(node))
		eventually(t, "another node holds the shard", func() error {
			if now, _ := c.holderPid(t, 1); now == node {
				return errors.New("still the same")
			}
			return nil
		})
	})
	c.stop(t)
}
