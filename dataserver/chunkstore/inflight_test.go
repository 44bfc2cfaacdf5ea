package chunkstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestInflightIsReserved: the mapped file has all its blocks, also one that a former
// version made as a hole, and what it tells of ranges being written stays.
func TestInflightIsReserved(t *testing.T) {
	for name, make := range map[string]func(f *os.File) error{
		"fallocate": func(f *os.File) error { return reserve(f, slots*slotBytes) },
		"filled":    func(f *os.File) error { return fill(f, slots*slotBytes) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "inflight")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, slots*slotBytes); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := make(f); err != nil {
				t.Fatal(err)
			}
			if have := blocksOfFile(t, path); have < slots*slotBytes {
				t.Errorf("%d bytes of blocks for %d", have, slots*slotBytes)
			}
		})
	}
	dir := t.TempDir()
	r, _, err := openInflight(dir)
	if err != nil {
		t.Fatal(err)
	}
	r.begin(Key{Pool: 1, PG: 2, Data: 3}, 4, 5)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if have := blocksOfFile(t, filepath.Join(dir, "inflight")); have < slots*slotBytes {
		t.Errorf("a new file: %d bytes of blocks", have)
	}
	r, found, err := openInflight(dir)
	if err != nil || len(found) != 1 || found[0] != (slot{Key{Pool: 1, PG: 2, Data: 3}, 4, 5}) {
		t.Errorf("after the next start: %v, %v", found, err)
	}
	r.close()
}

func blocksOfFile(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
