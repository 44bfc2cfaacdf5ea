package schema

import (
	"fmt"
	"strings"
)

// ACLTag says whom an entry of an ACL is about. The values are Linux's.
type ACLTag uint16

// The tags, in the order in which a list has them.
const (
	ACLUserObj  ACLTag = 0x01 // the owner
	ACLUser     ACLTag = 0x02 // a named user
	ACLGroupObj ACLTag = 0x04 // the group
	ACLGroup    ACLTag = 0x08 // a named group
	ACLMask     ACLTag = 0x10 // bounds named users, the group and named groups
	ACLOther    ACLTag = 0x20
)

// Named reports whether entries of the tag have an id.
func (t ACLTag) Named() bool { return t == ACLUser || t == ACLGroup }

// ACLEntry gives permissions (4 read, 2 write, 1 execute) to one of them.
type ACLEntry struct {
	Tag  ACLTag
	Perm uint8
	ID   uint32 // named ones only
}

// ACL is a POSIX access control list: entries by tag. The entries of owner, mask
// (or the group, without a mask) and others are those of the mode, too. nil: none.
// A list is never changed in place: inodes may share it.
type ACL []ACLEntry

// aclTags is by the number that is stored for a tag. Append only.
var aclTags = [...]ACLTag{ACLUserObj, ACLUser, ACLGroupObj, ACLGroup, ACLMask, ACLOther}

func (a ACL) append(dst []byte) []byte {
	dst = putU64(dst, uint64(len(a)))
	for _, e := range a {
		for i, t := range aclTags {
			if t == e.Tag {
				dst = append(dst, byte(i)<<3|e.Perm)
			}
		}
		if e.Tag.Named() {
			dst = putU64(dst, uint64(e.ID))
		}
	}
	return dst
}

// acl reads what ACL.append wrote, which is never an empty list.
func (d *decoder) acl() ACL {
	n := d.count()
	if n == 0 {
		d.fail()
		return nil
	}
	a := make(ACL, n)
	for i := range a {
		v := d.byte()
		if int(v>>3) >= len(aclTags) {
			d.fail()
			return nil
		}
		a[i] = ACLEntry{Tag: aclTags[v>>3], Perm: v & 7}
		if a[i].Tag.Named() {
			a[i].ID = d.u32()
		}
	}
	return a
}

// String returns the list as setfacl takes it, e.g. "u::rw-,u:5:r--,g::r--,m::r--,o::---".
func (a ACL) String() string {
	var b strings.Builder
	for i, e := range a {
		if i > 0 {
			b.WriteByte(',')
		}
		name := map[ACLTag]string{ACLUserObj: "u:", ACLUser: "u:", ACLGroupObj: "g:", ACLGroup: "g:", ACLMask: "m:", ACLOther: "o:"}[e.Tag]
		b.WriteString(name)
		if e.Tag.Named() {
			fmt.Fprintf(&b, "%d", e.ID)
		}
		b.WriteByte(':')
		for j, c := range "rwx" {
			if e.Perm&(4>>j) == 0 {
				c = '-'
			}
			b.WriteRune(c)
		}
	}
	return b.String()
}
