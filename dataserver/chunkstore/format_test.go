package chunkstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/internal/fserr"
)

func FuzzHeader(f *testing.F) {
	h := header{key: Key{1, 2, 3, 4, 5}, sizeEpoch: 6, cut: noCut}
	b := make([]byte, headerBytes)
	h.encode(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		again := make([]byte, headerBytes)
		h.encode(again)
		back, err := decodeHeader(again)
		if err != nil || back != h {
			t.Fatalf("%+v, %v; was %+v", back, err, h)
		}
	})
}

func FuzzIdentity(f *testing.F) {
	f.Add([]byte(`{"format":1,"cluster":"c","server":3,"incarnation":4,"boot":"b","clean":true}`))
	f.Add([]byte(`{"format":9}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := decodeIdentity(b)
		if err == nil && (id.Format < 1 || id.Format > Format || id.Incarnation == 0) {
			t.Fatalf("accepted %+v", id)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("more than one line: %q", err)
		}
	})
}

func FuzzTombstone(f *testing.F) {
	f.Add(encodeTombstone(group{1, 2}, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, id, at, ok := decodeTombstone(b)
		if ok && !bytes.Equal(encodeTombstone(g, id, at), b[:tombstoneBytes]) {
			t.Fatalf("%v %v %v does not encode to what it was", g, id, at)
		}
	})
}

func FuzzSlot(f *testing.F) {
	f.Add(make([]byte, slotBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= slotBytes {
			decodeSlot(b)
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add("64.0.1")
	f.Fuzz(func(t *testing.T, name string) {
		if key, ok := parseName(name); ok && nameOf(key) != name {
			t.Fatalf("%q parses to %v, which is %q", name, key, nameOf(key))
		}
	})
}

// TestGoldenHeader holds the format of version 1.
func TestGoldenHeader(t *testing.T) {
	h := header{key: Key{Pool: 1, PG: 2, Data: 0x1122334455667788, Component: 3, Column: 4}, sizeEpoch: 9, cut: noCut}
	b := make([]byte, headerBytes)
	h.encode(b)
	name := filepath.Join("testdata", "header.golden")
	want, err := os.ReadFile(name)
	if os.Getenv("CANOPY_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil || !bytes.Equal(b, want) {
		t.Fatalf("the header's bytes changed (%v): a new format version is needed", err)
	}
}

// TestRefusedDirectories: of another cluster, of a newer format, in use, or
// damaged: one line each, and nothing is changed.
func TestRefusedDirectories(t *testing.T) {
	make1 := func() string {
		dir := t.TempDir()
		s := open(t, dir, Options{})
		if err := s.Join("mine", 3); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	write := func(dir, contents string) {
		if err := os.WriteFile(filepath.Join(dir, identityName), []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what, dir, want string, o Options) {
		t.Helper()
		before, _ := os.ReadFile(filepath.Join(dir, identityName))
		s, err := Open(dir, o)
		if err == nil {
			s.Close()
			t.Fatalf("%s: opened", what)
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q", what, err)
		}
		if after, _ := os.ReadFile(filepath.Join(dir, identityName)); !bytes.Equal(before, after) {
			t.Errorf("%s: the directory was changed", what)
		}
	}
	refused("another cluster", make1(), "belongs to cluster mine", Options{Cluster: "other"})
	newer := make1()
	write(newer, `{"format":3,"something":"new"}`)
	refused("newer format", newer, "use a newer program", Options{})
	damaged := make1()
	write(damaged, `{"format":1`)
	refused("damaged", damaged, "damaged", Options{})
	lost := make1()
	if err := errors.Join(os.Remove(filepath.Join(lost, identityName)), os.Mkdir(filepath.Join(lost, "pgs"), 0o700)); err != nil {
		t.Fatal(err)
	}
	refused("no identity", lost, "damaged", Options{})
	used := make1()
	s := open(t, used, Options{})
	refused("in use", used, "in use", Options{})
	if err := s.Join("other", 3); !errors.Is(err, fserr.WrongCluster) {
		t.Errorf("joined another cluster: %v", err)
	}
	if id := s.Identity(); id.Incarnation != 2 || id.Cluster != "mine" || id.Server != 3 {
		t.Errorf("identity: %+v", id)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTombstones: they outlive restarts and a torn record, and go after their
// time.
func TestTombstones(t *testing.T) {
	dir := t.TempDir()
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time { return now }
	s := open(t, dir, Options{Now: clock})
	key := Key{1, 2, 3, 0, 0}
	if _, err := s.Write(key, write1([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dirOf(key), nameOf(key))); !os.IsNotExist(err) {
		t.Fatalf("the column's file: %v", err)
	}
	abandon(t, s)
	f, err := os.OpenFile(filepath.Join(dir, tombstoneName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(encodeTombstone(group{1, 2}, 9, 1)[:20]); err != nil {
		t.Fatal(err)
	}
	f.Close()
	now = now.Add(23 * time.Hour)
	s = open(t, dir, Options{Now: clock})
	if _, err := s.Write(key, write1([]byte("x"))); !errors.Is(err, fserr.Stale) {
		t.Fatalf("write after the deletion: %v", err)
	}
	if infos, err := s.List(1, 2, ListOptions{}); err != nil || len(infos) != 1 || !infos[0].Tombstone {
		t.Fatalf("list: %v, %v", infos, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	s = open(t, dir, Options{Now: clock})
	defer s.Close()
	if s.Deleted(key) {
		t.Error("the tombstone outlives its time")
	}
}

func write1(p []byte) Write { return write(0, p, 0) }

// TestFullDisk: nothing is written, and what was there stays.
func TestFullDisk(t *testing.T) {
	s := open(t, t.TempDir(), Options{ReserveBytes: 1 << 62})
	defer s.Close()
	if _, err := s.Write(Key{1, 2, 3, 0, 0}, write1([]byte("x"))); !errors.Is(err, fserr.NoSpace) {
		t.Fatalf("write on a full disk: %v", err)
	}
}

// TestFailedSync: it is reported, again and again, until the column is gone.
func TestFailedSync(t *testing.T) {
	fs := newUnsafeFS()
	s := open(t, t.TempDir(), Options{FS: fs})
	key := Key{1, 2, 3, 0, 0}
	if _, err := s.Write(key, write1([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	fs.fail = func(op string) error {
		if op == "sync" {
			return errors.New("the disk is on fire")
		}
		return nil
	}
	if err := s.Sync(key); !errors.Is(err, fserr.IO) {
		t.Fatalf("failed sync: %v", err)
	}
	fs.fail = nil
	if err := s.Sync(key); !errors.Is(err, fserr.IO) {
		t.Fatalf("a sync after a failed one proves nothing: %v", err)
	}
	if err := s.Drop(key); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(key); err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// TestLostUnsynced: the crash of the machine is known until it is recorded, over
// further ends of the process; the end of the process alone is no loss.
func TestLostUnsynced(t *testing.T) {
	dir := t.TempDir()
	next := func(boot string, end func(*Store)) bool {
		t.Helper()
		s := open(t, dir, Options{Boot: boot})
		defer end(s)
		return s.LostUnsynced()
	}
	kill := func(s *Store) { abandon(t, s) }
	stop := func(s *Store) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	record := func(s *Store) {
		if err := s.LossRecorded(); err != nil {
			t.Fatal(err)
		}
		if s.LostUnsynced() {
			t.Error("still lost after it was recorded")
		}
		kill(s)
	}
	next("a", kill)
	if next("b", kill) {
		t.Error("a directory that belongs to no cluster lost something")
	}
	next("b", func(s *Store) {
		if err := s.Join("c1", 7); err != nil {
			t.Fatal(err)
		}
		kill(s)
	})
	for i, c := range []struct {
		boot string
		end  func(*Store)
		want bool
	}{
		{"b", kill, false},  // kill -9
		{"c", kill, true},   // reboot
		{"c", kill, true},   // not recorded: kill -9 again
		{"c", stop, true},   // nor does a clean end hide it
		{"c", record, true}, // now it is known
		{"c", kill, false},
		{"c", stop, false},
		{"d", kill, false}, // a reboot after a clean end
	} {
		if got := next(c.boot, c.end); got != c.want {
			t.Errorf("step %d: lost %v, want %v", i, got, c.want)
		}
	}
}
