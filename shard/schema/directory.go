package schema

import (
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// Header is one directory's attributes, parent pointer, fragment map and layout
// policy, and the counts of the fragment that it stands with.
type Header struct {
	Ino           base.Ino
	Mode          uint32 // with type
	UID, GID      uint32
	AtimeNS       int64
	MtimeNS       int64
	CtimeNS       int64
	BtimeNS       int64
	Version       uint64         // grows with every change of the directory or its names
	Parent        base.Ino       // of "/": itself
	ParentSubtree base.SubtreeID // where the parent's dentry for this directory lies
	Name          []byte         // in the parent
	Fragments     shard.FragmentMap
	Entries       uint64 // names
	Subdirs       uint64 // names of directories: nlink is 2 more
	Appeared      uint64 // fragment version: grows with each name that appears, from 1 (PROTOCOLS F3)
	Displaced     uint64 // names whose collision value is not 0 or that probed another hash
	MaxProbe      uint32 // largest distance that a displaced name probed
	Removed       bool   // rmdir'd, an orphan: takes no names
	XattrNames    uint32 // bytes of all xattr names, each with a NUL; 0: there are none
	Layout        Layout // of files created here
	ACL           ACL    // what the mode does not say
	DefaultACL    ACL    // what is made in the directory gets
	Seen          Seen
}

// Seen is what the layout policy auto has seen of a directory's files.
type Seen struct {
	Level uint32 // what was chosen by it; 0: nothing yet
	Files uint64 // since then; older ones count less
	Bytes uint64
}

// Nlink returns the link count that stat shows: 0 for a removed directory.
func (h *Header) Nlink() uint32 {
	if h.Removed {
		return 0
	}
	return uint32(min(h.Subdirs+2, 1<<32-1))
}

const (
	headerRemoved = 1 << iota
	headerHasACL
	headerHasDefaultACL
	_ // of other records
	headerHasSeen
)

func (h *Header) flags() byte {
	var f byte
	if h.Removed {
		f |= headerRemoved
	}
	if len(h.ACL) > 0 {
		f |= headerHasACL
	}
	if len(h.DefaultACL) > 0 {
		f |= headerHasDefaultACL
	}
	if h.Seen != (Seen{}) {
		f |= headerHasSeen
	}
	return f
}

// Append appends the header's encoding to dst.
func (h *Header) Append(dst []byte) []byte {
	dst = append(dst, valueVersion, h.flags())
	for _, v := range [...]uint64{
		uint64(h.Ino), uint64(h.Mode), uint64(h.UID), uint64(h.GID), h.Version, uint64(h.Parent),
		uint64(h.ParentSubtree), h.Entries, h.Subdirs, h.Appeared, h.Displaced, uint64(h.MaxProbe), uint64(h.XattrNames),
	} {
		dst = putU64(dst, v)
	}
	dst = putI64(dst, h.BtimeNS)
	for _, t := range [...]int64{h.AtimeNS, h.MtimeNS, h.CtimeNS} {
		dst = putI64(dst, t-h.BtimeNS)
	}
	dst = putBytes(dst, h.Name)
	dst = putU64(dst, uint64(len(h.Fragments)))
	for _, f := range h.Fragments {
		dst = putU64(putU64(dst, uint64(f.Lo)), uint64(f.Subtree))
	}
	dst = h.Layout.append(dst)
	if len(h.ACL) > 0 {
		dst = h.ACL.append(dst)
	}
	if len(h.DefaultACL) > 0 {
		dst = h.DefaultACL.append(dst)
	}
	if h.Seen != (Seen{}) {
		dst = putU64(putU64(putU64(dst, uint64(h.Seen.Level)), h.Seen.Files), h.Seen.Bytes)
	}
	return dst
}

// DecodeHeader reads what Header.Append wrote.
func DecodeHeader(b []byte) (*Header, error) {
	d := decode(b)
	flags := d.byte()
	h := &Header{Removed: flags&headerRemoved != 0}
	h.Ino, h.Mode, h.UID, h.GID = base.Ino(d.u64()), d.u32(), d.u32(), d.u32()
	h.Version, h.Parent, h.ParentSubtree = d.u64(), base.Ino(d.u64()), base.SubtreeID(d.u64())
	h.Entries, h.Subdirs, h.Appeared = d.u64(), d.u64(), d.u64()
	h.Displaced, h.MaxProbe, h.XattrNames = d.u64(), d.u32(), d.u32()
	h.BtimeNS = d.i64()
	h.AtimeNS = h.BtimeNS + d.i64()
	h.MtimeNS = h.BtimeNS + d.i64()
	h.CtimeNS = h.BtimeNS + d.i64()
	h.Name = d.bytes()
	if n := d.count(); n > 0 {
		h.Fragments = make(shard.FragmentMap, n)
		for i := range h.Fragments {
			h.Fragments[i] = shard.Fragment{Lo: d.u32(), Subtree: base.SubtreeID(d.u64())}
		}
	}
	h.Layout = d.layout()
	if flags&headerHasACL != 0 {
		h.ACL = d.acl()
	}
	if flags&headerHasDefaultACL != 0 {
		h.DefaultACL = d.acl()
	}
	if flags&headerHasSeen != 0 {
		h.Seen = Seen{d.u32(), d.u64(), d.u64()}
	}
	if !d.bad && h.Fragments.Check() != nil {
		d.fail()
	}
	return h, d.done("directory header")
}

// DentryKind says where a name's inode is.
type DentryKind byte

// The kinds of dentries. Append only.
const (
	Embedded  DentryKind = 1 // in the dentry
	Directory DentryKind = 2 // a header, in Subtree
	Link      DentryKind = 3 // a record, in the home subtree Subtree (PROTOCOLS A9)
)

// Dentry is one name of a directory.
type Dentry struct {
	Kind     DentryKind
	Name     []byte
	Appeared uint64 // the fragment's version at which the name appeared (PROTOCOLS F3)
	Ino      base.Ino
	Type     uint32 // S_IFMT bits of the inode's mode
	Subtree  base.SubtreeID
	Inode    *Inode // Embedded only
}

// Append appends the dentry's encoding to dst.
func (e *Dentry) Append(dst []byte) []byte {
	dst = append(dst, valueVersion, byte(e.Kind))
	dst = putBytes(dst, e.Name)
	dst = putU64(dst, e.Appeared)
	if e.Kind == Embedded {
		return e.Inode.append(dst)
	}
	return putU64(putU64(putU64(dst, uint64(e.Ino)), uint64(e.Type)), uint64(e.Subtree))
}

// DecodeDentry reads what Dentry.Append wrote.
func DecodeDentry(b []byte) (*Dentry, error) {
	d := decode(b)
	e := &Dentry{Kind: DentryKind(d.byte()), Name: d.bytes(), Appeared: d.u64()}
	switch e.Kind {
	case Embedded:
		e.Inode = new(Inode)
		d.inode(e.Inode)
		e.Ino, e.Type = e.Inode.Ino, e.Inode.Mode&TypeMask
	case Directory, Link:
		e.Ino, e.Type, e.Subtree = base.Ino(d.u64()), d.u32(), base.SubtreeID(d.u64())
	default:
		d.fail()
	}
	return e, d.done("dentry")
}

// DentryKindOf returns the kind of the encoded dentry b, 0 if it is damaged.
func DentryKindOf(b []byte) DentryKind {
	if len(b) < 2 || b[0] != valueVersion {
		return 0
	}
	return DentryKind(b[1])
}

// DentryNameIs reports whether the encoded dentry b has the name, without
// decoding the rest.
func DentryNameIs(b, name []byte) bool {
	if len(b) < 3 || b[0] != valueVersion {
		return false
	}
	d := decoder{b: b[2:]}
	n := d.count()
	return !d.bad && string(d.b[:n]) == string(name)
}

// DentryName returns the name in the encoded dentry b, without decoding the rest;
// nil if it is damaged. It shares b's memory.
func DentryName(b []byte) []byte {
	if len(b) < 3 || b[0] != valueVersion {
		return nil
	}
	d := decoder{b: b[2:]}
	n := d.count()
	if d.bad {
		return nil
	}
	return d.b[:n]
}
