package clientfuse

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/internal/fserr"
)

// aclFS denies everything, as a server that knows an ACL.
type aclFS struct {
	*memFS
	asked []uint32
}

func (m *aclFS) Access(_ context.Context, _ client.Cred, _ inode, mask uint32) error {
	m.asked = append(m.asked, mask)
	return fserr.Access
}

// TestACLWithoutOption: a kernel that is not told of ACLs checks by the mode, so
// opening what has one asks the server (FUSE K3).
func TestACLWithoutOption(t *testing.T) {
	for _, c := range []struct {
		name    string
		options string
		acls    canopyv1.AclKind
		uid     uint32
		asks    bool
	}{
		{"with an ACL", "noacl", canopyv1.AclKind_ACL_ACCESS, 5, true},
		{"without one", "noacl", canopyv1.AclKind_ACL_NONE, 5, false},
		{"root", "noacl", canopyv1.AclKind_ACL_ACCESS, 0, false},
		{"the kernel knows it", "acl", canopyv1.AclKind_ACL_ACCESS, 5, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			options := mountopt.Default()
			if err := options.Set(c.options); err != nil {
				t.Fatal(err)
			}
			m := &aclFS{memFS: newMemFS()}
			f, err := newFileSystem(m, m.root, Config{Logger: slog.New(slog.DiscardHandler), Options: options})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.OnUnmount)
			n, _ := m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o666)
			n.attr.Acls = uint32(c.acls)
			h := fuse.InHeader{NodeId: 1, Caller: fuse.Caller{Owner: fuse.Owner{Uid: c.uid}, Pid: 77}}
			var out fuse.EntryOut
			if s := f.Lookup(nil, &h, "f", &out); !s.Ok() {
				t.Fatal(s)
			}
			h.NodeId = out.NodeId
			var opened fuse.OpenOut
			s := f.Open(nil, &fuse.OpenIn{InHeader: h, Flags: syscall.O_RDWR}, &opened)
			switch {
			case c.asks && (s != fuse.EACCES || len(m.asked) != 1 || m.asked[0] != fuse.R_OK|fuse.W_OK):
				t.Errorf("%v, asked for %v", s, m.asked)
			case !c.asks && (!s.Ok() || len(m.asked) > 0):
				t.Errorf("%v, asked for %v", s, m.asked)
			}
		})
	}
}

// xattrFS counts the questions for extended attributes.
type xattrFS struct {
	*memFS
	asked int
}

func (m *xattrFS) GetXattr(ctx context.Context, cred client.Cred, n inode, name string) ([]byte, error) {
	m.asked++
	return m.memFS.GetXattr(ctx, cred, n, name)
}

// TestACLQuestions: the kernel's question for an ACL, which follows attributes in the
// same system call, is answered without the server where they told of none (FUSE
// K3), and does not interrupt the walk.
func TestACLQuestions(t *testing.T) {
	const tid, other = 77, 78
	start := func(options string) (*fileSystem, *xattrFS) {
		o := mountopt.Default()
		if err := o.Set(options); err != nil {
			t.Fatal(err)
		}
		m := &xattrFS{memFS: newMemFS()}
		f, err := newFileSystem(m, m.root, Config{Logger: slog.New(slog.DiscardHandler), Options: o})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.OnUnmount)
		return f, m
	}
	f, m := start("acl")
	n, _ := m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o644)
	of := func(id uint64, tid uint32) fuse.InHeader {
		return fuse.InHeader{NodeId: id, Caller: fuse.Caller{Pid: tid}}
	}
	lookup := func() {
		t.Helper()
		h := of(1, tid)
		var out fuse.EntryOut
		if s := f.Lookup(nil, &h, "f", &out); !s.Ok() {
			t.Fatal(s)
		}
	}
	getattr := func(id uint64) {
		t.Helper()
		if s := f.GetAttr(nil, &fuse.GetAttrIn{InHeader: of(id, tid)}, &fuse.AttrOut{}); !s.Ok() {
			t.Fatal(s)
		}
	}
	asks := func(what string, id uint64, tid uint32, name string, want bool) {
		t.Helper()
		before := m.asked
		h := of(id, tid)
		if _, s := f.GetXAttr(nil, &h, name, nil); s != fuse.ENODATA {
			t.Errorf("%s: %v", what, s)
		}
		if got := m.asked > before; got != want {
			t.Errorf("%s: asked %v, want %v", what, got, want)
		}
	}
	ino := n.attr.Ino
	lookup()
	asks("after a lookup", ino, tid, mountopt.AccessACL, false)
	lookup()
	getattr(ino)
	asks("after a getattr that the lookup answered", ino, tid, mountopt.AccessACL, false)
	getattr(1)
	asks("of the directory", 1, tid, mountopt.DefaultACL, false)
	lookup()
	asks("another attribute", ino, tid, "user.a", true)
	lookup()
	asks("of another inode", 1, tid, mountopt.AccessACL, true)
	lookup()
	asks("another thread", ino, other, mountopt.AccessACL, true)
	asks("the thread itself", ino, tid, mountopt.AccessACL, false)

	lookup()
	h := of(ino, other)
	if s := f.SetXAttr(nil, &fuse.SetXAttrIn{InHeader: h}, mountopt.AccessACL, []byte("acl")); !s.Ok() {
		t.Fatal(s)
	}
	if s := f.RemoveXAttr(nil, &h, mountopt.AccessACL); !s.Ok() {
		t.Fatal(s)
	}
	asks("after a change here", ino, tid, mountopt.AccessACL, true)
	n.attr.Acls = uint32(canopyv1.AclKind_ACL_ACCESS)
	lookup()
	asks("with an ACL", ino, tid, mountopt.AccessACL, true)
	lookup()
	asks("with an ACL of the other kind", ino, tid, mountopt.DefaultACL, false)

	n.attr.Acls = 0
	lookup()
	asks("and back", ino, tid, mountopt.AccessACL, false)
	if l := f.sameCall.take(tid); l == nil || l.found == nil || l.found.id != ino || l.attr != nil {
		t.Errorf("the question left %+v of the walk", l)
	}

	f, m = start("acl,consistency=relaxed=1h")
	n, _ = m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o644)
	lookup()
	asks("relaxed, by another thread", n.attr.Ino, other, mountopt.AccessACL, false)
	f.nodes.get(n.attr.Ino).sawAt.Add(-int64(2 * time.Hour))
	asks("relaxed, after the time", n.attr.Ino, other, mountopt.AccessACL, true)
}
