package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// locatesAtOnce bounds the questions to all shards that run at a time. Others wait.
	locatesAtOnce = 16
	// locatePatience is how long all shards have for an answer: longer than one needs to
	// get another holder.
	locatePatience = 4 * time.Second
)

// errSilent says that a shard has not answered where something is. Nobody else had it, so
// that it is not known whether it is still there.
var errSilent = errors.New("a shard does not answer where it is")

// locates are the questions to all shards that run (PROTOCOLS E7). One does for all who
// want to know the same: what is gone when it was asked is gone for ever, and where
// something was leads to where it is.
type locates struct {
	patience time.Duration
	slots    chan struct{}

	mu      sync.Mutex
	running map[sought]*locating
}

// sought is what is looked for: an inode, or else the directory in which it may be.
type sought struct{ ino, dir base.Ino }

type locating struct {
	cancel context.CancelFunc
	askers int // under locates.mu; the last one to leave ends it
	done   chan struct{}
	at     *located
	err    error
}

func newLocates() *locates {
	return &locates{patience: locatePatience, slots: make(chan struct{}, locatesAtOnce), running: map[sought]*locating{}}
}

// locate asks all shards which subtree has an inode, or else the directory dir
// (0: none) in which it is believed to be. Kind Stale: none has. Kind NotReady: a shard
// has no holder that could tell, and no other one has it; it may be asked again.
func (c *Client) locate(ctx context.Context, ino, dir base.Ino) (*located, error) {
	x, what := c.locates, sought{ino, dir}
	x.mu.Lock()
	l := x.running[what]
	if l == nil {
		run, cancel := context.WithCancel(c.ctx)
		l = &locating{cancel: cancel, done: make(chan struct{})}
		if !c.spawn(func() { c.runLocate(run, what, l) }) {
			x.mu.Unlock()
			cancel()
			return nil, fserr.NotConnected
		}
		x.running[what] = l
	}
	l.askers++
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if l.askers--; l.askers == 0 {
			l.cancel()
			if x.running[what] == l { // nobody joins what was given up
				delete(x.running, what)
			}
		}
	}()
	select {
	case <-l.done:
		return l.at, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Client) runLocate(ctx context.Context, what sought, l *locating) {
	x := c.locates
	select {
	case x.slots <- struct{}{}:
		asking, cancel := context.WithTimeout(ctx, x.patience)
		l.at, l.err = c.locateInPasses(asking, what.ino, what.dir)
		if l.err != nil && asking.Err() != nil && ctx.Err() == nil {
			l.err = fserr.New(fserr.NotReady, "locate", errSilent)
		}
		cancel()
		<-x.slots
	case <-ctx.Done():
		l.err = ctx.Err()
	}
	x.mu.Lock()
	if x.running[what] == l {
		delete(x.running, what)
	}
	x.mu.Unlock()
	close(l.done)
}
