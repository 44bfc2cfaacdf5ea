package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/canopyfs/canopy/shard"
)

func openMem(t testing.TB) *Store {
	t.Helper()
	s, err := Open(Options{Dir: "store", Cluster: "c", Node: 1, FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func tkey(i int) []byte { return fmt.Appendf(nil, "\x00\x00\x00\x00\x00\x00\x00\x01key%03d", i) }

func testLo() []byte { return []byte{0, 0, 0, 0, 0, 0, 0, 1} }
func testHi() []byte { return []byte{0, 0, 0, 0, 0, 0, 0, 2} }

func scanAll(t testing.TB, r shard.Reader, lo, hi []byte) string {
	t.Helper()
	var b bytes.Buffer
	err := r.Scan(lo, hi, func(k, v []byte) (bool, error) {
		fmt.Fprintf(&b, "%s=%s\n", k[8:], v)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The overlay answers like Pebble's own indexed batch.
func TestBatchSeesItsOwnWritesLikeAnIndexedBatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := openMem(t)
		for range rapid.IntRange(1, 3).Draw(rt, "batches") {
			b := s.NewBatch()
			ref := s.db.NewIndexedBatch()
			for range rapid.IntRange(0, 40).Draw(rt, "steps") {
				step(rt, t, b, ref)
			}
			if got, want := scanAll(t, b, testLo(), testHi()), scanAll(t, &reader{r: ref}, testLo(), testHi()); got != want {
				rt.Fatalf("before commit:\n%s\nwant\n%s", got, want)
			}
			want := scanAll(t, &reader{r: ref}, testLo(), testHi())
			if _, err := b.Commit(); err != nil {
				rt.Fatal(err)
			}
			if err := errors.Join(b.Close(), ref.Close()); err != nil {
				rt.Fatal(err)
			}
			snap := s.NewSnapshot()
			if got := scanAll(t, snap, testLo(), testHi()); got != want {
				rt.Fatalf("after commit:\n%s\nwant\n%s", got, want)
			}
			if err := snap.Close(); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func step(rt *rapid.T, t *testing.T, b shard.Batch, ref *pebble.Batch) {
	i, j := rapid.IntRange(0, 30).Draw(rt, "i"), rapid.IntRange(0, 30).Draw(rt, "j")
	k := tkey(i)
	switch rapid.SampledFrom([]string{"set", "set", "set", "delete", "range", "get", "scan"}).Draw(rt, "op") {
	case "set":
		v := fmt.Appendf(nil, "v%d", rapid.IntRange(0, 2000).Draw(rt, "v"))
		check(rt, b.Set(k, v), ref.Set(k, v, nil))
	case "delete":
		check(rt, b.Delete(k), ref.Delete(k, nil))
	case "range":
		check(rt, b.DeleteRange(k, tkey(j)))
		if i < j {
			check(rt, ref.DeleteRange(k, tkey(j), nil))
		}
	case "get":
		r := &reader{r: ref}
		want, wantFound, err := r.Get(k)
		get := b.Get
		if rapid.Bool().Draw(rt, "new") {
			get = b.GetNew
		}
		got, found, err2 := get(k)
		check(rt, err, err2)
		if found != wantFound || !bytes.Equal(got, want) {
			rt.Fatalf("get %s: %q %v, want %q %v", k, got, found, want, wantFound)
		}
		check(rt, r.release())
	case "scan":
		if got, want := scanAll(t, b, k, tkey(j)), scanAll(t, &reader{r: ref}, k, tkey(j)); got != want {
			rt.Fatalf("scan %d-%d:\n%s\nwant\n%s", i, j, got, want)
		}
	}
}

func check(t interface{ Fatal(...any) }, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A scan survives that its callback changes the batch.
func TestScanWhileTheBatchChanges(t *testing.T) {
	s := openMem(t)
	b := s.NewBatch()
	defer func() { check(t, b.Close()) }()
	for i := range 10 {
		check(t, b.Set(tkey(i), []byte("v")))
	}
	var seen []string
	check(t, b.Scan(testLo(), testHi(), func(k, _ []byte) (bool, error) {
		seen = append(seen, string(k[8:]))
		check(t, b.Delete(k), b.Set(tkey(100+len(seen)), []byte("new")), b.DeleteRange(tkey(5), tkey(8)))
		return true, nil
	}))
	want := "[key000 key001 key002 key003 key004 key008 key009]"
	if got := fmt.Sprint(seen); got != want {
		t.Fatalf("saw %s, want %s", got, want)
	}
}

// BenchmarkBatch compares the overlay with Pebble's indexed batch, with reads and
// writes as 64 creates in one directory make them.
func BenchmarkBatch(b *testing.B) {
	creates := func(b *testing.B, get func(k []byte) error, set func(k, v []byte) error, seed uint64) {
		value, header := make([]byte, 120), make([]byte, 90)
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 64 {
			dentry := binary.BigEndian.AppendUint64(bytes.Clone(testLo()), rng.Uint64())
			check(b, get(dentry), get([]byte("\x00\x00\x00\x00\x00\x00\x00\x01header")), set(dentry, value),
				set([]byte("\x00\x00\x00\x00\x00\x00\x00\x01header"), header),
				set([]byte("\x00\x00\x00\x00\x00\x00\x00\x01counter"), header[:8]),
				set(binary.BigEndian.AppendUint64(bytes.Clone(testLo()), rng.Uint64()), value[:60]))
		}
	}
	b.Run("overlay", func(b *testing.B) {
		s := openMem(b)
		for n := 0; b.Loop(); n++ {
			w := s.NewBatch()
			creates(b, func(k []byte) error { _, _, err := w.Get(k); return err }, w.Set, uint64(n))
			_, err := w.Commit()
			check(b, err, w.Close())
		}
	})
	b.Run("indexed", func(b *testing.B) {
		s := openMem(b)
		for n := 0; b.Loop(); n++ {
			w := s.db.NewIndexedBatch()
			r := &reader{r: w}
			creates(b, func(k []byte) error { _, _, err := r.Get(k); return err },
				func(k, v []byte) error { return w.Set(k, v, nil) }, uint64(n))
			check(b, r.release(), w.Commit(pebble.NoSync), w.Close())
		}
	})
}

func nolog() *slog.Logger { return slog.New(slog.DiscardHandler) }
