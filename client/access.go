package client

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// Reads move atime by relatime's rule: when it is not newer than mtime and ctime,
// or a day old. So most reads move nothing. One that does is noted at the inode,
// where stat of this client shows it at once, and told to the server later, with
// many others or along with a change of the inode: no read waits for a commit, and
// of many reads of one inode the last is told.

const (
	accessRound   = time.Second    // between two rounds of telling
	accessTellers = 64             // tellings at a time: they share the server's entries
	accessesEach  = 2048           // told in a round: a scan of millions of files leaves the server to others
	maxAccesses   = 1 << 16        // noted and not told; reads beyond move nothing
	atimeLives    = 24 * time.Hour // an atime that is newer than all changes moves when it is this old
)

// accesses are the inodes with a read to tell, each with a reference.
type accesses struct {
	c *Client

	round chan struct{} // holds a token while some are told

	mu      sync.Mutex
	pending map[*Inode]struct{}
}

func newAccesses(c *Client) *accesses {
	return &accesses{c: c, round: make(chan struct{}, 1), pending: map[*Inode]struct{}{}}
}

// AccessDue reports whether a read of n would move its atime. It asks no server.
func (c *Client) AccessDue(n *Inode) bool {
	due, _ := n.accessDue(time.Now().UnixNano())
	return due
}

// Accessed notes that a program read n: bytes, a listing, or a link's target. It asks
// no server.
func (c *Client) Accessed(n *Inode) {
	now := time.Now().UnixNano()
	due, changed := n.accessDue(now)
	if due && c.accesses.add(n) {
		// Not before what is known of the inode, whatever this machine's clock says:
		// the server takes it for a read of an older state else.
		n.accessed.Store(max(now, changed))
	}
}

// accessDue reports whether a read moves the atime, and when the inode changed last.
func (n *Inode) accessDue(nowNS int64) (due bool, changedNS int64) {
	n.mu.Lock()
	attr := n.attr
	n.mu.Unlock()
	if attr == nil {
		return false, 0
	}
	var unreported int64
	if st := n.file.Load(); st != nil {
		unreported = st.unreportedTime()
	}
	atime := attr.AtimeNs
	if noted := n.accessed.Load(); noted != 0 {
		atime = noted
	}
	changedNS = max(attr.CtimeNs, unreported)
	return atime <= max(attr.MtimeNs, changedNS) || nowNS-atime >= int64(atimeLives), changedNS
}

// add makes n one of those to tell of, unless they are too many.
func (a *accesses) add(n *Inode) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.pending[n]; ok {
		return true
	}
	if len(a.pending) >= maxAccesses {
		return false
	}
	n.Hold()
	a.pending[n] = struct{}{}
	return true
}

// take removes some, and hands their references over.
func (a *accesses) take(most int) []*Inode {
	a.mu.Lock()
	defer a.mu.Unlock()
	var some []*Inode
	for n := range a.pending {
		if len(some) == most {
			break
		}
		delete(a.pending, n)
		some = append(some, n)
	}
	return some
}

// run tells until ctx ends.
func (a *accesses) run(ctx context.Context) {
	ticker := time.NewTicker(accessRound)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.tell(ctx, accessesEach)
		}
	}
}

// tell tells the server of at most so many, when a round that is under way has ended.
func (a *accesses) tell(ctx context.Context, most int) {
	select {
	case a.round <- struct{}{}:
		defer func() { <-a.round }()
	case <-ctx.Done():
		return
	}
	some := a.take(most)
	var wg sync.WaitGroup
	for first := range min(accessTellers, len(some)) {
		wg.Go(func() {
			for i := first; i < len(some); i += accessTellers {
				a.tellOne(ctx, some[i])
				some[i].Release()
			}
		})
	}
	wg.Wait()
}

// tellOne tells of one inode. That of a file with unreported bytes goes with their
// report: what the server hears first would be older than they are, or newer. A
// failure is of no consequence but for the atime.
func (a *accesses) tellOne(ctx context.Context, n *Inode) {
	at := n.accessed.Load()
	if at == 0 {
		return // told along with something else
	}
	if st := n.file.Load(); st != nil && st.unreportedTime() != 0 {
		a.add(n)
		return
	}
	res, err := a.c.setAttr(ctx, Cred{}, n, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_ACCESSED, accessedNS: at}, nil)
	if err == nil {
		n.see(res.Attr)
	}
	if !n.accessTold(at) {
		a.add(n)
	}
}

// accessTold ends the overlay of a read that was told of, and reports whether there
// is none to tell.
func (n *Inode) accessTold(at int64) bool {
	return at == 0 || n.accessed.CompareAndSwap(at, 0) || n.accessed.Load() == 0
}

// withAccess adds to a change of attributes the read that has not been told, so
// that neither undoes the other. An atime that is set takes the place of it.
func (n *Inode) withAccess(set SetAttr) SetAttr {
	if set.Mask&(canopyv1.SetAttrMask_SET_ATTR_ATIME|canopyv1.SetAttrMask_SET_ATTR_ATIME_NOW) != 0 {
		n.accessed.Store(0)
	} else if set.accessedNS = n.accessed.Load(); set.accessedNS != 0 {
		set.Mask |= canopyv1.SetAttrMask_SET_ATTR_ACCESSED
	}
	return set
}

// accessOverlay returns attr with the read that has not been told.
func (n *Inode) accessOverlay(attr *Attr) *Attr {
	at := n.accessed.Load()
	if at == 0 || attr == nil || attr.AtimeNs == at {
		return attr
	}
	own := cloneAttr(attr)
	own.AtimeNs = at
	return own
}

// unreportedTime returns when the last unreported byte was written, 0 if there is
// none.
func (st *fileState) unreportedTime() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.listed {
		return 0
	}
	return st.modified
}
