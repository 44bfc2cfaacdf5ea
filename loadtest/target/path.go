package target

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	fileMode = 0o644
	dirMode  = 0o755
	// listBytes is the size of the buffer that ls gives to getdents64.
	listBytes = 32 << 10
)

// pathTarget works below a directory with system calls and whole paths, as
// programs do. It goes around package os, whose files join the poller.
type pathTarget struct{ root string }

// NewPath returns the target below an existing directory.
func NewPath(dir string) (Target, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(abs)
	if err != nil {
		return nil, fmt.Errorf("--path %s: %w", dir, errors.Unwrap(err))
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("--path %s: not a directory", dir)
	}
	return &pathTarget{root: abs}, nil
}

func (t *pathTarget) Describe() string { return t.root }

func (t *pathTarget) Close(context.Context) error { return nil }

func (t *pathTarget) MkdirAll(_ context.Context, rel string) error {
	return os.MkdirAll(filepath.Join(t.root, rel), dirMode)
}

func (t *pathTarget) RemoveAll(_ context.Context, rel string) error {
	return os.RemoveAll(filepath.Join(t.root, rel))
}

func (t *pathTarget) Dir(_ context.Context, rel string) (Dir, error) {
	dir := filepath.Join(t.root, rel)
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(dir, &st) }); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return &pathDir{prefix: dir + "/"}, nil
}

type pathDir struct{ prefix string }

// retry repeats a call that a signal interrupted: the runtime sends signals.
func retry(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

func (d *pathDir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.prefix + name, Err: err}
}

func (d *pathDir) Mkdir(_ context.Context, name string) error {
	return d.fail("mkdir", name, retry(func() error { return unix.Mkdir(d.prefix+name, dirMode) }))
}

func (d *pathDir) Rmdir(_ context.Context, name string) error {
	return d.fail("rmdir", name, retry(func() error { return unix.Rmdir(d.prefix + name) }))
}

func (d *pathDir) openClose(name string, flags int) error {
	var fd int
	err := retry(func() (err error) { fd, err = unix.Open(d.prefix+name, flags|unix.O_CLOEXEC, fileMode); return err })
	if err != nil {
		return err
	}
	// close is not repeated: after EINTR the descriptor is gone on Linux.
	return unix.Close(fd)
}

func (d *pathDir) Create(_ context.Context, name string) error {
	return d.fail("create", name, d.openClose(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY))
}

func (d *pathDir) Open(_ context.Context, name string) error {
	return d.fail("open", name, d.openClose(name, unix.O_RDONLY))
}

func (d *pathDir) Stat(_ context.Context, name string) error {
	var st unix.Stat_t
	return d.fail("stat", name, retry(func() error { return unix.Lstat(d.prefix+name, &st) }))
}

func (d *pathDir) Rename(_ context.Context, from, to string) error {
	return d.fail("rename", from, retry(func() error { return unix.Rename(d.prefix+from, d.prefix+to) }))
}

func (d *pathDir) Unlink(_ context.Context, name string) error {
	return d.fail("unlink", name, retry(func() error { return unix.Unlink(d.prefix + name) }))
}

func (d *pathDir) List(ctx context.Context, visit func(name string, ino uint64)) (int, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Open(d.prefix, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, d.fail("open", "", err)
	}
	defer unix.Close(fd)
	buf := make([]byte, listBytes)
	count := 0
	for {
		var n int
		if err := retry(func() (err error) { n, err = unix.Getdents(fd, buf); return err }); err != nil {
			return count, d.fail("getdents", "", err)
		}
		if n == 0 || ctx.Err() != nil {
			return count, ctx.Err()
		}
		count += parseDirents(buf[:n], visit)
	}
}

// parseDirents walks records of linux_dirent64: ino 8, off 8, reclen 2, type 1,
// name ended by NUL.
func parseDirents(b []byte, visit func(name string, ino uint64)) int {
	const nameAt = 19
	count := 0
	for len(b) >= nameAt {
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length < nameAt || length > len(b) {
			return count
		}
		name := unix.ByteSliceToString(b[nameAt:length])
		if name != "." && name != ".." {
			count++
			if visit != nil {
				visit(name, binary.NativeEndian.Uint64(b))
			}
		}
		b = b[length:]
	}
	return count
}

// lsXattrs are what ls -l asks of each name until the file system says that it
// has none of the kind.
var lsXattrs = [...]string{"security.selinux", "system.posix_acl_access"}

func (d *pathDir) ListAttrs(ctx context.Context) (int, error) {
	var names []string
	if _, err := d.List(ctx, func(name string, _ uint64) { names = append(names, name) }); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	var unsupported [len(lsXattrs)]bool
	value := make([]byte, 256)
	for i, name := range names {
		if i%1024 == 0 && ctx.Err() != nil {
			return i, ctx.Err()
		}
		path := d.prefix + name
		if err := retry(func() error { return unix.Lstat(path, &st) }); err != nil {
			return i, d.fail("stat", name, err)
		}
		for x, attr := range lsXattrs {
			if !unsupported[x] {
				_, err := unix.Lgetxattr(path, attr, value)
				unsupported[x] = err == unix.EOPNOTSUPP
			}
		}
	}
	return len(names), nil
}

func (d *pathDir) Close() error { return nil }
