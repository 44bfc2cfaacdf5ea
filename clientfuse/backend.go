package clientfuse

import (
	"context"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
)

// inode is a reference to an inode of the backend: *client.Inode.
type inode interface {
	Ino() base.Ino
	IsDir() bool
	Release()
}

// file is an open file of the backend: *client.File.
type file interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
	Append(ctx context.Context, p []byte) (int64, error)
	Allocate(ctx context.Context, mode uint32, off, length int64) error
	SeekData(ctx context.Context, off int64) (int64, error)
	SeekHole(ctx context.Context, off int64) (int64, error)
	Flush(ctx context.Context) error
	Fsync(ctx context.Context) error
	GetLock(ctx context.Context, r client.LockRequest) (*client.HeldLock, error)
	SetLock(ctx context.Context, r client.LockRequest) error
	UnlockOwner(ctx context.Context, owner uint64) error
	HasLocks() bool
	LocksLost() bool
	Direct() bool
	Close(ctx context.Context) error
}

// created is what create answers: see client.Created.
type created struct {
	inode   inode
	attr    *client.Attr
	existed bool
	file    file
}

// nameIn is a name in a directory.
type nameIn struct {
	dir  inode
	name string
}

// ahead is the answer to a lookup that was asked ahead: see client.Ahead.
type ahead interface {
	Take() (n inode, attr, dirAttr *client.Attr, err error)
}

// backend is what the mount needs of *client.Client, whose documentation holds
// for each method. It exists so that the mount can be tested over a file system
// in memory. setAttr's handle may be nil. Every inode that is returned without
// an error holds a reference.
type backend interface {
	Root() inode
	// Lookup also returns dir's attributes if the answer carried them, with the
	// error that there is no such name too.
	Lookup(ctx context.Context, cred client.Cred, dir inode, name string) (n inode, attr, dirAttr *client.Attr, err error)
	Parent(ctx context.Context, cred client.Cred, dir inode) (inode, *client.Attr, error)
	GetAttr(ctx context.Context, cred client.Cred, n inode) (*client.Attr, error)
	// GetAttrAhead also looks up names, which need no reference to their directories.
	GetAttrAhead(ctx context.Context, cred client.Cred, n inode, names []nameIn) (*client.Attr, []ahead, error)
	SetAttr(ctx context.Context, cred client.Cred, n inode, set client.SetAttr, handle file) (*client.Attr, error)
	Access(ctx context.Context, cred client.Cred, n inode, mask uint32) error
	AccessDue(n inode) bool
	Accessed(n inode)
	StatFS(ctx context.Context, n inode) (*client.StatFS, error)

	Create(ctx context.Context, cred client.Cred, dir inode, name string, mode, flags uint32) (created, error)
	CreateAnonymous(ctx context.Context, cred client.Cred, dir inode, mode, flags uint32) (created, error)
	Mkdir(ctx context.Context, cred client.Cred, dir inode, name string, mode uint32) (inode, *client.Attr, error)
	Mknod(ctx context.Context, cred client.Cred, dir inode, name string, mode uint32, rdev uint64) (inode, *client.Attr, error)
	Symlink(ctx context.Context, cred client.Cred, dir inode, name, target string) (inode, *client.Attr, error)
	Readlink(ctx context.Context, cred client.Cred, n inode) (string, error)
	Link(ctx context.Context, cred client.Cred, n, dir inode, name string) (*client.Attr, error)
	Unlink(ctx context.Context, cred client.Cred, dir inode, name string) error
	Rmdir(ctx context.Context, cred client.Cred, dir inode, name string) error
	Rename(ctx context.Context, cred client.Cred, srcDir inode, srcName string, dstDir inode, dstName string, flags uint32) error

	ReadDir(ctx context.Context, cred client.Cred, dir inode, req client.ReadDirRequest) (client.ReadDirPage, error)
	InodeOf(dir inode, e *client.DirEntry) inode

	GetXattr(ctx context.Context, cred client.Cred, n inode, name string) ([]byte, error)
	SetXattr(ctx context.Context, cred client.Cred, n inode, name string, value []byte, flags uint32) error
	ListXattr(ctx context.Context, cred client.Cred, n inode) ([]string, error)
	RemoveXattr(ctx context.Context, cred client.Cred, n inode, name string) error

	Open(ctx context.Context, cred client.Cred, n inode, flags uint32) (file, error)
}

// clientBackend is *client.Client as a backend. All it does is to name the
// concrete types; an inode of nil never comes with a nil error.
type clientBackend struct{ c *client.Client }

func own(n inode) *client.Inode { return n.(*client.Inode) }

func entry(n *client.Inode, a *client.Attr, err error) (inode, *client.Attr, error) {
	if err != nil {
		return nil, nil, err
	}
	return n, a, nil
}

func opened(f *client.File, err error) (file, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func made(c client.Created, err error) (created, error) {
	if err != nil {
		return created{}, err
	}
	return created{inode: c.Inode, attr: c.Attr, existed: c.Existed, file: c.File}, nil
}

func (b clientBackend) Root() inode { return b.c.Root() }

func (b clientBackend) AccessDue(n inode) bool { return b.c.AccessDue(own(n)) }
func (b clientBackend) Accessed(n inode)       { b.c.Accessed(own(n)) }

func (b clientBackend) Lookup(ctx context.Context, cred client.Cred, dir inode, name string) (inode, *client.Attr, *client.Attr, error) {
	n, a, dirAttr, err := b.c.Lookup(ctx, cred, own(dir), name)
	if err != nil {
		return nil, nil, dirAttr, err
	}
	return n, a, dirAttr, nil
}

func (b clientBackend) Parent(ctx context.Context, cred client.Cred, dir inode) (inode, *client.Attr, error) {
	return entry(b.c.Parent(ctx, cred, own(dir)))
}

func (b clientBackend) GetAttr(ctx context.Context, cred client.Cred, n inode) (*client.Attr, error) {
	return b.c.GetAttr(ctx, cred, own(n))
}

// clientAhead is a *client.Ahead as an ahead.
type clientAhead struct{ *client.Ahead }

func (a clientAhead) Take() (inode, *client.Attr, *client.Attr, error) {
	n, attr, dirAttr, err := a.Ahead.Take()
	if err != nil {
		return nil, nil, dirAttr, err
	}
	return n, attr, dirAttr, nil
}

func (b clientBackend) GetAttrAhead(ctx context.Context, cred client.Cred, n inode, names []nameIn) (*client.Attr, []ahead, error) {
	ask := make([]client.Name, len(names))
	for i, name := range names {
		ask[i] = client.Name{Dir: own(name.dir), Name: name.name}
	}
	attr, answers, err := b.c.GetAttrAhead(ctx, cred, own(n), ask)
	out := make([]ahead, len(answers))
	for i := range answers {
		out[i] = clientAhead{&answers[i]}
	}
	return attr, out, err
}

func (b clientBackend) SetAttr(ctx context.Context, cred client.Cred, n inode, set client.SetAttr, handle file) (*client.Attr, error) {
	if handle != nil {
		set.Handle = handle.(*client.File)
	}
	return b.c.SetAttr(ctx, cred, own(n), set)
}

func (b clientBackend) Access(ctx context.Context, cred client.Cred, n inode, mask uint32) error {
	return b.c.Access(ctx, cred, own(n), mask)
}

func (b clientBackend) StatFS(ctx context.Context, n inode) (*client.StatFS, error) {
	return b.c.StatFS(ctx, own(n))
}

func (b clientBackend) Create(ctx context.Context, cred client.Cred, dir inode, name string, mode, flags uint32) (created, error) {
	return made(b.c.Create(ctx, cred, own(dir), name, mode, flags))
}

func (b clientBackend) CreateAnonymous(ctx context.Context, cred client.Cred, dir inode, mode, flags uint32) (created, error) {
	return made(b.c.CreateAnonymous(ctx, cred, own(dir), mode, flags))
}

func (b clientBackend) Mkdir(ctx context.Context, cred client.Cred, dir inode, name string, mode uint32) (inode, *client.Attr, error) {
	n, a, _, err := b.c.Mkdir(ctx, cred, own(dir), name, mode)
	return entry(n, a, err)
}

func (b clientBackend) Mknod(ctx context.Context, cred client.Cred, dir inode, name string, mode uint32, rdev uint64) (inode, *client.Attr, error) {
	n, a, _, err := b.c.Mknod(ctx, cred, own(dir), name, mode, rdev)
	return entry(n, a, err)
}

func (b clientBackend) Symlink(ctx context.Context, cred client.Cred, dir inode, name, target string) (inode, *client.Attr, error) {
	n, a, _, err := b.c.Symlink(ctx, cred, own(dir), name, target)
	return entry(n, a, err)
}

func (b clientBackend) Readlink(ctx context.Context, cred client.Cred, n inode) (string, error) {
	return b.c.Readlink(ctx, cred, own(n))
}

func (b clientBackend) Link(ctx context.Context, cred client.Cred, n, dir inode, name string) (*client.Attr, error) {
	a, _, err := b.c.Link(ctx, cred, own(n), own(dir), name)
	return a, err
}

func (b clientBackend) Unlink(ctx context.Context, cred client.Cred, dir inode, name string) error {
	_, err := b.c.Unlink(ctx, cred, own(dir), name)
	return err
}

func (b clientBackend) Rmdir(ctx context.Context, cred client.Cred, dir inode, name string) error {
	_, err := b.c.Rmdir(ctx, cred, own(dir), name)
	return err
}

func (b clientBackend) Rename(ctx context.Context, cred client.Cred, srcDir inode, srcName string, dstDir inode, dstName string, flags uint32) error {
	_, _, err := b.c.Rename(ctx, cred, own(srcDir), srcName, own(dstDir), dstName, flags)
	return err
}

func (b clientBackend) ReadDir(ctx context.Context, cred client.Cred, dir inode, req client.ReadDirRequest) (client.ReadDirPage, error) {
	return b.c.ReadDir(ctx, cred, own(dir), req)
}

func (b clientBackend) InodeOf(dir inode, e *client.DirEntry) inode { return b.c.InodeOf(own(dir), e) }

func (b clientBackend) GetXattr(ctx context.Context, cred client.Cred, n inode, name string) ([]byte, error) {
	return b.c.GetXattr(ctx, cred, own(n), name)
}

func (b clientBackend) SetXattr(ctx context.Context, cred client.Cred, n inode, name string, value []byte, flags uint32) error {
	return b.c.SetXattr(ctx, cred, own(n), name, value, flags)
}

func (b clientBackend) ListXattr(ctx context.Context, cred client.Cred, n inode) ([]string, error) {
	return b.c.ListXattr(ctx, cred, own(n))
}

func (b clientBackend) RemoveXattr(ctx context.Context, cred client.Cred, n inode, name string) error {
	return b.c.RemoveXattr(ctx, cred, own(n), name)
}

func (b clientBackend) Open(ctx context.Context, cred client.Cred, n inode, flags uint32) (file, error) {
	return opened(b.c.Open(ctx, cred, own(n), flags))
}
