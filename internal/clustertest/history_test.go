package clustertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Settings of TestHistories by the environment: how long, which choices, and where the
// record of the history stays.
const (
	historyForEnv  = "CANOPY_HISTORY_FOR"
	historySeedEnv = "CANOPY_HISTORY_SEED"
	historyDirEnv  = "CANOPY_HISTORY_DIR"
	historyDefault = 30 * time.Second
)

// history is a load whose answers are checked, and who disturbs it.
type history struct {
	*cluster
	load   *process
	record string
	seed   uint64
	rng    *rand.Rand
	until  time.Time

	done map[string]int // what the disturber did
}

func newHistory(t *testing.T, c *cluster, other string) *history {
	t.Helper()
	h := &history{cluster: c, seed: uint64(time.Now().UnixNano()), done: map[string]int{}}
	duration := historyDefault
	if s := os.Getenv(historyForEnv); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv(historySeedEnv); s != "" {
		var err error
		if h.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	dir := os.Getenv(historyDirEnv)
	if dir == "" {
		dir = t.TempDir()
	}
	h.record = filepath.Join(dir, fmt.Sprint("history-", h.seed, ".jsonl"))
	h.rng, h.until = rand.New(rand.NewPCG(h.seed, 0)), time.Now().Add(duration)
	t.Logf("seed %d", h.seed)
	// The bound is far beyond what is needed: who disturbs says when it is enough.
	h.load = start(t, "loadtest", "history", "--cluster", c.address, "--root", "/hist", "--name", "run", "--path", filepath.Join(c.mount, "hist"),
		"--path", filepath.Join(other, "hist"), "--for", "1h", "--seed", fmt.Sprint(h.seed), "--clients", "12", "--pause", "5ms", "--keep", "--record", h.record)
	h.load.waitOutput(t, "seed")
	return h
}

// try runs mdsctl, however it ends: a move may be refused (by another that runs, or since
// the directory is split), and who watches one may lose sight of it.
func (h *history) try(t *testing.T, kill bool, args ...string) {
	t.Helper()
	p := start(t, "mdsctl", append([]string{"--cluster", h.address}, args...)...)
	killed := ""
	if kill {
		eventually(t, "the move runs, or has ended", func() error {
			select {
			case <-p.done:
				return nil
			default:
			}
			if strings.Contains(p.out.String(), "entries") {
				return nil
			}
			return errors.New("not yet")
		})
		shard := 1 + h.rng.Uint64N(3)
		node, pid := h.holderPid(t, shard)
		h.kill(t, node, pid)
		h.done["kill"]++
		killed = fmt.Sprintf(" (node %d, holder of shard %d, killed)", node, shard)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("mdsctl %v does not end; it printed\n%s", args, tail(p.out.String(), 5))
	}
	if p.err == nil {
		h.done[args[0]]++
	}
	t.Logf("mdsctl %s%s: %v, %s", strings.Join(args, " "), killed, p.err, tail(strings.TrimSpace(p.out.String()), 1))
}

// disturb splits, moves back and forth and merges the directories of the load, by one
// plan at first and then at random, and kills holders of shards.
func (h *history) disturb(t *testing.T) {
	t.Helper()
	dir := func(i int) string { return fmt.Sprint("/hist/run/d", i) }
	h.try(t, false, "split", dir(0), "--fragments", "4")
	h.try(t, false, "migrate", dir(1), "--to", "2")
	h.try(t, true, "split", dir(2), "--fragments", "2")
	h.try(t, true, "migrate", dir(1), "--to", "3")
	h.try(t, false, "migrate", dir(1), "--to", "1")
	h.try(t, false, "merge", dir(0))
	for round := 0; time.Now().Before(h.until); round++ {
		d, kill := dir(h.rng.IntN(5)), h.rng.IntN(3) == 0
		to := fmt.Sprint(1 + h.rng.IntN(3))
		switch h.rng.IntN(4) {
		case 0:
			h.try(t, kill, "split", d, "--fragments", fmt.Sprint(2<<h.rng.IntN(2)))
		case 1:
			h.try(t, kill, "merge", d)
		case 2:
			h.try(t, kill, "migrate", d, "--to", to)
		case 3:
			parts := h.fragments(t, d)
			part := parts[h.rng.IntN(len(parts))]
			if part.Subtree == 1 {
				continue // that is all the rest
			}
			h.try(t, kill, "migrate", "--subtree", fmt.Sprint(part.Subtree), "--to", to)
		}
	}
}

// TestHistories: while directories are split, moved back and forth and merged, and holders
// of shards are killed, clients of the library and of two mounts use the same few names,
// registers and logs, and list them. All that they were answered is what a linearizable
// file system can have answered; what was acknowledged is there afterwards, once; fsck
// finds nothing, and the replicas are equal.
func TestHistories(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true, "--nodes", "3", "--replicas", "3", "--shards", "3")
	second := c.secondMount(t)
	for _, d := range []string{"hist", "w"} {
		if err := os.Mkdir(filepath.Join(c.mount, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := newHistory(t, c, second)
	c.writeDuring(t, time.Until(h.until), func() { h.disturb(t) }, "--root", "/w", "--workers", "2")
	h.load.signal(syscall.SIGINT)
	select {
	case <-h.load.done:
	case <-time.After(patience):
		h.load.signal(syscall.SIGQUIT)
		<-h.load.done
		t.Fatal("the load does not end")
	}
	t.Logf("disturbed by %v\n%s", h.done, h.load.out)
	if h.load.err != nil {
		t.Errorf("seed %d: %v", h.seed, h.load.err)
	}
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
	for _, way := range [][]string{{"--cluster", c.address}, {"--path", filepath.Join(second, "hist")}} {
		if out, errOut, code := command(t, "loadtest", append([]string{"check", h.record}, way...)...); code != 0 {
			t.Errorf("the recount by %v: exit %d\n%s%s", way, code, out, errOut)
		}
	}
	c.stop(t)
}
