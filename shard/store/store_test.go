package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

func openAt(t testing.TB, fs vfs.FS, change func(*Options)) (*Store, error) {
	t.Helper()
	o := Options{Dir: "store", Cluster: "c1", Node: 1, FS: fs, MemTableBytes: 1 << 20}
	if change != nil {
		change(&o)
	}
	return Open(o)
}

func mustOpen(t testing.TB, fs vfs.FS) *Store {
	t.Helper()
	s, err := openAt(t, fs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, s *Store, pairs ...string) uint64 {
	t.Helper()
	b := s.NewBatch()
	for i := 0; i < len(pairs); i += 2 {
		check(t, b.Set(append(testLo(), pairs[i]...), []byte(pairs[i+1])))
	}
	seq, err := b.Commit()
	check(t, err, b.Close())
	return seq
}

func contents(t testing.TB, s *Store) string {
	t.Helper()
	snap := s.NewSnapshot()
	defer func() { check(t, snap.Close()) }()
	return scanAll(t, snap, testLo(), testHi())
}

func TestIdentity(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs)
	if s.Incarnation() != 1 {
		t.Fatalf("incarnation %d of a new store", s.Incarnation())
	}
	check(t, s.Close())
	for what, tc := range map[string]struct {
		change func(*Options)
		kind   fserr.Kind
	}{
		"another cluster": {func(o *Options) { o.Cluster = "c2" }, fserr.WrongCluster},
		"another node":    {func(o *Options) { o.Node = 2 }, fserr.WrongCluster},
		"no cluster":      {func(o *Options) { o.Cluster = "" }, fserr.Invalid},
	} {
		if _, err := openAt(t, fs, tc.change); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v, want %v", what, err, tc.kind)
		}
	}
	s = mustOpen(t, fs)
	check(t, s.db.Set(schema.NodeFormatKey(), schema.EncodeUint64(FormatVersion+1), pebble.NoSync), s.Close())
	if _, err := openAt(t, fs, nil); !errors.Is(err, fserr.NotSupported) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer format: %v", err)
	}
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	db, err := pebble.Open("store", &pebble.Options{FS: fs, Logger: pebbleLog{nolog(), nil}})
	check(t, err)
	check(t, db.Set([]byte("somebody's key"), nil, pebble.NoSync), db.Close())
	if _, err := openAt(t, fs, nil); !errors.Is(err, fserr.NotSupported) {
		t.Fatalf("opened: %v", err)
	}
}

// A6: the incarnation grows with each start, over a crash too.
func TestA6IncarnationIsDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	for want := uint64(1); want < 5; want++ {
		s := mustOpen(t, fs)
		if s.Incarnation() != want {
			t.Fatalf("incarnation %d, want %d", s.Incarnation(), want)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		check(t, s.Close())
		fs = crashed
	}
}

// A4: after a crash at any moment the store is a prefix of what was committed:
// the applied index agrees with the changes, and what was flushed is there.
func TestA4CrashLeavesAPrefix(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 4))
		fs := vfs.NewCrashableMem()
		s := mustOpen(t, fs)
		flushed := uint64(0)
		for i := uint64(1); i <= 60; i++ {
			seq := commitIndexed(t, s, i, rng.IntN(40<<10))
			if rng.IntN(8) == 0 {
				check(t, s.Flush(seq))
				flushed = i
			}
			if rng.IntN(6) == 0 {
				wantPrefix(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}), flushed, i, seed)
			}
		}
		check(t, s.Close())
	}
}

// commitIndexed commits change i: one key of its own, one that all changes
// rewrite, and the applied index.
func commitIndexed(t *testing.T, s *Store, i uint64, size int) uint64 {
	t.Helper()
	b := s.NewBatch()
	value := binary.BigEndian.AppendUint64(make([]byte, 0, size+8), i)
	value = value[:size+8]
	check(t,
		b.Set(binary.BigEndian.AppendUint64(append(testLo(), 'k'), i), value),
		b.Set(append(testLo(), 'l'), value),
		b.Set(schema.AppliedKey(1), schema.EncodeUint64(i)))
	seq, err := b.Commit()
	check(t, err, b.Close())
	return seq
}

func wantPrefix(t *testing.T, fs vfs.FS, atLeast, atMost, seed uint64) {
	t.Helper()
	s := mustOpen(t, fs)
	defer func() { check(t, s.Close()) }()
	r := &reader{r: s.db}
	defer func() { check(t, r.release()) }()
	applied := uint64(0)
	if raw, found, err := r.Get(schema.AppliedKey(1)); err != nil {
		t.Fatal(err)
	} else if found {
		applied, err = schema.DecodeUint64(raw)
		check(t, err)
	}
	if applied < atLeast || applied > atMost {
		t.Fatalf("seed %d: applied index %d after a crash, want %d to %d", seed, applied, atLeast, atMost)
	}
	n := uint64(0)
	check(t, r.Scan(append(testLo(), 'k'), append(testLo(), 'l'), func(k, v []byte) (bool, error) {
		if n++; binary.BigEndian.Uint64(v) != n {
			return false, fmt.Errorf("change %d is missing", n)
		}
		return true, nil
	}))
	if n != applied {
		t.Fatalf("seed %d: %d changes with applied index %d", seed, n, applied)
	}
	if raw, found, err := r.Get(append(testLo(), 'l')); err != nil || found != (applied > 0) || (found && binary.BigEndian.Uint64(raw) != applied) {
		t.Fatalf("seed %d: the rewritten key: %v %v", seed, found, err)
	}
}

// A4: an install replaces the range as a whole, over a crash at any moment, and
// what was committed before is not lost by it.
func TestA4InstallIsAtomic(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 5))
		fs := vfs.NewCrashableMem()
		s := mustOpen(t, fs)
		for i := range 30 {
			put(t, s, fmt.Sprintf("old%02d", i), "x")
		}
		b := s.NewBatch() // another shard, committed before and not flushed
		check(t, b.Set(append(testHi(), "other"...), []byte("y")))
		_, err := b.Commit()
		check(t, err, b.Close())
		old := contents(t, s)
		var clones []vfs.FS
		var mu sync.Mutex
		fill := func(set func(k, v []byte) error) error {
			for i := range 2000 {
				if i%500 == 0 {
					mu.Lock()
					clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}))
					mu.Unlock()
				}
				if err := set(append(testLo(), fmt.Sprintf("new%05d", i)...), make([]byte, 100)); err != nil {
					return err
				}
			}
			return nil
		}
		check(t, s.Install(testLo(), testHi(), fill))
		installed := contents(t, s)
		if strings.Contains(installed, "old") || strings.Count(installed, "new") != 2000 {
			t.Fatal("the range was not replaced")
		}
		for _, c := range clones {
			again := mustOpen(t, c)
			if got := contents(t, again); got != old && got != "" {
				t.Fatalf("seed %d: a crash before the install left %q", seed, got)
			}
			check(t, again.Close())
		}
		again := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
		if got := contents(t, again); got != installed {
			t.Fatalf("seed %d: an install is not durable", seed)
		}
		if v, found, err := again.NewSnapshot().(*snapshot).Get(append(testHi(), "other"...)); err != nil || !found || string(v) != "y" {
			t.Fatalf("seed %d: what was committed before the install is gone: %v %v", seed, found, err)
		}
		_ = again.db // left open: its snapshot above is too
		check(t, s.Close())
	}
}

func TestInstallThatFailsChangesNothing(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs)
	put(t, s, "a", "1")
	boom := errors.New("boom")
	err := s.Install(testLo(), testHi(), func(set func(k, v []byte) error) error {
		return errors.Join(set(append(testLo(), 'b'), nil), boom)
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if got := contents(t, s); got != "a=1\n" {
		t.Fatalf("%q", got)
	}
	check(t, s.Install(testLo(), testHi(), func(func(k, v []byte) error) error { return nil }))
	if got := contents(t, s); got != "" {
		t.Fatalf("an empty install left %q", got)
	}
	names, err := fs.List("store")
	check(t, err)
	for _, n := range names {
		if strings.HasPrefix(n, installPrefix) {
			t.Errorf("%s was left behind", n)
		}
	}
	check(t, s.Close())
}

// A5: a flush serves everything committed before it, and a batch that is durable
// already flushes nothing.
func TestA5OneFlushServesAll(t *testing.T) {
	s := openMem(t)
	first := put(t, s, "a", "1")
	last := put(t, s, "b", "2")
	check(t, s.Flush(last))
	count := s.db.Metrics().Flush.Count
	check(t, s.Flush(first), s.Flush(last))
	if got := s.db.Metrics().Flush.Count; got != count {
		t.Fatalf("%d flushes for what was durable", got-count)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if err := s.Flush(put(t, s, fmt.Sprintf("k%d", i), "v")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.flush.flushed; n < s.committed.Load() {
		t.Fatalf("flushed to %d of %d", n, s.committed.Load())
	}
}

func TestChecksumSkipsTheAppliedIndex(t *testing.T) {
	sum := func(s *Store) [32]byte {
		snap := s.NewSnapshot()
		defer func() { check(t, snap.Close()) }()
		h, keys, _, err := s.Checksum(context.Background(), snap, testLo(), testHi())
		check(t, err)
		if keys != 2 {
			t.Fatalf("%d keys", keys)
		}
		return h
	}
	a, b := openMem(t), openMem(t)
	put(t, a, "a", "1", "b", "2")
	put(t, b, "a", "1")
	put(t, b, "b", "2")
	for i, s := range []*Store{a, b} {
		w := s.NewBatch()
		check(t, w.Set(schema.AppliedKey(1), schema.EncodeUint64(uint64(i))))
		_, err := w.Commit()
		check(t, err, w.Close())
	}
	if sum(a) != sum(b) {
		t.Fatal("equal keys, different sums")
	}
	put(t, b, "b", "3")
	if sum(a) == sum(b) {
		t.Fatal("different values, equal sums")
	}
}

func TestWipe(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, fs)
	put(t, s, "a", "1")
	check(t, s.Wipe(testLo(), testHi()))
	again := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	if got := contents(t, again); got != "" {
		t.Fatalf("after a crash %q is back", got)
	}
	check(t, again.Close(), s.Close())
}
