package work

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/canopyfs/canopy/loadtest/history"
)

// user does one operation after the other, on what others use too.
type user struct {
	id      int
	sys     System
	rec     *history.Recorder
	h       *history.Header
	board   *board
	timeout time.Duration
	rng     *rand.Rand

	singles  []single // names of its own that are there
	made     int      // of them, so far
	appended int
	values   int
}

// hurriedShare is one in how many changes of a library's client does not wait for its
// answer, which leaves the outcome unknown; hurry is how long it waits at most.
const (
	hurriedShare = 40
	hurry        = 12 * time.Millisecond
	// pauseAfterUnknown keeps a client from spinning while a server is away.
	pauseAfterUnknown = 20 * time.Millisecond
)

// choice is something that a client does, by its weight among others.
type choice struct {
	weight int
	do     func(ctx context.Context)
}

func (u *user) choose(ctx context.Context, choices []choice) {
	total := 0
	for _, ch := range choices {
		total += ch.weight
	}
	n := u.rng.IntN(total)
	for _, ch := range choices {
		if n -= ch.weight; n < 0 {
			ch.do(ctx)
			return
		}
	}
}

// step does one operation, or two that belong together.
func (u *user) step(ctx context.Context) {
	u.choose(ctx, []choice{
		{34, func(ctx context.Context) { u.onFiles(ctx, u.board.group(false)) }},
		{24, func(ctx context.Context) { u.onDirs(ctx, u.board.group(true)) }},
		{14, func(ctx context.Context) { u.onRegister(ctx, u.board.register()) }},
		{18, u.onSingle},
		{4, u.append},
		{6, u.list},
	})
}

// do does an operation and takes it down. call fills in what op's answer is.
func (u *user) do(ctx context.Context, op *history.Op, call func(ctx context.Context) error) *history.Op {
	op.Client, op.Via = u.id, u.sys.Via()
	limit := u.timeout
	if op.Kind.Changes() && op.Via == history.ByLibrary && u.rng.IntN(hurriedShare) == 0 {
		limit, op.Hurried = time.Duration(u.rng.Int64N(int64(hurry))), true
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	u.rec.Do(op, func() (out string) {
		out, op.Said = outcome(call(bounded))
		if bounded.Err() != nil && out == history.Unknown {
			op.Said = "" // it is what the client wanted
		}
		return out
	})
	if op.Outcome == history.Unknown {
		pause(ctx, u.rng, pauseAfterUnknown)
	}
	return op
}

// onFiles does something in a group of files.
func (u *user) onFiles(ctx context.Context, g *group) {
	a, b := g.two(u.rng)
	on := func(kind history.Kind, to bool) *history.Op {
		op := &history.Op{Kind: kind, Group: g.number, A: a.path(u.h)}
		if to {
			op.B = b.path(u.h)
		}
		return op
	}
	var op *history.Op
	u.choose(ctx, []choice{
		{22, func(ctx context.Context) {
			op = on(history.Create, false)
			u.do(ctx, op, func(ctx context.Context) (err error) { op.Ino, err = u.sys.Create(ctx, a.dir, a.name); return err })
		}},
		{20, func(ctx context.Context) { op = u.stat(ctx, g, a) }},
		{14, func(ctx context.Context) {
			op = u.held(ctx, g, a, func(h Handle) *history.Op {
				link := &history.Op{Kind: history.Link, Group: g.number, Ino: h.Ino(), B: b.path(u.h)}
				return u.do(ctx, link, func(ctx context.Context) error { return h.Link(ctx, b.dir, b.name) })
			})
		}},
		{6, func(ctx context.Context) { op = u.links(ctx, g, a) }},
		{14, func(ctx context.Context) {
			op = u.do(ctx, on(history.Unlink, false), func(ctx context.Context) error { return u.sys.Unlink(ctx, a.dir, a.name) })
		}},
		{24, func(ctx context.Context) { op = u.rename(ctx, g, a, b) }},
	})
	u.board.ended(op, &g.unknown)
}

// stat looks a name up. A lookup that has ended without an answer says nothing.
func (u *user) stat(ctx context.Context, g *group, a place) *history.Op {
	op := &history.Op{Kind: history.Stat, Group: g.number, A: a.path(u.h)}
	return u.do(ctx, op, func(ctx context.Context) (err error) {
		op.Ino, op.Links, err = u.sys.Stat(ctx, a.dir, a.name)
		return err
	})
}

// held does something with a handle of what a name leads to, if it leads to anything.
func (u *user) held(ctx context.Context, g *group, a place, with func(Handle) *history.Op) *history.Op {
	op := &history.Op{Kind: history.Stat, Group: g.number, A: a.path(u.h)}
	var h Handle
	u.do(ctx, op, func(ctx context.Context) (err error) {
		if h, err = u.sys.Hold(ctx, a.dir, a.name); err == nil {
			op.Ino = h.Ino()
		}
		return err
	})
	if h == nil {
		return op
	}
	defer h.Close()
	if op.Ino == 0 {
		return op
	}
	return with(h)
}

// links asks an inode for its links. A mount may answer what it was told when the same
// thread looked the name up just before (clientfuse/DESIGN.md), so the question counts from then.
func (u *user) links(ctx context.Context, g *group, a place) *history.Op {
	called := u.rec.Now()
	return u.held(ctx, g, a, func(h Handle) *history.Op {
		op := &history.Op{Client: u.id, Via: u.sys.Via(), Kind: history.Links, Group: g.number, Ino: h.Ino(), Call: called}
		bounded, cancel := context.WithTimeout(ctx, u.timeout)
		defer cancel()
		var err error
		op.Links, err = h.Links(bounded)
		op.Return = u.rec.Now()
		op.Outcome, op.Said = outcome(err)
		u.rec.Add(op)
		return op
	})
}

func (u *user) rename(ctx context.Context, g *group, a, b place) *history.Op {
	kind, flags := history.Rename, uint(0)
	switch u.rng.IntN(4) {
	case 0:
		kind, flags = history.NoReplace, noReplace
	case 1:
		kind, flags = history.Exchange, exchange
	}
	op := &history.Op{Kind: kind, Group: g.number, A: a.path(u.h), B: b.path(u.h)}
	return u.do(ctx, op, func(ctx context.Context) error { return u.sys.Rename(ctx, a.dir, a.name, b.dir, b.name, flags) })
}

// inner is the one file that directories of a group can have.
const inner = "x"

// onDirs does something in a group of directories.
func (u *user) onDirs(ctx context.Context, g *group) {
	a, b := g.two(u.rng)
	within := func(ctx context.Context, kind history.Kind, do func(ctx context.Context, h Handle) error) *history.Op {
		return u.held(ctx, g, a, func(h Handle) *history.Op {
			op := &history.Op{Kind: kind, Group: g.number, Ino: h.Ino()}
			return u.do(ctx, op, func(ctx context.Context) error { return do(ctx, h) })
		})
	}
	var op *history.Op
	u.choose(ctx, []choice{
		{24, func(ctx context.Context) {
			op = &history.Op{Kind: history.Mkdir, Group: g.number, A: a.path(u.h)}
			u.do(ctx, op, func(ctx context.Context) (err error) { op.Ino, err = u.sys.Mkdir(ctx, a.dir, a.name); return err })
		}},
		{18, func(ctx context.Context) { op = u.stat(ctx, g, a) }},
		{14, func(ctx context.Context) {
			op = &history.Op{Kind: history.Rmdir, Group: g.number, A: a.path(u.h)}
			u.do(ctx, op, func(ctx context.Context) error { return u.sys.Rmdir(ctx, a.dir, a.name) })
		}},
		{28, func(ctx context.Context) { op = u.rename(ctx, g, a, b) }},
		{9, func(ctx context.Context) {
			op = within(ctx, history.Enter, func(ctx context.Context, h Handle) error { return h.Create(ctx, inner) })
		}},
		{7, func(ctx context.Context) {
			op = within(ctx, history.Leave, func(ctx context.Context, h Handle) error { return h.Unlink(ctx, inner) })
		}},
	})
	u.board.ended(op, &g.unknown)
}
