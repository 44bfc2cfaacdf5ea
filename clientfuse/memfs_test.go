package clientfuse

import (
	"context"
	"sort"
	"sync"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// memFS is a backend in memory: what the cluster would answer, as far as the
// kernel with default_permissions leaves it to the file system.
type memFS struct {
	mu       sync.Mutex
	root     *memNode
	lastIno  uint64
	lastNS   int64
	cookie   uint64
	lastFile uint64
	locks    *memLocks
	// block, if set, holds calls of Create until it is closed or they end.
	block chan struct{}
	refs  map[uint64]int
	marks map[*client.Mark]uint64 // cookies from which on names are newer
	// interrupted makes the next call of ReadDir fail as by a signal.
	interrupted bool
}

type memNode struct {
	fs     *memFS
	attr   canopyv1.Attr
	parent *memNode
	names  map[string]*memName
	order  []*memName // by cookie; removed ones have node nil
	target string
	blocks map[int64]*[memBlock]byte
	xattrs map[string][]byte
}

type memName struct {
	name   string
	cookie uint64
	node   *memNode
}

func newMemFS() *memFS {
	m := &memFS{cookie: 2, refs: make(map[uint64]int), marks: make(map[*client.Mark]uint64), locks: newMemLocks()}
	m.root = m.newNode(syscall.S_IFDIR|0o755, client.Cred{}, nil)
	m.root.parent = m.root
	return m
}

func (n *memNode) Ino() base.Ino { return base.Ino(n.attr.Ino) }
func (n *memNode) IsDir() bool   { return n.attr.Mode&syscall.S_IFMT == syscall.S_IFDIR }
func (n *memNode) Release() {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	n.fs.refs[n.attr.Ino]--
}

// now never repeats: each change has a time of its own, as in the cluster.
func (m *memFS) now() int64 {
	m.lastNS = max(m.lastNS+1, time.Now().UnixNano())
	return m.lastNS
}

func (m *memFS) newNode(mode uint32, cred client.Cred, dir *memNode) *memNode {
	m.lastIno++
	now := m.now()
	n := &memNode{fs: m, names: make(map[string]*memName), blocks: make(map[int64]*[memBlock]byte), xattrs: make(map[string][]byte), parent: dir}
	n.attr = canopyv1.Attr{Ino: m.lastIno, Mode: mode &^ cred.Umask, Nlink: 1, Uid: cred.UID, Gid: cred.GID,
		AtimeNs: now, MtimeNs: now, CtimeNs: now, BtimeNs: now, DataVersion: 1}
	if n.IsDir() {
		n.attr.Nlink = 2
	}
	if dir != nil && dir.attr.Mode&syscall.S_ISGID != 0 {
		n.attr.Gid = dir.attr.Gid
		if n.IsDir() {
			n.attr.Mode |= syscall.S_ISGID
		}
	}
	return n
}

func (m *memFS) hold(n *memNode) *memNode { m.refs[n.attr.Ino]++; return n }

func (n *memNode) copyAttr() *client.Attr {
	return &canopyv1.Attr{Ino: n.attr.Ino, Mode: n.attr.Mode, Nlink: n.attr.Nlink, Uid: n.attr.Uid, Gid: n.attr.Gid,
		Rdev: n.attr.Rdev, Size: n.attr.Size, Blocks: uint64(len(n.blocks)) * memBlock / 512, AtimeNs: n.attr.AtimeNs,
		MtimeNs: n.attr.MtimeNs, CtimeNs: n.attr.CtimeNs, BtimeNs: n.attr.BtimeNs, DataVersion: n.attr.DataVersion,
		Acls: n.attr.Acls}
}

func (n *memNode) touch() { n.attr.MtimeNs = n.fs.now(); n.attr.CtimeNs = n.attr.MtimeNs }

func (n *memNode) link(name string, child *memNode) {
	n.fs.cookie++
	e := &memName{name: name, cookie: n.fs.cookie, node: child}
	n.names[name] = e
	n.order = append(n.order, e)
	n.attr.Size = uint64(len(n.names))
	if child.IsDir() {
		n.attr.Nlink++
		child.parent = n
	}
	n.touch()
}

func (n *memNode) unlink(name string) {
	e := n.names[name]
	if e.node.IsDir() {
		n.attr.Nlink--
	}
	e.node = nil
	delete(n.names, name)
	n.attr.Size = uint64(len(n.names))
	n.touch()
}

func (n *memNode) lost() {
	n.attr.Nlink--
	if n.IsDir() {
		n.attr.Nlink = 0
	}
	n.attr.CtimeNs = n.fs.now()
}

func (m *memFS) Root() inode { return m.root }

func (m *memFS) Lookup(_ context.Context, _ client.Cred, dir inode, name string) (inode, *client.Attr, *client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := dir.(*memNode)
	e := d.names[name]
	if e == nil {
		if len(name) > 255 {
			return nil, nil, nil, fserr.NameTooLong
		}
		return nil, nil, d.copyAttr(), fserr.NotFound
	}
	return m.hold(e.node), e.node.copyAttr(), d.copyAttr(), nil
}

func (m *memFS) Parent(_ context.Context, _ client.Cred, dir inode) (inode, *client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := dir.(*memNode).parent
	return m.hold(p), p.copyAttr(), nil
}

func (m *memFS) GetAttr(_ context.Context, _ client.Cred, n inode) (*client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.(*memNode).copyAttr(), nil
}

// memAhead is a lookup that was done ahead.
type memAhead struct {
	m             *memFS
	n             *memNode
	attr, dirAttr *client.Attr
	err           error
}

func (a memAhead) Take() (inode, *client.Attr, *client.Attr, error) {
	if a.err != nil {
		return nil, nil, a.dirAttr, a.err
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	return a.m.hold(a.n), a.attr, a.dirAttr, nil
}

func (m *memFS) GetAttrAhead(ctx context.Context, cred client.Cred, n inode, names []nameIn) (*client.Attr, []ahead, error) {
	attr, err := m.GetAttr(ctx, cred, n)
	var out []ahead
	for _, name := range names {
		found, a, dirAttr, err := m.Lookup(ctx, cred, name.dir, name.name)
		if err != nil {
			out = append(out, memAhead{dirAttr: dirAttr, err: err})
			continue
		}
		found.Release()
		out = append(out, memAhead{m, found.(*memNode), a, dirAttr, nil})
	}
	return attr, out, err
}

func (m *memFS) SetAttr(_ context.Context, cred client.Cred, in inode, set client.SetAttr, handle file) (*client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, now := in.(*memNode), m.now()
	has := func(bit canopyv1.SetAttrMask) bool { return set.Mask&bit != 0 }
	if has(canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV) {
		before := n.attr.Mode
		n.killPriv()
		if cred.UID != 0 && !cred.InGroup(n.attr.Gid) && !n.IsDir() {
			n.attr.Mode &^= syscall.S_ISGID
		}
		if set.Mask == canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV && handle == nil && cred.UID != 0 && cred.UID != n.attr.Uid && n.attr.Mode != before {
			n.attr.Mode = before
			return nil, fserr.Permission
		}
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_MODE) {
		n.attr.Mode = n.attr.Mode&syscall.S_IFMT | set.Mode
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_UID) {
		n.attr.Uid = set.UID
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_GID) {
		n.attr.Gid = set.GID
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_SIZE) {
		n.resize(int64(set.Size))
		n.attr.MtimeNs = now
		n.attr.DataVersion++
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_ATIME) {
		n.attr.AtimeNs = set.AtimeNS
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_MTIME) {
		n.attr.MtimeNs = set.MtimeNS
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_ATIME_NOW) {
		n.attr.AtimeNs = now
	}
	if has(canopyv1.SetAttrMask_SET_ATTR_MTIME_NOW) {
		n.attr.MtimeNs = now
	}
	n.attr.CtimeNs = now
	return n.copyAttr(), nil
}

func (n *memNode) killPriv() {
	n.attr.Mode &^= syscall.S_ISUID
	if n.attr.Mode&syscall.S_IXGRP != 0 {
		n.attr.Mode &^= syscall.S_ISGID
	}
}

func (m *memFS) AccessDue(in inode) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accessDueLocked(in.(*memNode))
}

func (m *memFS) accessDueLocked(n *memNode) bool {
	return n.attr.AtimeNs <= max(n.attr.MtimeNs, n.attr.CtimeNs) || m.now()-n.attr.AtimeNs >= int64(24*time.Hour)
}

func (m *memFS) Accessed(in inode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := in.(*memNode); m.accessDueLocked(n) {
		n.attr.AtimeNs = m.now()
	}
}

func (m *memFS) Access(context.Context, client.Cred, inode, uint32) error { return nil }

func (m *memFS) StatFS(context.Context, inode) (*client.StatFS, error) {
	return &client.StatFS{TotalBytes: 1 << 30, FreeBytes: 1 << 29, Files: 10 + 1<<20, FreeFiles: 1 << 20}, nil
}

func (m *memFS) Create(ctx context.Context, cred client.Cred, dir inode, name string, mode, flags uint32) (created, error) {
	if m.block != nil {
		select {
		case <-m.block:
		case <-ctx.Done():
			return created{}, fserr.New(fserr.Interrupted, "create", ctx.Err())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := dir.(*memNode)
	if e := d.names[name]; e != nil {
		if flags&syscall.O_EXCL != 0 {
			return created{}, fserr.Exist
		}
		return created{inode: m.hold(e.node), attr: e.node.copyAttr(), existed: true, file: m.openLocked(e.node)}, nil
	}
	n, err := m.makeLocked(cred, d, name, syscall.S_IFREG|mode)
	if err != nil {
		return created{}, err
	}
	return created{inode: m.hold(n), attr: n.copyAttr(), file: m.openLocked(n)}, nil
}

func (m *memFS) makeLocked(cred client.Cred, d *memNode, name string, mode uint32) (*memNode, error) {
	switch {
	case d.names[name] != nil:
		return nil, fserr.Exist
	case len(name) > 255:
		return nil, fserr.NameTooLong
	case d.attr.Nlink == 0:
		return nil, fserr.NotFound
	}
	n := m.newNode(mode, cred, d)
	d.link(name, n)
	return n, nil
}

func (m *memFS) CreateAnonymous(_ context.Context, cred client.Cred, dir inode, mode, _ uint32) (created, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.newNode(syscall.S_IFREG|mode, cred, dir.(*memNode))
	n.attr.Nlink = 0
	return created{inode: m.hold(n), attr: n.copyAttr(), file: m.openLocked(n)}, nil
}

func (m *memFS) Mkdir(ctx context.Context, cred client.Cred, dir inode, name string, mode uint32) (inode, *client.Attr, error) {
	return m.Mknod(ctx, cred, dir, name, syscall.S_IFDIR|mode, 0)
}

func (m *memFS) Mknod(_ context.Context, cred client.Cred, dir inode, name string, mode uint32, rdev uint64) (inode, *client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.makeLocked(cred, dir.(*memNode), name, mode)
	if err != nil {
		return nil, nil, err
	}
	n.attr.Rdev = rdev
	return m.hold(n), n.copyAttr(), nil
}

func (m *memFS) Symlink(_ context.Context, cred client.Cred, dir inode, name, target string) (inode, *client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.makeLocked(cred, dir.(*memNode), name, syscall.S_IFLNK|0o777)
	if err != nil {
		return nil, nil, err
	}
	n.target, n.attr.Size = target, uint64(len(target))
	return m.hold(n), n.copyAttr(), nil
}

func (m *memFS) Readlink(_ context.Context, _ client.Cred, n inode) (string, error) {
	return n.(*memNode).target, nil
}

func (m *memFS) Link(_ context.Context, _ client.Cred, in, dir inode, name string) (*client.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, d := in.(*memNode), dir.(*memNode)
	if d.names[name] != nil {
		return nil, fserr.Exist
	}
	d.link(name, n)
	n.attr.Nlink++
	n.attr.CtimeNs = m.now()
	return n.copyAttr(), nil
}

func (m *memFS) Unlink(_ context.Context, _ client.Cred, dir inode, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := dir.(*memNode)
	e := d.names[name]
	if e == nil {
		return fserr.NotFound
	}
	n := e.node
	d.unlink(name)
	n.lost()
	return nil
}

func (m *memFS) Rmdir(ctx context.Context, cred client.Cred, dir inode, name string) error {
	m.mu.Lock()
	e := dir.(*memNode).names[name]
	full := e != nil && len(e.node.names) > 0
	m.mu.Unlock()
	if full {
		return fserr.NotEmpty
	}
	return m.Unlink(ctx, cred, dir, name)
}

func (m *memFS) Rename(_ context.Context, cred client.Cred, srcDir inode, srcName string, dstDir inode, dstName string, flags uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, d := srcDir.(*memNode), dstDir.(*memNode)
	from, to := s.names[srcName], d.names[dstName]
	switch {
	case from == nil || flags == client.RenameExchange && to == nil:
		return fserr.NotFound
	case to != nil && flags&client.RenameNoReplace != 0:
		return fserr.Exist
	case to != nil && flags == 0 && from.node == to.node:
		return nil
	case to != nil && flags == 0 && len(to.node.names) > 0:
		return fserr.NotEmpty
	}
	n := from.node
	s.unlink(srcName)
	if to != nil {
		over := to.node
		d.unlink(dstName)
		if flags == client.RenameExchange {
			s.link(srcName, over)
			over.attr.CtimeNs = m.now()
		} else {
			over.lost()
		}
	}
	d.link(dstName, n)
	n.attr.CtimeNs = m.now()
	if flags&client.RenameWhiteout != 0 {
		_, err := m.makeLocked(cred, s, srcName, syscall.S_IFCHR)
		return err
	}
	return nil
}

func (m *memFS) ReadDir(_ context.Context, _ client.Cred, dir inode, req client.ReadDirRequest) (client.ReadDirPage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := dir.(*memNode)
	if m.interrupted {
		m.interrupted = false
		return client.ReadDirPage{}, fserr.Interrupted
	}
	page := client.ReadDirPage{Mark: req.Mark}
	if page.Mark == nil {
		page.Mark = new(client.Mark)
		m.marks[page.Mark] = m.cookie + 1 // F3: what is newer is not shown
	}
	i := sort.Search(len(d.order), func(i int) bool { return d.order[i].cookie > req.Cookie })
	for ; i < len(d.order) && d.order[i].cookie < m.marks[page.Mark]; i++ {
		e := d.order[i]
		if e.node == nil {
			continue
		}
		if len(page.Entries) == req.MaxEntries {
			return page, nil
		}
		entry := &client.DirEntry{Name: []byte(e.name), Ino: e.node.attr.Ino, Type: e.node.attr.Mode & syscall.S_IFMT, Cookie: e.cookie}
		if req.Plus {
			entry.Attr = e.node.copyAttr()
		}
		page.Entries = append(page.Entries, entry)
	}
	page.EOF = true
	return page, nil
}

func (m *memFS) InodeOf(dir inode, e *client.DirEntry) inode {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name := dir.(*memNode).names[string(e.Name)]; name != nil && name.node.attr.Ino == e.Ino {
		return m.hold(name.node)
	}
	return &memNode{fs: m, attr: canopyv1.Attr{Ino: e.Ino}}
}
