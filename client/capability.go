package client

import (
	"bytes"
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// granted is a capability for one file (PROTOCOLS J4), and when it came. It does
// not change.
type granted struct {
	token capability.Token
	at    uint32 // seconds after the client's start
}

const (
	// renewSeconds is how old a capability that is used gets before another is asked
	// for in the background: younger than any lives by the default settings.
	renewSeconds = uint32(capability.DefaultPeriod / 2 / time.Second)
	// deadSeconds: an older one has ended by the default settings.
	deadSeconds = uint32(2 * capability.DefaultPeriod / time.Second)
)

// asking is a request for a capability. err is set before done is closed.
type asking struct {
	done chan struct{}
	err  error
}

func (c *Client) seconds() uint32 { return uint32(time.Since(c.started) / time.Second) }

// grant takes the capability that an answer carried, unless one is known that
// allows more and lives.
func (n *Inode) grant(c *Client, res *canopyv1.Result) {
	if len(res.GetCapability()) != capability.TokenBytes || n.isDir {
		return
	}
	g := &granted{token: capability.Token(res.Capability), at: c.seconds()}
	if old := n.granted.Load(); old != nil && old.token.Rights()&^g.token.Rights() != 0 && g.at-old.at < deadSeconds {
		return
	}
	n.granted.Store(g)
	if !c.granting.Load() {
		c.granting.Store(true)
	}
}

// Capability implements data.Access. What a data server refuses, because its time
// is over or its key was revoked, is replaced by asking the file's shard, for the
// client itself: whoever has a handle was checked when it was opened. It waits as
// any operation does, so that bytes in buffers outlast a shard without a holder.
func (n *Inode) Capability(ctx context.Context, write bool, refused []byte) ([]byte, error) {
	c := n.table.client
	want := capability.Read
	if write {
		want = capability.Write
	}
	for try := 0; ; try++ {
		rights := want
		if g := n.granted.Load(); g != nil {
			if g.token.Rights()&want != 0 && !bytes.Equal(g.token[:], refused) {
				if c.seconds()-g.at >= renewSeconds {
					n.ask(c, g.token.Rights())
				}
				return g.token[:], nil
			}
			rights |= g.token.Rights()
		}
		if try > 0 {
			// The shard's holder knows no newer time or key yet, or none at all.
			if err := pause(ctx, backoff(try)); err != nil {
				return nil, fserr.New(fserr.KindOf(err), "capability", err)
			}
		}
		a := n.ask(c, rights)
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, fserr.New(fserr.KindOf(ctx.Err()), "capability", ctx.Err())
		}
		if a.err != nil {
			return nil, a.err
		}
	}
}

// ask asks the file's shard for a capability, unless that is under way.
func (n *Inode) ask(c *Client, rights capability.Rights) *asking {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asking != nil {
		return n.asking
	}
	a := &asking{done: make(chan struct{})}
	n.Hold()
	if !c.spawn(func() {
		defer n.Release()
		res, err := c.fetchResult(c.ctx, n, uint32(rights))
		if err == nil && res.Capability != nil && capability.Rights(res.DataRights)&rights != rights {
			err = &fserr.Error{Kind: fserr.Access, Op: "capability", Ino: n.ino}
		}
		n.mu.Lock()
		n.asking = nil
		n.mu.Unlock()
		a.err = err
		close(a.done)
	}) {
		n.Release()
		a.err = fserr.New(fserr.NotConnected, "capability", nil)
		close(a.done)
		return a
	}
	n.asking = a
	return a
}
