package client

import (
	"context"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Lookup finds name in dir. The Inode holds a reference. dirAttr is the
// directory's attributes if the answer carried them, else nil.
func (c *Client) Lookup(ctx context.Context, cred Cred, dir *Inode, name string) (n *Inode, attr, dirAttr *Attr, err error) {
	return nil, nil, nil, fserr.New(fserr.Internal, "lookup", nil)
}

// Parent returns dir's parent directory (".."); the root is its own parent. The
// Inode holds a reference.
func (c *Client) Parent(ctx context.Context, cred Cred, dir *Inode) (*Inode, *Attr, error) {
	return nil, nil, fserr.New(fserr.Internal, "parent", nil)
}

// GetAttr returns the attributes of n, this client's buffered writes included.
func (c *Client) GetAttr(ctx context.Context, cred Cred, n *Inode) (*Attr, error) {
	return nil, fserr.New(fserr.Internal, "getattr", nil)
}

// SetAttr changes attributes of n and returns them after the change. Buffered
// bytes below a new size are kept, those beyond it dropped.
func (c *Client) SetAttr(ctx context.Context, cred Cred, n *Inode, set SetAttr) (*Attr, error) {
	return nil, fserr.New(fserr.Internal, "setattr", nil)
}

// Access answers nil or an error as access(2) does; mask has its bits.
func (c *Client) Access(ctx context.Context, cred Cred, n *Inode, mask uint32) error {
	return fserr.New(fserr.Internal, "access", nil)
}

// StatFS returns the size of the file system.
func (c *Client) StatFS(ctx context.Context) (*StatFS, error) {
	return nil, fserr.New(fserr.Internal, "statfs", nil)
}

// Create makes and opens a regular file. mode has permission bits, umask
// applied; flags are those of open(2): O_EXCL, O_TRUNC, access mode, O_APPEND,
// O_SYNC, O_DSYNC count.
func (c *Client) Create(ctx context.Context, cred Cred, dir *Inode, name string, mode, flags uint32) (Created, error) {
	return Created{}, fserr.New(fserr.Internal, "create", nil)
}

// CreateAnonymous makes and opens a file without a name (O_TMPFILE) on the file
// system of dir. It goes when it is closed, unless it was linked.
func (c *Client) CreateAnonymous(ctx context.Context, cred Cred, dir *Inode, mode, flags uint32) (Created, error) {
	return Created{}, fserr.New(fserr.Internal, "tmpfile", nil)
}

// Mkdir makes a directory. The Inode holds a reference.
func (c *Client) Mkdir(ctx context.Context, cred Cred, dir *Inode, name string, mode uint32) (n *Inode, attr, dirAttr *Attr, err error) {
	return nil, nil, nil, fserr.New(fserr.Internal, "mkdir", nil)
}

// Mknod makes a special file or, by S_IFREG in mode, a regular one. The Inode
// holds a reference.
func (c *Client) Mknod(ctx context.Context, cred Cred, dir *Inode, name string, mode uint32, rdev uint64) (n *Inode, attr, dirAttr *Attr, err error) {
	return nil, nil, nil, fserr.New(fserr.Internal, "mknod", nil)
}

// Symlink makes a symbolic link to target. The Inode holds a reference.
func (c *Client) Symlink(ctx context.Context, cred Cred, dir *Inode, name, target string) (n *Inode, attr, dirAttr *Attr, err error) {
	return nil, nil, nil, fserr.New(fserr.Internal, "symlink", nil)
}

// Readlink returns the target of the symbolic link n.
func (c *Client) Readlink(ctx context.Context, cred Cred, n *Inode) (string, error) {
	return "", fserr.New(fserr.Internal, "readlink", nil)
}

// Link gives n the further name in dir and returns n's attributes after it.
func (c *Client) Link(ctx context.Context, cred Cred, n, dir *Inode, name string) (attr, dirAttr *Attr, err error) {
	return nil, nil, fserr.New(fserr.Internal, "link", nil)
}

// Unlink removes a name that is no directory's.
func (c *Client) Unlink(ctx context.Context, cred Cred, dir *Inode, name string) (dirAttr *Attr, err error) {
	return nil, fserr.New(fserr.Internal, "unlink", nil)
}

// Rmdir removes an empty directory.
func (c *Client) Rmdir(ctx context.Context, cred Cred, dir *Inode, name string) (dirAttr *Attr, err error) {
	return nil, fserr.New(fserr.Internal, "rmdir", nil)
}

// Rename moves a name. flags are renameat2's: 1 NOREPLACE, 2 EXCHANGE. It
// returns both directories' attributes if the answer carried them.
func (c *Client) Rename(ctx context.Context, cred Cred, srcDir *Inode, srcName string, dstDir *Inode, dstName string, flags uint32) (srcDirAttr, dstDirAttr *Attr, err error) {
	return nil, nil, fserr.New(fserr.Internal, "rename", nil)
}

// ReadDir returns a page of dir's names in cookie order, without "." and "..".
func (c *Client) ReadDir(ctx context.Context, cred Cred, dir *Inode, req ReadDirRequest) (ReadDirPage, error) {
	return ReadDirPage{}, fserr.New(fserr.Internal, "readdir", nil)
}

// InodeOf returns the inode of an entry that ReadDir of dir returned, with a
// reference, as Lookup of its name would.
func (c *Client) InodeOf(dir *Inode, e *DirEntry) *Inode { return nil }

// GetXattr returns the value of the extended attribute, or kind NoData.
func (c *Client) GetXattr(ctx context.Context, cred Cred, n *Inode, name string) ([]byte, error) {
	return nil, fserr.New(fserr.Internal, "getxattr", nil)
}

// SetXattr sets an extended attribute; flags: 1 XATTR_CREATE, 2 XATTR_REPLACE.
func (c *Client) SetXattr(ctx context.Context, cred Cred, n *Inode, name string, value []byte, flags uint32) error {
	return fserr.New(fserr.Internal, "setxattr", nil)
}

// ListXattr returns the names of n's extended attributes.
func (c *Client) ListXattr(ctx context.Context, cred Cred, n *Inode) ([]string, error) {
	return nil, fserr.New(fserr.Internal, "listxattr", nil)
}

// RemoveXattr removes an extended attribute, or answers kind NoData.
func (c *Client) RemoveXattr(ctx context.Context, cred Cred, n *Inode, name string) error {
	return fserr.New(fserr.Internal, "removexattr", nil)
}

// Open opens the regular file n. It checks no permission (a kernel with
// default_permissions or FS does, or call Access) and asks nobody, but with
// O_TRUNC, which sets the size to 0 as SetAttr with the handle does.
func (c *Client) Open(ctx context.Context, cred Cred, n *Inode, flags uint32) (*File, error) {
	return nil, fserr.New(fserr.Internal, "open", nil)
}

// Inode is an inode that this client knows: there is one per number, reference
// counted, with the place where it was last seen and, of an open file, the
// buffered bytes. Each *Inode that a call returns holds one reference.
type Inode struct {
	ino   base.Ino
	isDir bool
}

// Ino returns the inode number.
func (n *Inode) Ino() base.Ino { return n.ino }

// IsDir reports whether it is a directory.
func (n *Inode) IsDir() bool { return n.isDir }

// Hold takes a further reference; the caller holds one already.
func (n *Inode) Hold() {}

// Release gives one reference back. The Inode must not be used after the last.
func (n *Inode) Release() {}
