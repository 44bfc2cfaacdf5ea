package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// guarded makes a fake's nodes sign capabilities and its data plane demand them, as
// data servers do (PROTOCOLS J4).
type guarded struct {
	mu     sync.Mutex
	ring   *capability.Keyring
	signer *capability.Signer

	mute    atomic.Bool  // nodes have no keys
	asked   atomic.Int64 // get_attr that asked for a capability
	refused atomic.Int64
}

func guard(c *fakeCluster, d *memData) *guarded {
	g := &guarded{}
	g.rotate(1)
	c.setAfter(func(_ *fakeNode, op *canopyv1.Op, r *canopyv1.Result) bool {
		rights := r.DataRights
		if op.GetCreate() != nil && r.Error == 0 && !r.Existed {
			rights = uint32(capability.Read | capability.Write)
		}
		if op.GetGetAttr().GetDataRights() != 0 {
			g.asked.Add(1)
		}
		if rights != 0 && !g.mute.Load() {
			g.mu.Lock()
			t, _ := g.signer.Sign(1, r.Attr.Ino, capability.Rights(rights), time.Now())
			g.mu.Unlock()
			r.Capability = t[:]
		}
		return false
	})
	d.setFail(func(op string, f data.File, _, _ int64) error { return g.check(op, f) })
	return g
}

// rotate makes a new key and revokes the old one.
func (g *guarded) rotate(id uint32) {
	ring, err := capability.NewKeyring(&canopyv1.CapabilityRing{Version: uint64(id), Period: 1, PeriodMs: 1000,
		Keys: []*canopyv1.CapabilityKey{{Id: id, Secret: []byte(strings.Repeat(string(rune('a'+id)), capability.SecretBytes))}}})
	if err != nil {
		panic(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ring, g.signer = ring, &capability.Signer{}
	g.signer.Update(ring, time.Now())
}

// check is what client/data and a data server do together.
func (g *guarded) check(op string, f data.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	want, write := capability.Read, false
	switch op {
	case "write", "punch", "reserve":
		want, write = capability.Write, true
	case "sync", "seek", "allocated":
		want = capability.Read | capability.Write
	}
	var refused []byte
	for {
		token, err := f.Access.Capability(ctx, write, refused)
		if err != nil {
			return err
		}
		g.mu.Lock()
		ring := g.ring
		g.mu.Unlock()
		if err = ring.Check(token, 1, uint64(f.ID), want); err == nil {
			return nil
		}
		g.refused.Add(1)
		if refused != nil && string(refused) == string(token) {
			return fmt.Errorf("%w: shown again: %w", fserr.NoCapability, err)
		}
		refused = token
	}
}

// TestCapabilitiesComeAlong: J4: what lookup and create answer is enough to read and
// write; only a file that a listing showed is asked for, once for all who wait.
func TestCapabilitiesComeAlong(t *testing.T) {
	fake, d := newFake(t, 1), newMemData()
	g := guard(fake, d)
	c := fake.connect(t, d)
	made := must[Created](t)(c.Create(t.Context(), root, c.Root(), "f", 0o644, syscall.O_RDWR))
	write(t, made.File, "hello", 0)
	if got := read(t, made.File, 5, 0); got != "hello" {
		t.Fatalf("read %q", got)
	}
	if err := made.File.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	made.Inode.Release()

	other := fake.connect(t, d)
	f := open(t, other, "f", syscall.O_RDONLY)
	if got := read(t, f, 5, 0); got != "hello" {
		t.Fatalf("read %q", got)
	}
	f.Close(t.Context())
	if n := g.asked.Load(); n != 0 {
		t.Errorf("%d capabilities were asked for that lookup and create had brought", n)
	}

	lister := fake.connect(t, d)
	lister.granting.Store(true)
	page := must[ReadDirPage](t)(lister.ReadDir(t.Context(), root, lister.Root(), ReadDirRequest{Plus: true}))
	n := lister.InodeOf(lister.Root(), page.Entries[0])
	defer n.Release()
	h := must[*File](t)(lister.Open(t.Context(), root, n, syscall.O_RDONLY))
	defer h.Close(t.Context())
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			if got := read(t, h, 5, 0); got != "hello" {
				t.Errorf("read %q", got)
			}
		})
	}
	readers.Wait()
	if n := g.asked.Load(); n != 1 {
		t.Errorf("a file that a listing showed was asked for %d times, want once", n)
	}
	if n := g.refused.Load(); n != 0 {
		t.Errorf("%d capabilities were refused", n)
	}
}

// TestBufferedWritesOutliveCapabilities: J4: a capability that is refused in the
// middle of a long write is replaced, also if the metadata service takes its time,
// and no byte is lost for it.
func TestBufferedWritesOutliveCapabilities(t *testing.T) {
	fake, d := newFake(t, 1), newMemData()
	g := guard(fake, d)
	c := fake.connect(t, d)
	made := must[Created](t)(c.Create(t.Context(), root, c.Root(), "f", 0o600, syscall.O_RDWR))
	defer made.Inode.Release()
	want := make([]byte, 6<<20)
	r := rand.NewChaCha8([32]byte{1})
	io.ReadFull(r, want)
	for i := 0; i < len(want); i += 1 << 20 {
		g.rotate(uint32(2 + i>>20))
		g.mute.Store(i+1<<20 == len(want))
		if _, err := made.File.WriteAt(t.Context(), want[i:i+1<<20], int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	asked := g.asked.Load()
	eventually(t, "the client asks again while there is no key", func() bool { return g.asked.Load() > asked+2 })
	g.mute.Store(false)
	if err := made.File.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := made.File.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if string(d.bytes(made.Inode)) != string(want) {
		t.Error("bytes are missing")
	}
	if g.refused.Load() == 0 {
		t.Error("nothing was refused: the test tests nothing")
	}
}

// TestCapabilityOfAReader: J4: who may only read is granted that alone; a handle that
// the file's mode does not allow to write any more goes on.
func TestCapabilityOfAReader(t *testing.T) {
	fake, d := newFake(t, 1), newMemData()
	g := guard(fake, d)
	c := fake.connect(t, d)
	made := must[Created](t)(c.Create(t.Context(), root, c.Root(), "f", 0o644, syscall.O_RDWR))
	defer made.Inode.Release()
	user := fake.connect(t, d)
	n, _, _, err := user.Lookup(t.Context(), Cred{UID: 1000, GID: 1000}, user.Root(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	if rights := n.granted.Load().token.Rights(); rights != capability.Read {
		t.Errorf("a user that may read was granted %b", rights)
	}
	if _, err := c.SetAttr(t.Context(), root, made.Inode, SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE}); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := c.Lookup(t.Context(), Cred{UID: 1000, GID: 1000}, c.Root(), "f"); err != nil {
		t.Fatal(err)
	}
	g.rotate(2)
	write(t, made.File, "still", 0)
	if err := made.File.Close(t.Context()); err != nil {
		t.Errorf("a handle that was open before chmod 0: %v", err)
	}
}

// TestCapabilityOfAGoneFile: J4: the file's end is what ends the asking.
func TestCapabilityOfAGoneFile(t *testing.T) {
	fake, d := newFake(t, 1), newMemData()
	g := guard(fake, d)
	c := fake.connect(t, d)
	made := must[Created](t)(c.Create(t.Context(), root, c.Root(), "f", 0o644, syscall.O_RDWR))
	defer made.Inode.Release()
	defer made.File.Close(t.Context())
	write(t, made.File, "hello", 0)
	if err := made.File.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	fake.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		if op.GetGetAttr().GetDataRights() != 0 {
			return verdict{result: &canopyv1.Result{Error: uint32(fserr.Stale)}}
		}
		return verdict{}
	})
	g.rotate(2)
	if _, err := made.File.ReadAt(t.Context(), make([]byte, 5), 0); !errors.Is(err, fserr.Stale) {
		t.Errorf("reading a file that is gone: %v", err)
	}
}
