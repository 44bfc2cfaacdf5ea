package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Bounds of one page of a listing.
const (
	defaultPageEntries = 1024
	maxPageEntries     = 16384
	maxPageBytes       = 1 << 20
	// What an entry costs beside its name, about.
	entryBytes     = 24
	entryPlusBytes = 120
)

// readDir lists names behind a cookie, in the order of their hashes. A listing
// shows the names of its mark: what appeared later is skipped (PROTOCOLS F3). Of a
// split directory it goes to the end of the fragment.
func readDir(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetReadDir()
	d, err := v.directory(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	if err := identityOf(op.Cred).accessDir(d, mayRead); err != nil {
		return nil, err
	}
	if c.Cookie > uint64(schema.LastCookie) {
		return nil, fserr.Invalid
	}
	first, last, err := v.span(d, c)
	if err != nil {
		return nil, err
	}
	if err := v.namesLocked(d.Ino); err != nil {
		return nil, err
	}
	p := page{plus: c.Plus, mark: c.Mark, entries: int(c.MaxEntries), bytes: int(c.MaxBytes)}
	p.bound()
	if p.mark == 0 {
		p.mark = d.Appeared
	}
	r := &canopyv1.Result{DirAttr: v.dirAttr(d), Mark: p.mark, Eof: true, Through: uint64(last)}
	if c.Cookie == uint64(schema.LastCookie) || first > last {
		return r, nil
	}
	err = v.scanEntries(d.Ino, first, last, func(at base.Cookie, value []byte) (bool, error) {
		e, err := schema.DecodeDentry(value)
		if err != nil {
			return false, err
		}
		if e.Appeared > p.mark {
			return true, nil
		}
		if !p.take(len(e.Name)) {
			r.Eof, r.Through = false, 0
			return false, nil
		}
		r.Entries = append(r.Entries, v.dirEntry(e, at, c.Plus))
		return true, nil
	})
	if err != nil || !c.Plus {
		return r, err
	}
	return r, v.fillAttrs(r.Entries, c.ResolveLinks)
}

// markNames answers the mark of a fragment: of what is or was about to be acknowledged
// there it shows all. What a transaction has locked is waited for, as in a listing.
func markNames(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetMarkNames()
	if c.Free {
		return &canopyv1.Result{}, nil
	}
	d, err := v.directory(base.Ino(c.Dir))
	if err == nil {
		err = identityOf(op.Cred).accessDir(d, mayRead)
	}
	if err == nil {
		err = v.namesLocked(d.Ino)
	}
	if err != nil {
		return nil, err
	}
	return &canopyv1.Result{DirAttr: v.dirAttr(d), Mark: d.Appeared}, nil
}

// nextPosition returns the position behind a cookie.
func nextPosition(cookie uint64) base.Cookie {
	return min(base.Cookie(cookie), schema.LastCookie-1) + 1
}

// span returns the positions that a page is of: from the one behind the cookie to the
// end of the fragment, or to what was asked for.
func (v *view) span(d *directory, c *canopyv1.ReadDirCall) (first, last base.Cookie, err error) {
	first, last = nextPosition(c.Cookie), schema.LastCookie
	if d.split() {
		h := shard.HashOf(first)
		if !d.Fragments.Has(v.subtree, h) {
			return 0, 0, v.atHome(d)
		}
		last = d.Fragments.At(h.Border()).Last()
	}
	if c.Last > 0 {
		last = min(last, base.Cookie(c.Last))
	}
	return first, last, nil
}

// page is the budget of one page.
type page struct {
	plus           bool
	mark           uint64
	entries, bytes int
	taken          int
}

func (p *page) bound() {
	if p.entries <= 0 {
		p.entries = defaultPageEntries
	}
	if p.bytes <= 0 {
		p.bytes = maxPageBytes
	}
	p.entries, p.bytes = min(p.entries, maxPageEntries), min(p.bytes, maxPageBytes)
}

// take reports whether an entry still fits. The first always does.
func (p *page) take(nameBytes int) bool {
	cost := nameBytes + entryBytes
	if p.plus {
		cost += entryPlusBytes
	}
	if p.taken > 0 && (p.taken >= p.entries || cost > p.bytes) {
		return false
	}
	p.taken++
	p.bytes -= cost
	return true
}

// dirEntry returns the listing's form of a dentry, with attributes if they are
// embedded and wanted.
func (v *view) dirEntry(e *schema.Dentry, at base.Cookie, plus bool) *canopyv1.DirEntry {
	x := &canopyv1.DirEntry{Name: e.Name, Ino: uint64(e.Ino), Type: e.Type, Cookie: uint64(at)}
	switch {
	case e.Kind == schema.Directory, e.Kind == schema.Link && e.Subtree != v.subtree:
		x.Subtree = uint64(e.Subtree)
	case e.Kind == schema.Embedded && plus:
		x.Attr = v.inodeAttr(e.Inode)
	}
	return x
}

// fillAttrs adds the attributes that stand under keys of their own. What lies in a
// subtree that the shard does not own stays without: the client asks there.
func (v *view) fillAttrs(entries []*canopyv1.DirEntry, links bool) error {
	for _, x := range entries {
		if x.Attr != nil {
			continue
		}
		if x.Type == schema.TypeDir {
			d, err := v.directoryIn(base.SubtreeID(x.Subtree), base.Ino(x.Ino))
			if e, ok := err.(*elsewhere); ok {
				x.Subtree = uint64(e.subtree)
			} else if err == nil {
				x.Attr = v.dirAttr(d)
			} else if err != fserr.Stale {
				return err
			}
			continue
		}
		if !links {
			continue
		}
		if err := v.fillLink(x); err != nil {
			return err
		}
	}
	return nil
}

// fillLink adds the attributes of a de-inlined inode.
func (v *view) fillLink(x *canopyv1.DirEntry) error {
	if x.Subtree != 0 {
		there, o, err := v.readElsewhere(&elsewhere{subtree: base.SubtreeID(x.Subtree), ino: base.Ino(x.Ino)})
		if o != nil {
			x.Attr = there.attr(o)
		}
		return err
	}
	o, err := v.record(base.Ino(x.Ino))
	if err == fserr.Stale {
		return nil
	}
	if err == nil {
		x.Attr = v.inodeAttr(o.inode)
	}
	return err
}
