package client

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// block holds what this client wrote to one aligned piece of a file and has not
// reported yet. The layers, newest first; what is read is the newest:
//
//	dirty      written by programs, not sent
//	flight     on its way to the data servers; one write-out of a block at a time,
//	           so that they arrive in order; never changed
//	written    acknowledged by the data servers, not reported: kept, since after a
//	           truncation by another client it has to go out again (PROTOCOLS J1)
//	reporting  part of the size report that is under way
type block struct {
	dirty, flight, written, reporting extents

	gen   uint64    // fileState.gen when the oldest dirty byte came
	since time.Time // when that was
	out   uint64    // gen of what is in flight
}

func (b *block) empty() bool {
	return len(b.dirty)+len(b.flight)+len(b.written)+len(b.reporting) == 0
}

func (b *block) bytes() int64 {
	return b.dirty.bytes() + b.flight.bytes() + b.written.bytes() + b.reporting.bytes()
}

func (b *block) end() int64 {
	return max(b.dirty.end(), b.flight.end(), b.written.end(), b.reporting.end())
}

// fileState is what all handles of this client on one file share: the size
// epoch, and the bytes that are not reported. It is made by the first Open and
// lives as long as the Inode. No I/O is done under mu: writers of different
// ranges wait for each other's memory copies only.
type fileState struct {
	c *Client
	n *Inode

	mu      sync.Mutex
	changed chan struct{} // closed at the next change of state, if somebody waits
	known   bool          // file and size are valid
	file    data.File     // id, layout, size epoch, cuts
	size    int64         // the server's, as last seen within the epoch
	quotas  bool          // there are quotas, so one may bound the file
	room    room          // that they leave

	blocks     map[int64]*block // by offset / blockBytes; nil until the first write
	gen        uint64           // grows with each flush
	unreported bool             // there are written bytes, or a change, to report
	since      time.Time        // since when
	reporting  bool             // a report is under way
	allocated  uint64           // bytes allocated by what is unreported
	reached    int64            // the data servers may have got bytes up to here of writes that failed; not reported yet
	answered   uint64           // counts write-outs that ended
	touched    spans            // written and not known to be durable
	acks       data.Acks        // of what is touched
	whole      bool             // the next fsync syncs the whole file: what was written before is not known
	refused    bool             // a quota refused bytes that may lie at the data servers
	killPriv   bool             // an ordinary user wrote
	modified   int64            // time of the last unreported write, ns
	listed     bool             // in flusher.files, which holds a reference to n
	orphan     bool             // has no name any more
	truncating chan struct{}    // holds a token while this client truncates; made on first use

	locks fileLocks // has a mu of its own

	errs    uint64 // counts failures of write-back
	lastErr error
}

// maxTouched bounds the list of ranges that an fsync has to sync; neighbours are
// joined beyond it.
const maxTouched = 64

// state returns the shared state of the file, made on first use.
func (c *Client) state(n *Inode) *fileState {
	if st := n.file.Load(); st != nil {
		return st
	}
	st := &fileState{c: c, n: n, whole: true}
	n.mu.Lock()
	attr := n.attr
	n.mu.Unlock()
	if attr != nil {
		st.adoptLocked(attr) // nobody else has it yet
	}
	if !n.file.CompareAndSwap(nil, st) {
		return n.file.Load()
	}
	return st
}

// layoutFlag reports whether the file's layout has the flag, as far as it is known.
func (st *fileState) layoutFlag(flag canopyv1.LayoutFlag) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.file.Layout.GetFlags()&uint32(flag) != 0
}

// ensureKnown asks for the file's attributes if none have been seen.
func (st *fileState) ensureKnown(ctx context.Context) error {
	st.mu.Lock()
	known := st.known
	st.mu.Unlock()
	if known {
		return nil
	}
	_, err := st.c.fetchAttr(ctx, st.n) // which tells observe
	return err
}

// observe takes attributes that a server answered.
func (st *fileState) observe(attr *Attr) {
	st.mu.Lock()
	st.adoptLocked(attr)
	st.mu.Unlock()
}

// adoptLocked takes size and size epoch. A newer epoch means that somebody cut
// the file: everything that was not reported under the old one goes out again
// under the new one, as if it had been written after the cut (PROTOCOLS J1). An
// answer of an older epoch is late and says nothing.
func (st *fileState) adoptLocked(attr *Attr) {
	if attr.Mode&modeType == modeDir || st.known && attr.SizeEpoch < st.file.SizeEpoch {
		return
	}
	st.quotas = attr.Quotas
	if st.known && attr.SizeEpoch == st.file.SizeEpoch {
		st.size = max(st.size, int64(attr.Size))
		st.file.Cuts = attr.Cuts
		return
	}
	newer := st.known
	st.known = true
	st.file = fileOf(st.n, attr)
	st.size = int64(attr.Size)
	if !newer {
		return
	}
	for _, b := range st.blocks {
		st.againLocked(b, &b.written, b.flight)
	}
	st.notifyLocked()
}

// fileOf returns what the data servers need to know of a file.
func fileOf(n *Inode, attr *Attr) data.File {
	id := base.DataID(attr.DataId)
	if id == 0 {
		id = base.DataID(attr.Ino)
	}
	return data.File{ID: id, Layout: attr.Layout, SizeEpoch: attr.SizeEpoch, Cuts: attr.Cuts, Access: n}
}

// againLocked makes a layer that was sent dirty again, but for what the newer
// layers, which were sent later, cover.
func (st *fileState) againLocked(b *block, layer *extents, newer ...extents) {
	if len(*layer) == 0 {
		return
	}
	before := layer.bytes() + b.dirty.bytes()
	if len(b.dirty) == 0 {
		b.since = time.Now()
	}
	older := *layer
	for _, n := range newer {
		older = older.without(n)
	}
	b.dirty = older.over(b.dirty)
	*layer = nil
	b.gen = 0 // older than any flush
	st.c.flusher.budget.release(before - b.dirty.bytes())
}

// endLocked is where the unreported bytes end.
func (st *fileState) endLocked() int64 {
	var end int64
	for _, b := range st.blocks {
		end = max(end, b.end())
	}
	return end
}

// overlay returns attr, which observe has seen, with what this client has not
// reported. The size is not attr's: that may be older than a report since.
func (st *fileState) overlay(attr *Attr) *Attr {
	st.mu.Lock()
	defer st.mu.Unlock()
	size := uint64(max(st.size, st.endLocked()))
	if len(st.blocks) == 0 && !st.unreported && !st.reporting && size == attr.Size {
		return attr
	}
	own := cloneAttr(attr)
	own.Size = size
	own.Blocks += (st.allocated + 511) / 512
	own.MtimeNs, own.CtimeNs = max(own.MtimeNs, st.modified), max(own.CtimeNs, st.modified)
	if st.killPriv {
		own.Mode = withoutPrivileges(own.Mode)
	}
	return own
}

// withoutPrivileges is mode after a write by an ordinary user: without setuid,
// and without setgid if that is no mark of mandatory locking.
func withoutPrivileges(mode uint32) uint32 {
	mode &^= 0o4000
	if mode&0o010 != 0 {
		mode &^= 0o2000
	}
	return mode
}

func cloneAttr(a *Attr) *Attr {
	return &Attr{
		Ino: a.Ino, Mode: a.Mode, Nlink: a.Nlink, Uid: a.Uid, Gid: a.Gid, Rdev: a.Rdev, Size: a.Size, Blocks: a.Blocks,
		AtimeNs: a.AtimeNs, MtimeNs: a.MtimeNs, CtimeNs: a.CtimeNs, BtimeNs: a.BtimeNs,
		Version: a.Version, DataVersion: a.DataVersion, SizeEpoch: a.SizeEpoch, Cuts: a.Cuts,
		DataId: a.DataId, Layout: a.Layout, Subtree: a.Subtree, Epoch: a.Epoch, Acls: a.Acls, Quotas: a.Quotas, Fragments: a.Fragments,
	}
}

// notifyLocked wakes who waits for a change of state.
func (st *fileState) notifyLocked() {
	if st.changed != nil {
		close(st.changed)
		st.changed = nil
	}
}

// waitLocked leaves mu until the next change of state or the end of ctx.
func (st *fileState) waitLocked(ctx context.Context) error {
	if st.changed == nil {
		st.changed = make(chan struct{})
	}
	changed := st.changed
	st.mu.Unlock()
	defer st.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-st.c.ctx.Done():
		return fserr.NotConnected
	}
}

// failLocked remembers a failure of write-back for the handles that are open.
func (st *fileState) failLocked(err error) {
	st.errs++
	st.lastErr = err
}

// settleLocked drops empty blocks and leaves the flusher's list when nothing is
// left to do.
func (st *fileState) settleLocked() {
	for i, b := range st.blocks {
		if b.empty() {
			delete(st.blocks, i)
		}
	}
	if st.listed && len(st.blocks) == 0 && !st.unreported && !st.reporting {
		st.listed = false
		st.modified, st.killPriv = 0, false
		st.c.flusher.remove(st)
	}
	st.notifyLocked()
}

func (st *fileState) listLocked() {
	if !st.listed {
		st.listed = true
		st.c.flusher.add(st)
	}
}

// fresh notes that the file was made a moment ago: nothing was written before.
func (st *fileState) fresh() {
	st.mu.Lock()
	st.whole = false
	st.mu.Unlock()
}

func (st *fileState) setOrphan(orphan bool) {
	st.mu.Lock()
	st.orphan = orphan
	st.mu.Unlock()
}

// lockSize serialises the truncations of this client; ctx ends the wait.
func (st *fileState) lockSize(ctx context.Context) (unlock func(), err error) {
	st.mu.Lock()
	if st.truncating == nil {
		st.truncating = make(chan struct{}, 1)
	}
	lock := st.truncating
	st.mu.Unlock()
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// beforeTruncate drops what programs wrote beyond size, and reports what the
// data servers have beyond it: the server must know of bytes to cut them.
func (st *fileState) beforeTruncate(ctx context.Context, size int64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		sent := false
		for _, b := range st.blocks {
			before := b.dirty.bytes()
			b.dirty.cut(size)
			st.c.flusher.budget.release(before - b.dirty.bytes())
			sent = sent || max(b.flight.end(), b.written.end(), b.reporting.end()) > size
		}
		st.settleLocked()
		if !sent {
			return nil
		}
		if err := st.flushLocked(ctx, false); err != nil {
			return err
		}
	}
}

// truncated adopts the size epoch of a truncation by this client, and drops what
// was written beyond it while that was under way.
func (st *fileState) truncated(attr *Attr, size int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.adoptLocked(attr)
	if attr.SizeEpoch == st.file.SizeEpoch {
		st.size = int64(attr.Size)
	}
	for _, b := range st.blocks {
		before := b.bytes()
		b.dirty.cut(size)
		b.flight.cut(size)
		b.written.cut(size)
		b.reporting.cut(size)
		st.c.flusher.budget.release(before - b.bytes())
	}
	st.settleLocked()
}

// discard forgets all that was not reported, of a file that nobody can reach.
func (st *fileState) discard() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, b := range st.blocks {
		before := b.bytes()
		b.dirty, b.written = nil, nil
		st.c.flusher.budget.release(before - b.bytes())
	}
	if !st.reporting {
		st.unreported = false
	}
	st.touched, st.acks = nil, nil
	st.settleLocked()
}
