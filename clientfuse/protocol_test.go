package clientfuse

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// newTestFS returns a file system that is not mounted.
func newTestFS(t *testing.T) (*fileSystem, *memFS) {
	t.Helper()
	m := newMemFS()
	f, err := newFileSystem(m, m.root, Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.OnUnmount)
	return f, m
}

// negotiate returns what such a mount answers to a kernel that offers everything.
func negotiate(t *testing.T, o mountopt.Options) (init []byte) {
	t.Helper()
	f, _ := newTestFS(t)
	p := fuse.NewProtocolServer(f, o.FuseOptions(slog.New(slog.DiscardHandler)))
	in := make([]byte, 104)
	binary.NativeEndian.PutUint32(in[0:], 104)
	binary.NativeEndian.PutUint32(in[4:], 26) // INIT
	binary.NativeEndian.PutUint32(in[40:], 7)
	binary.NativeEndian.PutUint32(in[44:], 45)
	binary.NativeEndian.PutUint32(in[48:], 1<<20)
	binary.NativeEndian.PutUint64(in[52:], ^uint64(0))
	out := make([]byte, 4096)
	if n, s := p.HandleRequest([][]byte{in}, [][]byte{out}); !s.Ok() || n < 64 {
		t.Fatalf("INIT: %d bytes, %v", n, s)
	}
	return out[16:]
}

func initFlags(init []byte) uint64 {
	return uint64(binary.NativeEndian.Uint32(init[12:])) | uint64(binary.NativeEndian.Uint32(init[32:]))<<32
}

// TestNegotiatedFlags (K1, K3): what is negotiated, and what never is.
func TestNegotiatedFlags(t *testing.T) {
	init := negotiate(t, mountopt.Default())
	flags := initFlags(init)
	for name, bit := range map[string]uint64{
		"PARALLEL_DIROPS": fuse.CAP_PARALLEL_DIROPS, "DONT_MASK": fuse.CAP_DONT_MASK,
		"HANDLE_KILLPRIV_V2": fuse.CAP_HANDLE_KILLPRIV_V2, "ATOMIC_O_TRUNC": fuse.CAP_ATOMIC_O_TRUNC,
		"CACHE_SYMLINKS": fuse.CAP_CACHE_SYMLINKS, "READDIRPLUS": fuse.CAP_READDIRPLUS,
		"READDIRPLUS_AUTO": fuse.CAP_READDIRPLUS_AUTO, "NO_OPENDIR_SUPPORT": fuse.CAP_NO_OPENDIR_SUPPORT,
		"NO_EXPORT_SUPPORT": fuse.CAP_NO_EXPORT_SUPPORT, "MAX_PAGES": fuse.CAP_MAX_PAGES,
		"BIG_WRITES": fuse.CAP_BIG_WRITES, "DIRECT_IO_ALLOW_MMAP": fuse.CAP_DIRECT_IO_ALLOW_MMAP,
		"AUTO_INVAL_DATA": fuse.CAP_AUTO_INVAL_DATA, "INIT_EXT": fuse.CAP_INIT_EXT,
	} {
		if flags&bit == 0 {
			t.Errorf("%s is not negotiated", name)
		}
	}
	for name, bit := range map[string]uint64{
		"WRITEBACK_CACHE": fuse.CAP_WRITEBACK_CACHE, "EXPORT_SUPPORT": fuse.CAP_EXPORT_SUPPORT,
		"POSIX_LOCKS": fuse.CAP_POSIX_LOCKS, "FLOCK_LOCKS": fuse.CAP_FLOCK_LOCKS, "POSIX_ACL": fuse.CAP_POSIX_ACL,
		"EXPLICIT_INVAL_DATA": fuse.CAP_EXPLICIT_INVAL_DATA, "PASSTHROUGH": fuse.CAP_PASSTHROUGH,
		"HANDLE_KILLPRIV": fuse.CAP_HANDLE_KILLPRIV,
	} {
		if flags&bit != 0 {
			t.Errorf("%s is negotiated", name)
		}
	}
	if initFlags(negotiate(t, mountopt.Options{ACL: true}))&fuse.CAP_POSIX_ACL == 0 {
		t.Error("POSIX_ACL is not negotiated with the option acl")
	}
	if maxWrite := binary.NativeEndian.Uint32(init[20:]); maxWrite != 1<<20 {
		t.Errorf("max_write %d", maxWrite)
	}
}

func header(id uint64) fuse.InHeader { return fuse.InHeader{NodeId: id} }

// TestLookupsAreCounted: a node lives from its first lookup to the last forget,
// and holds one reference.
func TestLookupsAreCounted(t *testing.T) {
	f, m := newTestFS(t)
	n, _ := m.makeLocked(client.Cred{}, m.root, "f", syscall.S_IFREG|0o644)
	h := header(1)
	var out fuse.EntryOut
	for range 3 {
		if s := f.Lookup(nil, &h, "f", &out); !s.Ok() || out.NodeId != n.attr.Ino || out.Generation != 1 {
			t.Fatalf("lookup: %v, node %d, generation %d", s, out.NodeId, out.Generation)
		}
	}
	list := fuse.NewDirEntryList(make([]byte, 4096), 0)
	if s := f.ReadDirPlus(nil, &fuse.ReadIn{InHeader: h, Size: 4096}, list); !s.Ok() {
		t.Fatal(s)
	}
	if s := f.Link(nil, &fuse.LinkIn{InHeader: h, Oldnodeid: n.attr.Ino}, "g", &out); !s.Ok() {
		t.Fatal(s)
	}
	if m.refs[n.attr.Ino] != 1 {
		t.Errorf("%d references", m.refs[n.attr.Ino])
	}
	f.Forget(n.attr.Ino, 4)
	if s := f.GetAttr(nil, &fuse.GetAttrIn{InHeader: header(n.attr.Ino)}, &fuse.AttrOut{}); !s.Ok() {
		t.Errorf("with one lookup left: %v", s)
	}
	f.Forget(n.attr.Ino, 1)
	if s := f.GetAttr(nil, &fuse.GetAttrIn{InHeader: header(n.attr.Ino)}, &fuse.AttrOut{}); s != estale {
		t.Errorf("forgotten: %v, want ESTALE (K15)", s)
	}
	if m.refs[n.attr.Ino] != 0 || f.nodes.len() != 0 {
		t.Errorf("%d references, %d nodes left", m.refs[n.attr.Ino], f.nodes.len())
	}
}

// page reads one page of the root's listing.
func page(t *testing.T, f *fileSystem, tid uint32, offset uint64, size int) []fuse.DirEntry {
	t.Helper()
	h := header(1)
	h.Pid = tid
	out := fuse.NewDirEntryList(make([]byte, size), offset)
	if s := f.ReadDir(nil, &fuse.ReadIn{InHeader: h, Offset: offset, Size: uint32(size)}, out); !s.Ok() {
		t.Fatalf("READDIR: %v", s)
	}
	entries, err := fuse.ParseDirEntries(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// TestListingMarks (K6, F3): a listing shows no name that is newer than its
// start, and one that another thread goes on with shows all that are older. A
// mark kept by thread fails the second part.
func TestListingMarks(t *testing.T) {
	f, m := newTestFS(t)
	name := func(i int) string { return strings.Repeat("n", 20) + string(rune('a'+i)) }
	for i := range 10 {
		m.makeLocked(client.Cred{}, m.root, name(i), syscall.S_IFREG)
	}
	rest := func(tid uint32, offset uint64) (names int) {
		for {
			p := page(t, f, tid, offset, 300)
			if len(p) == 0 {
				return names
			}
			names, offset = names+len(p), p[len(p)-1].Off
		}
	}
	first := page(t, f, 7, 0, 300)
	m.makeLocked(client.Cred{}, m.root, name(10), syscall.S_IFREG)
	if n := len(first) + rest(7, first[len(first)-1].Off); n != 12 {
		t.Errorf("the listing shows %d names, want 10 and the dots", n)
	}
	// Thread 7 gave up a listing at this position; a new one begins in thread 8,
	// after another create, and goes on in thread 7.
	page(t, f, 7, 0, 300)
	m.makeLocked(client.Cred{}, m.root, name(11), syscall.S_IFREG)
	first = page(t, f, 8, 0, 300)
	if n := len(first) + rest(7, first[len(first)-1].Off); n != 14 {
		t.Errorf("the listing shows %d names, want 12 and the dots", n)
	}
	// A signal ends a call in the middle; the program asks again, after another create.
	f.listings.drop(1)
	first = page(t, f, 7, 0, 300)
	m.makeLocked(client.Cred{}, m.root, name(12), syscall.S_IFREG)
	m.interrupted = true
	out := fuse.NewDirEntryList(make([]byte, 300), first[len(first)-1].Off)
	if s := f.ReadDir(nil, &fuse.ReadIn{InHeader: header(1), Offset: first[len(first)-1].Off, Size: 300}, out); s != fuse.Status(syscall.EINTR) {
		t.Errorf("the interrupted call answers %v", s)
	}
	if n := len(first) + rest(7, first[len(first)-1].Off); n != 14 {
		t.Errorf("the listing that was interrupted shows %d names, want 12 and the dots", n)
	}
	f.listings.drop(1)
	// A signal that is pending keeps the program from the last entries of a page that the
	// kernel has got, or the kernel from the page: it is asked for from there, or again.
	first = page(t, f, 7, 0, 300)
	m.makeLocked(client.Cred{}, m.root, name(13), syscall.S_IFREG)
	seen := first[:len(first)-2]
	if n := len(seen) + rest(7, seen[len(seen)-1].Off); n != 15 {
		t.Errorf("the listing that was cut short shows %d names, want 13 and the dots", n)
	}
	first = page(t, f, 7, 0, 300)
	second := page(t, f, 7, first[len(first)-1].Off, 300)
	m.makeLocked(client.Cred{}, m.root, name(14), syscall.S_IFREG)
	if len(second) == 0 {
		t.Fatal("one page has all")
	}
	if n := len(first) + rest(7, first[len(first)-1].Off); n != 16 {
		t.Errorf("the listing whose page was lost shows %d names, want 14 and the dots", n)
	}
	// Programs ask more than once at the end.
	all := page(t, f, 7, 0, 4096)
	m.makeLocked(client.Cred{}, m.root, name(15), syscall.S_IFREG)
	for range 3 {
		if more := page(t, f, 7, all[len(all)-1].Off, 4096); len(more) != 0 {
			t.Errorf("a listing that has ended goes on with %v", more)
		}
	}
	// The program's buffer ends where an older listing was given up: what was made since
	// is older than this listing.
	first = page(t, f, 7, 0, 300)
	m.makeLocked(client.Cred{}, m.root, name(16), syscall.S_IFREG)
	if longer := page(t, f, 7, 0, 600); len(longer) <= len(first) {
		t.Fatal("the longer page shows no more")
	}
	if n := len(first) + rest(7, first[len(first)-1].Off); n != 19 {
		t.Errorf("the listing that goes on where an older one was shows %d names, want 17 and the dots", n)
	}
}

func TestListingTableIsBounded(t *testing.T) {
	table := newListingTable()
	for i := range uint64(3 * maxListings) {
		table.put(1+i%100, listing{position: i, began: i})
		table.put(1000+i, listing{position: i, began: i})
	}
	total := 0
	for _, all := range table.known {
		total += len(all)
		if len(all) > maxListingsPerDir {
			t.Errorf("%d listings of one directory", len(all))
		}
	}
	if total != table.total || total > maxListings {
		t.Errorf("%d listings, counted %d, at most %d", total, table.total, maxListings)
	}
}

// TestBeingWritten: READDIRPLUS gives no attributes of a file that is open for
// writing here, since the server's size lacks what is still in buffers.
func TestBeingWritten(t *testing.T) {
	f, _ := newTestFS(t)
	var created fuse.CreateOut
	in := fuse.CreateIn{InHeader: header(1), Flags: syscall.O_WRONLY, Mode: 0o644}
	if s := f.Create(nil, &in, "f", &created); !s.Ok() {
		t.Fatal(s)
	}
	nodes := func() (ids []uint64) {
		out := fuse.NewDirEntryList(make([]byte, 4096), 0)
		f.ReadDirPlus(nil, &fuse.ReadIn{InHeader: header(1), Size: 4096}, out)
		_, entries, err := fuse.ParseDirLookupEntries(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			ids = append(ids, e.NodeId)
		}
		return ids
	}
	if got := nodes(); !reflect.DeepEqual(got, []uint64{0, 0, 0}) {
		t.Errorf("while it is open: nodes %v, want none", got)
	}
	f.Release(nil, &fuse.ReleaseIn{InHeader: header(created.NodeId), Fh: created.Fh})
	if got := nodes(); !reflect.DeepEqual(got, []uint64{0, 0, created.NodeId}) {
		t.Errorf("after its release: nodes %v", got)
	}
}

func TestSetAttrTranslation(t *testing.T) {
	const atime, mtime = canopyv1.SetAttrMask_SET_ATTR_ATIME, canopyv1.SetAttrMask_SET_ATTR_MTIME
	for _, c := range []struct {
		valid, mode uint32
		want        canopyv1.SetAttrMask
	}{
		{fuse.FATTR_ATIME | fuse.FATTR_MTIME, syscall.S_IFREG, atime | mtime},
		{fuse.FATTR_MTIME | fuse.FATTR_MTIME_NOW, syscall.S_IFREG, canopyv1.SetAttrMask_SET_ATTR_MTIME_NOW},
		{fuse.FATTR_UID, syscall.S_IFREG, canopyv1.SetAttrMask_SET_ATTR_UID | canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV},
		{fuse.FATTR_GID, syscall.S_IFDIR, canopyv1.SetAttrMask_SET_ATTR_GID},
		{fuse.FATTR_SIZE | fuse.FATTR_FH | fuse.FATTR_KILL_SUIDGID, syscall.S_IFREG,
			canopyv1.SetAttrMask_SET_ATTR_SIZE | canopyv1.SetAttrMask_SET_ATTR_KILL_PRIV},
	} {
		in := &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{Valid: c.valid}}
		if got := setAttrOf(in, c.mode); got.Mask != c.want {
			t.Errorf("valid %#x: mask %v, want %v", c.valid, got.Mask, c.want)
		}
	}
	for _, ns := range []int64{0, 1, -1, -1e9, 1e18 + 1, -1e18 - 999_999_999} {
		sec, nsec := splitTime(ns)
		if got := joinTime(sec, nsec); got != ns || nsec >= 1e9 {
			t.Errorf("%d ns: %d s, %d ns, back %d", ns, int64(sec), nsec, got)
		}
	}
}

// fakeProc makes a directory like /proc with one thread.
func fakeProc(t *testing.T, status, stat string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "42"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"status": status, "stat": stat} {
		if err := os.WriteFile(filepath.Join(dir, "42", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestGroups (K2): read once, believed for a while, read anew; and by uid, so
// that setuid counts at once.
func TestGroups(t *testing.T) {
	proc := fakeProc(t, "Name:\tx\nGroups:\t10 20 \nSigPnd:\t0\n", "")
	now := time.Unix(1000, 0)
	c := newGroupCache(proc, func() time.Time { return now })
	want := func(what string, uid uint32, groups ...uint32) {
		t.Helper()
		if got := c.cred(42, uid, 5); !reflect.DeepEqual(got.Groups, groups) || got.UID != uid || got.GID != 5 {
			t.Errorf("%s: %+v, want groups %v", what, got, groups)
		}
	}
	want("first", 7, 10, 20)
	os.WriteFile(filepath.Join(proc, "42", "status"), []byte("Name:\tx\nGroups:\t30\n"), 0o644)
	want("kept", 7, 10, 20)
	want("another uid", 8, 30)
	now = now.Add(groupsFor)
	want("read anew", 7, 30)
	want("the superuser needs none", 0)
	if got := c.cred(0, 7, 5); got.Groups != nil {
		t.Errorf("thread 0: %+v", got)
	}
	for i := range uint32(3 * maxGroupEntries) {
		c.cred(42, 100+i, 5)
	}
	if len(c.entries) > maxGroupEntries {
		t.Errorf("%d entries", len(c.entries))
	}
}

// TestKilled (K12).
func TestKilled(t *testing.T) {
	const idle = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"
	for _, c := range []struct {
		status, stat string
		want         bool
	}{
		{idle, "42 (a) b) S 1 1 1 0 -1 4194304 0", false},
		{"SigPnd:\t0000000000000100\nShdPnd:\t0\n", "42 (x) D 1 1 1 0 -1 0 0", true},
		{"SigPnd:\t0\nShdPnd:\t0000000000004100\n", "42 (x) D 1 1 1 0 -1 0 0", true},
		{"SigPnd:\t0000000000002000\nShdPnd:\t0\n", "42 (x) D 1 1 1 0 -1 0 0", false}, // SIGALRM
		{idle, "42 (x) D 1 1 1 0 -1 1028 0", true},                                    // exits, killed by a signal
		{idle, "42 (x) D 1 1 1 0 -1 4 0", false},                                      // exits by itself: its close waits
	} {
		if got := killed(fakeProc(t, "Name:\tx\n"+c.status, c.stat), 42); got != c.want {
			t.Errorf("%q %q: %v, want %v", c.status, c.stat, got, c.want)
		}
	}
	if !killed(fakeProc(t, "", ""), 43) || killed("/proc", 0) {
		t.Error("a thread that is gone, or of another namespace")
	}
}

// TestCallAsContext: package context accepts it, and derives from it.
func TestCallAsContext(t *testing.T) {
	f, _ := newTestFS(t)
	h := header(1)
	c := f.begin(opRead, nil, &h)
	derived, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	other, cancelOther := context.WithCancel(c)
	cancelOther()
	if c.Err() != nil || derived.Err() != nil || other.Err() == nil {
		t.Error("cancelling one context ended another")
	}
	c.kill()
	c.kill()
	<-c.Done()
	<-derived.Done()
	if c.Err() == nil {
		t.Error("no error after the end")
	}
	late, cancelLate := context.WithTimeout(c, time.Hour)
	defer cancelLate()
	<-late.Done()
	c.end(fuse.OK)
}
