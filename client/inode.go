package client

import (
	"sync"
	"sync/atomic"
	"syscall"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// Inode is an inode that this client knows: there is one per number, reference
// counted, with the place where it was last seen and, of an open file, the
// buffered bytes. Each *Inode that a call returns holds one reference.
type Inode struct {
	table    *inodes
	ino      base.Ino
	isDir    bool
	refs     atomic.Int64
	file     atomic.Pointer[fileState] // regular files, from the first Open
	accessed atomic.Int64              // when it was last read, ns, if that moves atime and no server was told

	granted atomic.Pointer[granted] // regular files: the last capability; nil: none
	sums    sums                    // split directories

	mu      sync.Mutex
	dir     base.Ino       // of what is no directory: where it was last seen
	name    string         // and under which name
	subtree base.SubtreeID // of a directory: its own, of its first fragment; else: of dir, where name is
	asOf    uint64         // dirRoutes.news when subtree was brought up to it
	home    base.SubtreeID // of what is no directory: where it is if that is not subtree; 0: there
	attr    *Attr          // newest seen, nil if none
	handles int            // open Files
	asking  *asking        // for a capability; nil: none is under way
}

// Ino returns the inode number.
func (n *Inode) Ino() base.Ino { return n.ino }

// IsDir reports whether it is a directory.
func (n *Inode) IsDir() bool { return n.isDir }

// Hold takes a further reference; the caller holds one already.
func (n *Inode) Hold() { n.refs.Add(1) }

// Release gives one reference back. The Inode must not be used after the last.
func (n *Inode) Release() {
	if n.ino != base.RootIno && n.refs.Add(-1) == 0 {
		n.table.forget(n)
	}
}

// place says where the server finds the inode.
func (n *Inode) place() *canopyv1.Place {
	if n.isDir {
		return &canopyv1.Place{Ino: uint64(n.ino)}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return &canopyv1.Place{Ino: uint64(n.ino), Dir: uint64(n.dir), Name: []byte(n.name)}
}

func (n *Inode) subtreeID() base.SubtreeID {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.home != 0 {
		return n.home
	}
	n.followLocked()
	return n.subtree
}

// see takes attributes that an answer carried and returns the newest known: two
// answers can overtake each other. Those of one fragment count for nothing.
func (n *Inode) see(attr *Attr) *Attr {
	if attr == nil {
		return nil
	}
	n.mu.Lock()
	if liesElsewhere(attr) {
		if n.isDir {
			n.dirSeenLocked(base.SubtreeID(attr.Subtree))
		}
		n.mu.Unlock()
		return attr
	}
	if isPartial(attr) {
		newest := n.attr
		n.mu.Unlock()
		return newest
	}
	if newer(attr, n.attr) {
		n.attr = attr
		if n.isDir {
			n.dirSeenLocked(base.SubtreeID(attr.Subtree))
		} else {
			n.homeLocked(attr)
		}
	}
	newest := n.attr
	n.mu.Unlock()
	if st := n.file.Load(); st != nil {
		st.observe(attr)
	}
	return newest
}

// show is see, and returns the attributes as this client's programs have to see
// them: with the buffered writes, and with reads that move atime.
func (n *Inode) show(attr *Attr) *Attr {
	newest := n.see(attr)
	if newest == nil || liesElsewhere(newest) {
		return newest
	}
	if st := n.file.Load(); st != nil {
		newest = st.overlay(newest)
	}
	return n.accessOverlay(newest)
}

// at notes the name under which what is no directory was seen.
func (n *Inode) at(dir *Inode, name string) {
	if n.isDir {
		return
	}
	news := n.table.dirs.news.Load()
	subtree := dir.subtreeFor(name)
	n.mu.Lock()
	n.dir, n.name, n.subtree, n.asOf = dir.ino, name, subtree, news
	n.mu.Unlock()
}

// movedTo follows a server's word of where the inode is now.
func (n *Inode) movedTo(p *canopyv1.Place, attr *Attr) {
	if p == nil || n.isDir || p.Dir == 0 {
		return
	}
	var subtree base.SubtreeID
	if d := n.table.find(base.Ino(p.Dir)); d != nil {
		subtree = d.subtreeFor(string(p.Name))
		d.Release()
	} else if m := n.table.dirs.splitMap(base.Ino(p.Dir)); m != nil {
		subtree = m.Find(shard.NameHash(p.Name)).Subtree
	} else if attr != nil && attr.Nlink <= 1 {
		subtree = base.SubtreeID(attr.Subtree)
	}
	n.movedIn(p, subtree)
}

// movedIn follows a server's word of where the inode is now, and in which subtree
// that is; 0: not known.
func (n *Inode) movedIn(p *canopyv1.Place, subtree base.SubtreeID) {
	if n.isDir {
		return
	}
	news := n.table.dirs.news.Load()
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.Dir == 0 { // it has a place of its own
		n.home = subtree
		return
	}
	n.dir, n.name, n.home = base.Ino(p.Dir), string(p.Name), 0
	if subtree != 0 {
		n.subtree, n.asOf = subtree, news
	} else {
		n.asOf = 0
	}
}

const inodeShards = 32

// inodes is the table of known inodes.
type inodes struct {
	client *Client // asks for capabilities
	root   *Inode
	dirs   dirRoutes
	shards [inodeShards]struct {
		mu sync.Mutex
		m  map[base.Ino]*Inode
	}
}

func newInodes() *inodes {
	t := &inodes{}
	for i := range t.shards {
		t.shards[i].m = map[base.Ino]*Inode{}
	}
	t.root = &Inode{table: t, ino: base.RootIno, isDir: true, subtree: base.RootSubtree}
	t.root.refs.Store(1)
	return t
}

// find returns the inode with a reference if it is known, else nil.
func (t *inodes) find(ino base.Ino) *Inode {
	if ino == base.RootIno {
		return t.root
	}
	s := &t.shards[ino%inodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.m[ino]
	if n != nil {
		n.refs.Add(1)
	}
	return n
}

// enter returns the inode with a reference, new or known.
func (t *inodes) enter(ino base.Ino, mode uint32, subtree base.SubtreeID) *Inode {
	if ino == base.RootIno {
		return t.root
	}
	s := &t.shards[ino%inodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.m[ino]
	if n == nil {
		n = &Inode{table: t, ino: ino, isDir: mode&syscall.S_IFMT == syscall.S_IFDIR, subtree: subtree}
		s.m[ino] = n
	}
	n.refs.Add(1)
	return n
}

func (t *inodes) forget(n *Inode) {
	s := &t.shards[n.ino%inodeShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.refs.Load() == 0 && s.m[n.ino] == n {
		delete(s.m, n.ino)
	}
}
