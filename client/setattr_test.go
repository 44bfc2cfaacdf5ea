package client

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

func setMtime(ns int64) SetAttr {
	return SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MTIME, MtimeNS: ns}
}

// The size of what was written goes along with the change of attributes that
// follows (un-tar: write, utimens, close).
func TestSetAttrReports(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "data", 0)
	var changes, reports atomic.Int64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetSetAttr() != nil {
			changes.Add(1)
		}
		if op.GetReportSize() != nil {
			reports.Add(1)
		}
		return verdict{}
	})
	attr := must[*Attr](t)(a.SetAttr(t.Context(), root, w.Inode(), setMtime(12345)))
	if attr.Size != 4 || attr.MtimeNs != 12345 {
		t.Errorf("size %d, mtime %d", attr.Size, attr.MtimeNs)
	}
	if got := size(t, b, w); got != 4 {
		t.Errorf("another client sees size %d", got)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if changes.Load() != 1 || reports.Load() != 0 {
		t.Errorf("%d changes, %d reports by themselves", changes.Load(), reports.Load())
	}
	if n := a.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// A change that is refused takes no report away: the size is reported by itself.
func TestRefusedSetAttrReports(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "data", 0)
	if _, err := a.SetAttr(t.Context(), Cred{UID: 5, GID: 5}, w.Inode(), setMtime(12345)); !errors.Is(err, fserr.Permission) {
		t.Fatalf("got %v", err)
	}
	if got := size(t, b, w); got != 4 {
		t.Errorf("another client sees size %d", got)
	}
	if n := a.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// PROTOCOLS J1: a report of an older size epoch, sent along with a change, is
// answered with the cut; bytes and report go out again, then the change.
func TestSetAttrMeetsTruncation(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "reported", 0)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, w, "behind", 8)
	var cut atomic.Bool
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetSetAttr().GetReport() != nil && cut.CompareAndSwap(false, true) {
			o := open(t, b, "x", syscall.O_WRONLY)
			if err := o.Truncate(context.Background(), 4); err != nil {
				t.Error(err)
			}
			if err := o.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		return verdict{}
	})
	attr := must[*Attr](t)(a.SetAttr(t.Context(), root, w.Inode(), setMtime(12345)))
	f.setHook(nil)
	if !cut.Load() || attr.MtimeNs != 12345 || attr.Size != 14 {
		t.Errorf("truncated %v; mtime %d, size %d", cut.Load(), attr.MtimeNs, attr.Size)
	}
	if got := read(t, open(t, b, "x", syscall.O_RDONLY), 100, 0); got != "repo\x00\x00\x00\x00behind" {
		t.Errorf("afterwards: %q", got)
	}
}

// Whoever gives the call up does not take the report along.
func TestAbandonedSetAttrReports(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "data", 0)
	ctx, cancel := context.WithCancel(t.Context())
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetSetAttr() != nil {
			cancel()
		}
		return verdict{}
	})
	_, _ = a.SetAttr(ctx, root, w.Inode(), setMtime(12345)) // either outcome can win
	f.setHook(nil)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := size(t, b, w); got != 4 {
		t.Errorf("another client sees size %d", got)
	}
	if attr := must[*Attr](t)(b.GetAttr(t.Context(), root, w.Inode())); attr.MtimeNs != 12345 {
		t.Errorf("mtime %d", attr.MtimeNs)
	}
}
