package clustertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fragment is what mdsctl says of a part of a directory.
type fragment struct{ Subtree, Shard, Entries uint64 }

func (c *cluster) fragments(t *testing.T, path string) []fragment {
	t.Helper()
	var r struct{ Fragments []fragment }
	if err := json.Unmarshal([]byte(c.mdsctl(t, "fragments", path, "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	return r.Fragments
}

// TestSplitWhileUsed: a directory, and "/", are split, their fragments moved, and merged,
// while programs on two mounts use it. No program sees an error, a name twice or not at
// all, or one without those that were made before it; afterwards all that was
// acknowledged is there, and stat is exact.
func TestSplitWhileUsed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "--shards", "3")
	second := c.secondMount(t)
	hot := filepath.Join(c.mount, "hot")
	if err := os.Mkdir(hot, 0o755); err != nil {
		t.Fatal(err)
	}
	u := startCrowd(t, hot, filepath.Join(second, "hot"))
	step := func(args ...string) {
		t.Helper()
		begun := time.Now()
		out := c.mdsctl(t, args...)
		t.Logf("%s: %v\n%s", strings.Join(args, " "), time.Since(begun).Round(time.Millisecond), tail(strings.TrimSpace(out), 4))
	}
	step("split", "/hot", "--fragments", "4")
	step("split", "/", "--fragments", "2", "--to", "2")
	moved := c.fragments(t, "/hot")[3]
	step("migrate", "--subtree", fmt.Sprint(moved.Subtree), "--to", fmt.Sprint(moved.Shard%3+1))
	step("split", "/hot", "--fragments", "16")
	step("merge", "/hot")
	step("split", "/hot", "--fragments", "8")
	step("merge", "/")
	u.end()
	if n := len(c.fragments(t, "/hot")); n != 8 {
		t.Errorf("%d fragments", n)
	}
	u.exactly()
	step("fsck")
	for _, args := range [][]string{{"split", "/hot", "--fragments", "4"}, {"migrate", "/hot", "--to", "2"}, {"split", "/hot/log", "--fragments", "2"}} {
		if _, errOut, code := command(t, "mdsctl", append([]string{"--cluster", c.address}, args...)...); code != 1 || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit %d, %s", strings.Join(args, " "), code, errOut)
		}
	}
	if err := os.Remove(hot); err == nil {
		t.Error("a directory with names in its fragments was removed")
	}
	if err := os.RemoveAll(hot); err != nil {
		t.Error(err)
	}
	step("fsck")
	c.stop(t)
}

// splitTo splits or merges a directory, however often it has to be asked: who does it
// may lose sight of a holder.
func (c *cluster) splitTo(t *testing.T, args ...string) {
	t.Helper()
	eventually(t, strings.Join(args, " "), func() error {
		out, errOut, code := command(t, "mdsctl", append([]string{"--cluster", c.address}, args...)...)
		if code == 0 {
			t.Logf("%s", tail(strings.TrimSpace(out), 2))
			return nil
		}
		return errors.New(tail(strings.TrimSpace(out), 1) + errOut)
	})
}

// TestSplitUnderKills: the same while the holders of the shards that give and take are
// killed.
func TestSplitUnderKills(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "--nodes", "3", "--replicas", "3", "--shards", "3")
	second := c.secondMount(t)
	hot := filepath.Join(c.mount, "hot")
	if err := os.MkdirAll(filepath.Join(c.mount, "w"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(hot, 0o755); err != nil {
		t.Fatal(err)
	}
	u := startCrowd(t, hot, filepath.Join(second, "hot"))
	c.writeDuring(t, 25*time.Second, func() {
		for i, args := range [][]string{{"split", "/hot", "--fragments", "8"}, {"split", "/", "--fragments", "4"}, {"merge", "/hot"}, {"merge", "/"}} {
			watcher := start(t, "mdsctl", append([]string{"--cluster", c.address}, args...)...)
			watcher.waitOutput(t, "entries")
			node, pid := c.holderPid(t, uint64(1+i%3))
			c.kill(t, node, pid)
			<-watcher.done // however it ends
			c.splitTo(t, args...)
		}
	}, "--root", "/w")
	u.end()
	for _, shard := range []string{"1", "2", "3"} {
		eventually(t, "the replicas of shard "+shard+" are equal", func() error {
			out, errOut, code := command(t, "mdsctl", "--cluster", c.address, "checksum", shard)
			if code != 0 {
				return errors.New(out + errOut)
			}
			return nil
		})
	}
	c.mdsctl(t, "fsck")
	c.stop(t)
}
