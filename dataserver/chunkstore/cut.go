package chunkstore

import (
	"errors"
	"hash/crc32"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Cut makes the column know a size epoch and the cuts that lead to it, durably.
// A column that does not exist is made: it must refuse writes of older epochs. A
// repetition, and a cut that comes late, change nothing (PROTOCOLS J1).
func (s *Store) Cut(key Key, sizeEpoch uint64, cuts []*canopyv1.Cut) error {
	if s.deleted.has(key) {
		return nil
	}
	c, err := s.acquire(key, true, sizeEpoch)
	if err != nil {
		return err
	}
	defer s.unref(c)
	if err := s.cut(c, sizeEpoch, cuts); err != nil {
		return err
	}
	return s.syncColumn(c)
}

// Shape makes the column's size epoch exactly that, older or newer, and its size at
// most that: a member's column that is made as its primary's is. Nothing below the
// size is touched, so that a member which is stopped in between has lost nothing. A
// column that does not exist is made. It is durable after a sync.
func (s *Store) Shape(key Key, sizeEpoch, size uint64) error {
	if s.deleted.has(key) {
		return nil
	}
	c, err := s.acquire(key, true, sizeEpoch)
	if err != nil {
		return err
	}
	defer s.unref(c)
	hold, err := s.whole(c, sizeEpoch)
	if err != nil {
		return err
	}
	defer hold.Release()
	if c.epoch.Load() == sizeEpoch && c.size.Load() <= size {
		return nil
	}
	return s.cutHeld(c, sizeEpoch, min(size, c.size.Load()))
}

// whole locks the whole column, and opens or makes its file.
func (s *Store) whole(c *column, sizeEpoch uint64) (*rangelock.Hold, error) {
	hold, err := c.lock.Acquire(background(), 0, rangelock.All, true)
	if err != nil {
		return nil, err
	}
	if _, err := s.ensureOpen(c, true, sizeEpoch); err != nil {
		hold.Release()
		return nil, err
	}
	return hold, nil
}

// cut applies the cuts of epochs that the column does not know yet.
func (s *Store) cut(c *column, sizeEpoch uint64, cuts []*canopyv1.Cut) error {
	hold, err := s.whole(c, sizeEpoch)
	if err != nil {
		return err
	}
	defer hold.Release()
	known := c.epoch.Load()
	if sizeEpoch <= known {
		return nil
	}
	size := c.size.Load()
	for _, cut := range cuts {
		if cut.SizeEpoch > known && cut.SizeEpoch <= sizeEpoch {
			size = min(size, cut.Size)
		}
	}
	return s.cutHeld(c, sizeEpoch, size)
}

// cutHeld gives the column an epoch and cuts it to the size, under the whole lock.
// To lose bytes it first makes the intention durable, so that a crash in between
// is completed at the next open. So is a failure: the file is closed, and whoever
// opens it next completes what the header says before anything else. The column
// must neither take writes of the new epoch while old bytes lie behind the cut, nor
// be cut again behind them.
func (s *Store) cutHeld(c *column, sizeEpoch, size uint64) error {
	if size < c.size.Load() && size%BlockBytes > 0 {
		// What remains of the last block gets a new checksum, also when the cut is
		// completed later: it must be whole before.
		if err := c.file.Sync(); err != nil {
			return ioError("cut", c.key, err)
		}
		if err := c.checkBlock(size / BlockBytes); err != nil {
			return err
		}
	}
	if err := c.intendCut(sizeEpoch, size); err != nil {
		return errors.Join(err, s.closeFile(c))
	}
	return nil
}

// checkBlock reads one block, to know that it is whole.
func (c *column) checkBlock(number uint64) error {
	b, err := c.readEntries(number, number+1)
	if err != nil {
		return err
	}
	return c.readBlock(make([]byte, BlockBytes), number, getEntry(b, 0))
}

// intendCut writes the new header, and does what it says.
func (c *column) intendCut(sizeEpoch, size uint64) error {
	c.epoch.Store(sizeEpoch)
	if size == c.size.Load() {
		return c.writeHeader(c.file, noCut)
	}
	if err := c.writeHeader(c.file, size); err != nil {
		return err
	}
	if err := c.file.Sync(); err != nil {
		return ioError("cut", c.key, err)
	}
	return c.finishCut(c.file, size)
}

// finishCut truncates the file to the size, of which a part may be done already.
func (c *column) finishCut(f File, size uint64) error {
	if err := c.cutEntries(f, size); err != nil {
		return err
	}
	if err := f.Truncate(fileBytes(size)); err != nil {
		return ioError("cut", c.key, err)
	}
	if err := f.Sync(); err != nil {
		return ioError("cut", c.key, err)
	}
	c.size.Store(size)
	return c.writeHeader(f, noCut)
}

// cutEntries sets the checksum of the block that is cut in two, and clears
// those behind it in its group; the pages of later groups go with the file's
// tail.
func (c *column) cutEntries(f File, size uint64) error {
	number, keep := size/BlockBytes, size%BlockBytes
	end := groupEnd(number)
	sp := spanAt(number, end)
	if keep == 0 && sp.entries >= fileBytes(size) {
		return nil // they go with the tail; writing them could need space
	}
	entries := make([]byte, sp.blocks*entryBytes)
	if keep > 0 {
		block := make([]byte, BlockBytes)
		old := make([]byte, entryBytes)
		if err := readRaw(f, c.key, old, sp.entries); err != nil {
			return err
		}
		if err := readRaw(f, c.key, block, sp.data); err != nil {
			return err
		}
		e := getEntry(old, 0)
		if e.cur != 0 {
			clear(block[keep:])
			sum := sumOf(crc32.Checksum(block, castagnoli))
			putEntry(entries, 0, entry{cur: sum, prev: sum})
		} else {
			putEntry(entries, 0, e) // a punched block stays marked as one
		}
	}
	if _, err := f.WriteAt(entries, sp.entries); err != nil {
		return ioError("cut", c.key, err)
	}
	c.written.Add(1)
	return nil
}

// Sync makes all that was written to the column durable. A column that does not
// exist has nothing to sync.
func (s *Store) Sync(key Key) error {
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return err
	}
	defer s.unref(c)
	return s.syncColumn(c)
}

// syncColumn syncs what was written before the call. Callers that come together
// share one sync. After a failed sync the column stays failed: the kernel may
// have dropped what it could not write.
func (s *Store) syncColumn(c *column) error {
	want := c.written.Load()
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	if c.syncError != nil {
		return c.syncError
	}
	if c.synced >= want && !c.newEntry.Load() {
		return nil
	}
	// A cut that failed meanwhile closed the file; a deletion has nothing to sync.
	if ok, err := s.ensureOpen(c, false, 0); err != nil || !ok {
		return err
	}
	have := c.written.Load()
	if err := c.file.Sync(); err != nil {
		c.syncError = ioError("sync", c.key, err)
		return c.syncError
	}
	if c.newEntry.Load() {
		if err := s.syncEntry(c); err != nil {
			c.syncError = ioError("sync", c.key, err)
			return c.syncError
		}
		c.newEntry.Store(false)
	}
	c.synced = have
	return nil
}

// SyncAll makes everything in the store durable.
func (s *Store) SyncAll() error {
	if err := s.fs.SyncAll(s.dir); err != nil {
		return ioError("sync", Key{}, err)
	}
	return nil
}

// Size returns the column's size in bytes and its size epoch, zeros if it does
// not exist.
func (s *Store) Size(key Key) (sizeBytes, sizeEpoch uint64, err error) {
	c, err := s.acquire(key, false, 0)
	if err != nil || c == nil {
		return 0, 0, err
	}
	defer s.unref(c)
	return c.size.Load(), c.epoch.Load(), nil
}

// Usage returns the size of the disk and what may still be written.
func (s *Store) Usage() (totalBytes, freeBytes uint64, err error) {
	total, free, err := s.fs.Usage(s.dir)
	if err != nil {
		return 0, 0, fserr.New(fserr.IO, "usage", err)
	}
	reserve := s.options.ReserveBytes
	if reserve == 0 {
		reserve = min(64<<20, total/100)
	}
	if free < reserve {
		return total, 0, nil
	}
	return total, free - reserve, nil
}

// How long, and down to what, the disk's free bytes are taken from the last look:
// a disk that fills faster than that is found full by the write itself.
const (
	usageAge   = 100 * time.Millisecond
	usageSpare = 1 << 30
)

// full reports whether the disk has no room for more bytes.
func (s *Store) full(bytes uint64) bool {
	now := time.Now()
	if last := s.usage.Load(); last != nil && now.Sub(last.at) < usageAge && last.free >= bytes+usageSpare {
		return false
	}
	_, free, err := s.Usage()
	if err != nil {
		return false
	}
	s.usage.Store(&usage{now, free})
	return free < bytes
}

// usage is the disk's free bytes at a time.
type usage struct {
	at   time.Time
	free uint64
}
