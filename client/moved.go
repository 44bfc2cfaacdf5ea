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
// first one of a move does for all that is open.
func (m *moves) noticed(from base.SubtreeID, red *canopyv1.Redirect) {
	if m.c.opens.count() == 0 {
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

// follow asks for each directory with an open file in the subtree where it is: the
// redirect leads all of its files. Then the holders are told who is open there.
func (m *moves) follow(ctx context.Context, subtree base.SubtreeID) {
	stale := map[base.Ino]*Inode{}
	for _, n := range m.c.opens.nodes() {
		n.mu.Lock()
		n.followLocked()
		dir, in, home := n.dir, n.subtree, n.home
		n.mu.Unlock()
		key := dir
		if home != 0 {
			in, key = home, n.ino
		}
		if in != subtree || stale[key] != nil {
			n.Release()
			continue
		}
		stale[key] = n
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, completers)
	for _, n := range stale {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer n.Release()
			if _, err := m.c.fetchAttr(ctx, n); err != nil {
				m.c.logger.Debug("an open file whose subtree moved is not found", "inode", n.ino, "error", err)
			}
		})
	}
	wg.Wait()
	if len(stale) > 0 {
		m.c.opens.reportAll(ctx)
	}
}
