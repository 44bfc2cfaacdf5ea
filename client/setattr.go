package client

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// SetAttr changes attributes of n and returns them after the change. Buffered
// bytes below a new size are kept, those beyond it dropped.
func (c *Client) SetAttr(ctx context.Context, cred Cred, n *Inode, set SetAttr) (*Attr, error) {
	sizes := set.Mask&canopyv1.SetAttrMask_SET_ATTR_SIZE != 0
	if sizes && set.Size > maxFileBytes {
		return nil, &fserr.Error{Kind: fserr.FileTooBig, Op: "setattr", Ino: n.ino}
	}
	st := n.file.Load()
	set = n.withAccess(set)
	if st != nil && set.Mask&^canopyv1.SetAttrMask_SET_ATTR_SIZE != 0 {
		// A later size report would move the times and clear set-id bits again.
		report, err := st.flushUpToReport(ctx, sizes)
		if err != nil {
			return nil, wrap(opSetAttr, err)
		}
		if report != nil {
			return c.setAttrReporting(ctx, cred, st, set, report)
		}
	}
	if st != nil && sizes {
		unlock, err := st.lockSize(ctx)
		if err != nil {
			return nil, wrap(opSetAttr, err)
		}
		defer unlock()
		if err := st.beforeTruncate(ctx, int64(set.Size)); err != nil {
			return nil, wrap(opSetAttr, err)
		}
	}
	n.mu.Lock()
	before := n.attr
	n.mu.Unlock()
	res, err := c.setAttr(ctx, cred, n, set, nil)
	if err != nil {
		return nil, err
	}
	if st != nil && sizes {
		st.truncated(res.Attr, int64(set.Size))
	}
	n.accessTold(set.accessedNS)
	if isPartial(res.Attr) {
		attr, err := c.fetchAttr(ctx, n)
		if err != nil {
			return nil, err
		}
		return n.show(attr), nil
	}
	n.see(res.Attr)
	if sizes {
		return n.show(c.recount(ctx, n, before, res.Attr)), nil
	}
	return n.show(res.Attr), nil
}

// setAttr asks the server. The result can come with an error.
func (c *Client) setAttr(ctx context.Context, cred Cred, n *Inode, set SetAttr, report *canopyv1.ReportSizeCall) (*canopyv1.Result, error) {
	asked := time.Now()
	op := n.op(cred)
	op.Call = &canopyv1.Op_SetAttr{SetAttr: &canopyv1.SetAttrCall{
		Place: n.place(), Mask: uint32(set.Mask), Mode: set.Mode, Uid: set.UID, Gid: set.GID, Size: set.Size,
		AtimeNs: set.AtimeNS, MtimeNs: set.MtimeNS, AccessedNs: set.accessedNS, ByHandle: set.Handle != nil && set.Handle.writable(), Report: report}}
	res, err := c.do(ctx, opSetAttr, op)
	if err != nil {
		c.cache.dropAttr(n.ino)
		return res, err
	}
	n.movedTo(res.Place, res.Attr)
	c.cache.putAttr(res.Attr, asked)
	if res.Attr == nil {
		return nil, fserr.New(fserr.Malformed, "setattr", nil)
	}
	return res, nil
}

// setAttrReporting changes attributes, no size, and reports the size in the same
// operation: one commit for both. The report must be answered whatever becomes of
// the caller, so the operation goes on without it.
func (c *Client) setAttrReporting(ctx context.Context, cred Cred, st *fileState, set SetAttr, report *canopyv1.ReportSizeCall) (*Attr, error) {
	n := st.n
	type answer struct {
		attr *Attr
		err  error
	}
	answered := make(chan answer, 1)
	if !c.spawn(func() {
		asked := time.Now()
		res, err := c.setAttr(c.ctx, cred, n, set, report)
		var a answer
		switch {
		case err == nil:
			st.reported(report, res, nil, asked)
			n.accessTold(set.accessedNS)
			a.attr = n.show(res.Attr)
		case errors.Is(err, fserr.OldEpoch):
			st.reported(report, res, err, asked)
		default:
			if fserr.KindOf(err) == fserr.TimedOut {
				report.AllocatedBytes = 0 // it may have been taken in: these would count twice
			}
			st.unreport(report)
		}
		a.err = err
		answered <- a
	}) {
		st.unreport(report)
		return nil, wrap(opSetAttr, fserr.NotConnected)
	}
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		return nil, wrap(opSetAttr, ctx.Err())
	}
	if a.err == nil {
		return a.attr, nil
	}
	// Refused, or the outcome is unknown. What may not be reported yet is, by itself.
	if err := st.flush(ctx, false); err != nil {
		return nil, wrap(opSetAttr, err)
	}
	if !errors.Is(a.err, fserr.OldEpoch) && !errors.Is(a.err, fserr.Quota) {
		return nil, a.err
	}
	res, err := c.setAttr(ctx, cred, n, set, nil)
	if err != nil {
		return nil, err
	}
	return n.show(res.Attr), nil
}
