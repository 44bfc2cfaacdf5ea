package namespace

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// model drives a rig and the oracle with the same operations.
type model struct {
	*rig
	rt       *rapid.T
	o        *oracle
	floor    uint64
	sent     []sent // answered requests at or above the floor
	held     []held
	listing  *listing
	quotas   bool
	policies bool // some were set
	other    *rig // the shard where the subtree is not, once it has moved
	moving   bool
}

type sent struct {
	seq     uint64
	command *canopyv1.Command
	result  []byte
}

// held is what a mount remembers of an open file: where it was.
type held struct {
	n     *node
	place *canopyv1.Place
}

// listing is a listing in progress, and the names that must still come.
type listing struct {
	dir          *node
	cookie, mark uint64
	throughout   map[string]bool // there at the start and ever since
	start        map[string]bool
	seen         map[string]bool
}

// step is one operation: what to send, and how the oracle judges the answer.
type step struct {
	op     *canopyv1.Op
	verify func(*canopyv1.Result)
}

const modelClient = 0xc1

// TestModel runs long random histories against the oracle: with restarts, repeats
// of requests, several operations in one entry, listings that go on meanwhile,
// and colliding hashes. At the end fsck is clean, both agree on the whole tree,
// and a replica that applies the same log, restarting elsewhere, holds the same
// bytes (DESIGN section 10, invariants 2-6). The subtree moves between two shards
// meanwhile, with crashes: nothing of that can be seen.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var hash func([]byte) shard.Hash
		switch rapid.IntRange(0, 2).Draw(rt, "hash") {
		case 1:
			hash = func(name []byte) shard.Hash { return 5 }
		case 2:
			hash = func(name []byte) shard.Hash { return shard.Hash(1 + len(name)%2) }
		}
		m := &model{rig: newRig(t, hash), rt: rt, o: newOracle(), floor: 1}
		m.rig.t = failer{t, rt}
		m.quotas = m.pick("quotas", 2) == 0
		if m.pick("count now", 2) == 0 {
			m.countNow = 3
			m.load()
		}
		m.bootstrap()
		m.openSession(modelClient)
		for range rapid.IntRange(1, 60).Draw(rt, "rounds") {
			m.round()
		}
		m.finish()
	})
}

// failer reports to rapid, so that histories shrink.
type failer struct {
	testing.TB
	rt *rapid.T
}

func (f failer) Errorf(format string, args ...any) { f.rt.Errorf(format, args...) }
func (f failer) Fatalf(format string, args ...any) { f.rt.Fatalf(format, args...) }
func (f failer) Fatal(args ...any)                 { f.rt.Fatal(args...) }
func (f failer) Helper()                           {}

func (m *model) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(m.rt, label) }

func (m *model) round() {
	m.now += int64(m.pick("time", 3)) - 1 // the holder's clock may go back
	switch m.pick("round", 16) {
	case 0:
		m.load()
	case 1:
		m.repeat()
	case 2:
		m.purgeAll()
	case 3:
		m.hold()
	case 4:
		m.checkHeld()
	case 5, 6:
		m.page()
	case 7:
		m.countQuotas()
	case 8:
		m.migrate()
	case 9:
		m.splitAndMerge()
	default:
		m.entry()
	}
}

// entry sends one to four operations in one entry.
func (m *model) entry() {
	var commands []*canopyv1.Command
	var steps []step
	for range 1 + m.pick("operations", 4) {
		s := m.draw()
		s.op.Subtree, s.op.Cred = 1, &canopyv1.Credential{}
		c := m.command(modelClient, s.op)
		m.floor = max(m.floor, s.op.Seq-min(s.op.Seq-1, uint64(m.pick("floor", 8))))
		c.Floor = m.floor
		commands, steps = append(commands, c), append(steps, s)
	}
	for i, b := range m.apply(commands...) {
		m.sent = append(m.sent, sent{commands[i].Op.Seq, commands[i], b})
		steps[i].verify(m.decode(b))
	}
}

// repeat sends an old request again: the first answer comes, byte for byte, or the
// refusal if the client had said that it needs no answer (PROTOCOLS C2).
func (m *model) repeat() {
	if len(m.sent) == 0 {
		return
	}
	s := m.sent[m.pick("which", len(m.sent))]
	got := m.apply(s.command)[0]
	if s.seq < m.floor {
		if kind := fserr.Kind(m.decode(got).Error); kind != fserr.BelowFloor {
			m.rt.Fatalf("request %d below the floor %d was answered %v", s.seq, m.floor, kind)
		}
		return
	}
	if !bytes.Equal(got, s.result) {
		m.rt.Fatalf("request %d was first answered %s, then %s", s.seq, formatResult(m.decode(s.result)), formatResult(m.decode(got)))
	}
}

func (m *model) purgeAll() {
	c := &canopyv1.PurgeCommand{Subtree: 1}
	if err := Orphans(m.kv, m.shard, 1, 0, func(o OrphanInfo) bool {
		c.Orphans = append(c.Orphans, uint64(o.Ino))
		return true
	}); err != nil {
		m.rt.Fatal(err)
	}
	m.own(&canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: c}})
	m.o.purge()
}

func (m *model) hold() {
	dir := m.dir("dir")
	if dir.purged || len(dir.children) == 0 {
		return
	}
	name := dir.names()[m.pick("name", len(dir.children))]
	n := dir.children[name]
	if n.ino == 0 {
		return // a whiteout, whose number no answer has told yet
	}
	p := &canopyv1.Place{Ino: n.ino, Dir: dir.ino, Name: []byte(name)}
	if n.isDir() {
		p = &canopyv1.Place{Ino: n.ino}
	}
	m.held = append(m.held, held{n, p})
}

// checkHeld asks for everything held: wherever it went, it is found until it is
// purged (PROTOCOLS H1), and then it is stale, never another file.
func (m *model) checkHeld() {
	for _, h := range m.held {
		res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: h.place}}})
		if h.n.purged {
			m.expect(res, fserr.Stale, "getattr of what was purged")
			continue
		}
		m.expect(res, fserr.OK, "getattr of what is held")
		m.same(res.Attr, h.n)
		m.compareXattrs(h.n, h.place)
		m.compareLocks(h.n, h.place)
	}
}

// Query asks as root.
func (m *model) Query(op *canopyv1.Op) *canopyv1.Result {
	op.Subtree, op.Cred = 1, &canopyv1.Credential{}
	return m.rig.m.Query(m.kv, op)
}

func (m *model) expect(res *canopyv1.Result, kind fserr.Kind, what string) bool {
	if fserr.Kind(res.Error) != kind {
		m.rt.Fatalf("%s: %v, want %v", what, fserr.Kind(res.Error), kind)
	}
	return kind == fserr.OK
}

// same compares attributes with the oracle's. A number that is not known yet is
// learned.
func (m *model) same(a *canopyv1.Attr, n *node) {
	if n.ino == 0 && a != nil {
		n.ino = a.Ino
	}
	size := n.size
	if n.isDir() {
		size = uint64(len(n.children))
	}
	if n.kind == schema.TypeLink {
		size = uint64(len(n.target))
	}
	if a == nil || a.Ino != n.ino || a.Mode != n.kind|n.mode || a.Nlink != n.links() || a.Size != size || n.epoch != a.SizeEpoch {
		m.rt.Fatalf("attributes %v, want ino %d mode %o links %d size %d epoch %d", a, n.ino, n.kind|n.mode, n.links(), size, n.epoch)
	}
}

// finish compares everything.
func (m *model) finish() {
	m.checkHeld()
	m.mustBeClean()
	m.compareTree(m.o.root, "/")
	m.compareQuotas()
	files, directories, byteCount := m.o.counts()
	if err := Subtrees(m.kv, m.shard, func(s SubtreeInfo) bool {
		if s.Subtree != 1 { // was a fragment
			if s.Files != 0 || s.Directories != 0 || s.Bytes != 0 {
				m.rt.Errorf("counters %+v of what was merged", s)
			}
			return true
		}
		if s.Files != files || s.Directories != directories || s.Bytes != byteCount {
			m.rt.Errorf("counters %+v, want %d files, %d directories, %d bytes", s, files, directories, byteCount)
		}
		return true
	}); err != nil {
		m.rt.Fatal(err)
	}
	m.equalReplicas(m.rig)
	if m.other != nil {
		m.equalReplicas(m.other)
	}
}

// equalReplicas holds that who applies a shard's log anew, with restarts or without,
// has the same bytes.
func (m *model) equalReplicas(r *rig) {
	for _, restart := range []bool{false, true} {
		replica := newRigOf(r.shard, r.t, r.hash)
		replica.countNow = r.countNow
		replica.load()
		for _, e := range r.log {
			if restart {
				replica.load()
			}
			if _, err := replica.m.Apply(replica.kv, e.time, e.commands); err != nil {
				m.rt.Fatal(err)
			}
		}
		if d := r.kv.Diff(replica.kv, schema.Format); d != "" {
			m.rt.Fatalf("a replica of the same log (restarts: %v) differs:\n%s", restart, d)
		}
	}
}

func (m *model) compareTree(dir *node, path string) {
	c := &canopyv1.ReadDirCall{Dir: dir.ino, Plus: true, ResolveLinks: true}
	res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_ReadDir{ReadDir: c}})
	m.expect(res, fserr.OK, "listing of "+path)
	if len(res.Entries) != len(dir.children) || !res.Eof {
		m.rt.Fatalf("%s: %d entries, want %d", path, len(res.Entries), len(dir.children))
	}
	last := uint64(base.CookieDotDot)
	for _, e := range res.Entries {
		n := dir.children[string(e.Name)]
		if n == nil || e.Cookie <= last || e.Cookie > uint64(schema.LastCookie) {
			m.rt.Fatalf("%s: entry %q at %d after %d", path, e.Name, e.Cookie, last)
		}
		last = e.Cookie
		m.same(e.Attr, n)
		m.compareXattrs(n, &canopyv1.Place{Ino: n.ino, Dir: dir.ino, Name: e.Name})
		m.compareLocks(n, &canopyv1.Place{Ino: n.ino, Dir: dir.ino, Name: e.Name})
		if n.isDir() {
			m.compareTree(n, path+string(e.Name)+"/")
		}
	}
}

func (m *model) compareXattrs(n *node, p *canopyv1.Place) {
	res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: p}}})
	m.expect(res, fserr.OK, "listxattr")
	names := strings.Split(strings.TrimSuffix(string(res.Data), "\x00"), "\x00")
	if len(res.Data) == 0 {
		names = nil
	}
	if len(names) != len(n.xattrs) {
		m.rt.Fatalf("xattrs %q, want %v", names, n.xattrs)
	}
	for _, name := range names {
		res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: p, Name: []byte(name)}}})
		if value, ok := n.xattrs[name]; !ok || string(res.Data) != value {
			m.rt.Fatalf("xattr %s is %q, want %q", name, res.Data, value)
		}
	}
}

// page begins a listing or reads one more page of it. When it ends, each name that
// was there throughout came exactly once, and none that came later (PROTOCOLS F3).
func (m *model) page() {
	if m.listing == nil {
		l := &listing{dir: m.dir("list"), throughout: map[string]bool{}, start: map[string]bool{}, seen: map[string]bool{}}
		for name := range l.dir.children {
			l.throughout[name], l.start[name] = true, true
		}
		m.listing = l
	}
	l := m.listing
	res := m.Query(&canopyv1.Op{Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{
		Dir: l.dir.ino, Cookie: l.cookie, Mark: l.mark, MaxEntries: uint32(1 + m.pick("page", 3))}}})
	if l.dir.purged {
		m.expect(res, fserr.Stale, "listing of what was purged")
		m.listing = nil
		return
	}
	m.expect(res, fserr.OK, "page")
	l.mark = res.Mark
	for _, e := range res.Entries {
		name := string(e.Name)
		if l.seen[name] || !l.start[name] {
			m.rt.Fatalf("a listing shows %q (seen: %v, there at the start: %v)", name, l.seen[name], l.start[name])
		}
		l.seen[name], l.cookie = true, e.Cookie
	}
	if !res.Eof {
		return
	}
	for name := range l.throughout {
		if !l.seen[name] {
			m.rt.Fatalf("a listing missed %q, which was there throughout", name)
		}
	}
	m.listing = nil
}

// gone tells the listing that a name of dir ended.
func (m *model) gone(dir *node, name string) {
	if m.listing != nil && m.listing.dir == dir {
		delete(m.listing.throughout, name)
	}
}

var modelNames = []string{"a", "b", "cc", "dd", "e", "ff", "g", "hh"}

func (m *model) name(label string) string { return rapid.SampledFrom(modelNames).Draw(m.rt, label) }

// dir picks a directory, also one that was removed.
func (m *model) dir(label string) *node {
	var dirs []*node
	for _, n := range m.o.all {
		if n.isDir() && n.ino != 0 {
			dirs = append(dirs, n)
		}
	}
	return dirs[m.pick(label, len(dirs))]
}

// target picks a place: of something held, or a name.
func (m *model) target() (place *canopyv1.Place, find func() (*node, fserr.Kind)) {
	if len(m.held) > 0 && m.pick("by", 2) == 0 {
		h := m.held[m.pick("held", len(m.held))]
		return h.place, func() (*node, fserr.Kind) {
			if h.n.purged {
				return nil, fserr.Stale
			}
			return h.n, fserr.OK
		}
	}
	dir, name := m.dir("of"), m.name("name")
	return &canopyv1.Place{Dir: dir.ino, Name: []byte(name)}, func() (*node, fserr.Kind) {
		switch n := dir.children[name]; {
		case dir.purged:
			return nil, fserr.Stale
		case n == nil:
			return nil, fserr.NotFound
		default:
			return n, fserr.OK
		}
	}
}
