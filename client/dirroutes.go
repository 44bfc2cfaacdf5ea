package client

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// maxDirRoutes bounds the fragments of directories whose way is remembered; of another
// one the next operation is redirected again.
const maxDirRoutes = 1 << 16

// dirRoutes is where directories have gone to (PROTOCOLS E7), and how they are split.
// All that this client knows below a directory follows what is learnt of it once: one
// redirect per range of its names, not one per file in it. While nothing moves it
// costs an atomic load.
//
// A copy of a directory is right about the names that it has or gave away, and has only
// heard of the rest. So what one says changes nothing of what is believed to be with
// another one. Who is asked in vain says where the names went, and each step goes to
// somebody who had them later: an old map costs redirects, and they end.
type dirRoutes struct {
	news  atomic.Uint64 // grows with each that is learnt
	split atomic.Bool   // a directory has been seen in more than one fragment

	mu        sync.RWMutex
	in        map[base.Ino]shard.FragmentMap // never changed, but replaced
	fragments int                            // in all of them
}

// learn takes the fragments of a directory as the copy in subtree from knows them; 0:
// nobody knows whose words they are, so they count where nothing is known. It reports
// whether it learnt something.
func (d *dirRoutes) learn(dir base.Ino, from base.SubtreeID, m shard.FragmentMap) bool {
	if dir == 0 || len(m) == 0 {
		return false
	}
	d.mu.RLock()
	known := d.in[dir]
	d.mu.RUnlock()
	if known != nil && (from == 0 || sameIn(known, m, from)) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known = d.in[dir]
	next := m
	if known != nil {
		next = known.Refer(from, m)
		for _, r := range m.In(from) {
			next = next.With(r, from)
		}
		if slices.Equal(next, known) {
			return false
		}
	}
	d.putLocked(dir, next)
	return true
}

func (d *dirRoutes) putLocked(dir base.Ino, m shard.FragmentMap) {
	if d.in == nil {
		d.in = map[base.Ino]shard.FragmentMap{}
	}
	d.fragments += len(m) - len(d.in[dir])
	d.in[dir] = m
	for other, old := range d.in { // in no order, which is as good as at random
		if d.fragments <= maxDirRoutes {
			break
		}
		if other != dir {
			d.fragments -= len(old)
			delete(d.in, other)
		}
	}
	if m.Split() {
		d.split.Store(true)
	}
	d.news.Add(1)
}

// sameIn reports whether two maps agree about what lies in a subtree.
func sameIn(a, b shard.FragmentMap, subtree base.SubtreeID) bool {
	next := func(m shard.FragmentMap, i int) int {
		for i < len(m) && m[i].Subtree != subtree {
			i++
		}
		return i
	}
	i, j := next(a, 0), next(b, 0)
	for i < len(a) && j < len(b) && a.Range(i) == b.Range(j) {
		i, j = next(a, i+1), next(b, j+1)
	}
	return i == len(a) && j == len(b)
}

// found takes the word that a copy of a directory is in a subtree. Which names it has
// is for it to say, unless nothing is known that led there.
func (d *dirRoutes) found(dir base.Ino, subtree base.SubtreeID) bool {
	if dir == 0 || subtree == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.in[dir].In(subtree)) > 0 {
		return false
	}
	d.putLocked(dir, shard.Whole(subtree))
	return true
}

// rehomed takes the word that a directory's first fragment is in a subtree.
func (d *dirRoutes) rehomed(dir base.Ino, home base.SubtreeID) {
	old := home
	if known := d.find(dir); known != nil {
		old = known.Home()
	}
	d.learn(dir, old, shard.Whole(home))
}

// doubt gives up what was heard of a subtree that nobody knows: the directory's first
// fragment is asked for its names, which is returned; 0: there is nobody else to ask.
func (d *dirRoutes) doubt(dir base.Ino, subtree base.SubtreeID) base.SubtreeID {
	known := d.find(dir)
	if len(known) == 0 || known.Home() == subtree {
		return 0
	}
	d.learn(dir, subtree, shard.Whole(known.Home()))
	return known.Home()
}

// find returns the fragments of a directory as far as they are known, nil if nothing
// is. They are not to be changed.
func (d *dirRoutes) find(dir base.Ino) shard.FragmentMap {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.in[dir]
}

// splitMap is find of a directory that is known to be split, else nil.
func (d *dirRoutes) splitMap(dir base.Ino) shard.FragmentMap {
	if !d.split.Load() {
		return nil
	}
	if m := d.find(dir); m.Split() {
		return m
	}
	return nil
}

// subtreeFor returns the subtree that has a name of the directory n; "": of what gets no
// name.
func (n *Inode) subtreeFor(name string) base.SubtreeID {
	if m := n.table.dirs.splitMap(n.ino); m != nil && name != "" && name != "." && name != ".." {
		return m.Find(shard.NameHash([]byte(name))).Subtree
	}
	return n.subtreeID()
}

// subtreeAt returns the subtree that has the names of the directory n about a position
// of its listing.
func (n *Inode) subtreeAt(position base.Cookie) base.SubtreeID {
	if m := n.table.dirs.splitMap(n.ino); m != nil {
		return m.Find(shard.HashOf(position)).Subtree
	}
	return n.subtreeID()
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
	switch m := routes.find(dir); {
	case m == nil:
	case !n.isDir && m.Split() && n.name != "":
		n.subtree = m.Find(shard.NameHash([]byte(n.name))).Subtree
	default:
		n.subtree = m.Home()
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
		n.table.dirs.rehomed(n.ino, subtree)
	}
}
