package work

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/loadtest/history"
)

// mount is a directory of a file system that is mounted: system calls with whole paths,
// as programs do, and by descriptors where it is the inode that is asked.
type mount struct {
	dirs []string

	listing []sync.Mutex // by directory: F3 counts for one listing at a time of a mount
	mu      sync.Mutex
	logs    map[string]*os.File
}

// OpenMount opens the run's directories below root, which it makes if they are not
// there. root is where the header's Root is mounted.
func OpenMount(root string, h *history.Header) (System, error) {
	m := &mount{listing: make([]sync.Mutex, len(h.Dirs)), logs: map[string]*os.File{}}
	for _, d := range h.Dirs {
		p := filepath.Join(root, h.Base, d)
		if err := os.MkdirAll(p, dirMode); err != nil {
			return nil, err
		}
		m.dirs = append(m.dirs, p)
	}
	return m, nil
}

func (m *mount) Via() string { return history.ByMount }

func (m *mount) Close(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, f := range m.logs {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (m *mount) RemoveAll(context.Context, *history.Header) error {
	return os.RemoveAll(filepath.Dir(m.dirs[0]))
}

func (m *mount) path(dir int, name string) string { return m.dirs[dir] + "/" + name }

// retry repeats a call that a signal of Go's runtime interrupted before it had begun.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// inoOf returns the inode number of a descriptor, without a question to the server.
func inoOf(fd int) uint64 {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return 0
	}
	return st.Ino
}

func create(at int, name string) (uint64, error) {
	// A create is not repeated: if a signal came, nobody knows what the first one did.
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return inoOf(fd), nil
}

func (m *mount) Create(_ context.Context, dir int, name string) (uint64, error) {
	return create(unix.AT_FDCWD, m.path(dir, name))
}

func (m *mount) Mkdir(_ context.Context, dir int, name string) (uint64, error) {
	return 0, unix.Mkdir(m.path(dir, name), dirMode)
}

func (m *mount) Stat(_ context.Context, dir int, name string) (ino, links uint64, err error) {
	var st unix.Stat_t
	err = retry(func() error { return unix.Lstat(m.path(dir, name), &st) })
	return st.Ino, 0, err // the kernel asks for the links after the name
}

func (m *mount) Hold(_ context.Context, dir int, name string) (Handle, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(m.path(dir, name), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &mountHandle{m, fd, inoOf(fd)}, nil
}

func (m *mount) Unlink(_ context.Context, dir int, name string) error {
	return unix.Unlink(m.path(dir, name))
}

func (m *mount) Rmdir(_ context.Context, dir int, name string) error {
	return unix.Rmdir(m.path(dir, name))
}

func (m *mount) Rename(_ context.Context, dir int, name string, toDir int, toName string, flags uint) error {
	return unix.Renameat2(unix.AT_FDCWD, m.path(dir, name), unix.AT_FDCWD, m.path(toDir, toName), flags)
}

func (m *mount) SetXattr(_ context.Context, dir int, name, attr, value string) error {
	return unix.Setxattr(m.path(dir, name), attr, []byte(value), 0)
}

func (m *mount) GetXattr(_ context.Context, dir int, name, attr string) (string, error) {
	value := make([]byte, 256)
	var n int
	err := retry(func() (err error) { n, err = unix.Getxattr(m.path(dir, name), attr, value); return err })
	return string(value[:max(n, 0)]), err
}

func (m *mount) RemoveXattr(_ context.Context, dir int, name, attr string) error {
	return unix.Removexattr(m.path(dir, name), attr)
}

// log returns the open file of a log.
func (m *mount) log(p string) (*os.File, error) {
	m.mu.Lock()
	f := m.logs[p]
	m.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if first := m.logs[p]; first != nil {
		return first, f.Close()
	}
	m.logs[p] = f
	return f, nil
}

func (m *mount) Append(_ context.Context, dir int, name string, record []byte) error {
	f, err := m.log(m.path(dir, name))
	if err == nil {
		_, err = f.Write(record)
	}
	return err
}

func (m *mount) Read(_ context.Context, dir int, name string) ([]byte, error) {
	return os.ReadFile(m.path(dir, name))
}

// listBytes is the size of the buffer that ls gives to getdents64.
const listBytes = 32 << 10

// entryBytes is about what a name takes of it.
const entryBytes = 40

func (m *mount) List(_ context.Context, dir, page int) ([]history.Entry, error) {
	m.listing[dir].Lock()
	defer m.listing[dir].Unlock()
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(m.dirs[dir], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var entries []history.Entry
	size := listBytes
	if page > 0 {
		size = page * entryBytes
	}
	for buf := make([]byte, size); ; {
		var n int
		if err := retry(func() (err error) { n, err = unix.Getdents(fd, buf); return err }); err != nil || n == 0 {
			return entries, err
		}
		entries = appendDirents(entries, buf[:n])
	}
}

// appendDirents walks records of linux_dirent64: ino 8, off 8, reclen 2, type 1, name
// ended by NUL.
func appendDirents(entries []history.Entry, b []byte) []history.Entry {
	const lengthAt, nameAt = 16, 19
	for len(b) > nameAt {
		length := int(binary.NativeEndian.Uint16(b[lengthAt:]))
		name, _, _ := bytes.Cut(b[nameAt:length], []byte{0})
		if s := string(name); s != "." && s != ".." {
			entries = append(entries, history.Entry{Name: s, Ino: binary.NativeEndian.Uint64(b)})
		}
		b = b[length:]
	}
	return entries
}

type mountHandle struct {
	m   *mount
	fd  int
	ino uint64
}

func (h *mountHandle) Ino() uint64 { return h.ino }
func (h *mountHandle) Close()      { unix.Close(h.fd) }

func (h *mountHandle) Links(context.Context) (uint64, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(h.fd, &st) })
	return uint64(st.Nlink), err
}

func (h *mountHandle) Link(_ context.Context, dir int, name string) error {
	return unix.Linkat(h.fd, "", unix.AT_FDCWD, h.m.path(dir, name), unix.AT_EMPTY_PATH)
}

func (h *mountHandle) Create(_ context.Context, name string) error {
	_, err := create(h.fd, name)
	return err
}

func (h *mountHandle) Unlink(_ context.Context, name string) error {
	return unix.Unlinkat(h.fd, name, 0)
}
