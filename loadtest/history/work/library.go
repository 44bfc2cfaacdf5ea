package work

import (
	"context"
	"errors"
	"path"
	"sync"
	"syscall"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/loadtest/history"
)

// library is a client of its own in this process.
type library struct {
	c    *client.Client
	cred client.Cred
	dirs []*client.Inode

	mu   sync.Mutex
	logs map[logKey]*client.File
}

type logKey struct {
	dir  int
	name string
}

// OpenLibrary connects to a cluster and opens the run's directories, which it makes if
// they are not there.
func OpenLibrary(ctx context.Context, cluster string, h *history.Header) (System, error) {
	c, err := client.Connect(ctx, client.Config{Cluster: cluster, Mount: "loadtest history"})
	if err != nil {
		return nil, err
	}
	l := &library{c: c, cred: client.Cred{UID: uint32(syscall.Getuid()), GID: uint32(syscall.Getgid())}, logs: map[logKey]*client.File{}}
	if err := l.openDirs(ctx, h); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return l, nil
}

func (l *library) openDirs(ctx context.Context, h *history.Header) error {
	fsys := l.c.FS(l.cred)
	for _, d := range h.Dirs {
		p := path.Join("/", h.Root, h.Base, d)
		if err := fsys.MkdirAll(ctx, p, dirMode); err != nil {
			return err
		}
		n, _, err := fsys.Walk(ctx, p, true)
		if err != nil {
			return err
		}
		l.dirs = append(l.dirs, n)
	}
	return nil
}

func (l *library) Via() string { return history.ByLibrary }

func (l *library) Close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, f := range l.logs {
		errs = append(errs, f.Close(ctx))
	}
	for _, d := range l.dirs {
		d.Release()
	}
	return errors.Join(append(errs, l.c.Close(ctx))...)
}

func (l *library) RemoveAll(ctx context.Context, h *history.Header) error {
	return l.c.FS(l.cred).RemoveAll(ctx, path.Join("/", h.Root, h.Base))
}

func (l *library) Create(ctx context.Context, dir int, name string) (uint64, error) {
	made, err := l.c.Create(ctx, l.cred, l.dirs[dir], name, fileMode, syscall.O_EXCL|syscall.O_WRONLY)
	if err != nil {
		return 0, err
	}
	defer made.Inode.Release()
	_ = made.File.Close(context.WithoutCancel(ctx)) // nothing was written
	return uint64(made.Inode.Ino()), nil
}

func (l *library) Mkdir(ctx context.Context, dir int, name string) (uint64, error) {
	n, _, _, err := l.c.Mkdir(ctx, l.cred, l.dirs[dir], name, dirMode)
	if err != nil {
		return 0, err
	}
	defer n.Release()
	return uint64(n.Ino()), nil
}

func (l *library) Stat(ctx context.Context, dir int, name string) (ino, links uint64, err error) {
	n, attr, _, err := l.c.Lookup(ctx, l.cred, l.dirs[dir], name)
	if err != nil {
		return 0, 0, err
	}
	defer n.Release()
	if n.IsDir() {
		return uint64(n.Ino()), 0, nil
	}
	return uint64(n.Ino()), uint64(attr.Nlink), nil
}

func (l *library) Hold(ctx context.Context, dir int, name string) (Handle, error) {
	n, _, _, err := l.c.Lookup(ctx, l.cred, l.dirs[dir], name)
	if err != nil {
		return nil, err
	}
	return &libraryHandle{l, n}, nil
}

func (l *library) Unlink(ctx context.Context, dir int, name string) error {
	_, err := l.c.Unlink(ctx, l.cred, l.dirs[dir], name)
	return err
}

func (l *library) Rmdir(ctx context.Context, dir int, name string) error {
	_, err := l.c.Rmdir(ctx, l.cred, l.dirs[dir], name)
	return err
}

func (l *library) Rename(ctx context.Context, dir int, name string, toDir int, toName string, flags uint) error {
	var f uint32
	if flags&noReplace != 0 {
		f |= client.RenameNoReplace
	}
	if flags&exchange != 0 {
		f |= client.RenameExchange
	}
	_, _, err := l.c.Rename(ctx, l.cred, l.dirs[dir], name, l.dirs[toDir], toName, f)
	return err
}

// inode calls fn with what the name leads to, or with the directory.
func (l *library) inode(ctx context.Context, dir int, name string, fn func(*client.Inode) error) error {
	if name == "" {
		return fn(l.dirs[dir])
	}
	n, _, _, err := l.c.Lookup(ctx, l.cred, l.dirs[dir], name)
	if err != nil {
		return err
	}
	defer n.Release()
	return fn(n)
}

func (l *library) SetXattr(ctx context.Context, dir int, name, attr, value string) error {
	return l.inode(ctx, dir, name, func(n *client.Inode) error { return l.c.SetXattr(ctx, l.cred, n, attr, []byte(value), 0) })
}

func (l *library) GetXattr(ctx context.Context, dir int, name, attr string) (value string, err error) {
	err = l.inode(ctx, dir, name, func(n *client.Inode) error {
		b, err := l.c.GetXattr(ctx, l.cred, n, attr)
		value = string(b)
		return err
	})
	return value, err
}

func (l *library) RemoveXattr(ctx context.Context, dir int, name, attr string) error {
	return l.inode(ctx, dir, name, func(n *client.Inode) error { return l.c.RemoveXattr(ctx, l.cred, n, attr) })
}

// log returns the open file of a log.
func (l *library) log(ctx context.Context, dir int, name string) (*client.File, error) {
	n, _, _, err := l.c.Lookup(ctx, l.cred, l.dirs[dir], name)
	if err != nil {
		return nil, err
	}
	defer n.Release()
	f, err := l.c.Open(ctx, l.cred, n, syscall.O_WRONLY|syscall.O_APPEND)
	if err != nil {
		return nil, err
	}
	key := logKey{dir, name}
	l.mu.Lock()
	first := l.logs[key]
	if first == nil {
		l.logs[key] = f
	}
	l.mu.Unlock()
	if first == nil {
		return f, nil
	}
	return first, f.Close(ctx)
}

func (l *library) Append(ctx context.Context, dir int, name string, record []byte) error {
	l.mu.Lock()
	f := l.logs[logKey{dir, name}]
	l.mu.Unlock()
	if f == nil {
		var err error
		if f, err = l.log(ctx, dir, name); err != nil {
			return err
		}
	}
	_, err := f.Append(ctx, record)
	return err
}

func (l *library) Read(ctx context.Context, dir int, name string) ([]byte, error) {
	n, attr, _, err := l.c.Lookup(ctx, l.cred, l.dirs[dir], name)
	if err != nil {
		return nil, err
	}
	defer n.Release()
	f, err := l.c.Open(ctx, l.cred, n, syscall.O_RDONLY)
	if err != nil {
		return nil, err
	}
	p := make([]byte, attr.Size)
	got, err := f.ReadAt(ctx, p, 0)
	return p[:got], errors.Join(err, f.Close(ctx))
}

func (l *library) List(ctx context.Context, dir, page int) ([]history.Entry, error) {
	var entries []history.Entry
	req := client.ReadDirRequest{MaxEntries: page}
	for {
		page, err := l.c.ReadDir(ctx, l.cred, l.dirs[dir], req)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			entries = append(entries, history.Entry{Name: string(e.GetName()), Ino: e.GetIno()})
			req.Cookie = e.GetCookie()
		}
		if page.EOF {
			return entries, nil
		}
		req.Mark = page.Mark
	}
}

type libraryHandle struct {
	l *library
	n *client.Inode
}

func (h *libraryHandle) Ino() uint64 { return uint64(h.n.Ino()) }
func (h *libraryHandle) Close()      { h.n.Release() }

func (h *libraryHandle) Links(ctx context.Context) (uint64, error) {
	attr, err := h.l.c.GetAttr(ctx, h.l.cred, h.n)
	if err != nil {
		return 0, err
	}
	return uint64(attr.Nlink), nil
}

func (h *libraryHandle) Link(ctx context.Context, dir int, name string) error {
	_, _, err := h.l.c.Link(ctx, h.l.cred, h.n, h.l.dirs[dir], name)
	return err
}

func (h *libraryHandle) Create(ctx context.Context, name string) error {
	made, err := h.l.c.Create(ctx, h.l.cred, h.n, name, fileMode, syscall.O_EXCL|syscall.O_WRONLY)
	if err != nil {
		return err
	}
	made.Inode.Release()
	_ = made.File.Close(context.WithoutCancel(ctx)) // nothing was written
	return nil
}

func (h *libraryHandle) Unlink(ctx context.Context, name string) error {
	_, err := h.l.c.Unlink(ctx, h.l.cred, h.n, name)
	return err
}
