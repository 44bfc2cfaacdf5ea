package clientfuse

import (
	"context"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// askedFS counts the questions for attributes.
type askedFS struct {
	*memFS
	getAttrs atomic.Int64
}

func (m *askedFS) GetAttr(ctx context.Context, cred client.Cred, n inode) (*client.Attr, error) {
	m.getAttrs.Add(1)
	return m.memFS.GetAttr(ctx, cred, n)
}

// TestSameCall: what LOOKUP brought answers the GETATTR that follows in the same
// system call, and no other one (FUSE K2; strict: every operation asks).
func TestSameCall(t *testing.T) {
	const tid, other = 77, 78
	m := &askedFS{memFS: newMemFS()}
	f, err := newFileSystem(m, m.root, Config{Logger: slog.New(slog.DiscardHandler), Options: mountopt.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.OnUnmount)
	n, _ := m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o644)
	ino := n.attr.Ino
	of := func(id uint64, tid uint32) fuse.InHeader {
		return fuse.InHeader{NodeId: id, Caller: fuse.Caller{Pid: tid}}
	}
	lookup := func(tid uint32, name string) {
		t.Helper()
		h := of(1, tid)
		var out fuse.EntryOut
		if s := f.Lookup(nil, &h, name, &out); !s.Ok() && s != fuse.ENOENT {
			t.Fatal(s)
		}
	}
	asks := func(what string, id uint64, tid uint32, want bool) *fuse.AttrOut {
		t.Helper()
		before := m.getAttrs.Load()
		out := &fuse.AttrOut{}
		if s := f.GetAttr(nil, &fuse.GetAttrIn{InHeader: of(id, tid)}, out); !s.Ok() {
			t.Fatal(s)
		}
		if got := m.getAttrs.Load() > before; got != want {
			t.Errorf("%s: asked %v, want %v", what, got, want)
		}
		return out
	}
	lookup(tid, "f")
	if out := asks("what was found", ino, tid, false); out.Ino != ino || out.Mode != n.attr.Mode {
		t.Errorf("ino %d mode %o", out.Ino, out.Mode)
	}
	asks("a second time", ino, tid, true)

	lookup(tid, "f")
	asks("the directory", 1, tid, false)
	lookup(tid, "none")
	asks("the directory of an absent name", 1, tid, false)

	lookup(tid, "f")
	asks("another thread", ino, other, true)
	asks("the thread itself", ino, tid, false)

	lookup(tid, "f")
	h := of(ino, tid)
	f.GetXAttr(nil, &h, "user.a", nil)
	asks("after another request", ino, tid, true)

	lookup(0, "f")
	asks("a thread of another pid namespace", ino, 0, true)

	lookup(tid, "f")
	set := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: of(ino, other), Valid: fuse.FATTR_SIZE, Size: 5}}
	if s := f.SetAttr(nil, &set, &fuse.AttrOut{}); !s.Ok() {
		t.Fatal(s)
	}
	if out := asks("after a truncation here", ino, tid, true); out.Size != 5 {
		t.Errorf("size %d", out.Size)
	}

	lookup(tid, "f")
	var opened fuse.OpenOut
	if s := f.Open(nil, &fuse.OpenIn{InHeader: of(ino, other), Flags: syscall.O_WRONLY}, &opened); !s.Ok() {
		t.Fatal(s)
	}
	asks("while it is open for writing here", ino, tid, true)
	lookup(tid, "f")
	f.Release(nil, &fuse.ReleaseIn{InHeader: of(ino, other), Fh: opened.Fh})
	asks("after a writer's end", ino, tid, true)

	var made fuse.CreateOut
	create := func(name string) {
		t.Helper()
		in := fuse.CreateIn{InHeader: of(1, tid), Flags: syscall.O_CREAT | syscall.O_WRONLY, Mode: syscall.S_IFREG | 0o600}
		if s := f.Create(nil, &in, name, &made); !s.Ok() {
			t.Fatal(s)
		}
	}
	create("g")
	asks("what was made", made.NodeId, tid, false)
	asks("a second time", made.NodeId, tid, true)
	create("h")
	if s := f.Open(nil, &fuse.OpenIn{InHeader: of(made.NodeId, other), Flags: syscall.O_WRONLY}, &opened); !s.Ok() {
		t.Fatal(s)
	}
	asks("what was made and has a second writer", made.NodeId, tid, true)
	create("f")
	asks("what was there", made.NodeId, tid, true)

	lookup(tid, "f")
	slot := &f.sameCall.last[threadSlot(tid)]
	late := *slot.Load()
	late.at = late.at.Add(-sameCallWithin - time.Millisecond)
	slot.Store(&late)
	asks("later", ino, tid, true)
}
