package clientfuse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/await"
)

// TestAWalkDoesNotKeepItsInodes: the kernel is asked to let go of what a walk left,
// and of nothing that is in use.
func TestAWalkDoesNotKeepItsInodes(t *testing.T) {
	const files, limit = 3000, 200
	s := serve(t, 1, fmt.Sprintf("rw,cache_inodes=%d", limit))
	dir := filepath.Join(s.dirs[0], "d")
	must(t, os.Mkdir(dir, 0o755))
	name := func(i int) string { return filepath.Join(dir, strconv.Itoa(i)) }
	numbers := make([]uint64, files)
	for i := range files {
		must(t, os.WriteFile(name(i), []byte(name(i)), 0o644))
		numbers[i] = numberOf(t, name(i))
	}
	open, err := os.OpenFile(name(7), os.O_RDWR, 0)
	must(t, err)
	defer open.Close()
	mapped, err := os.OpenFile(name(8), os.O_RDWR, 0)
	must(t, err)
	data, err := unix.Mmap(int(mapped.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, mapped.Close())
	data[0] = '!'
	for i := range files {
		numberOf(t, name(i))
	}
	await.Until(t, time.Minute, "the kernel has forgotten the walk", func() bool {
		n, err := strconv.Atoi(s.ask(t, "inodes"))
		must(t, err)
		return n <= limit
	})

	must(t, unix.Munmap(data))
	if b, err := os.ReadFile(name(8)); err != nil || b[0] != '!' {
		t.Errorf("what was written through a mapping: %q, %v", b, err)
	}
	if _, err := open.WriteAt([]byte("!"), 0); err != nil {
		t.Error(err)
	}
	st, err := open.Stat()
	must(t, err)
	if got := st.Sys().(*syscall.Stat_t).Ino; got != numbers[7] {
		t.Errorf("number %d through the descriptor, %d before", got, numbers[7])
	}
	for i := range files {
		if got := numberOf(t, name(i)); got != numbers[i] {
			t.Fatalf("%s: number %d, before %d", name(i), got, numbers[i])
		}
	}
}

func numberOf(t *testing.T, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	return st.Ino
}

// TestIdleNodes: what was used since the last time stays for another round.
func TestIdleNodes(t *testing.T) {
	m := newMemFS()
	table := newNodeTable(m.root, 10)
	for i := range 500 {
		n, _ := m.makeLocked(client.Cred{}, m.root, strconv.Itoa(i), unix.S_IFREG|0o644)
		table.add(n)
	}
	select {
	case <-table.over:
	default:
		t.Error("500 nodes of 10 are not too many")
	}
	var all []uint64
	for ids := range table.idle(1000, 64) {
		if len(ids) > 64 {
			t.Errorf("a batch of %d", len(ids))
		}
		all = append(all, ids...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != 500 {
		t.Fatalf("%d of 500 are idle", len(all))
	}
	for _, id := range all[:450] {
		table.get(id)
	}
	found := map[uint64]bool{}
	for ids := range table.idle(50, 64) {
		for _, id := range ids {
			found[id] = true
		}
	}
	for _, id := range all[:450] {
		if found[id] {
			t.Fatalf("node %d was just used", id)
		}
	}
	if len(found) == 0 {
		t.Error("none is idle")
	}
	for _, id := range all {
		table.forget(id, 1)
	}
	if table.len() != 0 {
		t.Errorf("%d are left", table.len())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
