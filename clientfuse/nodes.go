package clientfuse

import (
	"iter"
	"slices"
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
	used    atomic.Bool   // since the pruner last came by

	inodeChanges changes // of size or mode, through this mount
	nameChanges  changes // of names in the directory, through this mount
}

const nodeShards = 64

// nodeTable holds the nodes by id. A node enters with its first lookup and
// leaves with the kernel's last forget; the root stays.
type nodeTable struct {
	root   *node
	shards [nodeShards]nodeShard
	total  atomic.Int64 // nodes in all shards
	limit  int64        // above it, each new node is told to over
	over   chan struct{}
	hand   int // the shard where the pruner goes on; its own
}

type nodeShard struct {
	mu    sync.RWMutex
	nodes map[uint64]*node
}

func newNodeTable(root inode, limit int) *nodeTable {
	t := &nodeTable{root: &node{id: fuse.FUSE_ROOT_ID, inode: root}, limit: int64(limit), over: make(chan struct{}, 1)}
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
	n := s.nodes[id]
	s.mu.RUnlock()
	if n != nil && !n.used.Load() {
		n.used.Store(true)
	}
	return n
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
	} else if t.total.Add(1) > t.limit {
		select {
		case t.over <- struct{}{}:
		default:
		}
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
		t.total.Add(-1)
		n.inode.Release()
	}
	return gone
}

// len returns how many nodes the kernel knows besides the root.
func (t *nodeTable) len() int { return int(t.total.Load()) }

// idle yields the ids of about n nodes that were not used since it last came by, in
// batches; it passes each node twice at most, by the clock algorithm (Corbató). One
// goroutine may call it at a time; a batch is the caller's until the next.
func (t *nodeTable) idle(n, batch int) iter.Seq[[]uint64] {
	return func(yield func([]uint64) bool) {
		var ids []uint64
		for range 2 * nodeShards {
			s := &t.shards[t.hand]
			t.hand = (t.hand + 1) % nodeShards
			s.mu.RLock()
			for id, known := range s.nodes {
				if known.used.Load() {
					known.used.Store(false)
				} else if len(ids) < n {
					ids = append(ids, id)
				}
			}
			s.mu.RUnlock()
			n -= len(ids)
			for part := range slices.Chunk(ids, batch) {
				if !yield(part) {
					return
				}
			}
			if ids = ids[:0]; n <= 0 {
				return
			}
		}
	}
}

// clear releases all nodes when the mount is gone: the kernel sends no forgets then.
func (t *nodeTable) clear() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		nodes := s.nodes
		s.nodes = make(map[uint64]*node)
		s.mu.Unlock()
		t.total.Add(-int64(len(nodes)))
		for _, n := range nodes {
			n.inode.Release()
		}
	}
}
