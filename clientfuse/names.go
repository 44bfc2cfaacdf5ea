package clientfuse

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
)

// maker returns for whom the server is to make something. With DONT_MASK (K1)
// requests carry the mode as the program gave it, and the umask beside it: whether
// it counts hangs on the directory's default ACL, which the server knows.
func (c *call) maker(umask uint32) client.Cred {
	cred := c.cred()
	cred.Umask = umask & 0777
	return cred
}

// made answers a request that made a name.
func (f *fileSystem) made(n inode, a *client.Attr, err error, dir uint64, out *fuse.EntryOut) fuse.Status {
	if err != nil {
		return errno(err)
	}
	f.found(n, a, dir, out)
	return fuse.OK
}

// Mkdir implements fuse.RawFileSystem.
func (f *fileSystem) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	c := f.begin(opMkdir, cancel, &in.InHeader)
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	n, a, err := f.backend.Mkdir(c, c.maker(in.Umask), dir.inode, name, in.Mode&07777)
	return c.end(f.made(n, a, err, dir.id, out))
}

// Mknod implements fuse.RawFileSystem.
func (f *fileSystem) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	c := f.begin(opMknod, cancel, &in.InHeader)
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	n, a, err := f.backend.Mknod(c, c.maker(in.Umask), dir.inode, name, in.Mode, uint64(in.Rdev))
	return c.end(f.made(n, a, err, dir.id, out))
}

// Symlink implements fuse.RawFileSystem.
func (f *fileSystem) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	c := f.begin(opSymlink, cancel, h)
	dir := f.nodes.get(h.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	n, a, err := f.backend.Symlink(c, c.cred(), dir.inode, name, target)
	return c.end(f.made(n, a, err, dir.id, out))
}

// Readlink implements fuse.RawFileSystem.
func (f *fileSystem) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	c := f.begin(opReadlink, cancel, h)
	n := f.nodes.get(h.NodeId)
	if n == nil {
		return nil, c.end(estale)
	}
	target, err := f.backend.Readlink(c, c.cred(), n.inode)
	if err != nil {
		return nil, c.end(errno(err))
	}
	if f.movesAtime() {
		f.backend.Accessed(n.inode)
	}
	return []byte(target), c.end(fuse.OK)
}

// Link implements fuse.RawFileSystem.
func (f *fileSystem) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	c := f.begin(opLink, cancel, &in.InHeader)
	dir, n := f.nodes.get(in.NodeId), f.nodes.get(in.Oldnodeid)
	if dir == nil || n == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	a, err := f.backend.Link(c, c.cred(), n.inode, dir.inode, name)
	if err != nil {
		return c.end(errno(err))
	}
	f.nodes.again(n)
	f.fill(n, a, dir.id, out)
	return c.end(fuse.OK)
}

// Unlink implements fuse.RawFileSystem.
func (f *fileSystem) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := f.begin(opUnlink, cancel, h)
	dir := f.nodes.get(h.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	return c.end(errno(f.backend.Unlink(c, c.cred(), dir.inode, name)))
}

// Rmdir implements fuse.RawFileSystem.
func (f *fileSystem) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := f.begin(opRmdir, cancel, h)
	dir := f.nodes.get(h.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	return c.end(errno(f.backend.Rmdir(c, c.cred(), dir.inode, name)))
}

// Flags of renameat2(2) that are served.
const renameFlags = client.RenameNoReplace | client.RenameExchange | client.RenameWhiteout

// Rename implements fuse.RawFileSystem.
func (f *fileSystem) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	c := f.begin(opRename, cancel, &in.InHeader)
	src, dst := f.nodes.get(in.NodeId), f.nodes.get(in.Newdir)
	switch {
	case src == nil || dst == nil:
		return c.end(estale)
	case in.Flags&^renameFlags != 0:
		return c.end(fuse.EINVAL)
	}
	src.nameChanges.begin()
	defer src.nameChanges.end()
	dst.nameChanges.begin()
	defer dst.nameChanges.end()
	return c.end(errno(f.backend.Rename(c, c.cred(), src.inode, from, dst.inode, to, in.Flags)))
}

// Create implements fuse.RawFileSystem.
func (f *fileSystem) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	c := f.begin(opCreate, cancel, &in.InHeader)
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	dir.nameChanges.begin()
	defer dir.nameChanges.end()
	made, err := f.backend.Create(c, c.maker(in.Umask), dir.inode, name, in.Mode&07777, in.Flags&^syscall.O_APPEND)
	if err != nil {
		s := errno(err)
		if s != fuse.ENOENT && in.Flags&syscall.O_EXCL == 0 && notAFile(s) {
			s = estale
		}
		return c.end(s)
	}
	if made.existed {
		if s := f.mayOpenMade(c, made, in.Flags); !s.Ok() {
			f.giveUp(c, made)
			return c.end(s)
		}
	}
	n := f.answerCreated(made, dir.id, in.Flags, out)
	if !made.existed {
		f.keepCreate(c, n, made.attr)
	}
	return c.end(fuse.OK)
}

// notAFile reports the answers to a create that met something else than a file,
// which another mount has just put there (a symbolic link, a directory). The
// kernel cannot go on from there; on ESTALE it walks the path again and finds it.
func notAFile(s fuse.Status) bool {
	return s == fuse.Status(syscall.EEXIST) || s == fuse.Status(syscall.ELOOP)
}

// mayOpenMade checks what the kernel would have, had it seen the file that another
// mount made between its lookup and this create.
func (f *fileSystem) mayOpenMade(c *call, made created, flags uint32) fuse.Status {
	if made.attr.GetMode()&syscall.S_IFMT != syscall.S_IFREG {
		return estale
	}
	return f.mayOpen(c, made.inode, flags)
}

// mayOpen asks the server for the permission to open.
func (f *fileSystem) mayOpen(c *call, n inode, flags uint32) fuse.Status {
	if c.uid == 0 {
		return fuse.OK
	}
	mask := uint32(fuse.R_OK)
	switch flags & syscall.O_ACCMODE {
	case syscall.O_WRONLY:
		mask = fuse.W_OK
	case syscall.O_RDWR:
		mask = fuse.R_OK | fuse.W_OK
	}
	return errno(f.backend.Access(c, c.cred(), n, mask))
}

func (f *fileSystem) giveUp(c *call, made created) {
	if err := made.file.Close(c); err != nil {
		f.logger.Debug("closing a file that may not be opened", "error", err)
	}
	made.inode.Release()
}

func (f *fileSystem) answerCreated(made created, dir uint64, flags uint32, out *fuse.CreateOut) *node {
	n := f.found(made.inode, made.attr, dir, &out.EntryOut)
	f.opened(n, made.file, flags, &out.OpenOut)
	return n
}

// Tmpfile implements fuse.RawFileSystem.
func (f *fileSystem) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	c := f.begin(opTmpfile, cancel, &in.InHeader)
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return c.end(estale)
	}
	made, err := f.backend.CreateAnonymous(c, c.maker(in.Umask), dir.inode, in.Mode&07777, in.Flags&^syscall.O_APPEND)
	if err != nil {
		return c.end(errno(err))
	}
	f.answerCreated(made, dir.id, in.Flags, out)
	return c.end(fuse.OK)
}
