package client

import (
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Name is a name in a directory.
type Name struct {
	Dir  *Inode
	Name string
}

// Ahead is the answer to a lookup that went along with another question.
type Ahead struct {
	c      *Client
	name   Name
	asked  time.Time
	result *canopyv1.Result
}

// GetAttrAhead is GetAttr, and looks up names in the same message, which the
// caller expects to need next: a path walk then costs one round trip, not one for
// each name. Everything is read after the call began. The answers are those of
// the first names, in order; what went wrong with the others is found out when
// they are asked for. The names' directories need no reference.
func (c *Client) GetAttrAhead(ctx context.Context, cred Cred, n *Inode, names []Name) (*Attr, []Ahead, error) {
	if c.cache != nil {
		attr, err := c.GetAttr(ctx, cred, n)
		return attr, nil, err
	}
	asked := time.Now()
	subtree := n.subtreeID()
	l, epoch, err := c.linkOf(ctx, subtree, n.ino)
	if err != nil {
		return nil, nil, wrap(opGetAttr, err)
	}
	calls := make([]*call, 0, len(names))
	for _, name := range names {
		if name.Dir.subtreeFor(name.Name) != subtree {
			break
		}
		op := name.Dir.opOn(cred, name.Name)
		op.Epoch = uint64(epoch)
		op.Call = &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: uint64(name.Dir.ino), Name: []byte(name.Name)}}
		calls = append(calls, &call{op: op, kind: opLookup, done: make(chan struct{}, 1)})
	}
	posted := l.post(calls)
	attr, err := c.GetAttr(ctx, cred, n)
	results := l.withdraw(calls[:posted])
	if err != nil {
		return nil, nil, err
	}
	ahead := make([]Ahead, 0, len(results))
	for i, encoded := range results {
		result := new(canopyv1.Result)
		if result.UnmarshalVT(encoded) != nil || result.Attr != nil && (liesElsewhere(result.Attr) || isPartial(result.Attr)) || result.Error != 0 && fserr.Kind(result.Error) != fserr.NotFound {
			break
		}
		ahead = append(ahead, Ahead{c: c, name: names[i], asked: asked, result: result})
	}
	return attr, ahead, nil
}

// Take returns what Lookup would have, as it was when it was asked ahead.
func (a *Ahead) Take() (n *Inode, attr, dirAttr *Attr, err error) {
	return a.c.lookedUp(a.c.ctx, Cred{}, a.name.Dir, a.name.Name, a.result, a.asked)
}

// post queues reads that nobody waits for, in front of the one that their caller
// is about to submit, which sends them. It returns how many it took: none when
// the queue is long.
func (l *link) post(calls []*call) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) > maxQueued/2 {
		return 0
	}
	for _, cl := range calls {
		l.nextID++
		cl.link, cl.op.Id, cl.state = l, l.nextID, callQueued
		l.queue = append(l.queue, cl)
	}
	return len(calls)
}

// withdraw ends posted calls, and returns the results of the first ones that have
// been answered.
func (l *link) withdraw(calls []*call) (results [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := true
	for _, cl := range calls {
		switch cl.state {
		case callAnswered:
			if all = all && cl.err == nil; all {
				results = append(results, cl.result)
			}
			continue
		case callSent:
			delete(l.flight, cl.op.Id)
		}
		cl.state, all = callAbandoned, false
	}
	return results
}
