package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// home says where an object's inode stands.
type home byte

const (
	inDentry home = iota
	inRecord      // de-inlined (PROTOCOLS A9)
	inOrphan
	inHeader // a directory
)

// object is an inode or a directory that an operation works on.
type object struct {
	home    home
	inode   *schema.Inode // nil for a directory
	dir     *directory    // of a directory
	entry   entry         // by which it was reached, if by one; of inDentry: where it stands
	sinceNS int64         // inOrphan
	size    uint64        // as counted in the subtree's counters
	charged uint64        // as counted in quotas
	moved   bool          // it is not where it was addressed
}

func (o *object) isDir() bool { return o.home == inHeader }

func (o *object) ino() base.Ino {
	if o.isDir() {
		return o.dir.Ino
	}
	return o.inode.Ino
}

// owner returns mode, user and group.
func (o *object) owner() (mode, uid, gid uint32) {
	if o.isDir() {
		return o.dir.Mode, o.dir.UID, o.dir.GID
	}
	return o.inode.Mode, o.inode.UID, o.inode.GID
}

// times returns the times that setattr sets, and ctime.
func (o *object) times() (atime, mtime *int64, ctime int64) {
	if o.isDir() {
		return &o.dir.AtimeNS, &o.dir.MtimeNS, o.dir.CtimeNS
	}
	return &o.inode.AtimeNS, &o.inode.MtimeNS, o.inode.CtimeNS
}

// xattrNames returns the object's count of xattr name bytes.
func (o *object) xattrNames() *uint32 {
	if o.isDir() {
		return &o.dir.XattrNames
	}
	return &o.inode.XattrNames
}

// file returns the inode if it is a regular file's, else IsDir or Invalid.
func (o *object) file() (*schema.Inode, error) {
	if o.isDir() {
		return nil, fserr.IsDir
	}
	if !o.inode.IsFile() {
		return nil, fserr.Invalid
	}
	return o.inode, nil
}

// key returns the key that the object's inode or header stands under.
func (v *view) key(o *object) []byte {
	switch o.home {
	case inRecord:
		return schema.InodeKey(v.id, v.subtree, o.inode.Ino)
	case inOrphan:
		return schema.OrphanKey(v.id, v.subtree, o.inode.Ino)
	case inHeader:
		return schema.HeaderKey(v.id, o.dir.subtree, o.dir.Ino)
	}
	return schema.DentryKey(v.id, v.subtree, o.entry.dir, o.entry.at)
}

// place returns where the object is.
func (o *object) place() *canopyv1.Place {
	if o.home == inDentry {
		return o.entry.place()
	}
	return &canopyv1.Place{Ino: uint64(o.ino())}
}

// resolve finds the inode that p addresses: under its name, else de-inlined, as
// an orphan, or where its relocation says (PROTOCOLS H1). A number that is gone is
// Stale; a name that is gone, addressed without a number, is NotFound.
func (v *view) resolve(p *canopyv1.Place) (*object, error) {
	if p == nil || p.Ino == 0 && len(p.Name) == 0 {
		return nil, fserr.Malformed
	}
	if p.Dir == 0 || len(p.Name) == 0 {
		return v.byNumber(base.Ino(p.Ino), true)
	}
	e, err := v.entryAt(base.Ino(p.Dir), p.Name)
	if err != nil && (p.Ino == 0 || err != fserr.Stale && !isElsewhere(err)) {
		return nil, err
	}
	if e.Dentry != nil && (p.Ino == 0 || uint64(e.Ino) == p.Ino) {
		return addressed(v.objectOf(e))
	}
	if p.Ino == 0 {
		return nil, fserr.NotFound
	}
	// What has a place of its own stays in the subtree when a directory is carved
	// out: it is looked for before the client is sent after the directory.
	o, byNumber := v.byNumber(base.Ino(p.Ino), false)
	switch {
	case byNumber == nil:
		o.moved = true
	case byNumber == fserr.Stale && err != nil:
		return nil, err
	}
	return o, byNumber
}

// addressed returns what a place leads to; what lies in another subtree is there
// under its number.
func addressed(o *object, err error) (*object, error) {
	if e, ok := err.(*elsewhere); ok && e.place == nil {
		err = e.at(&canopyv1.Place{Ino: uint64(e.ino)})
	}
	return o, err
}

// entryAt looks for a name in dir without reading the header when the first
// position answers, unless names are stored that do not count.
func (v *view) entryAt(dir base.Ino, name []byte) (entry, error) {
	if err := v.carvedOut(dir); err != nil {
		return entry{}, err
	}
	var s slot
	if !v.hides {
		var err error
		if s, err = v.probe(v.r.Get, dir, name); err != nil || s.found() {
			return s.entry, err
		}
	}
	d, err := v.directory(dir)
	if err == nil {
		err = v.owns(d, name)
	}
	if err != nil {
		return entry{}, named(err, name)
	}
	switch {
	case v.hides:
		s, err = v.find(d, name)
	case d.Displaced > 0:
		s, err = v.findDisplaced(d, name, s)
	}
	return s.entry, err
}

// byNumber finds an inode by its number alone.
func (v *view) byNumber(ino base.Ino, directoryFirst bool) (*object, error) {
	if directoryFirst {
		if o, err := v.directoryObject(ino); err != fserr.Stale {
			return o, err
		}
	}
	if o, err := v.record(ino); err != fserr.Stale {
		return o, err
	}
	if o, err := v.orphan(ino); err != fserr.Stale {
		return o, err
	}
	if o, err := v.relocated(ino); err != fserr.Stale || directoryFirst {
		return o, err
	}
	return v.directoryObject(ino)
}

func (v *view) directoryObject(ino base.Ino) (*object, error) {
	d, err := v.directory(ino)
	if err != nil {
		return nil, err
	}
	return &object{home: inHeader, dir: d}, nil
}

func (v *view) record(ino base.Ino) (*object, error) {
	if err := v.homeLocked(ino); err != nil {
		return nil, err
	}
	b, found, err := v.r.Get(schema.InodeKey(v.id, v.subtree, ino))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.Stale
	}
	n, err := schema.DecodeInode(b)
	if err != nil {
		return nil, err
	}
	return &object{home: inRecord, inode: n, size: n.SizeBytes, charged: chargedBytes(n)}, nil
}

// orphan finds an unlinked file. (A removed directory is found by its header.)
func (v *view) orphan(ino base.Ino) (*object, error) {
	if err := v.homeLocked(ino); err != nil {
		return nil, err
	}
	b, found, err := v.r.Get(schema.OrphanKey(v.id, v.subtree, ino))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.Stale
	}
	o, err := schema.DecodeOrphan(b)
	if err != nil {
		return nil, err
	}
	if o.Inode == nil {
		return nil, fserr.Stale
	}
	return &object{home: inOrphan, inode: o.Inode, sinceNS: o.SinceNS}, nil
}

// relocated follows a relocation. Within a subtree the newest rename overwrites
// the relocation of the one before, so there is one step.
func (v *view) relocated(ino base.Ino) (*object, error) {
	b, found, err := v.r.Get(schema.RelocationKey(v.id, v.subtree, ino))
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fserr.Stale
	}
	to, err := schema.DecodeRelocation(b)
	if err != nil {
		return nil, err
	}
	if to.Dir == 0 && to.Subtree == v.subtree {
		return nil, fserr.Stale
	}
	place := &canopyv1.Place{Ino: uint64(ino), Dir: uint64(to.Dir), Name: to.Name}
	if to.Subtree != v.subtree {
		return nil, (&elsewhere{subtree: to.Subtree, ino: ino}).at(place)
	}
	e, err := v.entryAt(to.Dir, to.Name)
	if carved, ok := err.(*elsewhere); ok {
		return nil, carved.at(place)
	}
	if err != nil {
		return nil, err
	}
	if e.Dentry == nil || e.Ino != ino {
		return nil, fserr.Stale
	}
	return addressed(v.objectOf(e))
}

// objectOf returns what an entry names.
func (v *view) objectOf(e entry) (*object, error) {
	switch e.Kind {
	case schema.Directory:
		d, err := v.directoryIn(e.Subtree, e.Ino)
		if err != nil {
			return nil, err
		}
		return &object{home: inHeader, dir: d, entry: e}, nil
	case schema.Link:
		if e.Subtree != v.subtree {
			return nil, &elsewhere{subtree: e.Subtree, ino: e.Ino}
		}
		o, err := v.record(e.Ino)
		if err != nil {
			return nil, err
		}
		o.entry = e
		return o, nil
	}
	return &object{home: inDentry, inode: e.Inode, entry: e, size: e.Inode.SizeBytes, charged: chargedBytes(e.Inode)}, nil
}

// attr returns what stat shows of o.
func (v *view) attr(o *object) *canopyv1.Attr {
	if o.isDir() {
		return v.dirAttr(o.dir)
	}
	return v.inodeAttr(o.inode)
}

func (v *view) inodeAttr(n *schema.Inode) *canopyv1.Attr {
	a := &canopyv1.Attr{
		Ino: uint64(n.Ino), Mode: n.Mode, Nlink: n.Nlink, Uid: n.UID, Gid: n.GID, Rdev: n.Rdev, Size: n.SizeBytes,
		AtimeNs: n.AtimeNS, MtimeNs: n.MtimeNS, CtimeNs: n.CtimeNS, BtimeNs: n.BtimeNS, Version: n.Version,
		Subtree: uint64(v.subtree), Epoch: uint64(v.epoch), Acls: aclKinds(n.ACL, nil),
	}
	if n.IsFile() {
		a.Blocks = (n.AllocatedBytes + 511) / 512
		a.DataVersion, a.SizeEpoch, a.DataId = n.DataVersion, n.SizeEpoch, uint64(n.DataID)
		a.Layout = v.layoutProto(n.Layout)
		a.Quotas = v.quotas
		for _, c := range n.Cuts {
			a.Cuts = append(a.Cuts, &canopyv1.Cut{SizeEpoch: c.SizeEpoch, Size: c.SizeBytes})
		}
	}
	return a
}

// dirBlocks is what stat shows of a directory in 512-byte units.
const dirBlocks = 8

// dirAttr returns what stat shows of a directory; of a split one what this fragment
// adds to that.
func (v *view) dirAttr(d *directory) *canopyv1.Attr {
	a := &canopyv1.Attr{
		Ino: uint64(d.Ino), Mode: d.Mode, Nlink: d.Nlink(), Uid: d.UID, Gid: d.GID, Size: d.Entries, Blocks: dirBlocks,
		AtimeNs: d.AtimeNS, MtimeNs: d.MtimeNS, CtimeNs: d.CtimeNS, BtimeNs: d.BtimeNS, Version: d.Version,
		Subtree: uint64(d.Fragments.Home()), Epoch: uint64(d.epoch), Acls: aclKinds(d.ACL, d.DefaultACL),
	}
	if d.split() {
		a.Fragments = d.Fragments.Proto()
		if !d.isHome() {
			a.Epoch = 0 // of home, which this one does not know
		}
	}
	return a
}
