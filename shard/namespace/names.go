package namespace

import (
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// position is where a name that appears goes.
type position struct {
	at    base.Cookie
	probe uint32
}

// position finds where an absent name goes.
func (b *batch) position(s slot, dir base.Ino) (position, error) {
	if err := b.closing(dir); err != nil {
		return position{}, err
	}
	at, probe, err := b.freePosition(s, dir, maxProbe)
	return position{at, probe}, err
}

// displaced reports whether at is not the first position of a name.
func (v *view) displaced(name []byte, at base.Cookie) bool { return v.hash(name).Cookie(0) != at }

// appear adds the dentry e, whose name is absent, at p. It sets e.Appeared: the
// fragment's next version (PROTOCOLS F3).
func (b *batch) appear(d *directory, p position, e *schema.Dentry) (entry, error) {
	d.Appeared++
	e.Appeared = d.Appeared
	d.Entries++
	if e.Kind == schema.Directory {
		d.Subdirs++
	}
	if b.displaced(e.Name, p.at) {
		d.Displaced++
		d.MaxProbe = max(d.MaxProbe, p.probe)
	}
	b.namesChanged(d)
	return entry{e, d.Ino, p.at}, b.set(schema.DentryKey(b.id, b.subtree, d.Ino, p.at), e)
}

// vanish removes a name. What it named is the caller's affair.
func (b *batch) vanish(d *directory, e entry) error {
	d.Entries--
	if e.Kind == schema.Directory {
		d.Subdirs--
	}
	if b.displaced(e.Name, e.at) {
		if d.Displaced--; d.Displaced == 0 {
			d.MaxProbe = 0
		}
	}
	b.namesChanged(d)
	return b.w.Delete(schema.DentryKey(b.id, b.subtree, d.Ino, e.at))
}

// replace puts e under the name of old, which stays where it is and as old as it
// is: it existed throughout, so that no listing may miss it (PROTOCOLS F3).
func (b *batch) replace(d *directory, old entry, e *schema.Dentry) (entry, error) {
	e.Appeared = old.Appeared
	if old.Kind == schema.Directory {
		d.Subdirs--
	}
	if e.Kind == schema.Directory {
		d.Subdirs++
	}
	b.namesChanged(d)
	return entry{e, d.Ino, old.at}, b.set(schema.DentryKey(b.id, b.subtree, d.Ino, old.at), e)
}

// namesChanged moves a directory's times as a change of its names does.
func (b *batch) namesChanged(d *directory) {
	d.MtimeNS, d.CtimeNS = b.nowNS, b.nowNS
	d.Version++
	b.touch(d)
}

// loseName takes one link off what had a name and lost it: the inode becomes an
// orphan with its last name (PROTOCOLS H2). The dentry is the caller's affair.
func (b *batch) loseName(o *object) error {
	if o.isDir() {
		return b.removeDirectory(o.dir)
	}
	n := o.inode
	n.Nlink--
	n.CtimeNS = b.nowNS
	n.Version++
	if o.home == inRecord {
		if err := b.changeNames(n.Ino, o.entry.dir, 0); err != nil {
			return err
		}
	}
	if n.Nlink > 0 {
		return b.save(o)
	}
	parts, err := b.takeParts(o)
	if err != nil {
		return err
	}
	c := b.counters()
	c.Files--
	if n.IsFile() {
		c.Bytes -= o.size
	}
	if o.home == inRecord {
		if err := b.w.Delete(b.key(o)); err != nil {
			return err
		}
	}
	o.home, o.sinceNS = inOrphan, b.nowNS
	if err := b.save(o); err != nil {
		return err
	}
	if err := b.putParts(o, parts); err != nil {
		return err
	}
	return b.locateObject(o)
}

// removeDirectory makes an empty directory an orphan. Its header stays, so that
// who is in it can still ask, but takes no names.
func (b *batch) removeDirectory(d *directory) error {
	if d.Entries != 0 {
		return errTwice
	}
	d.Removed = true
	d.CtimeNS = b.nowNS
	d.Version++
	b.touch(d)
	b.counters().Directories--
	if err := b.dropQuota(d.Ino); err != nil {
		return err
	}
	if err := b.memberRemoved(d.Ino); err != nil {
		return err
	}
	return b.set(schema.OrphanKey(b.id, b.subtree, d.Ino), &schema.Orphan{SinceNS: b.nowNS})
}

// searchable reads a directory that an operation names something in: search
// permission is needed, as for the kernel's own lookup.
func (v *view) searchable(who identity, dir base.Ino) (*directory, error) {
	d, err := v.directory(dir)
	if err != nil {
		return nil, err
	}
	return d, who.accessDir(d, mayExec)
}

// named looks up a name in d. In Linux's order: permission, that d is not removed,
// the name, whether it is there.
func (v *view) named(d *directory, name []byte) (slot, error) {
	return v.namedBy(v.find, d, name)
}

// namedNew is named for a name that is most likely absent.
func (v *view) namedNew(d *directory, name []byte) (slot, error) {
	return v.namedBy(v.findNew, d, name)
}

func (v *view) namedBy(find func(*directory, []byte) (slot, error), d *directory, name []byte) (slot, error) {
	if err := checkName(name); err != nil {
		if d.Removed {
			return slot{}, fserr.NotFound
		}
		return slot{}, err
	}
	return find(d, name)
}

// nameInDirectory is searchable and named in one.
func (b *batch) nameInDirectory(who identity, dir base.Ino, name []byte) (*directory, slot, error) {
	d, err := b.searchable(who, dir)
	if err != nil {
		return nil, slot{}, err
	}
	s, err := b.named(d, name)
	return d, s, err
}

// newInDirectory is searchable and namedNew in one.
func (b *batch) newInDirectory(who identity, dir base.Ino, name []byte) (*directory, slot, error) {
	d, err := b.searchable(who, dir)
	if err != nil {
		return nil, slot{}, err
	}
	s, err := b.namedNew(d, name)
	return d, s, err
}

// newName is newInDirectory for an operation that makes a name: it must not
// exist, and who must be allowed to add it.
func (b *batch) newName(who identity, dir base.Ino, name []byte) (*directory, position, error) {
	if isDot(name) || isDotDot(name) {
		return nil, position{}, fserr.Exist
	}
	d, s, err := b.newInDirectory(who, dir, name)
	if err != nil {
		return nil, position{}, err
	}
	if s.found() {
		return nil, position{}, fserr.Exist
	}
	if err := who.mayAddName(d); err != nil {
		return nil, position{}, err
	}
	p, err := b.position(s, d.Ino)
	return d, p, err
}
