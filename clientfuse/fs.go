package clientfuse

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/internal/fserr"
)

// fileSystem answers the kernel's requests. Requests that it does not override
// are answered ENOSYS by the embedded default, on purpose:
//
//   - FSYNCDIR: a metadata operation is durable when it is answered;
//   - ACCESS: default_permissions lets the kernel check;
//   - COPY_FILE_RANGE: the kernel copies through the page cache.
type fileSystem struct {
	fuse.RawFileSystem

	backend  backend
	options  mountopt.Options
	logger   *slog.Logger
	nodes    *nodeTable
	handles  handleTable
	listings *listingTable
	groups   *groupCache
	watch    *watch
	pruner   *pruner
	metrics  *metrics
	sameCall sameCall
	mount    atomic.Pointer[mountopt.Mount]
}

func newFileSystem(b backend, root inode, cfg Config) (*fileSystem, error) {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		backend:       b,
		options:       cfg.Options,
		logger:        cfg.Logger,
		nodes:         newNodeTable(root, cfg.Options.InodeLimit()),
		listings:      newListingTable(),
		groups:        newGroupCache("/proc", time.Now),
		watch:         newWatch(),
	}
	f.watch.dead = func() bool {
		m := f.mount.Load()
		return m != nil && m.Dead()
	}
	f.pruner = newPruner(f.nodes, cfg.Options.InodeLimit(), cfg.Logger, func(ids []uint64) error {
		if m := f.mount.Load(); m != nil {
			return m.Prune(ids)
		}
		return nil // not mounted yet
	})
	var err error
	f.metrics, err = newMetrics(cfg.Registerer, f.nodes.len, f.handles.len)
	if err != nil {
		return nil, err
	}
	go f.watch.run() // until close
	go f.pruner.run()
	return f, nil
}

// close ends the goroutines: nothing is mounted.
func (f *fileSystem) close() {
	f.watch.close()
	f.pruner.close()
}

// String names the file system to go-fuse.
func (f *fileSystem) String() string { return mountopt.Subtype }

const estale = fuse.Status(syscall.ESTALE)

// found answers with the inode n, whose reference it takes over, and counts the
// kernel's lookup of it.
func (f *fileSystem) found(n inode, a *client.Attr, parent uint64, out *fuse.EntryOut) *node {
	known := f.nodes.add(n)
	f.fill(known, a, parent, out)
	return known
}

// fill answers with a node whose lookup is counted already.
func (f *fileSystem) fill(n *node, a *client.Attr, parent uint64, out *fuse.EntryOut) {
	n.parent.Store(parent)
	n.saw(a)
	out.NodeId = n.id
	out.Generation = 1
	out.SetEntryTimeout(f.options.EntryTimeout())
	out.SetAttrTimeout(f.options.AttrTimeout())
	fillAttr(&out.Attr, a)
}

// saw keeps what is used as a hint later.
func (n *node) saw(a *client.Attr) {
	n.mode.Store(a.GetMode())
	n.gid.Store(a.GetGid())
	n.acls.Store(a.GetAcls())
	n.sawAt.Store(time.Since(clockStart).Nanoseconds())
	n.data.Store(a.GetDataVersion())
}

func fillAttr(out *fuse.Attr, a *client.Attr) {
	out.Ino = a.GetIno()
	out.Size = a.GetSize()
	out.Blocks = a.GetBlocks()
	out.Atime, out.Atimensec = splitTime(a.GetAtimeNs())
	out.Mtime, out.Mtimensec = splitTime(a.GetMtimeNs())
	out.Ctime, out.Ctimensec = splitTime(a.GetCtimeNs())
	out.Mode = a.GetMode()
	out.Nlink = a.GetNlink()
	out.Uid = a.GetUid()
	out.Gid = a.GetGid()
	out.Rdev = uint32(a.GetRdev())
	out.Blksize = blockSize
}

// blockSize is st_blksize.
const blockSize = 4096

// splitTime returns seconds and nanoseconds as the kernel wants them, also of
// times before 1970: the nanoseconds are never negative.
func splitTime(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/1e9, ns%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

func joinTime(sec uint64, nsec uint32) int64 { return int64(sec)*1e9 + int64(nsec) }

// Lookup implements fuse.RawFileSystem.
func (f *fileSystem) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	c := f.begin(opLookup, cancel, h)
	return c.end(f.lookup(c, h.NodeId, name, out))
}

func (f *fileSystem) lookup(c *call, dirID uint64, name string, out *fuse.EntryOut) fuse.Status {
	dir := f.nodes.get(dirID)
	if dir == nil {
		return estale
	}
	if err := f.lookupName(c, dir, name, out); err != nil {
		s := errno(err)
		if s == fuse.ENOENT && f.options.EntryTimeout() > 0 {
			out.NodeId = 0 // absent, and the kernel may keep that
			out.SetEntryTimeout(f.options.EntryTimeout())
			return fuse.OK
		}
		return s
	}
	return fuse.OK
}

// Forget implements fuse.RawFileSystem.
func (f *fileSystem) Forget(id, count uint64) {
	if f.nodes.forget(id, count) {
		f.listings.drop(id)
	}
}

// GetAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	c := f.begin(opGetAttr, cancel, &in.InHeader)
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		f.readFromCache(c, in.Fh())
	}
	a, s := f.getAttr(c, in.NodeId)
	// The kernel asks with a handle when it is about to read from its pages, which
	// the file may not do whose locks are lost.
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		if h := f.handles.get(in.Fh()); h != nil && h.file.LocksLost() {
			s = fuse.EIO
		}
	}
	if s.Ok() {
		out.SetTimeout(f.options.AttrTimeout())
		fillAttr(&out.Attr, a)
	}
	return c.end(s)
}

func (f *fileSystem) getAttr(c *call, id uint64) (*client.Attr, fuse.Status) {
	n := f.nodes.get(id)
	if n == nil {
		return nil, estale
	}
	if a := c.last.attrOf(n, c.start); a != nil {
		f.pass(c, n)
		f.keepACLs(c, aclsOf(n, a, c.last.asked, c.last.at))
		return a, fuse.OK
	}
	a, err := f.beginWalk(c, n)
	if err != nil {
		return nil, errno(err)
	}
	n.saw(a)
	f.keepACLs(c, aclsOf(n, a, c.start, time.Now()))
	return a, fuse.OK
}

// Statx implements fuse.RawFileSystem: the kernel asks it for the birth time.
func (f *fileSystem) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	c := f.begin(opStatx, cancel, &in.InHeader)
	a, s := f.getAttr(c, in.NodeId)
	if s.Ok() {
		out.SetTimeout(f.options.AttrTimeout())
		fillStatx(&out.Statx, a)
	}
	return c.end(s)
}

func fillStatx(out *fuse.Statx, a *client.Attr) {
	out.Mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	out.Blksize = blockSize
	out.Nlink = a.GetNlink()
	out.Uid, out.Gid = a.GetUid(), a.GetGid()
	out.Mode = uint16(a.GetMode())
	out.Ino = a.GetIno()
	out.Size, out.Blocks = a.GetSize(), a.GetBlocks()
	out.Atime.Sec, out.Atime.Nsec = splitTime(a.GetAtimeNs())
	out.Btime.Sec, out.Btime.Nsec = splitTime(a.GetBtimeNs())
	out.Ctime.Sec, out.Ctime.Nsec = splitTime(a.GetCtimeNs())
	out.Mtime.Sec, out.Mtime.Nsec = splitTime(a.GetMtimeNs())
	// The kernel's 32-bit form of a device number (new_encode_dev).
	dev := uint32(a.GetRdev())
	out.RdevMajor = dev & 0xfff00 >> 8
	out.RdevMinor = dev&0xff | dev>>12&0xfff00
}

// SetAttr implements fuse.RawFileSystem.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	c := f.begin(opSetAttr, cancel, &in.InHeader)
	return c.end(f.setAttr(c, in, out))
}

func (f *fileSystem) setAttr(c *call, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return estale
	}
	var opened file
	if fh, ok := in.GetFh(); ok {
		if h := f.handles.get(fh); h != nil {
			opened = h.file
		}
	}
	n.inodeChanges.begin()
	defer n.inodeChanges.end()
	set := setAttrOf(in, n.mode.Load())
	// A change of nothing is chown(-1, -1): ctime moves, and what a chown clears is
	// cleared; who does not own a file that has something to clear may not. Or the
	// kernel is about to write to such a file, and says nothing else: who does not own
	// it changes nothing here, the WRITE asks for it.
	nothing := set.Mask == 0
	if nothing {
		set.Mask, opened = canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV, nil
	}
	a, err := f.backend.SetAttr(c, c.cred(), n.inode, set, opened)
	if nothing && errors.Is(err, fserr.Permission) && !isChown(systemCall(f.groups.proc, c.tid)) {
		a, err = f.backend.GetAttr(c, c.cred(), n.inode)
	}
	if err != nil {
		return errno(err)
	}
	n.saw(a)
	out.SetTimeout(f.options.AttrTimeout())
	fillAttr(&out.Attr, a)
	return fuse.OK
}

// setAttrOf translates a request. mode is the inode's type.
func setAttrOf(in *fuse.SetAttrIn, mode uint32) client.SetAttr {
	set := client.SetAttr{
		Mode: in.Mode & 07777, UID: in.Uid, GID: in.Gid, Size: in.Size,
		AtimeNS: joinTime(in.Atime, in.Atimensec), MtimeNS: joinTime(in.Mtime, in.Mtimensec),
	}
	for _, m := range [...]struct {
		valid uint32
		mask  canopyv1.SetAttrMask
	}{
		{fuse.FATTR_MODE, canopyv1.SetAttrMask_SET_ATTR_MODE},
		{fuse.FATTR_UID, canopyv1.SetAttrMask_SET_ATTR_UID},
		{fuse.FATTR_GID, canopyv1.SetAttrMask_SET_ATTR_GID},
		{fuse.FATTR_SIZE, canopyv1.SetAttrMask_SET_ATTR_SIZE},
		{fuse.FATTR_ATIME, canopyv1.SetAttrMask_SET_ATTR_ATIME},
		{fuse.FATTR_MTIME, canopyv1.SetAttrMask_SET_ATTR_MTIME},
		{fuse.FATTR_KILL_SUIDGID, canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV},
	} {
		if in.Valid&m.valid != 0 {
			set.Mask |= m.mask
		}
	}
	if in.Valid&fuse.FATTR_ATIME_NOW != 0 {
		set.Mask = set.Mask&^canopyv1.SetAttrMask_SET_ATTR_ATIME | canopyv1.SetAttrMask_SET_ATTR_ATIME_NOW
	}
	if in.Valid&fuse.FATTR_MTIME_NOW != 0 {
		set.Mask = set.Mask&^canopyv1.SetAttrMask_SET_ATTR_MTIME | canopyv1.SetAttrMask_SET_ATTR_MTIME_NOW
	}
	// With HANDLE_KILLPRIV_V2 the file system clears setuid and setgid on chown
	// by itself; the kernel says so for write and truncate only.
	if in.Valid&(fuse.FATTR_UID|fuse.FATTR_GID) != 0 && mode&syscall.S_IFMT != syscall.S_IFDIR {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV
	}
	return set
}

// StatFs implements fuse.RawFileSystem. Below a quota it is the quota's size.
func (f *fileSystem) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	c := f.begin(opStatFS, cancel, h)
	n := f.nodes.get(h.NodeId)
	if n == nil {
		return c.end(estale)
	}
	st, err := f.backend.StatFS(c, n.inode)
	if err != nil {
		return c.end(errno(err))
	}
	out.Bsize, out.Frsize = blockSize, blockSize
	out.Blocks = st.GetTotalBytes() / blockSize
	out.Bfree = st.GetFreeBytes() / blockSize
	out.Bavail = out.Bfree
	out.Files = st.GetFiles()
	out.Ffree = st.GetFreeFiles()
	out.NameLen = maxNameBytes
	return c.end(fuse.OK)
}

const maxNameBytes = 255

// Ioctl implements fuse.RawFileSystem.
func (f *fileSystem) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(syscall.ENOTTY)
}

// OnUnmount implements fuse.RawFileSystem: the last request has been answered.
func (f *fileSystem) OnUnmount() {
	f.close()
	// The kernel sends no RELEASE after an abort. The bytes are the client's to
	// write; its Close reports what it cannot.
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, h := range f.handles.clear() {
		if err := h.file.Close(ctx); err != nil {
			f.logger.Warn("closing a file after the mount is gone", "ino", h.node.id, "error", err)
		}
	}
	f.nodes.clear()
}

const closeTimeout = 5 * time.Second
