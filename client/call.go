package client

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// do sends an operation to the shard that owns op.Subtree and returns its
// result, or the error that the result says. It follows redirects and repeats
// what met a protocol kind until ctx ends. op belongs to do from here on.
func (c *Client) do(ctx context.Context, kind opKind, op *canopyv1.Op) (*canopyv1.Result, error) {
	result, _, err := c.doIn(ctx, kind, op)
	return result, err
}

// doIn is do, and tells in which session the operation was answered. What a subtree
// does not know can be in another one: then all shards are asked (PROTOCOLS E7).
func (c *Client) doIn(ctx context.Context, kind opKind, op *canopyv1.Op) (*canopyv1.Result, inSession, error) {
	for try := 0; ; try++ {
		result, in, err := c.doOnce(ctx, kind, op)
		if result == nil || fserr.Kind(result.Error) != fserr.Stale || !c.routes.split.Load() || try == relocations {
			return result, in, err
		}
		next, locateErr := c.relocate(ctx, op, in.subtree)
		if fserr.KindOf(locateErr) == fserr.NotReady && ctx.Err() == nil {
			// It may be at the shard that does not answer: as any operation there this
			// one waits, and asks anew whether it is known meanwhile.
			next, try = &canopyv1.Op{Subtree: op.Subtree, Cred: op.Cred, Call: op.Call}, -1
			locateErr = pause(ctx, backoff(relocations))
		}
		if locateErr != nil {
			return nil, inSession{}, wrap(kind, locateErr)
		}
		if next == nil {
			return result, in, err
		}
		op = next
	}
}

// doOnce is doIn in the subtree that the operation names and those to which it is
// redirected.
func (c *Client) doOnce(ctx context.Context, kind opKind, op *canopyv1.Op) (_ *canopyv1.Result, in inSession, err error) {
	start := time.Now()
	cl := callPool.Get().(*call)
	cl.op, cl.kind, cl.sends, cl.session, cl.link, cl.hops, cl.vain = op, kind, 0, 0, nil, 0, 0
	result, err := c.attempt(ctx, cl)
	if err != nil {
		// The call may still be with its link: it is left to the collector.
		c.seqs.release(base.Seq(cl.op.Seq))
		c.metrics.observe(kind, start, fserr.KindOf(err))
		return nil, inSession{}, wrap(kind, err)
	}
	c.seqs.release(base.Seq(cl.op.Seq))
	in = inSession{cl.link, cl.session, base.SubtreeID(cl.op.Subtree)}
	c.learnResult(cl.op, result, in.subtree)
	cl.op, cl.result, cl.link = nil, nil, nil
	callPool.Put(cl)
	if result.Error == 0 {
		c.metrics.observe(kind, start, fserr.OK)
		return result, in, nil
	}
	k := fserr.Kind(result.Error)
	c.metrics.observe(kind, start, k)
	return result, in, &fserr.Error{Kind: k, Op: kind.String(), Err: detail(result)}
}

// attempt tries until there is a result that is an answer.
func (c *Client) attempt(ctx context.Context, cl *call) (*canopyv1.Result, error) {
	for try := 0; ; try++ {
		l, epoch, err := c.linkFor(ctx, cl)
		if err != nil {
			return nil, err
		}
		cl.op.Epoch = uint64(epoch)
		if err := l.submit(ctx, cl); err != nil {
			return nil, err
		}
		result := new(canopyv1.Result)
		if err := result.UnmarshalVT(cl.result); err != nil {
			return nil, fserr.New(fserr.Malformed, "", err)
		}
		again, err := c.digest(ctx, l, cl, result, try)
		if err != nil {
			return nil, err
		}
		if !again {
			c.routes.learn(result.Redirect) // of a subtree that was just made
			return result, nil
		}
		c.metrics.retried(fserr.Kind(result.Error))
		// The link's writer may have read the operation a moment ago: what changes
		// goes into a copy.
		op := cl.op
		cl.op = &canopyv1.Op{Seq: op.Seq, Subtree: op.Subtree, Cred: op.Cred, Call: op.Call}
		if result.Error == uint32(fserr.Moved) && result.Redirect.GetSubtree() != 0 {
			cl.op.Subtree = result.Redirect.Subtree
			if result.Place != nil {
				cl.op = cl.op.At(result.Place)
			}
		}
	}
}

// digest decides what an outcome means: an answer, or a reason to try again, for
// which it has waited then. Protocol kinds are no answers (PROTOCOLS C4).
func (c *Client) digest(ctx context.Context, l *link, cl *call, result *canopyv1.Result, try int) (again bool, err error) {
	switch kind := fserr.Kind(result.Error); kind {
	case fserr.Busy, fserr.Frozen, fserr.Locked:
		cl.sends--
		return true, pause(ctx, retryAfter(result, try))
	case fserr.NotReady, fserr.TimedOut:
		// The server does not know what became of it. The same number goes again.
		if try > 0 {
			l.redirect(cl.stream, nil)
		}
		return true, pause(ctx, retryAfter(result, try))
	case fserr.NotHolder, fserr.UnknownShard:
		cl.sends--
		l.redirect(cl.stream, result.Redirect)
		return true, ctx.Err()
	case fserr.Moved:
		cl.sends--
		return true, c.followMoved(ctx, cl, result)
	case fserr.SessionExpired:
		l.sessionLost(cl.session)
		return true, c.renumber(cl)
	case fserr.BelowFloor:
		return true, c.renumber(cl)
	case fserr.WrongCluster, fserr.Malformed:
		return false, &fserr.Error{Kind: kind, Err: detail(result)}
	}
	return false, nil
}

// renumber gives a mutation that was refused as a whole a new sequence number.
// If an earlier send of it may have been executed, its outcome is unknown, and
// stays so: it must not run under another number (PROTOCOLS C3).
func (c *Client) renumber(cl *call) error {
	cl.sends--
	if !cl.kind.mutates() {
		return nil
	}
	if cl.sends > 0 {
		return errSessionLost
	}
	c.seqs.release(base.Seq(cl.op.Seq))
	op := cl.op
	cl.op = &canopyv1.Op{Subtree: op.Subtree, Cred: op.Cred, Call: op.Call}
	return nil
}

// linkFor returns the link to where a call goes: the shard of its subtree, or the one
// that it is addressed to.
func (c *Client) linkFor(ctx context.Context, cl *call) (*link, base.Epoch, error) {
	if cl.shard != 0 {
		l, err := c.link(cl.shard)
		return l, 0, err
	}
	for {
		subtree, dir := base.SubtreeID(cl.op.Subtree), base.Ino(cl.op.Dir())
		l, epoch, err := c.linkOf(ctx, subtree, dir)
		if err != errHearsay {
			return l, epoch, err
		}
		if home := c.inodes.dirs.doubt(dir, subtree); home != 0 {
			op := cl.op
			cl.op = &canopyv1.Op{Seq: op.Seq, Subtree: uint64(home), Cred: op.Cred, Call: op.Call}
		}
	}
}

// errHearsay says that nobody knows a subtree of which a copy of a directory had heard.
var errHearsay = errors.New("a fragment is not known")

// mapPatience is how long the map may lag behind a subtree that an answer named,
// before the shards themselves are asked.
const mapPatience = 500 * time.Millisecond

// linkOf returns the link to the shard that owns the subtree, in which dir is
// believed to be. It waits while nobody knows the subtree.
func (c *Client) linkOf(ctx context.Context, id base.SubtreeID, dir base.Ino) (*link, base.Epoch, error) {
	for {
		to, ok, changed := c.routes.find(id)
		if ok {
			l, err := c.link(to.shard)
			return l, to.epoch, err
		}
		lagging := time.NewTimer(mapPatience)
		select {
		case <-changed:
		case <-lagging.C:
			if m := c.inodes.dirs.splitMap(dir); m != nil && m.Home() != id && len(m.In(id)) > 0 {
				return nil, 0, errHearsay
			}
			if _, err := c.locate(ctx, dir, 0); err != nil && fserr.KindOf(err) != fserr.Stale && fserr.KindOf(err) != fserr.NotReady {
				return nil, 0, err
			}
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-c.ctx.Done():
			return nil, 0, fserr.NotConnected
		}
		lagging.Stop()
	}
}

// link returns the link to a shard, and starts it on first use.
func (c *Client) link(shard base.ShardID) (*link, error) {
	if l, ok := c.links.Load(shard); ok {
		return l.(*link), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, ok := c.links.Load(shard); ok {
		return l.(*link), nil
	}
	if c.closing {
		return nil, fserr.NotConnected
	}
	l := newLink(c.env, shard)
	c.links.Store(shard, l)
	c.wg.Go(func() { l.run(c.ctx) })
	return l, nil
}

// retryAfter is how long to wait before the next try: what the server asked
// for, with jitter, or longer and longer.
func retryAfter(result *canopyv1.Result, try int) time.Duration {
	d := backoff(try)
	if asked := time.Duration(result.RetryAfterMs) * time.Millisecond; asked > 0 {
		d += min(asked, 10*time.Second)
	}
	return d
}

// detail returns what the result says to people, as a cause; nil if nothing.
func detail(result *canopyv1.Result) error {
	if result.Detail == "" {
		return nil
	}
	return errors.New(result.Detail)
}

// wrap makes err an *fserr.Error of the operation.
func wrap(kind opKind, err error) error {
	var e *fserr.Error
	if errors.As(err, &e) {
		if e.Op != "" {
			return err
		}
		return &fserr.Error{Kind: e.Kind, Op: kind.String(), Path: e.Path, Ino: e.Ino, Err: e.Err}
	}
	k := fserr.KindOf(err)
	if bare, ok := err.(fserr.Kind); ok && bare == k {
		err = nil
	}
	return fserr.New(k, kind.String(), err)
}
