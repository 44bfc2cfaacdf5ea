package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func write(t testing.TB, f *File, p string, off int64) {
	t.Helper()
	if n, err := f.WriteAt(t.Context(), []byte(p), off); err != nil || n != len(p) {
		t.Fatalf("write: %d, %v", n, err)
	}
}

func read(t testing.TB, f *File, n int, off int64) string {
	t.Helper()
	p := make([]byte, n)
	got, err := f.ReadAt(t.Context(), p, off)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return string(p[:got])
}

// open opens a name of the root.
func open(t testing.TB, c *Client, name string, flags uint32) *File {
	t.Helper()
	n, _, _, err := c.Lookup(t.Context(), root, c.Root(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	return must[*File](t)(c.Open(t.Context(), root, n, flags))
}

func size(t testing.TB, c *Client, f *File) uint64 {
	t.Helper()
	n, attr, _, err := c.Lookup(t.Context(), root, c.Root(), nameOf(f))
	if err != nil {
		t.Fatal(err)
	}
	n.Release()
	return attr.Size
}

func nameOf(f *File) string { return string(f.Inode().place().Name) }

func TestBuffersAreSharedAndReported(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	r := open(t, a, "x", syscall.O_RDONLY)
	write(t, w, "hello", 3)
	if got := read(t, r, 100, 0); got != "\x00\x00\x00hello" {
		t.Errorf("another handle reads %q", got)
	}
	attr := must[*Attr](t)(a.GetAttr(t.Context(), root, w.Inode()))
	if attr.Size != 8 || attr.MtimeNs <= attr.BtimeNs {
		t.Errorf("own attributes: size %d, mtime %d, btime %d", attr.Size, attr.MtimeNs, attr.BtimeNs)
	}
	if got := size(t, b, w); got != 0 {
		t.Errorf("another client sees size %d before flush", got)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := open(t, b, "x", syscall.O_RDWR)
	if got := read(t, o, 100, 2); got != "\x00hello" {
		t.Errorf("another client reads %q after flush", got)
	}
	write(t, o, "HELLO, world", 3)
	if err := o.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r, 100, 3); got != "HELLO, world" {
		t.Errorf("strict read after another client's close: %q", got)
	}
	if n := a.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// Fsync makes bytes durable before their size is reported.
func TestFsyncOrder(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	var mu sync.Mutex
	var events []string
	note := func(e string) { mu.Lock(); events = append(events, e); mu.Unlock() }
	d.log = note
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetReportSize() != nil {
			note("report")
		}
		return verdict{}
	})
	write(t, w, "hello", 0)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(events, []string{"write", "sync", "report"}) {
		t.Errorf("order: %v", events)
	}
	if err := w.Fsync(t.Context()); err != nil || len(events) != 3 {
		t.Errorf("a second fsync with nothing to do: %v, %v", err, events)
	}
	s := open(t, c, "x", syscall.O_WRONLY|syscall.O_DSYNC)
	write(t, s, "HELLO", 0)
	if got := events[3:]; !slices.Equal(got, []string{"write", "sync", "report"}) {
		t.Errorf("O_DSYNC: %v", got)
	}
}

// Bytes that were written and closed before are durable after fsync by a handle
// that was opened later.
func TestFsyncOfEarlierWrites(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	n := w.Inode().Ino()
	write(t, w, "hello", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.inodes.find(n) != nil {
		t.Fatal("the inode is still known")
	}
	if err := open(t, c, "x", syscall.O_RDONLY).Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(d.files[base.DataID(n)].durable); got != "hello" {
		t.Errorf("durable: %q", got)
	}
}

// A failure of write-back is reported once to each handle that was open.
func TestErrorsOncePerHandle(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	second := open(t, c, "x", syscall.O_RDWR)
	reader := open(t, c, "x", syscall.O_RDONLY)
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "write" {
			return fserr.New(fserr.NoSpace, "write", nil)
		}
		return nil
	})
	write(t, w, "lost", 0)
	if err := c.Flush(t.Context(), false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("flush of all: %v", err)
	}
	d.setFail(nil)
	later := open(t, c, "x", syscall.O_RDWR)
	for name, h := range map[string]*File{"writer": w, "second": second, "reader": reader} {
		if err := h.Fsync(t.Context()); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: first %v", name, err)
		}
		if err := h.Flush(t.Context()); err != nil {
			t.Errorf("%s: again %v", name, err)
		}
	}
	if err := later.Close(t.Context()); err != nil {
		t.Errorf("a handle opened later: %v", err)
	}
	write(t, w, "kept", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := string(d.bytes(second.Inode())); got != "kept" {
		t.Errorf("stored: %q", got)
	}
	if n := c.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// Bytes of a write that failed may lie at some data server: the metadata service
// is told how far they reach, once, so that they are deleted with the file
// (PROTOCOLS H3). The size does not grow.
func TestFailedWritesAreReported(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	var mu sync.Mutex
	var reports []*canopyv1.ReportSizeCall
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if r := op.GetReportSize(); r != nil {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, r)
			if len(reports) == 1 { // the next one has to say it again
				return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy)}}
			}
		}
		return verdict{}
	})
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "write" {
			return fserr.New(fserr.NoSpace, "write", nil)
		}
		return nil
	})
	write(t, w, "lost", 5<<20)
	if err := w.Fsync(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("fsync: %v", err)
	}
	d.setFail(nil)
	mu.Lock()
	last := len(reports) - 1
	if last != 1 || reports[last].ReservedEnd != 5<<20+4 || reports[last].Size != 0 {
		t.Errorf("reports: %v", reports)
	}
	mu.Unlock()
	if a, err := c.GetAttr(t.Context(), Cred{}, w.Inode()); err != nil || a.Size != 0 {
		t.Errorf("size %d, %v", a.Size, err)
	}
	write(t, w, "kept", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if r := reports[len(reports)-1]; r.ReservedEnd != 0 || r.Size != 4 {
		t.Errorf("the next report: %v", r)
	}
}

// PROTOCOLS J1: a truncation by another client begins a size epoch; what this
// client has not reported goes out again under it, also what the data servers
// had acknowledged under the old one, before fsync returns.
func TestForeignTruncation(t *testing.T) {
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprint("written=", written), func(t *testing.T) {
			f, d := newFake(t, 1), newMemData()
			a, b := f.connect(t, d), f.connect(t, d)
			w := create(t, a, "x")
			write(t, w, "reported", 0)
			if err := w.Fsync(t.Context()); err != nil {
				t.Fatal(err)
			}
			write(t, w, "unreported", 8)
			if written { // at the data servers, but the report does not come through
				var refused atomic.Int64
				f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
					if op.GetReportSize().GetSize() == 18 {
						refused.Add(1)
						return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy), RetryAfterMs: 1}}
					}
					return verdict{}
				})
				flushUntil(t, w, "a report is refused", func() bool { return refused.Load() > 0 })
				if len(d.bytes(w.Inode())) != 18 {
					t.Fatal("not written")
				}
			}
			o := open(t, b, "x", syscall.O_WRONLY)
			if err := o.Truncate(t.Context(), 4); err != nil {
				t.Fatal(err)
			}
			write(t, o, "new", 4) // makes the data servers know the cut
			if err := o.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.setHook(nil)
			if err := w.Fsync(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := open(t, b, "x", syscall.O_RDONLY)
			if got := read(t, r, 100, 0); got != "reponew\x00unreported" {
				t.Errorf("afterwards: %q", got)
			}
			if got := string(d.files[1<<44|1].durable); len(d.files) == 1 && got != "reponew\x00unreported" {
				t.Errorf("durable: %q", got)
			}
		})
	}
}

// flushUntil gives a flush up that does not end, once the condition holds.
func flushUntil(t *testing.T, w *File, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Flush(ctx) // it cannot succeed
	}()
	eventually(t, what, ok)
	cancel()
	<-done
}

// What goes out again behind a cut (PROTOCOLS J1) never covers what was written
// later and is on its way.
func TestForeignTruncationKeepsOrder(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	var refused atomic.Int64
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetReportSize() != nil {
			refused.Add(1)
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.Busy), RetryAfterMs: 1}}
		}
		return verdict{}
	})
	write(t, w, "older", 0)
	// At the data servers, its report does not come through.
	flushUntil(t, w, "a report is refused", func() bool { return refused.Load() > 0 })
	gate, stuck := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		once.Do(func() { close(stuck); <-gate })
		return nil
	})
	write(t, w, "newer", 0)
	done := make(chan error, 1)
	go func() { done <- w.Fsync(context.Background()) }()
	<-stuck
	if err := open(t, b, "x", syscall.O_WRONLY).Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.setHook(nil)
	eventually(t, "the report was refused", func() bool {
		w.st.mu.Lock()
		defer w.st.mu.Unlock()
		return !w.st.reporting && w.st.file.SizeEpoch > 1
	})
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(t, b, "x", 0), 10, 0); got != "newer" {
		t.Errorf("afterwards: %q", got)
	}
}

// PROTOCOLS J1: a late write of the old epoch cannot revive what our own
// truncation cut, and what is written behind it stands on zeros.
func TestOwnTruncation(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	write(t, w, "0123456789", 0)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, w, "abcdef", 8) // not flushed: [8, 14)
	if err := w.Truncate(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w, 100, 0); got != "01234567ab" {
		t.Errorf("after a truncation to 10: %q", got)
	}
	if err := w.Truncate(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if err := w.Truncate(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	write(t, w, "!", 7)
	want := "012\x00\x00\x00\x00!"
	if got := read(t, w, 100, 0); got != want {
		t.Errorf("before flush: %q", got)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(t, f.connect(t, d), "x", 0), 100, 0); got != want {
		t.Errorf("another client: %q", got)
	}
}

// What is too large is refused at once and costs no byte that was written.
func TestLargestFile(t *testing.T) {
	if maxFileBytes != schema.MaxFileSize {
		t.Errorf("the client's bound is %d, the service's %d", uint64(maxFileBytes), schema.MaxFileSize)
	}
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	w := create(t, c, "x")
	write(t, w, "kept", 0)
	if _, err := w.WriteAt(t.Context(), []byte("x"), maxFileBytes); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("write behind the end: %v", err)
	}
	if err := w.Truncate(t.Context(), 1<<63); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("truncate: %v", err)
	}
	if got := read(t, w, 10, 0); got != "kept" {
		t.Errorf("afterwards: %q", got)
	}
}

// Times that a program sets are not moved by the report of writes before.
func TestSetTimesAfterWrite(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	w := create(t, c, "x")
	write(t, w, "data", 0)
	set := SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MTIME, MtimeNS: 12345}
	if _, err := c.SetAttr(t.Context(), root, w.Inode(), set); err != nil {
		t.Fatal(err)
	}
	n := w.Inode()
	n.Hold()
	defer n.Release()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if attr := must[*Attr](t)(c.GetAttr(t.Context(), root, n)); attr.MtimeNs != 12345 || attr.Size != 4 {
		t.Errorf("mtime %d, size %d", attr.MtimeNs, attr.Size)
	}
}

// PROTOCOLS J2: appends of several clients and handles lose and mix nothing.
func TestAppends(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	create(t, f.connect(t, d), "log").Close(t.Context())
	var wg sync.WaitGroup
	const each = 40
	for c := range 3 {
		client := f.connect(t, d)
		for h := range 2 {
			wg.Go(func() {
				file := open(t, client, "log", syscall.O_WRONLY|syscall.O_APPEND)
				for i := range each {
					line := fmt.Sprintf("client %d handle %d line %03d\n", c, h, i)
					if _, err := file.WriteAt(t.Context(), []byte(line), 0); err != nil {
						t.Error(err)
						return
					}
				}
				if err := file.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	got := must[[]byte](t)(f.connect(t, d).FS(root).ReadFile(t.Context(), "log"))
	lines := bytes.Split(bytes.TrimSuffix(got, []byte("\n")), []byte("\n"))
	seen := map[string]bool{}
	for _, l := range lines {
		seen[string(l)] = true
	}
	if len(lines) != 3*2*each || len(seen) != len(lines) {
		t.Errorf("%d lines, %d different, want %d", len(lines), len(seen), 3*2*each)
	}
}

// An append comes behind what this client has buffered (PROTOCOLS J2).
func TestAppendBehindBufferedBytes(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	w := create(t, f.connect(t, d), "log")
	write(t, w, "buffered ", 0)
	if off, err := w.Append(t.Context(), []byte("appended")); err != nil || off != 9 {
		t.Errorf("append at %d: %v", off, err)
	}
	if got := read(t, open(t, f.connect(t, d), "log", 0), 100, 0); got != "buffered appended" {
		t.Errorf("log: %q", got)
	}
}

// An append whose reservation a truncation took away starts over.
func TestAppendMeetsTruncation(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "log")
	write(t, w, "old line\n", 0) // buffered: the append has to come behind it
	o := open(t, b, "log", syscall.O_WRONLY)
	var once sync.Once
	d.setFail(func(op string, _ data.File, off, _ int64) error {
		if op == "write" && off > 0 {
			once.Do(func() {
				if err := o.Truncate(t.Context(), 0); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	})
	off, err := w.Append(t.Context(), []byte("line\n"))
	if err != nil || off != 0 {
		t.Errorf("append at %d: %v", off, err)
	}
	if got := read(t, open(t, b, "log", 0), 100, 0); got != "line\n" {
		t.Errorf("log: %q", got)
	}
}

// A failed append leaves zeros, so that the appends behind it become visible.
func TestFailedAppendHoldsNobodyUp(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "log")
	d.setFail(func(op string, _ data.File, _, _ int64) error { return fserr.IO })
	if _, err := w.Append(t.Context(), []byte("lost")); fserr.KindOf(err) != fserr.IO {
		t.Errorf("append: %v", err)
	}
	d.setFail(nil)
	if off, err := open(t, b, "log", syscall.O_WRONLY).Append(t.Context(), []byte("kept")); err != nil || off != 4 {
		t.Errorf("append at %d: %v", off, err)
	}
	if got := read(t, open(t, b, "log", 0), 100, 0); got != "\x00\x00\x00\x00kept" {
		t.Errorf("log: %q", got)
	}
}

// Writers of disjoint ranges do not wait for each other's I/O.
func TestDisjointWritersDoNotWait(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	gate := make(chan struct{})
	var stuck atomic.Int32
	d.setFail(func(op string, _ data.File, off, _ int64) error {
		if op == "write" && off == 0 {
			stuck.Add(1)
			<-gate
		}
		return nil
	})
	full := bytes.Repeat([]byte("a"), blockBytes)
	must[int](t)(w.WriteAt(t.Context(), full, 0)) // a full block goes out at once
	eventually(t, "the first block is stuck", func() bool { return stuck.Load() == 1 })
	for i := range 8 {
		must[int](t)(w.WriteAt(t.Context(), full, int64(i+1)*blockBytes))
	}
	eventually(t, "the others arrive", func() bool { return len(d.bytes(w.Inode())) == 9*blockBytes })
	write(t, w, "newer", 0) // and the stuck range can be written again
	if got := read(t, w, 6, 0); got != "newera" {
		t.Errorf("reads %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Flush(ctx); fserr.KindOf(err) != fserr.TimedOut {
		t.Errorf("flush of a stuck block: %v", err)
	}
	close(gate)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := d.bytes(w.Inode()); string(got[:6]) != "newera" {
		t.Errorf("stored %q: the older write won", got[:6])
	}
}

// The buffer is bounded: a writer waits, and goes on when memory is free.
func TestWriteBufferIsBounded(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	const limit = 4 << 20
	c := f.connect(t, d, func(c *Config) { c.WriteBufferBytes = limit })
	gate := make(chan struct{})
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "write" {
			<-gate
		}
		return nil
	})
	w := create(t, c, "x")
	piece := bytes.Repeat([]byte("b"), 300_000)
	var wrote atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			if _, err := w.WriteAt(t.Context(), piece, int64(i*len(piece))); err != nil {
				t.Error(err)
				return
			}
			wrote.Add(int64(len(piece)))
		}
	}()
	eventually(t, "the writer waits", func() bool {
		c.flusher.budget.mu.Lock()
		defer c.flusher.budget.mu.Unlock()
		return c.flusher.budget.waiting > 0
	})
	if n := c.flusher.budget.inUse(); n > limit || wrote.Load() > limit {
		t.Errorf("%d bytes in memory, limit %d", n, limit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.WriteAt(ctx, piece, 1<<40); fserr.KindOf(err) != fserr.TimedOut {
		t.Errorf("a writer with a deadline: %v", err)
	}
	close(gate)
	<-done
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := d.bytes(w.Inode()); len(got) != 100*len(piece) || bytes.Count(got, []byte("b")) != len(got) {
		t.Errorf("%d bytes stored", len(got))
	}
}

// Old bytes are written and reported without any flush.
func TestWriteBackByAge(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "in the background", 0)
	eventually(t, "another client sees it", func() bool { return size(t, b, w) == 17 })
}

// The bytes of a file without a name need not be written when it is closed.
func TestUnlinkedFile(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	if _, err := c.Unlink(t.Context(), root, c.Root(), "x"); err != nil {
		t.Fatal(err)
	}
	write(t, w, "temporary", 0)
	if got := read(t, w, 100, 0); got != "temporary" {
		t.Errorf("reads %q", got)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d.writes != 0 || c.flusher.budget.inUse() != 0 {
		t.Errorf("%d writes, %d bytes kept", d.writes, c.flusher.budget.inUse())
	}
	made := must[Created](t)(c.CreateAnonymous(t.Context(), root, c.Root(), 0o600, syscall.O_RDWR))
	write(t, made.File, "kept", 0)
	if _, _, err := c.Link(t.Context(), root, made.Inode, c.Root(), "named"); err != nil {
		t.Fatal(err)
	}
	if err := made.File.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(t, f.connect(t, d), "named", 0), 100, 0); got != "kept" {
		t.Errorf("linked: %q", got)
	}
}

// A write by an ordinary user clears set-id bits, at once for this client.
func TestWriteClearsSetID(t *testing.T) {
	f := newFake(t, 1)
	c := f.connect(t, newMemData())
	made := must[Created](t)(c.Create(t.Context(), root, c.Root(), "x", 0o4777, syscall.O_RDWR))
	user := must[*File](t)(c.Open(t.Context(), Cred{UID: 1000, GID: 1000}, made.Inode, syscall.O_WRONLY))
	write(t, user, "x", 0)
	for range 2 {
		if attr := must[*Attr](t)(c.GetAttr(t.Context(), root, made.Inode)); attr.Mode&0o4000 != 0 {
			t.Errorf("mode %o", attr.Mode)
		}
		if err := user.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Random writes, reads, truncations and flushes by several handles of two
// clients, one after the other, agree with a byte slice, also while write-back
// and slow data servers interfere at every moment.
func TestRandomAgainstModel(t *testing.T) {
	for _, age := range []time.Duration{writeBackAge, 4 * time.Millisecond} {
		t.Run(age.String(), func(t *testing.T) { randomAgainstModel(t, age) })
	}
}

func randomAgainstModel(t *testing.T, age time.Duration) {
	seed := rand.Uint64()
	if v, err := strconv.ParseUint(os.Getenv("CANOPY_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	f, d := newFake(t, 1), newMemData()
	var calls atomic.Int64
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if age < writeBackAge && op == "write" && calls.Add(1)%3 == 0 {
			<-time.After(3 * time.Millisecond) // a slow server
		}
		return nil
	})
	clients := []*Client{f.connectAged(t, d, age), f.connectAged(t, d, age)}
	create(t, clients[0], "x").Close(t.Context())
	files := []*File{open(t, clients[0], "x", syscall.O_RDWR), open(t, clients[1], "x", syscall.O_RDWR)}
	m := &fileModel{t: t, rng: rng}
	for step := range 1500 {
		m.step(step, clients[m.at], files[m.at])
	}
	for i, c := range clients {
		if err := files[i].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := c.flusher.budget.inUse(); n != 0 {
			t.Errorf("client %d: %d bytes are still accounted", i, n)
		}
	}
}

// fileModel is what a file has to hold; at is the client whose turn it is.
type fileModel struct {
	t     *testing.T
	rng   *rand.Rand
	bytes []byte
	at    int
}

func (m *fileModel) step(step int, c *Client, w *File) {
	t, rng := m.t, m.rng
	switch k := rng.IntN(20); {
	case k < 9:
		p := make([]byte, 1+rng.IntN([]int{50, 5000, 300_000}[rng.IntN(3)]))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		off := rng.IntN(2_500_000)
		must[int](t)(w.WriteAt(t.Context(), p, int64(off)))
		if need := off + len(p); need > len(m.bytes) {
			m.bytes = append(m.bytes, make([]byte, need-len(m.bytes))...)
		}
		copy(m.bytes[off:], p)
	case k < 14:
		off, n := rng.IntN(len(m.bytes)+10), rng.IntN(200_000)
		want := m.bytes[min(off, len(m.bytes)):min(off+n, len(m.bytes))]
		if got := read(t, w, n, int64(off)); got != string(want) {
			t.Fatalf("step %d: read of %d at %d differs", step, n, off)
		}
	case k < 15:
		size := rng.IntN(2_500_000)
		if err := w.Truncate(t.Context(), uint64(size)); err != nil {
			t.Fatal(err)
		}
		m.bytes = append(m.bytes[:min(size, len(m.bytes))], make([]byte, max(0, size-len(m.bytes)))...)
	case k < 16:
		if got := must[*Attr](t)(c.GetAttr(t.Context(), root, w.Inode())).Size; got != uint64(len(m.bytes)) {
			t.Fatalf("step %d: size %d, want %d", step, got, len(m.bytes))
		}
	default:
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.at = rng.IntN(2)
	}
}
