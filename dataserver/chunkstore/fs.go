package chunkstore

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// FS is the file system below a Store. Tests put one that fails.
type FS interface {
	// OpenFile opens as os.OpenFile does.
	OpenFile(name string, flag int) (File, error)
	MkdirAll(name string) error
	Remove(name string) error
	Rename(from, to string) error
	// FileSize returns the size of a file, fs.ErrNotExist if there is none.
	FileSize(name string) (int64, error)
	// ReadDir returns the names in a directory, fs.ErrNotExist if there is none.
	ReadDir(name string) ([]string, error)
	// SyncDir makes the directory's entries durable.
	SyncDir(name string) error
	// SyncAll makes all of the file system durable that holds the directory.
	SyncAll(name string) error
	// Usage returns the size of the file system and what may still be written.
	Usage(name string) (totalBytes, freeBytes uint64, err error)
}

// File is one open file. ReadAt as io.ReaderAt. Safe for concurrent use.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// WriteVec writes the parts one behind the other at the offset.
	WriteVec(parts [][]byte, offset int64) error
	Truncate(size int64) error
	Size() (int64, error)
	// Sync makes data and size durable.
	Sync() error
	// Deallocate makes a range zeros and gives its space back, as far as the file
	// system can. It does not change the size.
	Deallocate(offset, length int64) error
	// Zero makes a range zeros and gives it space, so that writing there later
	// needs none. The file grows to the range's end.
	Zero(offset, length int64) error
	// NextData returns the first offset, at or behind that one, where the file is
	// no hole; io.EOF if there is none.
	NextData(offset int64) (int64, error)
	// StartSync begins to write a range to the disk, and does not wait for it.
	StartSync(offset, length int64) error
}

// OS is the real file system.
type OS struct{}

type osFile struct{ *os.File }

// OpenFile implements FS.
func (OS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// MkdirAll implements FS.
func (OS) MkdirAll(name string) error { return os.MkdirAll(name, 0o700) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// FileSize implements FS.
func (OS) FileSize(name string) (int64, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// ReadDir implements FS.
func (OS) ReadDir(name string) ([]string, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// SyncDir implements FS.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SyncAll implements FS.
func (OS) SyncAll(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// Usage implements FS.
func (OS) Usage(name string) (total, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(name, &s); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil
}

// maxVec is Linux's IOV_MAX.
const maxVec = 1024

// WriteVec implements File.
func (f osFile) WriteVec(parts [][]byte, offset int64) error {
	for len(parts) > 0 {
		n, err := unix.Pwritev(int(f.Fd()), parts[:min(len(parts), maxVec)], offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &fs.PathError{Op: "write", Path: f.Name(), Err: err}
		}
		offset += int64(n)
		parts = skip(parts, n)
	}
	return nil
}

// skip drops the first n bytes of the parts, in place: callers pass their own
// slice of parts.
func skip(parts [][]byte, n int) [][]byte {
	for len(parts) > 0 && n >= len(parts[0]) {
		n -= len(parts[0])
		parts = parts[1:]
	}
	if n > 0 {
		parts[0] = parts[0][n:]
	}
	return parts
}

// Size implements File.
func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// StartSync implements File.
func (f osFile) StartSync(offset, length int64) error {
	// Not by Fd: the column may be dropped, and its file closed, meanwhile.
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.SyncFileRange(int(fd), offset, length, unix.SYNC_FILE_RANGE_WRITE)
	})
	return errors.Join(err, failed)
}

// Sync implements File.
func (f osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}
