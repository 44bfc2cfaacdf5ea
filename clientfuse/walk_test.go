package clientfuse

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// walkRig is a file system /a/b/{f,g} in strict mode whose questions are counted:
// round trips to the server, not requests of the kernel.
type walkRig struct {
	t     *testing.T
	f     *fileSystem
	m     *memFS
	asked int
	ids   map[string]uint64
}

func newWalkRig(t *testing.T) *walkRig {
	r := &walkRig{t: t, m: newMemFS(), ids: map[string]uint64{"/": 1}}
	f, err := newFileSystem(rigBackend{r.m, r}, r.m.root, Config{Logger: slog.New(slog.DiscardHandler), Options: mountopt.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.OnUnmount)
	r.f = f
	a, _ := r.m.makeLocked(client.Cred{}, r.m.root, "a", syscall.S_IFDIR|0o755)
	b, _ := r.m.makeLocked(client.Cred{}, a, "b", syscall.S_IFDIR|0o755)
	r.ids["a"], r.ids["b"] = a.attr.Ino, b.attr.Ino
	for _, name := range []string{"f", "g"} {
		n, _ := r.m.makeLocked(client.Cred{}, b, name, syscall.S_IFREG|0o644)
		r.ids[name] = n.attr.Ino
	}
	return r
}

// rigBackend counts for the rig.
type rigBackend struct {
	*memFS
	r *walkRig
}

func (b rigBackend) Lookup(ctx context.Context, cred client.Cred, dir inode, name string) (inode, *client.Attr, *client.Attr, error) {
	b.r.asked++
	return b.memFS.Lookup(ctx, cred, dir, name)
}

func (b rigBackend) GetAttr(ctx context.Context, cred client.Cred, n inode) (*client.Attr, error) {
	b.r.asked++
	return b.memFS.GetAttr(ctx, cred, n)
}

func (b rigBackend) GetAttrAhead(ctx context.Context, cred client.Cred, n inode, names []nameIn) (*client.Attr, []ahead, error) {
	b.r.asked++
	return b.memFS.GetAttrAhead(ctx, cred, n, names)
}

const walker = 77

func (r *walkRig) header(id uint64, tid uint32) fuse.InHeader {
	return fuse.InHeader{NodeId: id, Caller: fuse.Caller{Pid: tid}}
}

func (r *walkRig) getAttr(id uint64) {
	r.t.Helper()
	if s := r.f.GetAttr(nil, &fuse.GetAttrIn{InHeader: r.header(id, walker)}, &fuse.AttrOut{}); !s.Ok() {
		r.t.Fatal(s)
	}
}

// lookup returns the node that the kernel is told, 0 for ENOENT.
func (r *walkRig) lookup(dir uint64, name string) uint64 {
	r.t.Helper()
	h := r.header(dir, walker)
	var out fuse.EntryOut
	switch s := r.f.Lookup(nil, &h, name, &out); s {
	case fuse.OK:
		return out.NodeId
	case fuse.ENOENT:
		return 0
	default:
		r.t.Fatal(s)
		return 0
	}
}

// stat does what the kernel does for stat(2) of a path below the root.
func (r *walkRig) stat(path ...string) (id uint64) {
	r.t.Helper()
	id = 1
	for _, name := range path {
		r.getAttr(id)
		if id = r.lookup(id, name); id == 0 {
			return 0
		}
	}
	r.getAttr(id)
	return id
}

// wants runs do and compares its round trips.
func (r *walkRig) wants(what string, trips int, do func()) {
	r.t.Helper()
	before := r.asked
	do()
	if got := r.asked - before; got != trips {
		r.t.Errorf("%s: %d round trips, want %d", what, got, trips)
	}
}

func (r *walkRig) finds(want string, path ...string) {
	r.t.Helper()
	if got := r.stat(path...); got != r.ids[want] {
		r.t.Errorf("stat of %v: node %d, want %s (%d)", path, got, want, r.ids[want])
	}
}

// TestWalkAhead: the names that the last walk went through come with the first
// question of the next one.
func TestWalkAhead(t *testing.T) {
	r := newWalkRig(t)
	r.wants("the first walk", 4, func() { r.finds("f", "a", "b", "f") }) // root, a, b, f
	r.wants("the second", 2, func() { r.finds("g", "a", "b", "g") })
	r.wants("the third", 2, func() { r.finds("f", "a", "b", "f") })
	r.wants("a name that is not there", 2, func() { r.stat("a", "b", "none") })
	r.wants("a shorter walk", 2, func() { r.stat("a", "none") })
	r.wants("a stat of the root, then nothing is expected", 1, func() { r.getAttr(1) })
	r.wants("learnt anew", 4, func() { r.finds("f", "a", "b", "f") })
	r.wants("and used", 2, func() { r.finds("f", "a", "b", "f") })
}

// TestWalkAheadIsOfTheCall: what came ahead answers nothing but the same system
// call, and nothing that this mount changed in between.
func TestWalkAheadIsOfTheCall(t *testing.T) {
	learnt := func() *walkRig {
		r := newWalkRig(t)
		r.finds("f", "a", "b", "f")
		r.finds("f", "a", "b", "f")
		return r
	}
	t.Run("another mount renames before the call", func(t *testing.T) {
		r := learnt()
		if err := r.m.Rename(t.Context(), client.Cred{}, r.m.root, "a", r.m.root, "z", 0); err != nil {
			t.Fatal(err)
		}
		if id := r.stat("a", "b", "f"); id != 0 {
			t.Errorf("the old path finds node %d", id)
		}
		r.finds("f", "z", "b", "f")
	})
	t.Run("this mount renames during the call", func(t *testing.T) {
		r := learnt()
		r.getAttr(1) // a and b are looked up ahead
		in := fuse.RenameIn{InHeader: r.header(r.ids["a"], walker+1), Newdir: 1}
		if s := r.f.Rename(nil, &in, "b", "y"); !s.Ok() {
			t.Fatal(s)
		}
		a := r.lookup(1, "a")
		r.getAttr(a)
		if id := r.lookup(a, "b"); id != 0 {
			t.Errorf("the name that was renamed finds node %d", id)
		}
	})
	t.Run("this mount changes what is found", func(t *testing.T) {
		r := learnt()
		r.getAttr(1)
		set := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: r.header(r.ids["a"], walker+1), Valid: fuse.FATTR_MODE, Mode: 0o700}}
		if s := r.f.SetAttr(nil, &set, &fuse.AttrOut{}); !s.Ok() {
			t.Fatal(s)
		}
		h := r.header(1, walker)
		var out fuse.EntryOut
		if s := r.f.Lookup(nil, &h, "a", &out); !s.Ok() || out.Mode&0o777 != 0o700 {
			t.Errorf("%v, mode %o", s, out.Mode)
		}
	})
	t.Run("a call that begins on the way", func(t *testing.T) {
		r := learnt()
		r.getAttr(1)
		r.lookup(1, "a")
		r.getAttr(r.ids["a"]) // stat of /a ends here
		r.wants("a second question for a directory", 1, func() { r.getAttr(r.ids["a"]) })
		r.wants("a name in it", 1, func() { r.lookup(r.ids["a"], "b") })
	})
	t.Run("another request of the thread", func(t *testing.T) {
		r := learnt()
		r.getAttr(1)
		h := r.header(1, walker)
		r.f.GetXAttr(nil, &h, "user.x", nil)
		r.wants("a name", 1, func() { r.lookup(1, "a") })
	})
	t.Run("too late", func(t *testing.T) {
		r := learnt()
		r.getAttr(1)
		slot := &r.f.sameCall.last[threadSlot(walker)]
		late := *slot.Load()
		late.at = late.at.Add(-sameCallWithin - time.Millisecond)
		slot.Store(&late)
		r.wants("a name", 1, func() { r.lookup(1, "a") })
	})
	t.Run("a forgotten directory", func(t *testing.T) {
		r := learnt()
		r.f.Forget(r.ids["b"], 2)
		r.f.Forget(r.ids["a"], 2)
		r.wants("a walk: only its first name can be asked ahead", 3, func() { r.stat("a", "b", "f") })
	})
}
