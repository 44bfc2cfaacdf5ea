package chunkstore

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
)

func put(t *testing.T, s *Store, key Key, p []byte) {
	t.Helper()
	if _, err := s.Write(key, Write{Parts: [][]byte{p}, CRC: crc32.Checksum(p, castagnoli)}); err != nil {
		t.Fatal(err)
	}
}

// TestOlderDirectory: a directory of format 1 spreads data ids by a hash, and goes
// on to do so.
func TestOlderDirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, identityName), []byte(`{"format":1,"incarnation":1,"boot":"b","clean":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = open(t, dir, Options{})
		for id := range 20 {
			key := Key{Pool: 1, PG: 2, Data: 1000 + 7777*base.DataID(id)}
			put(t, s, key, []byte("contents"))
			h := uint64(key.Data) * 0x9e3779b97f4a7c15 >> 56
			if _, err := os.Stat(filepath.Join(dir, "pgs", "1.2", fmt.Sprintf("%02x", h), nameOf(key))); err != nil {
				t.Fatal(err)
			}
		}
		infos, err := s.List(1, 2, ListOptions{})
		if err != nil || len(infos) != 20 {
			t.Fatalf("%d columns, %v", len(infos), err)
		}
		if id := s.Identity(); id.Format != 1 {
			t.Errorf("format %d", id.Format)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// dirFS counts and orders the syncs of directories.
type dirFS struct {
	OS
	synced []string
}

func (d *dirFS) SyncDir(name string) error {
	d.synced = append(d.synced, name)
	return d.OS.SyncDir(name)
}

// TestNewDirectoriesAreSyncedOnce: writes sync no directory; the first sync makes
// the column's entry and all directories above durable, from below; the next in
// the same directory costs one.
func TestNewDirectoriesAreSyncedOnce(t *testing.T) {
	dir, fs := t.TempDir(), &dirFS{}
	s := open(t, dir, Options{FS: fs})
	defer s.Close()
	fs.synced = nil
	a, b := Key{Pool: 1, PG: 2, Data: 10}, Key{Pool: 1, PG: 2, Data: 11}
	put(t, s, a, []byte("a"))
	put(t, s, b, []byte("b"))
	if len(fs.synced) != 0 {
		t.Errorf("a write synced %v", fs.synced)
	}
	for _, c := range []struct {
		key  Key
		want []string
	}{
		{a, []string{filepath.Join(dir, "pgs/1.2/00"), filepath.Join(dir, "pgs/1.2"), filepath.Join(dir, "pgs"), dir}},
		{a, nil},
		{b, []string{filepath.Join(dir, "pgs/1.2/00")}},
	} {
		fs.synced = nil
		if err := s.Sync(c.key); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(fs.synced) != fmt.Sprint(c.want) {
			t.Errorf("sync of %v synced %v, want %v", c.key, fs.synced, c.want)
		}
	}
}

// TestRelativeDirectory: a directory may be named as ./name.
func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	s := open(t, "./data", Options{})
	put(t, s, Key{Pool: 1, PG: 2, Data: 7}, []byte("contents"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
