package store

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/canopyfs/canopy/shard/schema"
)

// A4: the applied index and the changes are one batch: no snapshot, whenever it is
// taken, has the one without the others.
func TestA4BatchIsVisibleAtOnce(t *testing.T) {
	s := openMem(t)
	key := func(i uint64) []byte { return binary.BigEndian.AppendUint64(append(testLo(), 'k'), i) }
	const keys, batches = 30, 1500
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				snap := s.NewSnapshot()
				number := func(k []byte) uint64 {
					raw, found, err := snap.Get(k)
					if err != nil || !found {
						return 0
					}
					return binary.BigEndian.Uint64(raw)
				}
				applied := number(schema.AppliedKey(1))
				for _, i := range []uint64{0, keys / 2, keys - 1} {
					if got := number(key(i)); got != applied {
						t.Errorf("key %d is of batch %d in a snapshot with applied index %d", i, got, applied)
						check(t, snap.Close())
						return
					}
				}
				check(t, snap.Close())
			}
		})
	}
	for n := uint64(1); n <= batches; n++ {
		b := s.NewBatch()
		for i := range uint64(keys) {
			check(t, b.Set(key(i), schema.EncodeUint64(n)))
		}
		check(t, b.Set(schema.AppliedKey(1), schema.EncodeUint64(n)))
		_, err := b.Commit()
		check(t, err, b.Close())
	}
	close(done)
	readers.Wait()
}

// A4: an install makes durable what was committed before it, also where nothing
// of the installed range is still in memory, which alone would not make the engine
// flush: what is ingested is durable at once, and the store is a prefix.
func TestA4InstallFlushesWhatCameBefore(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := mustOpen(t, fs)
	check(t, s.Flush(put(t, s, "old", "x")))
	b := s.NewBatch() // another shard's
	check(t, b.Set(append(testHi(), "before"...), []byte("y")))
	_, err := b.Commit()
	check(t, err, b.Close())
	check(t, s.Install(testLo(), testHi(), func(set func(k, v []byte) error) error {
		return set(append(testLo(), "new"...), []byte("z"))
	}))
	again := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	snap := again.NewSnapshot()
	if v, found, err := snap.Get(append(testHi(), "before"...)); err != nil || !found || string(v) != "y" {
		t.Errorf("after a crash what was committed before the install is gone: %q %v %v", v, found, err)
	}
	if got := scanAll(t, snap, testLo(), testHi()); got != "new=z\n" {
		t.Errorf("after a crash the installed range has %q", got)
	}
	check(t, snap.Close(), again.Close(), s.Close())
}

// A5: who waits for a flush that another one runs has what it asked for durable when
// it returns, also if the flush that it met began before its batch was committed.
func TestA5AFlushCoversWhoWaitsForIt(t *testing.T) {
	s := openMem(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				seq := put(t, s, fmt.Sprintf("k%d.%d", g, i), "v")
				if err := s.Flush(seq); err != nil {
					t.Error(err)
					return
				}
				s.flush.mu.Lock()
				flushed := s.flush.flushed
				s.flush.mu.Unlock()
				if flushed < seq {
					t.Errorf("batch %d is said to be durable, and the store is flushed to %d", seq, flushed)
					return
				}
			}
		})
	}
	wg.Wait()
}
