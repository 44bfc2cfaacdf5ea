package client

import (
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// TestAllocateModes: bytes, size and errors of fallocate's modes, as another client
// sees them when the call returns.
func TestAllocateModes(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "0123456789", 0) // buffered
	r := open(t, b, "x", 0)
	for _, step := range []struct {
		mode        uint32
		off, length int64
		want        string
	}{
		{AllocatePunchHole | AllocateKeepSize, 2, 3, "01\x00\x00\x0056789"},
		{AllocatePunchHole | AllocateKeepSize, 8, 100, "01\x00\x00\x00567\x00\x00"},
		{AllocateKeepSize, 5, 100, "01\x00\x00\x00567\x00\x00"},
		{0, 8, 4, "01\x00\x00\x00567\x00\x00\x00\x00"},
		{AllocateZeroRange | AllocateKeepSize, 7, 100, "01\x00\x00\x0056" + strings.Repeat("\x00", 5)},
		{AllocateZeroRange, 1, 13, "0" + strings.Repeat("\x00", 13)},
		{0, 0, 3, "0" + strings.Repeat("\x00", 13)},
	} {
		if err := w.Allocate(t.Context(), step.mode, step.off, step.length); err != nil {
			t.Fatalf("%+v: %v", step, err)
		}
		if got := read(t, r, 200, 0); got != step.want {
			t.Errorf("%+v: another client reads %q", step, got)
		}
	}
	for _, step := range []struct {
		mode        uint32
		off, length int64
		want        error
	}{
		{AllocatePunchHole, 0, 1, syscall.EOPNOTSUPP},
		{8, 0, 4096, syscall.EOPNOTSUPP}, // collapse
		{32, 0, 4096, syscall.EOPNOTSUPP},
		{0, 0, 0, syscall.EINVAL},
		{0, -1, 1, syscall.EINVAL},
		{0, math.MaxInt64, 1, syscall.EFBIG},
		{0, 1, math.MaxInt64, syscall.EFBIG},
		{0, 0, 1 << 62, syscall.ENOSPC},
	} {
		if err := w.Allocate(t.Context(), step.mode, step.off, step.length); !errors.Is(err, step.want) {
			t.Errorf("%+v: %v", step, err)
		}
	}
	if err := r.Allocate(t.Context(), 0, 0, 1); !errors.Is(err, syscall.EBADF) {
		t.Errorf("on a handle for reading: %v", err)
	}
	if n := size(t, b, r); n != 14 {
		t.Errorf("size %d after refusals", n)
	}
}

// TestPunchIsNotUndone (PROTOCOLS J1): bytes that were written before a punch do not
// go out again behind it, when another client's truncation makes this one send what
// it had not reported.
func TestPunchIsNotUndone(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "0123456789", 0)
	flushUntil(t, w, "the bytes are with the data servers", func() bool { return string(d.bytes(w.Inode())) == "0123456789" })
	if err := w.Allocate(t.Context(), AllocatePunchHole|AllocateKeepSize, 0, 4); err != nil {
		t.Fatal(err)
	}
	if err := open(t, b, "x", syscall.O_RDWR).Truncate(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	write(t, w, "!", 5)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(t, b, "x", 0), 100, 0); got != "\x00\x00\x00\x004!67" {
		t.Errorf("afterwards: %q", got)
	}
}

// TestPunchMeetsTruncation (PROTOCOLS J1): a change that another client's truncation
// overtakes is made again under the new size epoch, and what it freed is counted once.
func TestPunchMeetsTruncation(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, strings.Repeat("x", 8192), 0)
	if err := w.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := open(t, b, "x", syscall.O_RDWR)
	truncated := false
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "punch" && !truncated {
			truncated = true
			if err := other.Truncate(t.Context(), 4096); err != nil {
				t.Error(err)
			}
			write(t, other, "y", 4095)
			if err := other.Fsync(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if err := w.Allocate(t.Context(), AllocateZeroRange, 0, 6000); err != nil {
		t.Fatal(err)
	}
	if got := read(t, other, 10000, 0); got != strings.Repeat("\x00", 6000) {
		t.Errorf("%d bytes, not 6000 zeros", len(got))
	}
}

// TestSeekData: holes as another client's handle finds them, buffered bytes too.
func TestSeekData(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	w := create(t, a, "x")
	write(t, w, "ab", 0)
	write(t, w, "cd", 10)
	if err := w.Truncate(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	check := func(f *File) {
		t.Helper()
		for _, s := range []struct {
			off, data, hole int64
		}{{0, 0, 2}, {1, 1, 2}, {2, 10, 2}, {5, 10, 5}, {11, 11, 12}, {12, -1, 12}, {19, -1, 19}, {20, -1, -1}, {math.MaxInt64, -1, -1}, {-1, -1, -1}} {
			for _, ask := range []struct {
				seek func() (int64, error)
				want int64
			}{
				{func() (int64, error) { return f.SeekData(t.Context(), s.off) }, s.data},
				{func() (int64, error) { return f.SeekHole(t.Context(), s.off) }, s.hole},
			} {
				at, err := ask.seek()
				if ask.want < 0 && !errors.Is(err, syscall.ENXIO) || ask.want >= 0 && (err != nil || at != ask.want) {
					t.Errorf("from %d: %d, %v, want %d", s.off, at, err, ask.want)
				}
			}
		}
	}
	check(w)
	check(open(t, b, "x", 0))
	write(t, w, "ef", 18)
	if at, err := w.SeekHole(t.Context(), 18); at != 20 || err != nil {
		t.Errorf("data up to the end: a hole at %d, %v", at, err)
	}
}

// TestBlocksAfterTruncation: st_blocks of a file with holes is what the data servers
// count after a truncation; a dense one costs no question.
func TestBlocksAfterTruncation(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	asked := 0
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		if op == "allocated" {
			asked++
		}
		return nil
	})
	w := create(t, c, "x")
	write(t, w, strings.Repeat("x", 16384), 0)
	for _, step := range []struct{ size, blocks, asked uint64 }{{16384, 32, 0}, {8192, 16, 0}, {1 << 20, 16, 0}, {1 << 19, 16, 1}, {4096, 8, 2}} {
		attr, err := c.SetAttr(t.Context(), Cred{}, w.Inode(), SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_SIZE, Size: step.size, Handle: w})
		if err != nil {
			t.Fatal(err)
		}
		if step.size == 16384 {
			if err := w.Fsync(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if attr.Blocks != step.blocks || uint64(asked) != step.asked {
			t.Errorf("size %d: %d blocks, asked %d times; want %+v", step.size, attr.Blocks, asked, step)
		}
	}
}

// TestFarWriteFailsAtOnce: a write that no data server can store says so itself.
func TestFarWriteFailsAtOnce(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	w := create(t, f.connect(t, d), "x")
	d.setFail(func(op string, _ data.File, off, _ int64) error {
		if op == "write" && off > 1<<43 {
			return fserr.FileTooBig
		}
		return nil
	})
	for _, off := range []int64{1 << 44, math.MaxInt64 - 1} {
		if _, err := w.WriteAt(t.Context(), []byte("x"), off); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("a write at %d: %v", off, err)
		}
	}
	write(t, w, "near", 0)
	if err := w.Close(t.Context()); err != nil {
		t.Errorf("closing: %v", err)
	}
}
