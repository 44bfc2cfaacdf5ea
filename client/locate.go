package client

import (
	"context"
	"maps"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

const (
	// freeHops is how many redirects that tell something new an operation follows at
	// once. More, or one that tells nothing new, wait longer and longer, with jitter.
	freeHops = 8
	// locateAfter is after how many redirects in vain all shards are asked.
	locateAfter = 4
	// relocations bounds how often one operation is sent after what moves on.
	relocations = 8
)

// followMoved takes what a MOVED answer says, and returns when it is worth going
// there.
func (c *Client) followMoved(ctx context.Context, cl *call, result *canopyv1.Result) error {
	red := result.Redirect
	news := c.routes.learn(red)
	split := c.learnRedirect(cl.op, result)
	if split {
		news = true
	}
	if to := red.GetSubtree(); to != 0 && to != cl.op.Subtree {
		news = true
	}
	c.follow(cl.op, red, result.Place)
	cl.hops++
	if news && cl.hops <= freeHops {
		c.moves.noticed(base.SubtreeID(cl.op.Subtree), red, split && len(red.Fragments) > 0)
		return nil
	}
	cl.vain++
	if err := pause(ctx, backoff(cl.vain)); err != nil || cl.vain%locateAfter != 0 {
		return err
	}
	place := cl.op.Place()
	at, err := c.locate(ctx, base.Ino(cl.op.Dir()), 0)
	if fserr.KindOf(err) == fserr.Stale && place.GetDir() != 0 {
		at, err = c.locate(ctx, base.Ino(place.Ino), 0)
	}
	if err != nil || at == nil {
		return nil // who is asked next says what is the matter
	}
	if at.isDir {
		c.inodes.dirs.found(base.Ino(cl.op.Dir()), at.subtree)
	}
	result.Redirect, result.Place = &canopyv1.Redirect{Subtree: uint64(at.subtree)}, at.place
	c.follow(cl.op, result.Redirect, at.place)
	return nil
}

// learnRedirect takes what a MOVED answer says of a directory, and reports whether that
// was news.
func (c *Client) learnRedirect(op *canopyv1.Op, result *canopyv1.Result) bool {
	red := result.Redirect
	dir, to := base.Ino(red.GetDir()), base.SubtreeID(red.GetSubtree())
	if dir == 0 || to == 0 {
		return false
	}
	m := shard.FragmentsOf(red.Fragments)
	if m == nil {
		m = shard.Whole(to)
	}
	if h, ok := hashIn(op, result.Place, dir); ok && m.Find(h).Subtree != to {
		m = m.With(m.At(h.Border()), to)
	}
	return c.inodes.dirs.learn(dir, base.SubtreeID(op.Subtree), m)
}

// hashIn returns the hash of the name in the directory by which an operation goes,
// after an answer that said where its place is now; false: it goes by no name in it.
func hashIn(op *canopyv1.Op, now *canopyv1.Place, dir base.Ino) (shard.Hash, bool) {
	name := op.Name()
	switch {
	case base.Ino(now.GetDir()) == dir && len(now.Name) > 0:
		name = now.Name
	case base.Ino(op.Dir()) != dir:
		return 0, false
	case op.GetReadDir() != nil:
		return shard.HashOf(base.Cookie(op.GetReadDir().Cookie) + 1), true
	}
	if len(name) == 0 {
		return 0, false
	}
	return shard.NameHash(name), true
}

// follow brings the inode that an operation addresses up to where it is now.
func (c *Client) follow(op *canopyv1.Op, red *canopyv1.Redirect, place *canopyv1.Place) {
	addressed := op.Place()
	if addressed == nil || red == nil {
		return
	}
	n := c.inodes.find(base.Ino(addressed.Ino))
	if n == nil {
		return
	}
	defer n.Release()
	if place != nil {
		n.movedIn(place, base.SubtreeID(red.Subtree))
		return
	}
	n.mu.Lock()
	n.home = 0
	n.mu.Unlock()
}

// located is where an inode is.
type located struct {
	subtree base.SubtreeID
	place   *canopyv1.Place // nil: under its number, or where it was believed to be
	isDir   bool            // the directory alone was found
}

// relocate finds out where that is which op addressed in vain, in the subtree that
// it was sent to last. It returns the operation for there; nil if it is really gone.
func (c *Client) relocate(ctx context.Context, op *canopyv1.Op, asked base.SubtreeID) (*canopyv1.Op, error) {
	ino, dir := base.Ino(op.Dir()), base.Ino(0)
	place := op.Place()
	if place.GetDir() != 0 && place.GetIno() != 0 {
		ino, dir = base.Ino(place.Ino), base.Ino(place.Dir)
	}
	if ino == 0 {
		return nil, nil
	}
	at, err := c.locate(ctx, ino, dir)
	if err != nil {
		if fserr.KindOf(err) == fserr.Stale {
			err = nil
		}
		return nil, err
	}
	same := at.place == nil || at.place.Dir == place.GetDir() && string(at.place.Name) == string(place.GetName())
	if same && (at.subtree == asked || at.isDir && dir != 0 && c.owns(asked, dir, place.GetName())) {
		return nil, nil
	}
	if at.isDir {
		if dir != 0 {
			ino = dir
		}
		c.inodes.dirs.found(ino, at.subtree)
	}
	c.follow(op, &canopyv1.Redirect{Subtree: uint64(at.subtree)}, at.place)
	next := &canopyv1.Op{Subtree: uint64(at.subtree), Cred: op.Cred, Call: op.Call}
	if at.place != nil {
		next = next.At(at.place)
	}
	return next, nil
}

// owns reports whether a subtree is believed to have a name of a split directory.
func (c *Client) owns(subtree base.SubtreeID, dir base.Ino, name []byte) bool {
	m := c.inodes.dirs.splitMap(dir)
	return m != nil && m.Has(subtree, shard.NameHash(name))
}

// locateInPasses asks all shards. Kind Stale, that none has it, comes after two passes
// between which nothing moved (PROTOCOLS E7).
func (c *Client) locateInPasses(ctx context.Context, ino, dir base.Ino) (*located, error) {
	var before map[base.ShardID]uint64
	for pass := 0; ; pass++ {
		at, moves, err := c.locateOnce(ctx, &canopyv1.LocateCall{Ino: uint64(ino), Dir: uint64(dir)})
		if at != nil || err != nil {
			return at, err
		}
		if before != nil && maps.Equal(before, moves) {
			return nil, fserr.New(fserr.Stale, "locate", nil)
		}
		before = moves
		if pass > 0 {
			if err := pause(ctx, backoff(pass)); err != nil {
				return nil, err
			}
		}
	}
}

// locateOnce asks each shard once, all at the same time. What one has ends it; that
// none has, only the answers of all tell.
func (c *Client) locateOnce(ctx context.Context, call *canopyv1.LocateCall) (*located, map[base.ShardID]uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		shard  base.ShardID
		result *canopyv1.Result
		err    error
	}
	shards := c.routes.allShards()
	answers := make(chan answer, len(shards))
	for _, shard := range shards {
		go func() {
			result, err := c.askShard(ctx, shard, opLocate, &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_Locate{Locate: call}})
			answers <- answer{shard, result, err}
		}()
	}
	var dir *located
	var last *canopyv1.Place
	moves := make(map[base.ShardID]uint64, len(shards))
	for range shards {
		a := <-answers
		switch {
		case a.result == nil || a.err != nil && fserr.KindOf(a.err) != fserr.Stale:
			return nil, nil, a.err
		case a.err == nil:
			if a.result.Attr.GetEpoch() != 0 {
				c.routes.learn(&canopyv1.Redirect{Subtree: a.result.Attr.Subtree, Shard: uint64(a.shard), Epoch: a.result.Attr.Epoch})
			}
			at := &located{subtree: base.SubtreeID(a.result.Attr.GetSubtree()), place: a.result.Place, isDir: a.result.Attr.GetMode() == modeDir}
			if a.result.Attr.GetIno() == call.Ino {
				return at, nil, nil
			}
			dir = at
		}
		if a.err != nil && a.result.Place != nil {
			last = a.result.Place
		}
		moves[a.shard] = a.result.Moves
	}
	if dir != nil && last.GetDir() == call.Dir {
		dir.place = last
	}
	return dir, moves, nil
}

// askShard sends an operation on the shard itself.
func (c *Client) askShard(ctx context.Context, shard base.ShardID, kind opKind, op *canopyv1.Op) (*canopyv1.Result, error) {
	start := time.Now()
	cl := &call{op: op, kind: kind, shard: shard, done: make(chan struct{}, 1)}
	result, err := c.attempt(ctx, cl)
	if err == nil && result.Error != 0 {
		err = fserr.New(fserr.Kind(result.Error), kind.String(), detail(result))
	}
	c.metrics.observe(kind, start, fserr.KindOf(err))
	return result, err
}
