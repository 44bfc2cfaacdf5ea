package clientfuse

import (
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/internal/base"
)

// Directories are listed without OPENDIR (FUSE K6), so there is no handle to
// keep a listing's mark (PROTOCOLS F3) in, and a READDIR tells no more of its
// stream than the position and the calling thread. So marks are kept by directory and
// positions: those of the last page delivered, since a signal that is pending keeps a
// program from entries that the kernel has got already; it goes on behind the last one
// that it saw. A position that is not known (seekdir, or dropped from the table) takes a
// new mark, and so does the start.
//
// Of several listings at one position the one of the same stream counts, which is the
// process and the descriptor that the calling thread's getdents names in /proc. (The
// thread alone tells nothing: a goroutine, and any stream that threads share, goes on
// with a listing in another thread, and would there meet the mark of an older listing,
// which hides newer names.) Where it is not known whose a listing is, the one that
// began last counts.
//
// The kernel keeps one listing of a directory, adds to it what whoever reads on behind it
// is told, and gives it to all, also to those that are in the middle: one that began before
// a name was made would be shown to one that began afterwards. So when a listing
// begins while the table has others, the kernel drops what it has of them; they add
// nothing any more, and what they have added is of no use without its first page.

// stream is an open directory, as its readers name it. Zero: not known.
type stream struct {
	process uint32
	fd      uint64
}

// listing is how far one listing of a directory is.
type listing struct {
	from      uint64 // position of the last page
	position  uint64 // cookie of the last entry delivered
	mark      *client.Mark
	began     uint64 // grows with each listing that begins
	by        stream
	ended     bool // nothing follows
	dropped   bool // what the kernel keeps of it was dropped
	late      bool // it was while a page was read, which the kernel has got since
	nameBytes int  // average length of the names so far
}

// Bounds of the table: listings that were given up stay until they are pushed out.
const (
	maxListings       = 4096
	maxListingsPerDir = 64
)

type listingTable struct {
	mu    sync.Mutex
	known map[uint64][]listing // by node id of the directory
	total int
	began uint64 // listings
}

func newListingTable() *listingTable {
	return &listingTable{known: make(map[uint64][]listing)}
}

// at reports whether the listing can be one that goes on at position: from there, or
// from within its last page.
func (l listing) at(position uint64) bool {
	return position > uint64(base.CookieDotDot) && l.from <= position && position <= l.position
}

// several reports whether more than one listing of dir can be that which goes on at
// position.
func (t *listingTable) several(dir, position uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, l := range t.known[dir] {
		if l.at(position) {
			n++
		}
	}
	return n > 1
}

// take returns the listing of dir that goes on at position for the stream by: that of
// the same stream, if it is known, and of several the latest; a new one if there is
// none, and at the start. It stays in the table: another one can be at the same place.
func (t *listingTable) take(dir, position uint64, by stream) listing {
	t.mu.Lock()
	defer t.mu.Unlock()
	best := -1
	all := t.known[dir]
	for i, l := range all {
		if l.at(position) && (best < 0 || l.nearer(all[best], by)) {
			best = i
		}
	}
	if best < 0 {
		t.began++
		return listing{began: t.began}
	}
	return all[best]
}

// nearer reports whether the listing is rather the one that goes on in the stream by than
// another one that can be at the same position. That one of them was left at this very
// position counts for nothing: a program with a small buffer, or a signal, stops
// anywhere in a page, and an older mark hides what was there when this listing began.
func (l listing) nearer(other listing, by stream) bool {
	if here, there := l.kinship(by), other.kinship(by); here != there {
		return here > there
	}
	return l.began > other.began
}

// kinship is 2 for a listing of the stream, 1 if that is not known, 0 for one of
// another stream.
func (l listing) kinship(by stream) int {
	switch {
	case l.by == stream{} || by == stream{}:
		return 1
	case l.by == by:
		return 2
	}
	return 0
}

func (t *listingTable) removeLocked(dir uint64, i int) {
	all := t.known[dir]
	all = append(all[:i], all[i+1:]...)
	t.total--
	if len(all) == 0 {
		delete(t.known, dir)
		return
	}
	t.known[dir] = all
}

// begin takes in a listing that begins, and reports whether the kernel can have kept
// something of others of dir, which is to be dropped now.
func (t *listingTable) begin(dir uint64, l listing) (drops bool) {
	t.mu.Lock()
	all := t.known[dir]
	for i := range all {
		drops = drops || !all[i].dropped
		all[i].dropped = true
	}
	t.mu.Unlock()
	t.put(dir, l)
	return drops
}

// put keeps a listing for its next page. What its stream listed before is given up.
func (t *listingTable) put(dir uint64, l listing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.known[dir]) - 1; i >= 0; i-- {
		if known := t.known[dir][i]; known.began == l.began && known.dropped {
			l.late, l.dropped = !l.dropped, true
		}
		if known := t.known[dir][i]; known.began == l.began || known.by == l.by && l.by != (stream{}) {
			t.removeLocked(dir, i)
		}
	}
	if len(t.known[dir]) >= maxListingsPerDir {
		t.removeLocked(dir, 0) // the oldest
	}
	for d, all := range t.known {
		if t.total < maxListings {
			break
		}
		t.total -= len(all)
		delete(t.known, d)
	}
	t.known[dir] = append(t.known[dir], l)
	t.total++
}

// drop forgets the listings of a directory that the kernel has forgotten.
func (t *listingTable) drop(dir uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total -= len(t.known[dir])
	delete(t.known, dir)
}

// Sizes of an entry in the kernel's buffer, without the name: of READDIR, and
// of READDIRPLUS.
const (
	direntBytes     = 24
	direntPlusBytes = 128 + direntBytes
	guessNameBytes  = 16
)

// OpenDir implements fuse.RawFileSystem: the kernel hears ENOSYS once and opens
// directories by itself from then on.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	c := f.begin(opOpenDir, cancel, &in.InHeader)
	return c.end(fuse.ENOSYS)
}

// ReadDir implements fuse.RawFileSystem.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c := f.begin(opReadDir, cancel, &in.InHeader)
	return c.end(f.list(c, in, out, false))
}

// ReadDirPlus implements fuse.RawFileSystem.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c := f.begin(opReadDirPlus, cancel, &in.InHeader)
	return c.end(f.list(c, in, out, true))
}

func (f *fileSystem) list(c *call, in *fuse.ReadIn, out *fuse.DirEntryList, plus bool) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return estale
	}
	w := &dirWriter{f: f, dir: dir, out: out, plus: plus}
	var by stream
	if f.listings.several(dir.id, in.Offset) {
		by = streamOf(f.groups.proc, c.tid)
	}
	l := f.listings.take(dir.id, in.Offset, by)
	if drops := l.mark == nil && f.listings.begin(dir.id, l); drops || l.late {
		f.dropListing(dir)
	}
	l.late = false
	if l.ended && l.position == in.Offset {
		return fuse.OK // the kernel asks once more, to hear that this was all
	}
	if !w.dots(in.Offset) {
		return fuse.OK
	}
	page, err := f.backend.ReadDir(c, c.cred(), dir.inode, client.ReadDirRequest{
		Cookie: in.Offset, Mark: l.mark, MaxEntries: roomFor(int(in.Size), l.nameBytes, plus), Plus: plus,
	})
	if err != nil {
		return errno(err) // a signal ended the call: the program asks again, and the listing goes on
	}
	if !f.options.NoDirAtime && f.movesAtime() {
		f.backend.Accessed(dir.inode)
	}
	l.mark, l.ended = page.Mark, page.EOF
	var delivered, names int
	for _, e := range page.Entries {
		if !w.entry(e) {
			l.ended = false
			break
		}
		delivered, names = delivered+1, names+len(e.GetName())
	}
	if delivered > 0 {
		l.nameBytes = names / delivered
	}
	l.from, l.position = in.Offset, out.Offset
	if l.position == in.Offset {
		return fuse.OK // it ended here
	}
	if l.by == (stream{}) && !l.ended {
		l.by = streamOf(f.groups.proc, c.tid)
	}
	f.listings.put(dir.id, l)
	return fuse.OK
}

// dropListing has the kernel drop what it keeps of a directory's listings.
func (f *fileSystem) dropListing(dir *node) {
	if m := f.mount.Load(); m != nil {
		if err := m.DropListing(dir.id); err != nil {
			f.logger.Warn("the kernel does not drop a listing", "inode", dir.inode.Ino(), "error", err)
		}
	}
}

// roomFor returns how many entries a buffer holds, about: what does not fit was
// read in vain, and what is missing is one more request.
func roomFor(sizeBytes, nameBytes int, plus bool) int {
	if nameBytes == 0 {
		nameBytes = guessNameBytes
	}
	each := direntBytes
	if plus {
		each = direntPlusBytes
	}
	each += (nameBytes + 7) &^ 7
	return sizeBytes/each + 1
}

// dirWriter fills the kernel's buffer.
type dirWriter struct {
	f    *fileSystem
	dir  *node
	out  *fuse.DirEntryList
	plus bool
}

// dots adds "." and ".." if the listing is not beyond them, and reports whether
// there was room.
func (w *dirWriter) dots(offset uint64) bool {
	if offset < uint64(base.CookieDot) {
		if !w.plain(".", uint64(w.dir.inode.Ino()), uint64(base.CookieDot)) {
			return false
		}
	}
	if offset < uint64(base.CookieDotDot) {
		parent := w.dir
		if p := w.f.nodes.get(w.dir.parent.Load()); p != nil {
			parent = p
		}
		return w.plain("..", uint64(parent.inode.Ino()), uint64(base.CookieDotDot))
	}
	return true
}

// plain adds a name of a directory without attributes.
func (w *dirWriter) plain(name string, ino, cookie uint64) bool {
	e := fuse.DirEntry{Name: name, Ino: ino, Mode: syscall.S_IFDIR, Off: cookie}
	if w.plus {
		return w.out.AddDirLookupEntry(e) != nil // node id 0: no attributes
	}
	return w.out.AddDirEntry(e)
}

// entry adds an entry, with READDIRPLUS also as a lookup that the kernel will
// forget, and reports whether there was room.
func (w *dirWriter) entry(e *client.DirEntry) bool {
	d := fuse.DirEntry{Name: string(e.GetName()), Ino: e.GetIno(), Mode: e.GetType(), Off: e.GetCookie()}
	if !w.plus {
		return w.out.AddDirEntry(d)
	}
	out := w.out.AddDirLookupEntry(d)
	if out == nil {
		return false
	}
	a := e.GetAttr()
	if a == nil || w.f.beingWritten(e.GetIno()) {
		return true // the kernel asks by itself if somebody wants to know
	}
	w.f.found(w.f.backend.InodeOf(w.dir.inode, e), a, w.dir.id, out)
	return true
}

// beingWritten reports whether a file is open for writing here. The server's
// size of it lacks what is still in this client's buffers; a kernel that
// believed it would cut its cached pages off.
func (f *fileSystem) beingWritten(ino uint64) bool {
	n := f.nodes.get(ino)
	return n != nil && n.writers.Load() > 0
}
