package client

import (
	"sync"
	"sync/atomic"

	"github.com/canopyfs/canopy/internal/base"
)

// maxDirRoutes bounds the directories whose way is remembered; of another one the
// next operation is redirected again.
const maxDirRoutes = 1 << 16

// dirRoutes is where directories have gone to (PROTOCOLS E7). All that this client
// knows below a directory follows what is learnt of it once: one redirect per
// directory, not one per file in it. While nothing moves it costs an atomic load.
type dirRoutes struct {
	news atomic.Uint64 // grows with each that is learnt

	mu sync.RWMutex
	in map[base.Ino]base.SubtreeID
}

// learn notes that a directory is in a subtree, and reports whether that was news.
func (d *dirRoutes) learn(dir base.Ino, subtree base.SubtreeID) bool {
	if dir == 0 || subtree == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in[dir] == subtree {
		return false
	}
	if d.in == nil {
		d.in = map[base.Ino]base.SubtreeID{}
	}
	if len(d.in) >= maxDirRoutes {
		evict(d.in)
	}
	d.in[dir] = subtree
	d.news.Add(1)
	return true
}

func (d *dirRoutes) find(dir base.Ino) (base.SubtreeID, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	subtree, ok := d.in[dir]
	return subtree, ok
}

// followLocked brings n's subtree up to what is known of its directory.
func (n *Inode) followLocked() {
	routes := &n.table.dirs
	news := routes.news.Load()
	if n.asOf == news {
		return
	}
	n.asOf = news
	dir := n.dir
	if n.isDir {
		dir = n.ino
	}
	if subtree, ok := routes.find(dir); ok {
		n.subtree = subtree
	}
}

// homeLocked takes note of which subtree answered for a file. A de-inlined inode and
// an orphan stay where they are when their directory goes (PROTOCOLS A9), and are
// asked for there; what is embedded goes with the directory.
func (n *Inode) homeLocked(attr *Attr) {
	if attr.Subtree == 0 {
		return
	}
	n.followLocked()
	n.home = 0
	if answered := base.SubtreeID(attr.Subtree); answered != n.subtree || attr.Nlink != 1 {
		n.home = answered
	}
}

// dirSeenLocked takes the subtree that a directory's attributes name.
func (n *Inode) dirSeenLocked(subtree base.SubtreeID) {
	if subtree == 0 {
		return
	}
	n.followLocked()
	if n.subtree != subtree {
		n.subtree = subtree
		n.table.dirs.learn(n.ino, subtree)
	}
}
