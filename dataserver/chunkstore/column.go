package chunkstore

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/canopyfs/canopy/dataserver/chunkstore/rangelock"
	"github.com/canopyfs/canopy/internal/fserr"
)

// column is the state of one column file while it is open. Ranges are of
// blocks.
type column struct {
	key   Key
	path  string
	lock  rangelock.Lock
	epoch atomic.Uint64 // size epoch; changed under the whole range
	size  atomic.Uint64 // bytes; grows under a range, shrinks under the whole one

	// Under Store.mu.
	refs    int
	element *list.Element // in Store.idle while refs == 0

	openMu sync.Mutex
	file   File // nil: not open, or the column does not exist

	syncMu    sync.Mutex
	written   atomic.Uint64 // counts changes
	synced    uint64        // changes that are durable
	syncError error         // a failed sync is final: what it should have written may be lost
	newEntry  atomic.Bool   // the directory entry is not durable yet
}

// dirIDsBits: that many data ids in a row have the same directory. Ids are
// counters, and files made at the same time belong together: a file system keeps
// what is in one directory close, so a new file then costs no directory, bitmap and
// inode page of its own.
const dirIDsBits = 13

func (s *Store) dirOf(key Key) string {
	h := uint64(key.Data) >> dirIDsBits & 0xff
	if s.format == 1 {
		h = uint64(key.Data) * 0x9e3779b97f4a7c15 >> 56
	}
	return filepath.Join(s.pgDir(key.Pool, key.PG), fmt.Sprintf("%02x", h))
}

func nameOf(key Key) string {
	return fmt.Sprintf("%x.%x.%x", uint64(key.Data), key.Component, key.Column)
}

// acquire returns the column with a reference, open. With create false it
// returns nil for a column that does not exist.
func (s *Store) acquire(key Key, create bool, epoch uint64) (*column, error) {
	c, err := s.reference(key)
	if err != nil {
		return nil, err
	}
	ok, err := s.ensureOpen(c, create, epoch)
	if err != nil || !ok {
		s.unref(c)
		return nil, err
	}
	return c, nil
}

// reference returns the column with a reference, open or not.
func (s *Store) reference(key Key) (*column, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fserr.New(fserr.NotReady, "open column", errors.New("store is closed"))
	}
	c := s.columns[key]
	if c == nil {
		c = &column{key: key, path: filepath.Join(s.dirOf(key), nameOf(key))}
		s.columns[key] = c
	}
	if c.element != nil {
		s.idle.Remove(c.element)
		c.element = nil
	}
	c.refs++
	return c, nil
}

// unref gives a reference back, and closes the files that were idle longest
// beyond the limit.
func (s *Store) unref(c *column) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.refs--
	if c.refs > 0 {
		return
	}
	if c.file == nil {
		if c.clean() {
			delete(s.columns, c.key)
		}
		return
	}
	c.element = s.idle.PushBack(c)
	for s.open.Load() > int64(s.options.MaxOpenFiles) && s.idle.Len() > 0 {
		s.evictLocked(s.idle.Remove(s.idle.Front()).(*column))
	}
	if s.unsynced > maxUnsynced && !s.flushing {
		s.flushing = true
		s.wg.Add(1)
		go s.flushClosed()
	}
}

// maxUnsynced bounds the columns that are closed and still known as not synced.
const maxUnsynced = 16384

// evictLocked closes an idle column's file. What is not synced stays known as
// such: a later sync opens the file again.
func (s *Store) evictLocked(c *column) {
	c.element = nil
	if err := s.closeFile(c); err != nil {
		s.logger.Warn("closing a column", "column", c.key.String(), "error", err)
	}
	if c.clean() {
		delete(s.columns, c.key)
		return
	}
	s.unsynced++
}

// flushClosed syncs the whole file system, and forgets columns that were closed
// before.
func (s *Store) flushClosed() {
	defer s.wg.Done()
	type mark struct {
		c       *column
		written uint64
	}
	var marks []mark
	s.mu.Lock()
	for _, c := range s.columns {
		if c.refs == 0 && c.file == nil {
			marks = append(marks, mark{c, c.written.Load()})
		}
	}
	s.mu.Unlock()
	err := s.fs.SyncAll(s.dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushing = false
	s.unsynced = 0
	if err != nil {
		s.logger.Error("syncing the file system", "error", err)
		return
	}
	for _, m := range marks {
		if m.c.refs == 0 && m.c.file == nil && m.c.written.Load() == m.written {
			delete(s.columns, m.c.key)
		}
	}
}

// clean reports whether all changes are durable.
func (c *column) clean() bool {
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	return c.synced == c.written.Load() && c.syncError == nil
}

func (s *Store) closeFile(c *column) error {
	c.openMu.Lock()
	defer c.openMu.Unlock()
	if c.file == nil {
		return nil
	}
	f := c.file
	c.file = nil
	s.open.Add(-1)
	return f.Close()
}

// ensureOpen opens the column's file. ok is false if it does not exist and
// create is false.
func (s *Store) ensureOpen(c *column, create bool, epoch uint64) (ok bool, err error) {
	c.openMu.Lock()
	defer c.openMu.Unlock()
	if c.file != nil {
		return true, nil
	}
	f, err := s.openColumn(c, create)
	if f == nil || err != nil {
		return false, err
	}
	if err := s.readHeader(c, f, epoch); err != nil {
		if length, e := f.Size(); e == nil && length == 0 {
			err = errors.Join(err, s.fs.Remove(c.path)) // nothing is left of a failed creation
		}
		return false, errors.Join(err, f.Close())
	}
	c.file = f
	s.open.Add(1)
	return true, nil
}

// openColumn opens the column's file, and makes it if it is missing and create
// is set; else it returns nil for a missing one.
func (s *Store) openColumn(c *column, create bool) (File, error) {
	flag := os.O_RDWR
	if create {
		flag |= os.O_CREATE
	}
	f, err := s.fs.OpenFile(c.path, flag)
	if errors.Is(err, fs.ErrNotExist) {
		if !create {
			return nil, nil
		}
		if err := s.makeDir(filepath.Dir(c.path)); err != nil {
			return nil, ioError("create column", c.key, err)
		}
		f, err = s.fs.OpenFile(c.path, flag)
	}
	if err != nil {
		return nil, ioError("open column", c.key, err)
	}
	return f, nil
}

// initialise writes the header of an empty column.
func (s *Store) initialise(c *column, f File, epoch uint64) error {
	c.epoch.Store(epoch)
	c.size.Store(0)
	return c.writeHeader(f, noCut)
}

func (c *column) writeHeader(f File, cut uint64) error {
	h := header{key: c.key, sizeEpoch: c.epoch.Load(), cut: cut}
	b := make([]byte, headerBytes)
	h.encode(b)
	if _, err := f.WriteAt(b, 0); err != nil {
		return ioError("write column header", c.key, err)
	}
	c.written.Add(1)
	return nil
}

// readHeader loads the column's state. A file without a header was made a moment
// ago, or is one whose creation a crash interrupted: the first sync would have made
// it durable, so nothing in the file was acknowledged as such.
func (s *Store) readHeader(c *column, f File, epoch uint64) error {
	length, err := f.Size()
	if err != nil {
		return ioError("open column", c.key, err)
	}
	b := make([]byte, headerBytes)
	if length > 0 {
		if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			return ioError("read column header", c.key, err)
		}
	}
	if length == 0 || s.suspect.Load() && [headerBytes]byte(b) == [headerBytes]byte{} {
		c.newEntry.Store(true)
		if length > 0 {
			if err := f.Truncate(0); err != nil {
				return ioError("open column", c.key, err)
			}
		}
		return s.initialise(c, f, epoch)
	}
	h, err := decodeHeader(b)
	if err != nil {
		return &fserr.Error{Kind: fserr.KindOf(err), Op: "open", Path: c.key.String(), Err: err}
	}
	if h.key != c.key {
		return ioError("open column", c.key, fmt.Errorf("the file is of %s", h.key))
	}
	c.epoch.Store(h.sizeEpoch)
	c.size.Store(columnBytes(length))
	if h.cut != noCut {
		return c.finishCut(f, h.cut)
	}
	return nil
}

// makeDir makes a directory of columns and its parents. They are not durable
// before syncEntry.
func (s *Store) makeDir(dir string) error {
	if err := s.fs.MkdirAll(dir); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := dir; d != s.dir; d = filepath.Dir(d) {
		s.newDirs[d] = true
	}
	return nil
}

// syncEntry makes a column's entry in its directory durable, and the entries of
// that directory and those above as far as this process may have made them: what
// was there before was synced when the store was opened.
func (s *Store) syncEntry(c *column) error {
	for d := filepath.Dir(c.path); ; d = filepath.Dir(d) {
		if err := s.fs.SyncDir(d); err != nil {
			return err
		}
		s.mu.Lock()
		isNew := s.newDirs[d]
		s.mu.Unlock()
		if !isNew || d == s.dir {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := filepath.Dir(c.path); d != s.dir; d = filepath.Dir(d) {
		delete(s.newDirs, d)
	}
	return nil
}

// ioError gives an error of the disk its kind: NoSpace, FileTooBig (the file
// system has no file as large), or IO.
func ioError(op string, key Key, err error) error {
	kind := fserr.KindOf(err)
	if kind != fserr.NoSpace && kind != fserr.FileTooBig {
		kind = fserr.IO
	}
	return &fserr.Error{Kind: kind, Op: op, Path: key.String(), Err: err}
}
