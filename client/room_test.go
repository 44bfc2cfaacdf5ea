package client

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/fserr"
)

// bound sets a quota on the root.
func bound(t testing.TB, c *Client, maxBytes uint64) {
	t.Helper()
	must[*Quota](t)(c.SetQuota(t.Context(), root, c.Root(), maxBytes, 0))
}

// fill writes p again and again until a quota has no more room, and returns how
// much was taken.
func fill(t testing.TB, f *File, p []byte) (taken int64) {
	t.Helper()
	for taken < 1<<30 {
		n, err := f.WriteAt(t.Context(), p, taken)
		taken += int64(n)
		if errors.Is(err, syscall.EDQUOT) {
			return taken
		}
		if err != nil || n != len(p) {
			t.Errorf("write at %d: %d, %v", taken, n, err)
			return taken
		}
	}
	return taken
}

// A program learns from write(2) itself that a quota is used up, and the file has
// just what was taken: all that the quota allows. Overwriting goes on.
func TestWriteMeetsQuota(t *testing.T) {
	const limit = 3 << 20
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	bound(t, c, limit)
	for _, pieces := range []int{70_001, 1 << 20, 5 << 20} {
		w := create(t, c, fmt.Sprint(pieces))
		piece := bytes.Repeat([]byte{'p'}, pieces)
		if taken := fill(t, w, piece); taken != limit {
			t.Errorf("pieces of %d: %d bytes were taken, the quota is %d", pieces, taken, limit)
		}
		write(t, w, "over", limit-4)
		if _, err := w.WriteAt(t.Context(), []byte("x"), limit+100); !errors.Is(err, syscall.EDQUOT) {
			t.Errorf("a byte behind the quota: %v", err)
		}
		if err := w.Truncate(t.Context(), limit+1); !errors.Is(err, syscall.EDQUOT) {
			t.Errorf("a size behind the quota: %v", err)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		r := open(t, c, fmt.Sprint(pieces), syscall.O_RDONLY)
		if got := size(t, c, r); got != limit {
			t.Errorf("the file has %d bytes, want %d", got, limit)
		}
		if got := read(t, r, limit, 0); got != strings.Repeat("p", limit-4)+"over" {
			t.Error("the file has not what was taken")
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := c.Unlink(t.Context(), root, c.Root(), fmt.Sprint(pieces)); err != nil {
			t.Error(err)
		}
	}
	if n := c.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// Writers on several clients together get what the quota allows, to the byte, and
// each file is what its writer was told.
func TestWritersShareQuota(t *testing.T) {
	const limit, writers = 4 << 20, 6
	f, d := newFake(t, 1), newMemData()
	var wg sync.WaitGroup
	taken := make([]int64, writers)
	files := make([]*File, writers)
	for i := range writers {
		c := f.connect(t, d)
		if i == 0 {
			bound(t, c, limit)
		}
		files[i] = create(t, c, fmt.Sprint("w", i))
	}
	for i, w := range files {
		wg.Go(func() { taken[i] = fill(t, w, bytes.Repeat([]byte{byte('a' + i)}, 50_000)) })
	}
	wg.Wait()
	var sum int64
	for i, w := range files {
		// Who was overtaken while bytes were buffered hears of it here.
		lost := w.Close(t.Context())
		if lost != nil && !errors.Is(lost, syscall.EDQUOT) {
			t.Errorf("close: %v", lost)
		}
		r := open(t, files[0].st.c, fmt.Sprint("w", i), syscall.O_RDONLY)
		have := int64(size(t, files[0].st.c, r))
		sum += have
		if have > taken[i] || have < taken[i] && lost == nil {
			t.Errorf("writer %d was told %d bytes and %v, the file has %d", i, taken[i], lost, have)
		}
		if got := read(t, r, int(have), 0); got != strings.Repeat(string(rune('a'+i)), int(have)) {
			t.Errorf("file %d has other bytes than were written", i)
		}
	}
	if sum != limit {
		t.Errorf("the files have %d bytes together, the quota is %d", sum, limit)
	}
}

// Buffered bytes for which others left no room are lost, and never in silence: each
// handle hears of it once; what fits is kept, and the rest never shows, even when
// the file grows over it (PROTOCOLS J1).
func TestQuotaRefusesBufferedBytes(t *testing.T) {
	const limit = 1 << 20
	f, d := newFake(t, 1), newMemData()
	c, other := f.connectAged(t, d, time.Hour), f.connect(t, d)
	bound(t, c, limit)
	w := create(t, c, "w")
	second := open(t, c, "w", syscall.O_RDWR)
	write(t, w, strings.Repeat("w", 200_000), 0)
	if taken := fill(t, create(t, other, "other"), bytes.Repeat([]byte("o"), 100_000)); taken != limit {
		t.Fatalf("the other client got %d bytes", taken)
	}
	n := open(t, other, "other", syscall.O_RDWR)
	if err := n.Truncate(t.Context(), limit-50_000); err != nil {
		t.Fatal(err)
	}
	// A chmod takes the report along; it is not what fails.
	if _, err := c.SetAttr(t.Context(), root, w.Inode(), SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o600}); err != nil {
		t.Errorf("chmod: %v", err)
	}
	if err := second.Fsync(t.Context()); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("fsync of the second handle: %v", err)
	}
	if err := second.Fsync(t.Context()); err != nil {
		t.Errorf("fsync again: %v", err)
	}
	if err := w.Close(t.Context()); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("close: %v", err)
	}
	if got := size(t, c, second); got != 50_000 {
		t.Errorf("the file has %d bytes, 50000 fit", got)
	}
	if err := c.RemoveQuota(t.Context(), root, c.Root()); err != nil {
		t.Fatal(err)
	}
	write(t, second, "end", 300_000)
	if err := second.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("w", 50_000) + strings.Repeat("\x00", 250_000) + "end"
	if got := read(t, second, 300_003, 0); got != want {
		t.Error("bytes that the quota refused show")
	}
	if n := c.flusher.budget.inUse(); n != 0 {
		t.Errorf("%d bytes are still accounted", n)
	}
}

// Appends and reservations are refused before the data servers are asked.
func TestQuotaBeforeData(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	bound(t, c, 1000)
	w := must[Created](t)(c.Create(t.Context(), root, c.Root(), "log", 0o644, syscall.O_RDWR|syscall.O_APPEND)).File
	write(t, w, strings.Repeat("a", 900), 0)
	asked := 0
	d.setFail(func(op string, _ data.File, _, _ int64) error {
		asked++
		return nil
	})
	if n, err := w.WriteAt(t.Context(), bytes.Repeat([]byte("b"), 200), 0); n != 0 || !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("an append that does not fit: %d, %v", n, err)
	}
	if err := w.Allocate(t.Context(), 0, 0, 2000); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("fallocate: %v", err)
	}
	if asked != 0 {
		t.Errorf("the data servers were asked %d times", asked)
	}
	d.setFail(nil)
	if err := w.Allocate(t.Context(), AllocateKeepSize, 0, 2000); err != nil {
		t.Errorf("fallocate that keeps the size: %v", err)
	}
	write(t, w, strings.Repeat("c", 100), 0)
}

// Far from a bound, and without quotas, a write asks nothing.
func TestRoomCostsNothing(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	var mu sync.Mutex
	asked := 0
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetGetQuota() != nil {
			mu.Lock()
			asked++
			mu.Unlock()
		}
		return verdict{}
	})
	for i, limit := range []uint64{0, 1 << 40} {
		if limit > 0 {
			if asked != 0 {
				t.Errorf("without quotas the room was asked for %d times", asked)
			}
			bound(t, c, limit)
		}
		w := create(t, c, fmt.Sprint(i))
		for j := range 20 {
			write(t, w, strings.Repeat("x", 1000), int64(j)*1000)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if asked > 5 { // none, but for each time that the machine stood still for a second
		t.Errorf("the room was asked for %d times", asked)
	}
}

// Where a quota leaves little, StatFS shows the quota.
func TestStatFSOfQuota(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	n, _, _, err := c.Mkdir(t.Context(), root, c.Root(), "d", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	must[*Quota](t)(c.SetQuota(t.Context(), root, n, 5000, 7))
	s := must[*StatFS](t)(c.StatFS(t.Context(), n))
	if s.QuotaBytes != 5000 || s.QuotaFreeBytes != 5000 || s.Files != 7 || s.FreeFiles != 7 {
		t.Errorf("in the quota: %v", s)
	}
	if s := must[*StatFS](t)(c.StatFS(t.Context(), c.Root())); s.QuotaBytes != 0 || s.FreeFiles < 1<<40 {
		t.Errorf("above it: %v", s)
	}
	if path, err := c.DirPath(t.Context(), n.Ino()); err != nil || path != "/d" {
		t.Errorf("path %q, %v", path, err)
	}
	if all := must[[]*Quota](t)(c.AllQuotas(t.Context())); len(all) != 1 || all[0].Dir != uint64(n.Ino()) {
		t.Errorf("all quotas: %v", all)
	}
	if err := c.RemoveQuota(t.Context(), Cred{UID: 5}, n); fserr.KindOf(err) != fserr.Permission {
		t.Errorf("a user removes a quota: %v", err)
	}
}
