package chunkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// UndoLog is the log of one erasure coded placement group: the changes that may not
// be on all its members, each with what was there before. It outlives the process,
// as what was written does; after a crash of the machine it is void.
//
// Two files take turns: the one that is written to grows until the other has nothing
// open. Each begins with a mark, so that what one tells never hangs on the other.
type UndoLog struct {
	s   *Store
	dir string

	mu          sync.Mutex
	files       [2]undoFile
	named       [2]bool // the file's name is durable
	current     int
	generation  uint64
	term, floor uint64
	lost        bool
	cuts        []*canopyv1.ShardUndo // if lost: their records were synced
	open        map[uint64]*undoEntry // by sequence; of term, at or above floor
}

type undoFile struct {
	f    File // nil: not open
	size int64
	// limit is how long the file was when it was opened. What lies behind the last
	// whole frame is written over.
	limit int64
	open  int
}

type undoEntry struct {
	record *canopyv1.ShardUndo // without old data
	file   int
	at     int64 // of the frame
}

const (
	undoHeader = 8       // length and CRC of a frame
	undoTurn   = 4 << 20 // from that size on the other file is used, if it is free
	maxUndo    = 64 << 20
)

// Undo opens the undo log of a placement group. One at a time may be open.
func (s *Store) Undo(pool base.PoolID, pg base.PGID) (*UndoLog, error) {
	u := &UndoLog{s: s, dir: s.pgDir(pool, pg), open: map[uint64]*undoEntry{}}
	if err := u.load(); err != nil {
		u.closeFiles()
		return nil, ioError("undo log", Key{Pool: pool, PG: pg}, err)
	}
	return u, nil
}

func (u *UndoLog) name(i int) string { return filepath.Join(u.dir, fmt.Sprintf("undo%d", i)) }

// load reads both files, the older one first. A frame that is not whole is the end:
// the change that it is of was not begun.
func (u *UndoLog) load() error {
	var generations [2]uint64
	for i := range u.files {
		f, err := u.s.fs.OpenFile(u.name(i), os.O_RDWR)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		u.files[i].f = f
		if u.files[i].limit, err = f.Size(); err != nil {
			return err
		}
		if mark, _, err := readUndo(f, 0, u.files[i].limit); err != nil {
			return err
		} else if mark != nil {
			generations[i] = mark.Generation
		}
	}
	if generations[1] > generations[0] {
		u.current = 1
	}
	u.generation = generations[u.current]
	if u.generation == 0 {
		return nil
	}
	entries := map[uint64]*undoEntry{} // by sequence: of the newest term
	var boot string
	for _, i := range [2]int{1 - u.current, u.current} {
		var err error
		if boot, err = u.loadFile(i, generations[i], entries); err != nil {
			return err
		}
	}
	u.lost = u.s.crashed && (boot != u.s.options.Boot || boot == "")
	for seq, e := range entries {
		if u.lost && e.record.Cut {
			u.cuts = append(u.cuts, e.record)
		}
		if !u.lost && e.record.Term == u.term && seq >= u.floor {
			u.open[seq] = e
			u.files[e.file].open++
		}
	}
	return u.markLocked()
}

// loadFile reads one file, and returns the boot of its last mark.
func (u *UndoLog) loadFile(i int, generation uint64, entries map[uint64]*undoEntry) (boot string, err error) {
	file := &u.files[i]
	if file.f == nil || generation == 0 {
		return "", nil
	}
	for {
		record, length, err := readUndo(file.f, file.size, file.limit)
		if err != nil || record == nil {
			return boot, err
		}
		switch {
		case record.Seq == 0:
			boot = record.Boot
		case record.Undone:
			delete(entries, record.Seq)
		default:
			record.OldData = nil
			entries[record.Seq] = &undoEntry{record, i, file.size}
		}
		file.size += length
		u.advance(record.Term, record.Floor)
	}
}

// advance notes a newer term or floor.
func (u *UndoLog) advance(term, floor uint64) {
	switch {
	case term > u.term:
		u.term, u.floor = term, floor
	case term == u.term:
		u.floor = max(u.floor, floor)
	}
}

// readUndo reads the frame at the offset of a file of some size; nil if there is no
// whole one.
func readUndo(f io.ReaderAt, at, size int64) (*canopyv1.ShardUndo, int64, error) {
	var head [undoHeader]byte
	if n, err := f.ReadAt(head[:], at); n < undoHeader {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
		return nil, 0, err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length == 0 || length > maxUndo || int64(length) > size-at-undoHeader {
		return nil, 0, nil
	}
	b := make([]byte, length)
	if n, err := f.ReadAt(b, at+undoHeader); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
		return nil, 0, err
	}
	record := &canopyv1.ShardUndo{}
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(head[4:]) || record.UnmarshalVT(b) != nil {
		return nil, 0, nil
	}
	return record, int64(undoHeader + len(b)), nil
}

// appendLocked writes a record to the current file.
func (u *UndoLog) appendLocked(record *canopyv1.ShardUndo) (at int64, err error) {
	b := make([]byte, undoHeader, undoHeader+record.SizeVT())
	b = b[:cap(b)]
	if _, err := record.MarshalToSizedBufferVT(b[undoHeader:]); err != nil {
		return 0, err
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-undoHeader))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[undoHeader:], castagnoli))
	file := &u.files[u.current]
	if file.f == nil {
		if err := u.s.makeDir(u.dir); err != nil {
			return 0, err
		}
		if file.f, err = u.s.fs.OpenFile(u.name(u.current), os.O_RDWR|os.O_CREATE); err != nil {
			return 0, err
		}
	}
	at = file.size
	if _, err := file.f.WriteAt(b, at); err != nil {
		return 0, err
	}
	file.size += int64(len(b))
	return at, nil
}

func (u *UndoLog) markLocked() error {
	u.generation = max(u.generation, 1)
	_, err := u.appendLocked(&canopyv1.ShardUndo{Term: u.term, Floor: u.floor, Generation: u.generation, Boot: u.s.options.Boot})
	return err
}

// turnLocked goes to the other file when the present one is large and the other has
// nothing open. That one is emptied first: it is the older.
func (u *UndoLog) turnLocked() error {
	if u.generation > 0 && (u.files[u.current].size < undoTurn || u.files[1-u.current].open > 0) {
		return nil
	}
	if u.generation > 0 {
		u.current = 1 - u.current
	}
	u.generation++
	file := &u.files[u.current]
	file.size = 0
	if file.f != nil {
		if err := file.f.Truncate(0); err != nil {
			return err
		}
	}
	return u.markLocked()
}

// Mark notes that all changes of older terms, and of this term below floor, are on
// all members, and forgets them. A new term is on disk when it returns.
func (u *UndoLog) Mark(term, floor uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	isNew := term > u.term
	u.advance(term, floor)
	for seq, e := range u.open {
		if e.record.Term < u.term || seq < u.floor {
			u.forgetLocked(seq)
		}
	}
	if !isNew {
		return nil
	}
	u.lost, u.cuts = false, nil
	if err := u.turnLocked(); err != nil {
		return err
	}
	return u.markLocked()
}

func (u *UndoLog) forgetLocked(seq uint64) {
	u.files[u.open[seq].file].open--
	delete(u.open, seq)
}

// Add logs a change that is about to be made. Its old data are not kept in memory.
func (u *UndoLog) Add(record *canopyv1.ShardUndo) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if record.Term != u.term {
		return fserr.New(fserr.NotReady, "undo log", fmt.Errorf("a change of term %d in term %d", record.Term, u.term))
	}
	if err := u.turnLocked(); err != nil {
		return err
	}
	record.Floor = u.floor
	at, err := u.appendLocked(record)
	if err == nil && record.Cut {
		err = u.syncLocked()
	}
	if err != nil {
		return err
	}
	record.OldData = nil
	u.open[record.Seq] = &undoEntry{record, u.current, at}
	u.files[u.current].open++
	return nil
}

// syncLocked makes the current file durable, and its name.
func (u *UndoLog) syncLocked() error {
	if err := u.files[u.current].f.Sync(); err != nil {
		return err
	}
	if u.named[u.current] {
		return nil
	}
	if err := u.s.syncNames(u.dir); err != nil {
		return err
	}
	u.named[u.current] = true
	return nil
}

// Applied notes that a change is done.
func (u *UndoLog) Applied(seq uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.open[seq]; e != nil {
		e.record.Applied = true
	}
}

// Undone notes that a change is undone, or was never made: it is not open any more.
func (u *UndoLog) Undone(seq uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open[seq] == nil {
		return nil
	}
	if _, err := u.appendLocked(&canopyv1.ShardUndo{Term: u.term, Seq: seq, Undone: true}); err != nil {
		return err
	}
	u.forgetLocked(seq)
	return nil
}

// Record returns an open change with its old data; nil if it is not open.
func (u *UndoLog) Record(seq uint64) (*canopyv1.ShardUndo, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := u.open[seq]
	if e == nil {
		return nil, nil
	}
	record, _, err := readUndo(u.files[e.file].f, e.at, u.files[e.file].size)
	if err == nil && record == nil {
		err = fmt.Errorf("the record of change %d is gone", seq)
	}
	if err != nil {
		return nil, ioError("undo log", Key{}, err)
	}
	return record, nil
}

// State returns the newest term, its floor, and what is open, without old data. With
// lost nothing is known of what was but the cuts that were begun, some long ago: the
// machine crashed.
func (u *UndoLog) State() (term, floor uint64, open []*canopyv1.ShardUndo, lost bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range u.open {
		open = append(open, proto.CloneOf(e.record))
	}
	for _, cut := range u.cuts {
		open = append(open, proto.CloneOf(cut))
	}
	return u.term, u.floor, open, u.lost
}

// Clear forgets everything: this server is not in sync, and will be compared.
func (u *UndoLog) Clear() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeFiles()
	clear(u.open)
	u.term, u.floor, u.generation, u.current, u.lost = 0, 0, 0, 0, false
	u.cuts, u.named = nil, [2]bool{}
	for i := range u.files {
		u.files[i] = undoFile{}
		if err := u.s.fs.Remove(u.name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ioError("undo log", Key{}, err)
		}
	}
	return nil
}

// Close closes the files.
func (u *UndoLog) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closeFiles()
}

func (u *UndoLog) closeFiles() error {
	var errs []error
	for i := range u.files {
		if u.files[i].f != nil {
			errs = append(errs, u.files[i].f.Close())
			u.files[i].f = nil
		}
	}
	return errors.Join(errs...)
}
