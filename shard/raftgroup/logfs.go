package raftgroup

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/lni/vfs"
	"golang.org/x/sys/unix"
)

// logFS is the file system that Dragonboat's log works on. It differs from the
// disk in the log files alone (tandb/*/*.log): their blocks are written with
// zeros ahead of the log's end, and Sync is fdatasync. Flushing what overwrites
// written blocks needs no journal commit of the file system, and takes about half
// the time of flushing an append (BenchmarkFloor).
//
// tan never sees the zeros: a file that is being written reads as ending at the
// log's end, and is cut there when it is closed. What a crash leaves behind is cut
// before tan opens it (trimLogs). And snapshots that come in are written to the disk
// as they come (chunkFile).
type logFS struct {
	vfs.FS
	failed    func(error)          // told of what cannot be written; nil: nobody
	writeBack func(vfs.File) error // of a chunk of a snapshot
	fillers   sync.WaitGroup

	mu   sync.Mutex
	open map[string]*logFile // that are being written, by path
}

const (
	logAlign      = 4096
	logPieceBytes = 256 << 10 // one write of zeros: the file is locked for its time
	logFirstBytes = 512 << 10 // before the file is used
	logAheadBytes = 2 << 20
)

func newLogFS(failed func(error)) *logFS {
	return &logFS{FS: vfs.Default, failed: failed, writeBack: writeBack, open: make(map[string]*logFile)}
}

// tell tells of an error that Dragonboat panics at, and returns it.
func (fs *logFS) tell(err error) error {
	if err != nil && fs.failed != nil {
		fs.failed(err)
	}
	return err
}

// checkedFile tells of what cannot be written.
type checkedFile struct {
	vfs.File
	fs *logFS
}

func (f *checkedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.fs.tell(err)
}

func (f *checkedFile) Sync() error { return f.fs.tell(f.File.Sync()) }

// chunkFile is a snapshot that comes in: Dragonboat opens it for each chunk, and
// flushes it after the last. Close has the chunk written to the disk, so that this
// flush finds little left: 750 MiB at once held the logs of all shards on that disk
// up for 8 s.
type chunkFile struct {
	vfs.File
	fs *logFS
}

func (f *chunkFile) Close() error {
	err := f.fs.tell(f.fs.writeBack(f.File))
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}

// writeBack writes a file's dirty pages, and waits. It makes nothing durable: no
// journal is committed for it.
func writeBack(f vfs.File) error {
	osf, ok := f.(*os.File)
	if !ok {
		return nil
	}
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(osf.Fd()), 0, 0, all)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
		return nil // not on this file system
	}
	return err
}

// ofSnapshot tells whether a file is a snapshot's.
func ofSnapshot(name string) bool { return strings.HasSuffix(name, ".gbsnap") }

func isLogFile(name string) bool {
	return strings.HasSuffix(name, ".log") && filepath.Base(filepath.Dir(filepath.Dir(name))) == "tandb"
}

// ofLog tells whether a file is one of tan's.
func ofLog(name string) bool { return strings.Contains(name, "/tandb/") }

// Create makes a file; a log file with its first blocks written.
func (fs *logFS) Create(name string) (vfs.File, error) {
	f, err := fs.FS.Create(name)
	if err == nil && ofSnapshot(name) {
		return &chunkFile{f, fs}, nil
	}
	if !ofLog(name) {
		return f, err
	}
	if err != nil {
		return nil, fs.tell(err)
	}
	osf, ok := f.(*os.File)
	if !ok || !isLogFile(name) {
		return &checkedFile{f, fs}, nil
	}
	lf := &logFile{File: f, fs: fs, name: name, fd: int(osf.Fd())}
	lf.cond.L = &lf.mu
	// O_DIRECT keeps the zeros out of the page cache, where the log's own fdatasync
	// would meet them. Where it does not work the log simply appends.
	if d, err := os.OpenFile(name, os.O_WRONLY|syscall.O_DIRECT|syscall.O_CLOEXEC, 0); err == nil {
		lf.direct = d
		for lf.written < logFirstBytes && lf.direct != nil {
			lf.fillPiece()
		}
	}
	fs.mu.Lock()
	fs.open[name] = lf
	fs.mu.Unlock()
	return lf, nil
}

// OpenForAppend opens a file that is there.
func (fs *logFS) OpenForAppend(name string) (vfs.File, error) {
	f, err := fs.FS.OpenForAppend(name)
	if err == nil && ofSnapshot(name) {
		return &chunkFile{f, fs}, nil
	}
	return f, err
}

// Open opens a file for reading, which ends where the log ends.
func (fs *logFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	fs.mu.Lock()
	lf := fs.open[name]
	fs.mu.Unlock()
	if lf == nil {
		return f, nil
	}
	return &logReader{File: f, log: lf}, nil
}

// wait returns when nothing works on files any more; all must be closed.
func (fs *logFS) wait() { fs.fillers.Wait() }

// logFile is a log file that is being written. Writes come one at a time, from
// the start to the end, and Sync alongside.
type logFile struct {
	vfs.File
	fs   *logFS
	name string
	fd   int

	mu      sync.Mutex
	cond    sync.Cond
	size    int64 // the log's end
	written int64 // blocks up to here are written, or soon will be if filling
	filling bool
	direct  *os.File // for the zeros, nil: append
	closed  bool
}

// Write appends to the log.
func (f *logFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	end := f.size + int64(len(p))
	for f.filling && end > f.written-logPieceBytes {
		f.cond.Wait() // the zeros must not follow the log
	}
	if end > f.written {
		f.written = (end + logAlign - 1) / logAlign * logAlign
	}
	f.mu.Unlock()
	n, err := f.File.Write(p)
	_ = f.fs.tell(err) // it is returned
	f.mu.Lock()
	defer f.mu.Unlock()
	f.size += int64(n)
	if f.direct != nil && !f.filling && f.written-f.size < logAheadBytes/2 {
		f.filling = true
		f.written += logPieceBytes
		f.fs.fillers.Go(f.fill)
	}
	return n, err
}

// fill writes zeros ahead, piece by piece; the piece below written is on its way.
func (f *logFile) fill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		at := f.written - logPieceBytes
		f.mu.Unlock()
		err := f.writeZeros(at)
		f.mu.Lock()
		if err != nil || f.closed || f.written-f.size >= logAheadBytes {
			if err != nil {
				f.written = at
				f.closeDirectLocked()
			}
			f.filling = false
			f.cond.Broadcast()
			return
		}
		f.written += logPieceBytes
		f.cond.Broadcast()
	}
}

// fillPiece writes one piece before the file is in use.
func (f *logFile) fillPiece() {
	if f.writeZeros(f.written) != nil {
		f.closeDirectLocked()
		return
	}
	f.written += logPieceBytes
}

func (f *logFile) closeDirectLocked() {
	if f.direct != nil {
		_ = f.direct.Close() // nothing is buffered
		f.direct = nil
	}
}

func (f *logFile) writeZeros(at int64) error {
	_, err := f.direct.WriteAt(zeros(), at)
	return err
}

// zeros is one piece, aligned as O_DIRECT wants it.
func zeros() []byte {
	b := make([]byte, logPieceBytes+logAlign)
	off := int(logAlign-uintptr(unsafe.Pointer(&b[0]))%logAlign) % logAlign
	return b[off : off+logPieceBytes : off+logPieceBytes]
}

// Sync makes the log durable up to its end.
func (f *logFile) Sync() error { return f.fs.tell(unix.Fdatasync(f.fd)) }

// Close cuts the file at the log's end.
func (f *logFile) Close() error {
	f.mu.Lock()
	f.closed = true
	for f.filling {
		f.cond.Wait()
	}
	f.closeDirectLocked()
	size := f.size
	f.mu.Unlock()
	err := os.Truncate(f.name, size)
	if serr := f.File.Sync(); err == nil {
		err = serr
	}
	_ = f.fs.tell(err)
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	f.fs.mu.Lock()
	delete(f.fs.open, f.name)
	f.fs.mu.Unlock()
	return err
}

// logReader reads a file that is being written.
type logReader struct {
	vfs.File
	log *logFile
	pos int64
}

func (r *logReader) Read(p []byte) (int, error) {
	r.log.mu.Lock()
	left := r.log.size - r.pos
	r.log.mu.Unlock()
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := r.File.Read(p[:min(int64(len(p)), left)])
	r.pos += int64(n)
	return n, err
}

func (r *logReader) Seek(offset int64, whence int) (int64, error) {
	pos, err := r.File.Seek(offset, whence)
	if err == nil {
		r.pos = pos
	}
	return pos, err
}
