package schema

import (
	"github.com/canopyfs/canopy/internal/base"
)

// File type bits of a mode, as of Linux.
const (
	TypeMask   uint32 = 0o170000
	TypeFile   uint32 = 0o100000
	TypeDir    uint32 = 0o040000
	TypeLink   uint32 = 0o120000
	TypeChar   uint32 = 0o020000
	TypeBlock  uint32 = 0o060000
	TypeFIFO   uint32 = 0o010000
	TypeSocket uint32 = 0o140000
)

// MaxFileSize is the largest size of a file in bytes.
const MaxFileSize uint64 = 1<<63 - 1

// Inode is all that is known of a file, symlink or special file. It stands in
// its dentry (embedded), in a record of its own (de-inlined) or in an Orphan.
type Inode struct {
	Ino        base.Ino
	Mode       uint32 // with type
	Nlink      uint32
	UID, GID   uint32
	Rdev       uint64 // devices only
	SizeBytes  uint64 // visible size; of a symlink: length of the target
	AtimeNS    int64
	MtimeNS    int64
	CtimeNS    int64
	BtimeNS    int64
	Version    uint64 // grows with every change
	Target     []byte // symlinks only
	XattrNames uint32 // bytes of all xattr names, each with a NUL; 0: there are none
	ACL        ACL    // what the mode does not say; of no symlink
	File              // regular files only
}

// File is what only regular files have.
type File struct {
	DataID         base.DataID
	DataVersion    uint64
	SizeEpoch      uint64 // from 1 (PROTOCOLS J1)
	HighBytes      uint64 // largest size ever
	AllocatedBytes uint64
	HasData        bool // a client reported bytes
	Linkable       bool // made without a name, and may be given one (O_TMPFILE)
	Locked         bool // somebody has locks in it
	Cuts           []Cut
	Reservations   []Reservation
	Layout         Layout
}

// Cut is a truncation that began a size epoch. A byte of an epoch is zero if it
// lies behind any cut of a later epoch; so of two cuts the older is needed only
// while it is the lower one, and a list is kept with sizes ascending.
type Cut struct {
	SizeEpoch uint64
	SizeBytes uint64
}

// Reservation is a range at the end of a file that one client appends to
// (PROTOCOLS J2). A list is kept with offsets ascending, each at the end of the
// one before.
type Reservation struct {
	Offset uint64
	Length uint64
	Client base.ClientID
	Filled bool
}

// IsFile reports whether the inode is a regular file.
func (n *Inode) IsFile() bool { return n.Mode&TypeMask == TypeFile }

const (
	inodeHasData = 1 << iota
	inodeLinkable
	inodeOwnDataID // the data id is not the inode number
	inodeHasCuts
	inodeHasReservations
	inodeHasXattrs
	inodeHasACL
	inodeLocked
)

// Append appends the inode's encoding to dst.
func (n *Inode) Append(dst []byte) []byte { return n.append(append(dst, valueVersion)) }

func (n *Inode) flags() byte {
	var f byte
	set := func(on bool, bit byte) {
		if on {
			f |= bit
		}
	}
	set(n.HasData, inodeHasData)
	set(n.Linkable, inodeLinkable)
	set(uint64(n.DataID) != uint64(n.Ino), inodeOwnDataID)
	set(len(n.Cuts) > 0, inodeHasCuts)
	set(len(n.Reservations) > 0, inodeHasReservations)
	set(n.XattrNames > 0, inodeHasXattrs)
	set(len(n.ACL) > 0, inodeHasACL)
	set(n.Locked, inodeLocked)
	return f
}

func (n *Inode) append(dst []byte) []byte {
	f := n.flags()
	dst = append(dst, f)
	for _, v := range [...]uint64{
		uint64(n.Ino), uint64(n.Mode), uint64(n.Nlink), uint64(n.UID), uint64(n.GID), n.SizeBytes, n.Version,
	} {
		dst = putU64(dst, v)
	}
	dst = putI64(dst, n.BtimeNS)
	for _, t := range [...]int64{n.AtimeNS, n.MtimeNS, n.CtimeNS} {
		dst = putI64(dst, t-n.BtimeNS)
	}
	if f&inodeHasXattrs != 0 {
		dst = putU64(dst, uint64(n.XattrNames))
	}
	if f&inodeHasACL != 0 {
		dst = n.ACL.append(dst)
	}
	switch n.Mode & TypeMask {
	case TypeLink:
		return putBytes(dst, n.Target)
	case TypeChar, TypeBlock:
		return putU64(dst, n.Rdev)
	case TypeFile:
		return n.appendFile(dst, f)
	}
	return dst
}

func (n *Inode) appendFile(dst []byte, f byte) []byte {
	for _, v := range [...]uint64{n.DataVersion, n.SizeEpoch, n.HighBytes, n.AllocatedBytes} {
		dst = putU64(dst, v)
	}
	dst = n.Layout.append(dst)
	if f&inodeOwnDataID != 0 {
		dst = putU64(dst, uint64(n.DataID))
	}
	if f&inodeHasCuts != 0 {
		dst = putU64(dst, uint64(len(n.Cuts)))
		for _, c := range n.Cuts {
			dst = putU64(putU64(dst, c.SizeEpoch), c.SizeBytes)
		}
	}
	if f&inodeHasReservations != 0 {
		dst = putU64(dst, uint64(len(n.Reservations)))
		for _, r := range n.Reservations {
			dst = putU64(putU64(putU64(dst, r.Offset), r.Length), uint64(r.Client))
			dst = append(dst, boolByte(r.Filled))
		}
	}
	return dst
}

// DecodeInode reads what Inode.Append wrote.
func DecodeInode(b []byte) (*Inode, error) {
	d := decode(b)
	n := new(Inode)
	d.inode(n)
	return n, d.done("de-inlined inode")
}

func (d *decoder) inode(n *Inode) {
	f := d.byte()
	n.Ino, n.Mode, n.Nlink = base.Ino(d.u64()), d.u32(), d.u32()
	n.UID, n.GID = d.u32(), d.u32()
	n.SizeBytes, n.Version = d.u64(), d.u64()
	n.BtimeNS = d.i64()
	n.AtimeNS = n.BtimeNS + d.i64()
	n.MtimeNS = n.BtimeNS + d.i64()
	n.CtimeNS = n.BtimeNS + d.i64()
	if f&inodeHasXattrs != 0 {
		n.XattrNames = d.u32()
	}
	if f&inodeHasACL != 0 {
		n.ACL = d.acl()
	}
	switch n.Mode & TypeMask {
	case TypeLink:
		n.Target = d.bytes()
	case TypeChar, TypeBlock:
		n.Rdev = d.u64()
	case TypeFile:
		d.file(n, f)
	}
}

func (d *decoder) file(n *Inode, f byte) {
	n.HasData, n.Linkable, n.Locked = f&inodeHasData != 0, f&inodeLinkable != 0, f&inodeLocked != 0
	n.DataVersion, n.SizeEpoch, n.HighBytes, n.AllocatedBytes = d.u64(), d.u64(), d.u64(), d.u64()
	n.Layout = d.layout()
	n.DataID = base.DataID(n.Ino)
	if f&inodeOwnDataID != 0 {
		n.DataID = base.DataID(d.u64())
	}
	if f&inodeHasCuts != 0 {
		n.Cuts = make([]Cut, d.count())
		for i := range n.Cuts {
			n.Cuts[i] = Cut{d.u64(), d.u64()}
		}
	}
	if f&inodeHasReservations != 0 {
		n.Reservations = make([]Reservation, d.count())
		for i := range n.Reservations {
			n.Reservations[i] = Reservation{d.u64(), d.u64(), base.ClientID(d.u64()), d.byte() != 0}
		}
	}
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
