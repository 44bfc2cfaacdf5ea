package client

import (
	"errors"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// What was acknowledged, lost before fsync, and is still here, goes out again.
func TestLostBytesAreSentAgain(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connectAged(t, d, 1<<40) // nothing is written back by age
	w := create(t, c, "x")
	write(t, w, "hello, world", 0)
	st := w.st
	crashed := false
	// The servers crash after they acknowledged the bytes, before the sync that
	// fsync sends.
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "sync" && !crashed {
			crashed = true
			d.crash()
		}
		return nil
	})
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatalf("fsync: %v", err)
	}
	if got := string(d.bytes(w.Inode())); !crashed || got != "hello, world" {
		t.Errorf("crashed %v, then stored: %q", crashed, got)
	}
	d.crash()
	if got := string(d.bytes(w.Inode())); got != "hello, world" {
		t.Errorf("what fsync promised is lost in the next crash: %q", got)
	}
	if err := w.Fsync(t.Context()); err != nil {
		t.Errorf("a crash with nothing unsynced: %v", err)
	}
	if n := c.flusher.budget.inUse(); n != 0 || len(st.acks) != 0 {
		t.Errorf("%d bytes are still accounted, acks %v", n, st.acks)
	}
}

// Bytes that are in the middle of a size report when they are lost go out again
// as well.
func TestLostWhileReported(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connectAged(t, d, 1<<40)
	w := create(t, c, "x")
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetReportSize() != nil {
			f.setHook(nil)
			d.crash()
			w.st.mu.Lock()
			w.st.checkLossLocked()
			w.st.mu.Unlock()
		}
		return verdict{}
	})
	write(t, w, "hello", 0)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(d.bytes(w.Inode())); got != "hello" {
		t.Errorf("stored: %q", got)
	}
	if n := c.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// What this client has no more is an error of fsync or close, once for each
// handle, and for one that is opened later as long as the client knows the file.
func TestLossIsReported(t *testing.T) {
	for name, report := range map[string]func(*File, *testing.T) error{
		"fsync": func(f *File, t *testing.T) error { return f.Fsync(t.Context()) },
		"close": func(f *File, t *testing.T) error { return f.Close(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			f, d := newFake(t, 1), newMemData()
			c := f.connect(t, d)
			w := create(t, c, "x")
			other := open(t, c, "x", syscall.O_RDWR)
			write(t, w, "reported, not synced", 0)
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.crash()
			if err := report(w, t); !errors.Is(err, fserr.IO) || !errors.Is(err, data.ErrLost) {
				t.Errorf("%s after a loss: %v", name, err)
			}
			if err := other.Fsync(t.Context()); !errors.Is(err, fserr.IO) {
				t.Errorf("fsync of another handle: %v", err)
			}
			if err := other.Fsync(t.Context()); err != nil {
				t.Errorf("fsync after the error was reported: %v", err)
			}
			write(t, other, "again", 0)
			if err := other.Fsync(t.Context()); err != nil {
				t.Errorf("fsync of new bytes: %v", err)
			}
			d.crash()
			if got := string(d.bytes(other.Inode())); got != "again" {
				t.Errorf("stored: %q", got)
			}
		})
	}
}

// A loss that is found by nobody but the sync, since the map comes late, is found.
func TestLossFoundAfterReopening(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	n := w.Inode()
	n.Hold() // the kernel knows the inode
	defer n.Release()
	write(t, w, "closed, not synced", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.crash()
	again := open(t, c, "x", syscall.O_RDWR)
	if err := again.Fsync(t.Context()); !errors.Is(err, data.ErrLost) {
		t.Errorf("fsync of a handle opened after the loss: %v", err)
	}
}

// An append with O_SYNC holds its bytes until they are durable.
func TestLostAppendIsWrittenAgain(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	create(t, c, "x")
	w := open(t, c, "x", syscall.O_WRONLY|syscall.O_APPEND|syscall.O_DSYNC)
	crashed := false
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "sync" && !crashed {
			crashed = true
			d.crash()
		}
		return nil
	})
	if _, err := w.Append(t.Context(), []byte("line\n")); err != nil {
		t.Fatal(err)
	}
	d.crash()
	if got := string(d.bytes(w.Inode())); !crashed || got != "line\n" {
		t.Errorf("crashed %v, stored %q", crashed, got)
	}
}
