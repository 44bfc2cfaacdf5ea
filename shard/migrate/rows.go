package migrate

import (
	"bytes"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// cursor is how far a scan of everything is.
type cursor struct {
	stage int
	dir   base.Ino // of a carve, in stage 0: the directory that is read; 0: before the first
	after []byte   // the last key that was sent of the stage, or of the directory
}

// page is a batch in the making.
type page struct {
	d      *Driver
	r      shard.Reader
	at     cursor
	done   bool
	rows   []*canopyv1.ImportRow
	bytes  int
	border []crossing
}

// raw is a row as it is stored.
type raw struct{ key, value []byte }

// fill takes rows from the cursor on until the batch is full, or there are no more.
func (p *page) fill() error {
	if p.d.move.OfNames() {
		return p.fillNames()
	}
	if !p.d.carves() {
		first, _ := schema.KindRange(p.d.id, p.d.subtree, schema.KindSubtree+1)
		_, end := schema.SubtreeRange(p.d.id, p.d.subtree)
		full, err := p.span(first, end)
		p.done = !full
		return err
	}
	for p.at.stage == 0 {
		full, err := p.directory()
		if err != nil || full {
			return err
		}
	}
	kinds := []schema.Kind{schema.KindResults, schema.KindRelocation}
	for p.at.stage <= len(kinds) {
		lo, hi := schema.KindRange(p.d.id, p.d.subtree, kinds[p.at.stage-1])
		full, err := p.span(lo, hi)
		if err != nil || full {
			return err
		}
		p.at = cursor{stage: p.at.stage + 1}
	}
	p.done = true
	return nil
}

// directory takes the rest of the present member, and goes to the next.
func (p *page) directory() (full bool, err error) {
	d := p.d
	if p.at.dir == 0 {
		return false, p.next()
	}
	for _, of := range []func(base.ShardID, base.SubtreeID, base.Ino) (lo, hi []byte){schema.HeaderRange, schema.NamesRange} {
		lo, hi := of(d.id, d.subtree, p.at.dir)
		if bytes.Compare(p.at.after, hi) >= 0 {
			continue
		}
		if full, err := p.span(lo, hi); err != nil || full {
			return full, err
		}
	}
	return false, p.next()
}

// next goes to the next member; after the last one the stage ends.
func (p *page) next() error {
	members, err := p.d.members(p.r, p.at.dir+1, 1)
	if len(members) == 0 {
		p.at = cursor{stage: 1}
		return err
	}
	p.at.dir, p.at.after = members[0], nil
	return err
}

// span takes the rows of [lo, hi) that are behind the cursor; full: until the batch
// is full.
func (p *page) span(lo, hi []byte) (full bool, err error) {
	if bytes.Compare(p.at.after, lo) >= 0 {
		lo = append(bytes.Clone(p.at.after), 0)
	}
	var found []raw
	size := p.bytes
	err = p.r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if size >= p.d.Limits.BatchBytes {
			full = true
			return false, nil
		}
		size += len(key) + len(value)
		found = append(found, raw{bytes.Clone(key), bytes.Clone(value)})
		return true, nil
	})
	if err != nil {
		return false, err
	}
	for _, x := range found {
		if err := p.take(x.key, x.value); err != nil {
			return false, err
		}
		p.at.after = x.key
	}
	return full, nil
}

// keys takes what the first of keys are now, until the batch is full.
func (p *page) keys(keys []string) (used int, err error) {
	for _, k := range keys {
		if p.bytes >= p.d.Limits.BatchBytes {
			break
		}
		used++
		key := []byte(k)
		if p.d.carves() {
			gone, err := p.left(key)
			if err != nil {
				return 0, err
			}
			if gone {
				continue
			}
		}
		value, found, err := p.r.Get(key)
		if err != nil {
			return 0, err
		}
		if !found {
			if !p.d.move.Join || schema.KindOf(key) == schema.KindDentry { // what is not a name stays there
				p.gone(key, nil)
			}
			continue
		}
		if err := p.take(key, bytes.Clone(value)); err != nil {
			return 0, err
		}
	}
	return used, nil
}

// left handles a key of a directory that is a member no more: it was removed, and
// what is left of it stays.
func (p *page) left(key []byte) (gone bool, err error) {
	kind := schema.KindOf(key)
	if kind != schema.KindHeader && kind != schema.KindDentry {
		return false, nil
	}
	dir, _, _ := schema.InoOf(key)
	member, err := p.member(base.Ino(dir))
	if err != nil || member {
		return false, err
	}
	if kind == schema.KindHeader {
		lo, hi := schema.HeaderRange(p.d.id, p.d.subtree, base.Ino(dir))
		p.gone(append(lo, schema.PartSelf), hi)
	} else {
		p.gone(key, nil)
	}
	return true, nil
}

// member reports whether a directory goes along.
func (p *page) member(dir base.Ino) (bool, error) { return p.d.isMember(p.r, dir) }

func (d *Driver) isMember(r shard.Reader, dir base.Ino) (bool, error) {
	value, found, err := r.Get(schema.ForwardKey(d.id, d.subtree, dir))
	if err != nil || !found {
		return false, err
	}
	f, err := schema.DecodeForward(value)
	return err == nil && f.Into == d.move.Into, err
}

func (p *page) gone(key, end []byte) {
	row := &canopyv1.ImportRow{Key: bytes.Clone(schema.Suffix(key)), Gone: true}
	if end != nil {
		row.End = bytes.Clone(schema.Suffix(end))
	}
	p.cross(key, crossing{})
	p.rows = append(p.rows, row)
	p.bytes += len(row.Key)
}

// take adds a row in the form that it has at the target. The value is its own.
func (p *page) take(key, value []byte) error {
	kind := schema.KindOf(key)
	if !schema.Travels(kind) {
		return nil
	}
	if p.d.move.OfNames() {
		return p.takeNames(kind, key, value)
	}
	if p.d.carves() {
		var err error
		switch {
		case kind == schema.KindHeader && schema.IsSelf(key):
			value, err = p.header(key, value)
		case kind == schema.KindDentry && schema.IsSelf(key):
			value, err = p.dentry(key, value)
		case kind == schema.KindRelocation:
			value, _, err = p.relocation(value)
		}
		if err != nil {
			return err
		}
	}
	p.add(key, value)
	return nil
}

func (p *page) add(key, value []byte) {
	p.rows = append(p.rows, &canopyv1.ImportRow{Key: bytes.Clone(schema.Suffix(key)), Value: value})
	p.bytes += len(key) + len(value)
}

// header gives a directory its new subtree, and names the new one of its parent if
// that goes along. Else the name in the parent has to be rewritten.
func (p *page) header(key, value []byte) ([]byte, error) {
	h, err := schema.DecodeHeader(value)
	if err != nil {
		return nil, err
	}
	for i := range h.Fragments {
		if h.Fragments[i].Subtree == p.d.subtree {
			h.Fragments[i].Subtree = p.d.move.Into
		}
	}
	var x crossing
	if h.ParentSubtree == p.d.subtree {
		member, err := p.member(h.Parent)
		if err != nil {
			return nil, err
		}
		if member {
			h.ParentSubtree = p.d.move.Into
		} else {
			x.name = &canopyv1.BorderName{Dir: uint64(h.Parent), Name: h.Name, Ino: uint64(h.Ino)}
		}
	}
	p.cross(key, x)
	return h.Append(nil), nil
}

// dentry gives the name of a directory that goes along its new subtree. The parent
// of one that stays has to be rewritten.
func (p *page) dentry(key, value []byte) ([]byte, error) {
	var x crossing
	if schema.DentryKindOf(value) != schema.Directory {
		p.cross(key, x)
		return value, nil
	}
	e, err := schema.DecodeDentry(value)
	if err != nil {
		return nil, err
	}
	if e.Subtree == p.d.subtree {
		member, err := p.member(e.Ino)
		if err != nil {
			return nil, err
		}
		if member {
			e.Subtree = p.d.move.Into
		} else {
			x.child = uint64(e.Ino)
		}
	}
	p.cross(key, x)
	return e.Append(nil), nil
}

// relocation follows a file into the new subtree, if it goes along. All relocations do,
// those of files that stay too: who has one open asks by the directory that it was in.
func (p *page) relocation(value []byte) (now []byte, goes bool, err error) {
	m, err := schema.DecodeRelocation(value)
	if err != nil || m.Dir == 0 || m.Subtree != p.d.subtree {
		return value, false, err
	}
	if goes, err = p.d.goes(p.r, m.Dir, m.Name); err != nil || !goes {
		return value, false, err
	}
	m.Subtree = p.d.move.Into
	return m.Append(nil), true, nil
}

// tailRows are the rows of a carve, or of a range of names, that are found by their
// files: what workers come by, and locks (PROTOCOLS E5); and what belongs to the
// directories. Of a whole subtree all is in its range.
func (d *Driver) tailRows(r shard.Reader) ([]*canopyv1.ImportRow, error) {
	if !d.carves() && !d.move.OfNames() {
		return nil, nil
	}
	rows, err := d.workersRows(r)
	if err != nil {
		return nil, err
	}
	of := d.policies
	if d.move.OfNames() {
		of = d.namesRows
	}
	more, err := of(r)
	if err != nil {
		return nil, err
	}
	var out []*canopyv1.ImportRow
	for _, x := range append(rows, more...) {
		out = append(out, &canopyv1.ImportRow{Key: schema.Suffix(x.key), Value: x.value})
	}
	return out, nil
}

// workersRows are what workers come by of the files that go, and their locks.
func (d *Driver) workersRows(r shard.Reader) ([]raw, error) {
	var rows []raw
	locked := map[uint64]bool{}
	for _, kind := range []schema.Kind{schema.KindAppend, schema.KindCut, schema.KindLocked} {
		found, err := d.kind(r, kind, all)
		if err != nil {
			return nil, err
		}
		for _, x := range found {
			l, err := schema.DecodeLocator(x.value)
			if err != nil {
				return nil, err
			}
			goes, err := d.goes(r, l.Dir, l.Name)
			if err != nil {
				return nil, err
			}
			if goes {
				rows = append(rows, x)
				ino, _, _ := schema.InoOf(x.key)
				locked[ino] = locked[ino] || kind == schema.KindLocked
			}
		}
	}
	locks, err := d.kind(r, schema.KindLockClient, func(key []byte) bool {
		_, ino, _ := schema.InoOf(key)
		return locked[ino]
	})
	return append(rows, locks...), err
}

// policies are those of the directories that go, and for the root what it inherits.
func (d *Driver) policies(r shard.Reader) (rows []raw, err error) {
	set, err := d.kind(r, schema.KindPolicy, all)
	if err != nil {
		return nil, err
	}
	for _, x := range set {
		dir, _, _ := schema.InoOf(x.key)
		member, err := d.isMember(r, base.Ino(dir))
		if err != nil {
			return nil, err
		}
		if member && base.Ino(dir) != d.move.Root {
			rows = append(rows, x)
		}
	}
	root, err := d.src.Policy(r, d.subtree, d.move.Root)
	if root != nil {
		rows = append(rows, raw{schema.PolicyKey(d.id, d.subtree, d.move.Root), root})
	}
	return rows, err
}

func all([]byte) bool { return true }

// kind returns the rows of a kind whose keys are wanted.
func (d *Driver) kind(r shard.Reader, kind schema.Kind, wanted func(key []byte) bool) (rows []raw, err error) {
	lo, hi := schema.KindRange(d.id, d.subtree, kind)
	err = r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if wanted(key) {
			rows = append(rows, raw{bytes.Clone(key), bytes.Clone(value)})
		}
		return true, nil
	})
	return rows, err
}

// sessions are all of the source's, and what is remembered of ended ones.
func (d *Driver) sessions(r shard.Reader) (out []*canopyv1.ImportSession, err error) {
	for _, kind := range []schema.Kind{schema.KindSession, schema.KindEnded} {
		lo, hi := schema.KindRange(d.id, base.ShardMeta, kind)
		err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
			client, _, _ := schema.InoOf(key)
			s := &canopyv1.ImportSession{Client: client}
			if kind == schema.KindSession {
				s.Session = bytes.Clone(value)
			} else {
				s.Ended = bytes.Clone(value)
			}
			out = append(out, s)
			return true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fitting returns how many of rows go into a batch.
func (d *Driver) fitting(rows []*canopyv1.ImportRow) int {
	size := 0
	for i, row := range rows {
		if size += len(row.Key) + len(row.Value); size > d.Limits.BatchBytes && i > 0 {
			return i
		}
	}
	return len(rows)
}

// crossing is what a row says of the border of a carve; with neither: nothing.
type crossing struct {
	key   string
	name  *canopyv1.BorderName // of a header: its directory's name is in one that stays
	child uint64               // of a dentry: the directory that it names stays
}

// cross notes what a row says now, in place of what it said before.
func (p *page) cross(key []byte, x crossing) {
	if !p.d.carves() {
		return
	}
	if x.name == nil && x.child == 0 && !p.d.copy.border.has(key) && !slices.ContainsFunc(p.border, func(o crossing) bool { return o.key == string(key) }) {
		return
	}
	x.key = string(key)
	p.border = append(p.border, x)
}

// border are the rows of a copy that cross the border of what is carved. It is
// small: where a tree is cut out, and where directories were moved in or out
// meanwhile.
type border map[string]crossing

func newBorder() border { return border{} }

func (b border) has(key []byte) bool {
	_, ok := b[string(key)]
	return ok
}

func (b border) take(news []crossing) {
	for _, x := range news {
		if x.name == nil && x.child == 0 {
			delete(b, x.key)
		} else {
			b[x.key] = x
		}
	}
}

func (b border) messages() (names []*canopyv1.BorderName, children []uint64) {
	keys := make([]string, 0, len(b))
	for k := range b {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if x := b[k]; x.name != nil {
			names = append(names, x.name)
		} else {
			children = append(children, x.child)
		}
	}
	return names, children
}
