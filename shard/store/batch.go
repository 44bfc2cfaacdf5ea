package store

import (
	"bytes"
	"errors"
	"hash/maphash"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
)

// batch is a shard.Batch: an overlay in front of the store, written at Commit.
type batch struct {
	store   *Store
	base    reader
	overlay *overlay
}

func (b *batch) Get(key []byte) ([]byte, bool, error) {
	if v, found, known := b.overlay.get(key); known {
		return v, found, nil
	}
	return b.base.Get(key)
}

func (b *batch) GetNew(key []byte) ([]byte, bool, error) {
	if v, found, known := b.overlay.get(key); known {
		return v, found, nil
	}
	return b.base.GetNew(key)
}

func (b *batch) Set(key, value []byte) error {
	b.overlay.put(key, value, false)
	return nil
}

func (b *batch) Delete(key []byte) error {
	b.overlay.put(key, nil, true)
	return nil
}

func (b *batch) DeleteRange(lo, hi []byte) error {
	if bytes.Compare(lo, hi) < 0 {
		b.overlay.deleteRange(lo, hi)
	}
	return nil
}

// Scan merges the store's keys with the overlay's. fn may change the batch; keys
// that it adds are not shown.
func (b *batch) Scan(lo, hi []byte, fn func(key, value []byte) (bool, error)) error {
	own := b.overlay.within(lo, hi)
	stop := false
	// own[0] is shown unless it was deleted meanwhile.
	showOwn := func() error {
		k := own[0]
		own = own[1:]
		c, ok := b.overlay.at(k)
		if !ok || c.deleted {
			return nil
		}
		more, err := fn(unsafe.Slice(unsafe.StringData(k), len(k)), c.value)
		stop = err != nil || !more
		return err
	}
	err := b.base.Scan(lo, hi, func(key, value []byte) (bool, error) {
		for len(own) > 0 && own[0] < string(key) {
			if err := showOwn(); stop {
				return false, err
			}
		}
		if len(own) > 0 && own[0] == string(key) {
			err := showOwn()
			return !stop, err
		}
		if b.overlay.covered(key) {
			return true, nil
		}
		more, err := fn(key, value)
		stop = err != nil || !more
		return !stop, err
	})
	for err == nil && !stop && len(own) > 0 {
		err = showOwn()
	}
	return err
}

// Commit makes the changes visible, and durable with the next flush (A4). The
// batch must not be used any more.
func (b *batch) Commit() (uint64, error) {
	o := b.overlay
	size := 0
	for _, keys := range [][]string{o.sorted, o.fresh} {
		for _, k := range keys {
			c, _ := o.at(k)
			size += len(k) + len(c.value) + 16
		}
	}
	pb := b.store.db.NewBatchWithSize(size + 64)
	for _, r := range o.ranges { // before the keys: put after a DeleteRange wins
		if err := pb.DeleteRange(r.lo, r.hi, nil); err != nil {
			return 0, errors.Join(err, pb.Close())
		}
	}
	for _, keys := range [][]string{o.sorted, o.fresh} {
		for _, k := range keys {
			c, _ := o.at(k)
			putInto(pb, k, c)
		}
	}
	if err := b.apply(pb); err != nil {
		return 0, errors.Join(err, pb.Close())
	}
	b.store.metrics.batchBytes.Add(float64(size))
	return b.store.committed.Add(1), pb.Close()
}

// apply gives the changes to Pebble. The cache of values learns of them before
// they are visible, and after.
func (b *batch) apply(pb *pebble.Batch) error {
	o, values := b.overlay, b.store.values
	change := func() error { return b.store.db.Apply(pb, pebble.NoSync) }
	if values == nil {
		return change()
	}
	if len(o.ranges) > 0 {
		return values.changeAll(change)
	}
	o.hashes = o.hashes[:0]
	for _, keys := range [][]string{o.sorted, o.fresh} {
		for _, k := range keys {
			o.hashes = append(o.hashes, maphash.String(values.seed, k))
		}
	}
	values.begin(o.hashes)
	err := change()
	values.end(o.hashes)
	return err
}

func putInto(pb *pebble.Batch, key string, c change) {
	if c.deleted {
		d := pb.DeleteDeferred(len(key))
		copy(d.Key, key)
		_ = d.Finish() // fails only with an index, which this batch has not
		return
	}
	d := pb.SetDeferred(len(key), len(c.value))
	copy(d.Key, key)
	copy(d.Value, c.value)
	_ = d.Finish()
}

// Close ends the batch.
func (b *batch) Close() error {
	if b.overlay != nil {
		b.overlay.reset()
		b.store.overlays.Put(b.overlay)
		b.overlay = nil
	}
	return b.base.close()
}
