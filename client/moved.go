package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// movedJitter spreads what clients do when they hear that a subtree has moved: all
// of them hear it at once.
const movedJitter = 50 * time.Millisecond

// moves follows subtrees with what is open in them. An open file and a lock in it
// are known to the new owner, but this client's session there lives by heartbeats,
// and those go only where it has asked something: so it asks, and reports what it has
// open (PROTOCOLS H2), though no program does anything with it.
type moves struct {
	c *Client

	mu      sync.Mutex
	pending map[base.SubtreeID]bool // subtrees, from which or in which something moved
	known   map[movedPart]bool      // that redirects told of
}

// movedPart is a move, as a redirect tells of it.
type movedPart struct {
	from, to base.SubtreeID
	shard    base.ShardID
	epoch    base.Epoch
}

// maxMovedParts bounds what is remembered of moves that were looked after.
const maxMovedParts = 1 << 12

func newMoves(c *Client) *moves {
	return &moves{c: c, pending: map[base.SubtreeID]bool{}, known: map[movedPart]bool{}}
}

// event takes a holder's word that what was in one subtree is in another, or that
// the subtree has another owner.
func (m *moves) event(e *canopyv1.SubtreeMoved) {
	m.c.routes.learn(&canopyv1.Redirect{Subtree: e.Subtree, Shard: e.Shard, Epoch: e.Epoch})
	m.look(base.SubtreeID(e.FromSubtree))
	m.look(base.SubtreeID(e.Subtree))
}

// noticed takes a redirect that told something new: the event may never come. The
// first one of a move does for all that is open. split: it told of a directory that is
// split otherwise than was known.
func (m *moves) noticed(from base.SubtreeID, red *canopyv1.Redirect, split bool) {
	if m.c.opens.count() == 0 {
		return
	}
	if split {
		m.look(from)
		m.look(base.SubtreeID(red.Subtree))
		return
	}
	part := movedPart{from, base.SubtreeID(red.Subtree), base.ShardID(red.Shard), base.Epoch(red.Epoch)}
	m.mu.Lock()
	seen := m.known[part]
	if len(m.known) >= maxMovedParts {
		evict(m.known)
	}
	m.known[part] = true
	m.mu.Unlock()
	if !seen {
		m.look(from)
		m.look(part.to)
	}
}

// published takes the map's word that subtrees have other owners.
func (m *moves) published(subtrees []base.SubtreeID) {
	if m.c.opens.count() == 0 {
		return
	}
	for _, s := range subtrees {
		m.look(s)
	}
}

// look has the open files of a subtree looked after, a little later.
func (m *moves) look(subtree base.SubtreeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if subtree == 0 || m.pending[subtree] {
		return
	}
	m.pending[subtree] = m.c.spawn(func() {
		err := pause(m.c.ctx, rand.N(movedJitter))
		m.mu.Lock()
		delete(m.pending, subtree)
		m.mu.Unlock()
		if err == nil {
			m.follow(m.c.ctx, subtree)
		}
	})
}

// followed is what one question to a subtree is asked for: all open files with names of
// one directory there, or one with a place of its own.
type followed struct {
	ino base.Ino
	in  base.SubtreeID
}

// followRounds bounds the rounds of follow: names can have gone on from where they went.
const followRounds = 4

// follow asks for each directory with an open file in the subtree where it is: the
// redirect leads all of its files, in each range of names that went. Then the holders
// are told who is open there.
func (m *moves) follow(ctx context.Context, subtree base.SubtreeID) {
	asked := map[followed]bool{}
	dirs := map[base.Ino]bool{}
	for round := range followRounds {
		files := m.pick(asked, func(f followed) bool { return f.in == subtree || round > 0 && dirs[f.ino] })
		if len(files) == 0 {
			break
		}
		var wg sync.WaitGroup
		slots := make(chan struct{}, completers)
		for f, n := range files {
			asked[f], dirs[f.ino] = true, true
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				defer n.Release()
				m.ask(ctx, f, n)
			})
		}
		wg.Wait()
	}
	if len(asked) > 0 {
		m.c.opens.reportAll(ctx)
	}
}

// pick returns an open file for each question that is wanted and was not asked, with a
// reference.
func (m *moves) pick(asked map[followed]bool, wanted func(followed) bool) map[followed]*Inode {
	files := map[followed]*Inode{}
	for _, n := range m.c.opens.nodes() {
		n.mu.Lock()
		n.followLocked()
		f := followed{n.dir, n.subtree}
		if n.home != 0 {
			f = followed{n.ino, n.home}
		}
		n.mu.Unlock()
		if !wanted(f) || asked[f] || files[f] != nil {
			n.Release()
			continue
		}
		files[f] = n
	}
	return files
}

// ask asks for an open file where it is believed to be. If it is there, its directory's
// copy is asked as well: other names of it may have gone.
func (m *moves) ask(ctx context.Context, f followed, n *Inode) {
	c := m.c
	_, err := c.fetchAttr(ctx, n)
	if err == nil && f.ino != n.ino && f.in == n.subtreeID() {
		_, err = c.do(ctx, opGetAttr, &canopyv1.Op{Subtree: uint64(f.in), Cred: superuser,
			Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: uint64(f.ino)}}}})
	}
	if err != nil {
		c.logger.Debug("an open file whose subtree moved is not found", "inode", n.ino, "error", err)
	}
}
