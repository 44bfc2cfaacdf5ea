package clientfuse

import (
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is one inode that the kernel knows. Its id is the inode number, but that
// of the mount's root is 1 (FUSE K15).
type node struct {
	id    uint64
	inode inode  // the node's one reference
	count uint64 // lookups that the kernel has not forgotten; guarded by its shard's mu

	// What the last attributes told: used as hints, never as answers.
	mode    atomic.Uint32 // st_mode
	gid     atomic.Uint32
	acls    atomic.Uint32 // which ACLs there are
	sawAt   atomic.Int64  // when that was, in ns since clockStart
	data    atomic.Uint64 // data version
	parent  atomic.Uint64 // node id of the directory where it was last seen
	cached  atomic.Uint64 // data version of what the kernel's pages hold, plus 1; 0: unknown
	writers atomic.Int32  // handles open for writing

	inodeChanges changes // of size or mode, through this mount
	nameChanges  changes // of names in the directory, through this mount
}

const nodeShards = 64

// nodeTable holds the nodes by id. A node enters with its first lookup and
// leaves with the kernel's last forget; the root stays.
type nodeTable struct {
	root   *node
	shards [nodeShards]nodeShard
}

type nodeShard struct {
	mu    sync.RWMutex
	nodes map[uint64]*node
}

func newNodeTable(root inode) *nodeTable {
	t := &nodeTable{root: &node{id: fuse.FUSE_ROOT_ID, inode: root}}
	t.root.mode.Store(fuse.S_IFDIR)
	t.root.parent.Store(fuse.FUSE_ROOT_ID)
	for i := range t.shards {
		t.shards[i].nodes = make(map[uint64]*node)
	}
	return t
}

func (t *nodeTable) shard(id uint64) *nodeShard {
	return &t.shards[id*0x9e3779b97f4a7c15>>58]
}

// get returns the node of a request, nil for a number that the kernel was never
// given or has forgotten (ESTALE). The kernel does not forget a node while a
// request names it.
func (t *nodeTable) get(id uint64) *node {
	if id == fuse.FUSE_ROOT_ID {
		return t.root
	}
	s := t.shard(id)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[id]
}

// add counts a lookup of n, whose reference it takes over.
func (t *nodeTable) add(n inode) *node {
	id := uint64(n.Ino())
	if id == uint64(t.root.inode.Ino()) {
		n.Release()
		return t.root
	}
	s := t.shard(id)
	s.mu.Lock()
	known := s.nodes[id]
	if known == nil {
		known = &node{id: id, inode: n}
		s.nodes[id] = known
		n = nil
	}
	known.count++
	s.mu.Unlock()
	if n != nil {
		n.Release()
	}
	return known
}

// again counts a further lookup of a node that the kernel knows.
func (t *nodeTable) again(n *node) {
	if n == t.root {
		return
	}
	s := t.shard(n.id)
	s.mu.Lock()
	n.count++
	s.mu.Unlock()
}

// forget takes count lookups back and reports whether the node is gone.
func (t *nodeTable) forget(id, count uint64) bool {
	if id == fuse.FUSE_ROOT_ID {
		return false
	}
	s := t.shard(id)
	s.mu.Lock()
	n := s.nodes[id]
	if n == nil {
		s.mu.Unlock()
		return false
	}
	n.count -= min(count, n.count)
	gone := n.count == 0
	if gone {
		delete(s.nodes, id)
	}
	s.mu.Unlock()
	if gone {
		n.inode.Release()
	}
	return gone
}

// len returns how many nodes the kernel knows besides the root.
func (t *nodeTable) len() int {
	var total int
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		total += len(s.nodes)
		s.mu.RUnlock()
	}
	return total
}

// clear releases all nodes when the mount is gone: the kernel sends no forgets then.
func (t *nodeTable) clear() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		nodes := s.nodes
		s.nodes = make(map[uint64]*node)
		s.mu.Unlock()
		for _, n := range nodes {
			n.inode.Release()
		}
	}
}
