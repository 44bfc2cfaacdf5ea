package clientfuse

import (
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
)

// TestIsSetLkw: dead-locks count for the locks of processes only, which the request
// does not tell from those of open file descriptions.
func TestIsSetLkw(t *testing.T) {
	for line, want := range map[string]bool{
		"72 0x3 0x7 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  true,  // F_SETLKW
		"72 0x3 0x26 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f": false, // F_OFD_SETLKW
		"72 0x3 0x6 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  false, // F_SETLK
		"73 0x7 0x7 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  false, // flock
		"-1 0x7 0x7": false, "": false, "72 0x3": false, "72 0x3 ?": false,
	} {
		if got := isSetLkw(strings.Fields(line)); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	if waitsInFcntl("/proc", 0) {
		t.Error("something is known of a thread of another pid namespace")
	}
}

// Who has lost a lock reads nothing from the kernel's pages either: it asks with the
// handle before it does.
func TestLostLocksEndCachedReads(t *testing.T) {
	f, m := newTestFS(t)
	n, _ := m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o644)
	f.nodes.add(n)
	file := m.openLocked(n)
	h := &handle{node: f.nodes.get(uint64(n.Ino())), file: file}
	in := fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: uint64(n.Ino())}, Flags_: fuse.FUSE_GETATTR_FH, Fh_: f.handles.add(h)}
	for _, lost := range []bool{false, true, false} {
		file.lost.Store(lost)
		want := map[bool]fuse.Status{false: fuse.OK, true: fuse.EIO}[lost]
		if s := f.GetAttr(nil, &in, &fuse.AttrOut{}); s != want {
			t.Errorf("lost %v: %v", lost, s)
		}
	}
}
