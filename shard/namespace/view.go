package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// view reads one subtree. A query has a view alone; a batch is a view that also
// writes. Its methods return an fserr.Kind as error for a business failure; any
// other error means that the state cannot be read.
type view struct {
	r       shard.Reader
	id      base.ShardID
	hash    func([]byte) shard.Hash
	subtree base.SubtreeID // of the operation
	epoch   base.Epoch
	root    base.Ino
	quotas  bool                 // the subtree has some
	carve   schema.Carve         // of the subtree
	hides   bool                 // names are stored that do not count: no name is read before its directory's header
	dirs    map[dirID]*directory // headers read or changed in this batch; nil in a query
	layout  sharedLayout
	locks   locks
}

// in makes the view one of a subtree in state s.
func (v *view) in(id base.SubtreeID, s *schema.Subtree) {
	v.subtree, v.epoch, v.root, v.quotas, v.carve, v.hides = id, s.Epoch, s.Root, s.Quotas > 0, s.Carve, s.Hidden > 0
	v.locks.any = s.Intents > 0
}

// sharedLayout is the last layout that was answered. A directory's new files have
// their layout's memory in common, and so can their answers.
type sharedLayout struct {
	of    *schema.Component
	proto *canopyv1.Layout
}

func (v *view) layoutProto(l schema.Layout) *canopyv1.Layout {
	if len(l.Components) == 0 {
		return l.Proto()
	}
	if v.layout.of != &l.Components[0] {
		v.layout = sharedLayout{&l.Components[0], l.Proto()}
	}
	return v.layout.proto
}

type dirID struct {
	subtree base.SubtreeID
	ino     base.Ino
}

// directory is a header, as the batch has changed it so far.
type directory struct {
	schema.Header
	subtree base.SubtreeID
	epoch   base.Epoch // of subtree
	dirty   bool
	gone    bool // deleted in this batch
}

// directory returns the header of ino: Stale when there is none, elsewhere when it
// was carved out of the subtree, or the subtree has only a husk of it.
func (v *view) directory(ino base.Ino) (*directory, error) {
	return v.directoryIn(v.subtree, ino)
}

func (v *view) directoryIn(subtree base.SubtreeID, ino base.Ino) (*directory, error) {
	d, err := v.headerIn(subtree, ino)
	if err != nil || d.isHome() {
		return d, err
	}
	if d.isHusk() {
		return nil, v.atHome(d)
	}
	return d, v.attributesLocked(d)
}

// headerIn is directoryIn for husks, too.
func (v *view) headerIn(subtree base.SubtreeID, ino base.Ino) (*directory, error) {
	id := dirID{subtree, ino}
	// Only what is of the operation's own subtree: what a batch has read for an earlier
	// operation, on another subtree, is no more this one's than what it would read now.
	if d := v.dirs[id]; d != nil && subtree == v.subtree {
		return d, nil
	}
	foreign, err := v.mayHold(subtree, ino)
	if err != nil {
		return nil, err
	}
	b, found, err := v.r.Get(schema.HeaderKey(v.id, subtree, ino))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, v.noHeader(subtree, foreign, ino)
	}
	h, err := schema.DecodeHeader(b)
	if err != nil {
		return nil, err
	}
	d := &directory{Header: *h, subtree: subtree, epoch: v.epoch}
	if foreign != nil {
		d.epoch = foreign.Epoch
	}
	if v.dirs != nil {
		v.dirs[id] = d
	}
	return d, nil
}

// mayHold returns an elsewhere if what is stored here of a directory in subtree
// does not count, and the state of the subtree if that is another one.
func (v *view) mayHold(subtree base.SubtreeID, dir base.Ino) (*schema.Subtree, error) {
	if subtree == v.subtree {
		return nil, v.carvedOut(dir)
	}
	return v.enterForeign(subtree, dir)
}

// noHeader is the error of a directory that subtree has no header of: it was carved
// out, or is not known.
func (v *view) noHeader(subtree base.SubtreeID, foreign *schema.Subtree, dir base.Ino) error {
	carve := v.carve
	if foreign != nil {
		carve = foreign.Carve
	}
	if err := v.forwardIn(subtree, carve, dir); err != nil {
		return err
	}
	return fserr.Stale
}

// entry is a dentry and where it stands.
type entry struct {
	*schema.Dentry
	dir base.Ino
	at  base.Cookie
}

// slot is what a search for a name finds: the entry, or that it is absent and
// what an insert needs to know.
type slot struct {
	entry            // Dentry is nil when the name is absent
	hash  shard.Hash // of the name
	taken bool       // absent, but the position with collision value 0 is another name's
}

func (s *slot) found() bool { return s.Dentry != nil }

// find looks for a name. One Get answers it unless names of the directory were
// displaced by collisions (PROTOCOLS F2).
func (v *view) find(d *directory, name []byte) (slot, error) {
	return v.findBy(v.r.Get, d, name)
}

// findNew is find for a name that is most likely absent.
func (v *view) findNew(d *directory, name []byte) (slot, error) {
	return v.findBy(v.r.GetNew, d, name)
}

// getter is shard.Reader's Get or GetNew.
type getter func(key []byte) ([]byte, bool, error)

func (v *view) findBy(get getter, d *directory, name []byte) (slot, error) {
	if err := v.owns(d, name); err != nil {
		return slot{}, err
	}
	s, err := v.probe(get, d.Ino, name)
	if err != nil || s.found() || d.Displaced == 0 {
		return s, err
	}
	return v.findDisplaced(d, name, s)
}

// probe looks at the name's first position only.
func (v *view) probe(get getter, dir base.Ino, name []byte) (slot, error) {
	s := slot{hash: v.hash(name)}
	at := s.hash.Cookie(0)
	if err := v.nameLocked(dir, at, name); err != nil {
		return s, err
	}
	b, found, err := get(schema.DentryKey(v.id, v.subtree, dir, at))
	if err != nil || !found {
		return s, err
	}
	if !schema.DentryNameIs(b, name) {
		s.taken = true
		return s, nil
	}
	e, err := schema.DecodeDentry(b)
	if err != nil {
		return s, err
	}
	s.entry = entry{e, dir, at}
	return s, nil
}

func (v *view) findDisplaced(d *directory, name []byte, s slot) (slot, error) {
	h := s.hash
	for range uint64(d.MaxProbe) + 1 {
		err := v.scanEntries(d.Ino, h.Cookie(0), h.Cookie(shard.Collisions-1), func(at base.Cookie, value []byte) (bool, error) {
			if !schema.DentryNameIs(value, name) {
				return true, nil
			}
			e, err := schema.DecodeDentry(value)
			s.entry = entry{e, d.Ino, at}
			return false, err
		})
		if err != nil || s.found() {
			return s, err
		}
		h = h.Next()
	}
	return s, nil
}

// scanEntries calls fn for the dentries of dir at positions first to last.
func (v *view) scanEntries(dir base.Ino, first, last base.Cookie, fn func(at base.Cookie, value []byte) (bool, error)) error {
	lo, hi := schema.DentryRange(v.id, v.subtree, dir, first, last)
	return v.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if key[len(lo)] != schema.PartSelf {
			return true, nil
		}
		_, at, _ := schema.InoOf(key)
		return fn(base.Cookie(at), value)
	})
}

// freePosition returns where an absent name goes: the lowest free collision value
// of its hash, or of the next hash when all are taken, and how far that is.
func (v *view) freePosition(s slot, dir base.Ino, most uint32) (at base.Cookie, probe uint32, err error) {
	if !s.taken {
		return s.hash.Cookie(0), 0, nil
	}
	h := s.hash
	for ; probe < most; probe++ {
		var taken [shard.Collisions]bool
		err = v.scanEntries(dir, h.Cookie(0), h.Cookie(shard.Collisions-1), func(at base.Cookie, _ []byte) (bool, error) {
			taken[at%shard.Collisions] = true
			return true, nil
		})
		if err != nil {
			return 0, 0, err
		}
		for i := range taken {
			if !taken[i] {
				return h.Cookie(i), probe, nil
			}
		}
		h = h.Next()
	}
	return 0, 0, fserr.NoSpace
}

// maxProbe bounds a search for a free position. Only names made to collide, half
// a million of them, come here. What a transaction has decided cannot be refused any more,
// though others took the positions that there were when it prepared: for its names there
// are as many again.
const (
	maxProbe        = 4096
	maxProbeDecided = 2 * maxProbe
)

// place returns where the entry is as a message.
func (e *entry) place() *canopyv1.Place {
	return &canopyv1.Place{Ino: uint64(e.Ino), Dir: uint64(e.dir), Name: e.Name}
}

// checkName returns what is wrong with a name that is to be looked up or made.
func checkName(name []byte) error {
	if len(name) > MaxNameBytes {
		return fserr.NameTooLong
	}
	if len(name) == 0 {
		return fserr.NotFound
	}
	for _, c := range name {
		if c == 0 || c == '/' {
			return fserr.Invalid
		}
	}
	return nil
}

// MaxNameBytes is the longest name.
const MaxNameBytes = 255

func isDot(name []byte) bool    { return len(name) == 1 && name[0] == '.' }
func isDotDot(name []byte) bool { return len(name) == 2 && name[0] == '.' && name[1] == '.' }
