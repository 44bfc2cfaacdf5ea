package client

import (
	"context"
	"slices"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	modeDir  = syscall.S_IFDIR
	modeLink = syscall.S_IFLNK
	modeType = syscall.S_IFMT
)

// Create makes and opens a regular file. mode has permission bits; flags are those of open(2): O_EXCL, O_TRUNC, access mode, O_APPEND,
// O_SYNC, O_DSYNC count. Like Open it checks no permission of a file that is
// there already.
func (c *Client) Create(ctx context.Context, cred Cred, dir *Inode, name string, mode, flags uint32) (Created, error) {
	return c.create(ctx, cred, dir, flags, &canopyv1.CreateCall{Dir: uint64(dir.ino), Name: []byte(name), Mode: mode & 0o7777,
		Exclusive: flags&syscall.O_EXCL != 0, Truncate: flags&syscall.O_TRUNC != 0})
}

// CreateAnonymous makes and opens a file without a name (O_TMPFILE) on the file
// system of dir. It goes when it is closed, unless Link gave it a name, which
// O_EXCL in flags forbids.
func (c *Client) CreateAnonymous(ctx context.Context, cred Cred, dir *Inode, mode, flags uint32) (Created, error) {
	return c.create(ctx, cred, dir, flags, &canopyv1.CreateCall{Dir: uint64(dir.ino), Mode: mode & 0o7777,
		Anonymous: true, Exclusive: flags&syscall.O_EXCL != 0})
}

func (c *Client) create(ctx context.Context, cred Cred, dir *Inode, flags uint32, call *canopyv1.CreateCall) (Created, error) {
	asked := time.Now()
	name := string(call.Name)
	op := dir.opOn(cred, name)
	call.Umask = cred.Umask
	op.Call = &canopyv1.Op_Create{Create: call}
	res, err := c.do(ctx, opCreate, op)
	if err != nil {
		return Created{}, err
	}
	// What is there already and lies in another subtree has not been truncated.
	foreign := res.Existed && res.Attr != nil && liesElsewhere(res.Attr)
	created := Created{Existed: res.Existed, DirAttr: c.sawDir(dir, res.DirAttr, asked)}
	if call.Anonymous && res.Attr != nil {
		n := c.inodes.enter(base.Ino(res.Attr.Ino), res.Attr.Mode, dir.subtreeID())
		n.at(dir, "")
		n.grant(c, res)
		created.Inode, created.Attr = n, n.show(res.Attr)
	} else {
		created.Inode, created.Attr, err = c.entered(ctx, cred, dir, name, res, asked)
	}
	if err != nil {
		return Created{}, err
	}
	if st := created.Inode.file.Load(); st != nil && res.Existed && call.Truncate && !foreign {
		st.truncated(res.Attr, 0)
		created.Attr = created.Inode.show(res.Attr)
	}
	if res.Existed && res.Attr.Mode&modeType != syscall.S_IFREG {
		return created, nil // what is no regular file has no File
	}
	if foreign && call.Truncate {
		err = c.Access(ctx, cred, created.Inode, accessWrite)
	} else {
		flags &^= syscall.O_TRUNC
	}
	if err == nil {
		created.File, err = c.Open(ctx, cred, created.Inode, flags)
	}
	if err != nil {
		created.Inode.Release()
		return Created{}, err
	}
	if !res.Existed {
		created.File.st.fresh()
	}
	created.File.st.learnRoom(res, asked)
	return created, nil
}

// made sends an operation that makes name in dir and enters its answer.
func (c *Client) made(ctx context.Context, cred Cred, kind opKind, op *canopyv1.Op, dir *Inode, name string) (n *Inode, attr, dirAttr *Attr, err error) {
	asked := time.Now()
	res, err := c.do(ctx, kind, op)
	if err != nil {
		return nil, nil, nil, err
	}
	dirAttr = c.sawDir(dir, res.DirAttr, asked)
	n, attr, err = c.entered(ctx, cred, dir, name, res, asked)
	return n, attr, dirAttr, err
}

// Mkdir makes a directory. The Inode holds a reference.
func (c *Client) Mkdir(ctx context.Context, cred Cred, dir *Inode, name string, mode uint32) (n *Inode, attr, dirAttr *Attr, err error) {
	op := dir.opOn(cred, name)
	op.Call = &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: uint64(dir.ino), Name: []byte(name), Mode: mode & 0o7777, Umask: cred.Umask}}
	return c.made(ctx, cred, opMkdir, op, dir, name)
}

// Mknod makes a special file or, by S_IFREG in mode, a regular one. The Inode
// holds a reference.
func (c *Client) Mknod(ctx context.Context, cred Cred, dir *Inode, name string, mode uint32, rdev uint64) (n *Inode, attr, dirAttr *Attr, err error) {
	op := dir.opOn(cred, name)
	op.Call = &canopyv1.Op_Mknod{Mknod: &canopyv1.MknodCall{Dir: uint64(dir.ino), Name: []byte(name), Mode: mode, Rdev: rdev, Umask: cred.Umask}}
	return c.made(ctx, cred, opMknod, op, dir, name)
}

// Symlink makes a symbolic link to target. The Inode holds a reference.
func (c *Client) Symlink(ctx context.Context, cred Cred, dir *Inode, name, target string) (n *Inode, attr, dirAttr *Attr, err error) {
	op := dir.opOn(cred, name)
	op.Call = &canopyv1.Op_Symlink{Symlink: &canopyv1.SymlinkCall{Dir: uint64(dir.ino), Name: []byte(name), Target: []byte(target)}}
	return c.made(ctx, cred, opSymlink, op, dir, name)
}

// Link gives n the further name in dir and returns n's attributes after it.
func (c *Client) Link(ctx context.Context, cred Cred, n, dir *Inode, name string) (attr, dirAttr *Attr, err error) {
	asked := time.Now()
	op := n.op(cred) // PROTOCOLS C4: the first operand is the inode
	op.Call = &canopyv1.Op_Link{Link: &canopyv1.LinkCall{Place: n.place(), Dir: uint64(dir.ino), Name: []byte(name), DirSubtree: uint64(dir.subtreeFor(name))}}
	res, err := c.do(ctx, opLink, op)
	if err != nil {
		return nil, nil, err
	}
	dirAttr = c.sawDir(dir, res.DirAttr, asked)
	if res.Attr == nil {
		return nil, nil, fserr.New(fserr.Malformed, "link", nil)
	}
	n.at(dir, name)
	c.cache.putName(dir.ino, name, res.Attr, asked)
	if st := n.file.Load(); st != nil {
		st.setOrphan(false)
	}
	return n.show(res.Attr), dirAttr, nil
}

// Unlink removes a name that is no directory's.
func (c *Client) Unlink(ctx context.Context, cred Cred, dir *Inode, name string) (dirAttr *Attr, err error) {
	asked := time.Now()
	op := dir.opOn(cred, name)
	op.Call = &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: uint64(dir.ino), Name: []byte(name)}}
	res, err := c.do(ctx, opUnlink, op)
	c.cache.dropName(dir.ino, name)
	if err != nil {
		return nil, err
	}
	c.lostName(res.Replaced, asked)
	return c.sawDir(dir, res.DirAttr, asked), nil
}

// lostName notes what an inode that lost a name looks like now.
func (c *Client) lostName(attr *Attr, asked time.Time) {
	if attr == nil {
		return
	}
	c.cache.putAttr(attr, asked)
	n := c.inodes.find(base.Ino(attr.Ino))
	if n == nil {
		return
	}
	n.see(attr)
	if st := n.file.Load(); st != nil && attr.Nlink == 0 {
		st.setOrphan(true)
	}
	n.Release()
}

// Rmdir removes an empty directory.
func (c *Client) Rmdir(ctx context.Context, cred Cred, dir *Inode, name string) (dirAttr *Attr, err error) {
	asked := time.Now()
	op := dir.opOn(cred, name)
	op.Call = &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: uint64(dir.ino), Name: []byte(name)}}
	res, err := c.do(ctx, opRmdir, op)
	c.cache.dropName(dir.ino, name)
	if err != nil {
		return nil, err
	}
	if res.Replaced != nil {
		c.cache.dropAttr(base.Ino(res.Replaced.Ino))
	}
	return c.sawDir(dir, res.DirAttr, asked), nil
}

// accessWrite is W_OK of access(2).
const accessWrite = 2

// Flags of Rename, those of renameat2(2).
const (
	RenameNoReplace uint32 = 1
	RenameExchange  uint32 = 2
	RenameWhiteout  uint32 = 4 // leaves a character device 0:0 under the old name
)

// Rename moves a name. flags are RenameExchange, or RenameNoReplace and
// RenameWhiteout or either. It returns
// both directories' attributes if the answer carried them.
func (c *Client) Rename(ctx context.Context, cred Cred, srcDir *Inode, srcName string, dstDir *Inode, dstName string, flags uint32) (srcDirAttr, dstDirAttr *Attr, err error) {
	asked := time.Now()
	op := srcDir.opOn(cred, srcName)
	op.Call = &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{SrcDir: uint64(srcDir.ino), SrcName: []byte(srcName),
		DstDir: uint64(dstDir.ino), DstName: []byte(dstName), Flags: flags, DstSubtree: uint64(dstDir.subtreeFor(dstName))}}
	res, err := c.do(ctx, opRename, op)
	c.cache.dropName(srcDir.ino, srcName)
	c.cache.dropName(dstDir.ino, dstName)
	if err != nil {
		return nil, nil, err
	}
	srcDirAttr = c.sawDir(srcDir, res.DirAttr, asked)
	dstDirAttr = srcDirAttr
	if srcDir != dstDir {
		dstDirAttr = c.sawDir(dstDir, res.DstDirAttr, asked)
	}
	c.renamed(res.Attr, dstDir, dstName, asked)
	if flags&RenameExchange != 0 {
		c.renamed(res.Replaced, srcDir, srcName, asked)
	} else {
		c.lostName(res.Replaced, asked)
	}
	return srcDirAttr, dstDirAttr, nil
}

// renamed notes the new place of an inode. What lies below a directory is
// addressed by the directory's number and does not change.
func (c *Client) renamed(attr *Attr, dir *Inode, name string, asked time.Time) {
	if attr == nil {
		return
	}
	c.cache.putName(dir.ino, name, attr, asked)
	if n := c.inodes.find(base.Ino(attr.Ino)); n != nil {
		n.at(dir, name)
		n.see(attr)
		n.Release()
	}
}

// GetXattr returns the value of the extended attribute, or kind NoData.
func (c *Client) GetXattr(ctx context.Context, cred Cred, n *Inode, name string) ([]byte, error) {
	op := n.op(cred)
	op.Call = &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: n.place(), Name: []byte(name)}}
	res, err := c.do(ctx, opGetXattr, op)
	if err != nil {
		return nil, err
	}
	return res.Data, nil
}

// SetXattr sets an extended attribute; flags: 1 XATTR_CREATE, 2 XATTR_REPLACE.
func (c *Client) SetXattr(ctx context.Context, cred Cred, n *Inode, name string, value []byte, flags uint32) error {
	op := n.op(cred)
	op.Call = &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: n.place(), Name: []byte(name), Value: slices.Clone(value), Flags: flags}}
	return c.changed(ctx, opSetXattr, op, n)
}

// RemoveXattr removes an extended attribute, or answers kind NoData.
func (c *Client) RemoveXattr(ctx context.Context, cred Cred, n *Inode, name string) error {
	op := n.op(cred)
	op.Call = &canopyv1.Op_RemoveXattr{RemoveXattr: &canopyv1.RemoveXattrCall{Place: n.place(), Name: []byte(name)}}
	return c.changed(ctx, opRemoveXattr, op, n)
}

// changed sends an operation that changes n and takes the attributes after it.
func (c *Client) changed(ctx context.Context, kind opKind, op *canopyv1.Op, n *Inode) error {
	asked := time.Now()
	res, err := c.do(ctx, kind, op)
	if err != nil || res.Attr == nil || isPartial(res.Attr) {
		c.cache.dropAttr(n.ino)
		return err
	}
	n.movedTo(res.Place, res.Attr)
	n.see(res.Attr)
	c.cache.putAttr(res.Attr, asked)
	return nil
}

// ListXattr returns the names of n's extended attributes.
func (c *Client) ListXattr(ctx context.Context, cred Cred, n *Inode) ([]string, error) {
	op := n.op(cred)
	op.Call = &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: n.place()}}
	res, err := c.do(ctx, opListXattr, op)
	if err != nil {
		return nil, err
	}
	var names []string
	for rest := res.Data; len(rest) > 0; {
		i := indexNUL(rest)
		names = append(names, string(rest[:i]))
		rest = rest[min(i+1, len(rest)):]
	}
	return names, nil
}

func indexNUL(b []byte) int {
	for i, v := range b {
		if v == 0 {
			return i
		}
	}
	return len(b)
}
