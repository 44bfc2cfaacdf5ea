package clientfuse

import (
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
)

// maxWalkAhead bounds the names that are looked up ahead.
const maxWalkAhead = 7

// step is a name that a walk went through: what it found became the directory of
// the next name.
type step struct {
	dir  *node
	name string
}

// lastWalk are the steps of a thread's last walk. It does not change.
type lastWalk struct {
	tid   uint32
	steps []step
}

// pathWalk is a walk as far as it has come: the steps done, the name looked up last,
// and the answers that came ahead and are not used yet. Slices are shared between
// the requests of a walk and never changed.
type pathWalk struct {
	steps []step
	last  step
	ahead []aheadAnswer
}

// aheadAnswer is the answer to the lookup of a name.
type aheadAnswer struct {
	step
	answer ahead
}

// takeUp returns c's place in the walk that its thread does: the directory where
// it is now has just been found. A LOOKUP in another one begins a walk.
func (c *call) takeUp(dir *node) pathWalk {
	l := c.last
	if l == nil || l.found != dir {
		return pathWalk{}
	}
	return l.walk
}

// beginWalk asks for a directory's attributes where a walk may begin, together
// with the names that the thread's last walk went through from there.
func (f *fileSystem) beginWalk(c *call, n *node) (*client.Attr, error) {
	slot := &f.sameCall.walks[threadSlot(c.tid)]
	before := slot.Load()
	switch {
	case !f.sameCalls(c) || before == nil || before.tid != c.tid || before.steps[0].dir != n:
		return f.passAsking(c, n)
	case c.last != nil && len(c.last.walk.ahead) > 0:
		f.forgetWalk(c)
		return f.passAsking(c, n)
	}
	names := make([]nameIn, 0, maxWalkAhead)
	for _, s := range before.steps {
		if len(names) == maxWalkAhead || f.nodes.get(s.dir.id) != s.dir {
			break
		}
		names = append(names, nameIn{s.dir.inode, s.name})
	}
	a, answers, err := f.backend.GetAttrAhead(c, c.cred(), n.inode, names)
	if err != nil || len(answers) == 0 {
		return a, err
	}
	w := pathWalk{ahead: make([]aheadAnswer, len(answers))}
	for i := range answers {
		w.ahead[i] = aheadAnswer{before.steps[i], answers[i]}
	}
	f.sameCall.put(&lastCall{tid: c.tid, asked: c.start, at: time.Now(), found: n, walk: w})
	return a, nil
}

// lookupName looks a name up, or takes the answer that came ahead in the same
// system call, and leaves what it brought to the next request.
func (f *fileSystem) lookupName(c *call, dir *node, name string, out *fuse.EntryOut) error {
	w := c.takeUp(dir)
	if w.last.dir != nil {
		w.steps = append(slices.Clip(w.steps), w.last)
		f.learnWalk(c, w.steps)
	}
	w.last = step{dir, name}
	next := &lastCall{tid: c.tid, asked: c.start, walk: w, dir: dir}
	var n inode
	var err error
	if n, next.attr, next.dirAttr, err = f.useAhead(c, w); n != nil || err != nil {
		// All answers of a walk are as old as its beginning.
		next.asked, next.at = c.last.asked, c.last.at
		next.walk.ahead = w.ahead[1:]
	} else {
		if len(w.ahead) > 0 {
			f.forgetWalk(c)
		}
		next.walk.ahead = nil
		n, next.attr, next.dirAttr, err = f.backend.Lookup(c, c.cred(), dir.inode, name)
		next.at = time.Now()
	}
	if err == nil {
		next.found = f.found(n, next.attr, dir.id, out)
		next.acls = aclsOf(next.found, next.attr, next.asked, next.at)
	}
	if f.sameCalls(c) && (err == nil || errno(err) == fuse.ENOENT) {
		f.sameCall.put(next)
	}
	return err
}

// useAhead returns the answer that came ahead for the name that w looks up, if
// there is one and this mount changed nothing of it since; else nothing.
func (f *fileSystem) useAhead(c *call, w pathWalk) (inode, *client.Attr, *client.Attr, error) {
	if len(w.ahead) == 0 || w.ahead[0].step != w.last || !c.last.fresh(c.start) || w.last.dir.nameChanges.since(c.last.asked) {
		return nil, nil, nil, nil
	}
	n, attr, dirAttr, err := w.ahead[0].answer.Take()
	if err != nil {
		return nil, nil, dirAttr, err
	}
	if known := f.nodes.get(uint64(n.Ino())); known != nil && known.changedSince(c.last.asked, 0) {
		n.Release()
		return nil, nil, nil, nil
	}
	return n, attr, dirAttr, nil
}

// forgetWalk: the thread does not go where its last walk went.
func (f *fileSystem) forgetWalk(c *call) {
	slot := &f.sameCall.walks[threadSlot(c.tid)]
	if w := slot.Load(); w != nil && w.tid == c.tid {
		slot.CompareAndSwap(w, nil)
	}
}

// learnWalk remembers the steps of a walk if they are others, or more, than those
// of the thread's last one.
func (f *fileSystem) learnWalk(c *call, steps []step) {
	if !f.sameCalls(c) {
		return
	}
	slot := &f.sameCall.walks[threadSlot(c.tid)]
	if w := slot.Load(); w != nil && w.tid == c.tid && len(w.steps) >= len(steps) && slices.Equal(w.steps[:len(steps)], steps) {
		return
	}
	slot.Store(&lastWalk{tid: c.tid, steps: steps})
}

// pass leaves the walk to the next request after a GETATTR on the way, whose
// attributes are used up.
func (f *fileSystem) pass(c *call, n *node) {
	if l := c.last; l != nil && l.found == n && f.sameCalls(c) {
		next := *l
		next.attr, next.dir, next.dirAttr = nil, nil, nil
		f.sameCall.put(&next)
	}
}

// passAsking asks the server for a directory's attributes. A second GETATTR of a
// directory can be the beginning of another system call: what came ahead is void.
func (f *fileSystem) passAsking(c *call, n *node) (*client.Attr, error) {
	if l := c.last; l != nil && l.found == n && len(l.walk.ahead) > 0 {
		f.forgetWalk(c)
		l.walk.ahead = nil // l was taken: it is c's alone
	}
	f.pass(c, n)
	return f.backend.GetAttr(c, c.cred(), n.inode)
}
