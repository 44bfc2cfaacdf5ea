//go:build linux

package namespace

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/shard/schema"
)

// drawAccess asks for permission.
func (p *pair) drawAccess() *action {
	o, mask := p.objs[p.rnd.IntN(len(p.objs))], uint32(1+p.rnd.IntN(7))
	if o.kind == schema.TypeLink {
		return nil
	}
	return &action{fmt.Sprintf("access %d for %d", o.place.Ino, mask),
		&canopyv1.Op{Call: &canopyv1.Op_Access{Access: &canopyv1.AccessCall{Place: o.place, Mask: mask}}},
		func() error { return unix.Faccessat(unix.AT_FDCWD, proc(o), mask, unix.AT_EACCESS) }, nil}
}

// drawACL draws a list: whole or not, with a mask or without.
func (p *pair) drawACL() schema.ACL {
	perm := func() uint8 { return uint8(p.rnd.IntN(8)) }
	a := schema.ACL{{Tag: schema.ACLUserObj, Perm: perm()}, {Tag: schema.ACLGroupObj, Perm: perm()}, {Tag: schema.ACLOther, Perm: perm()}}
	named := false
	for range p.rnd.IntN(3) {
		named = true
		e := schema.ACLEntry{Tag: schema.ACLUser, Perm: perm(), ID: pick(p, uint32(5), 6, 7)}
		at := 1
		if p.rnd.IntN(2) == 0 {
			e.Tag, e.ID = schema.ACLGroup, pick(p, uint32(5), 50, 60)
			at = len(a) - 1
		}
		a = slices.Insert(a, at, e)
	}
	if named || p.rnd.IntN(3) == 0 {
		a = slices.Insert(a, len(a)-1, schema.ACLEntry{Tag: schema.ACLMask, Perm: perm()})
	}
	if p.rnd.IntN(12) == 0 { // something is missing, or out of order
		i := p.rnd.IntN(len(a))
		a = append(slices.Delete(slices.Clone(a), i, i+1), a[p.rnd.IntN(len(a))])
	}
	return a
}

// drawSetACL sets or removes an ACL.
func (p *pair) drawSetACL() *action {
	o, name := p.objs[p.rnd.IntN(len(p.objs))], pick(p, accessACLXattr, defaultACLXattr)
	if o.kind == schema.TypeLink {
		return nil
	}
	if p.rnd.IntN(6) == 0 {
		return p.removeXattrAction(o, name)
	}
	value := formatACL(p.drawACL())
	switch p.rnd.IntN(30) {
	case 0:
		value[0] = 3 // another version
	case 1:
		value = value[:len(value)-1]
	case 2:
		value = value[:4] // no entries
	case 3:
		value[4] = 3 // no such tag
	case 4:
		value[6] = 9 // no such permission
	}
	return p.setXattrAction(o, name, value, 0)
}

// drawXattr sets, removes, reads or lists xattrs, allowed ones and others.
func (p *pair) drawXattr() *action {
	o := p.objs[p.rnd.IntN(len(p.objs))]
	if o.kind == schema.TypeLink {
		return nil
	}
	name := pick(p, "user.a", "user.b", "trusted.a", "security.a", "user.", "trusted.", "security.", "system.a", "other.a", "a",
		"user."+strings.Repeat("n", MaxXattrNameBytes-5), "user."+strings.Repeat("n", MaxXattrNameBytes-4), "user.\xff\n", accessACLXattr, defaultACLXattr)
	what := func(op string) string {
		return fmt.Sprintf("%s %q of %d (made as %q)", op, name, o.place.Ino, o.place.Name)
	}
	switch p.rnd.IntN(5) {
	case 0:
		return p.removeXattrAction(o, name)
	case 1:
		return &action{what("getxattr"), &canopyv1.Op{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: o.place, Name: []byte(name)}}},
			func() error { _, err := unix.Getxattr(proc(o), name, nil); return err }, nil}
	}
	value := bytes.Repeat([]byte{'v'}, pick(p, 0, 1, 2, 100, MaxXattrValueBytes+1))
	if isACLXattr([]byte(name)) {
		return nil
	}
	return p.setXattrAction(o, name, value, uint32(p.rnd.IntN(5)))
}

func (p *pair) setXattrAction(o *twin, name string, value []byte, flags uint32) *action {
	c := &canopyv1.SetXattrCall{Place: o.place, Name: []byte(name), Value: value, Flags: flags}
	return &action{fmt.Sprintf("setxattr %q of %d (made as %q), flags %d, value %.60x", name, o.place.Ino, o.place.Name, flags, value),
		&canopyv1.Op{Call: &canopyv1.Op_SetXattr{SetXattr: c}},
		func() error { return unix.Setxattr(proc(o), name, value, int(flags)) }, nil}
}

func (p *pair) removeXattrAction(o *twin, name string) *action {
	return &action{fmt.Sprintf("removexattr %q of %d (made as %q)", name, o.place.Ino, o.place.Name),
		&canopyv1.Op{Call: &canopyv1.Op_RemoveXattr{RemoveXattr: &canopyv1.RemoveXattrCall{Place: o.place, Name: []byte(name)}}},
		func() error { return unix.Removexattr(proc(o), name) }, nil}
}

// compareXattrs compares all xattrs as root sees them, ACLs among them.
func (p *pair) compareXattrs(what string, o *twin, a *canopyv1.Attr) {
	if o.kind == schema.TypeLink {
		return
	}
	query := func(op *canopyv1.Op) *canopyv1.Result {
		op.Subtree, op.Cred = 1, &canopyv1.Credential{}
		return p.m.Query(p.kv, op)
	}
	here := strings.Split(string(query(&canopyv1.Op{Call: &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: o.place}}}).Data), "\x00")
	buf := make([]byte, MaxXattrListBytes)
	n, err := unix.Listxattr(proc(o), buf)
	there := strings.Split(string(buf[:max(n, 0)]), "\x00")
	slices.Sort(here)
	slices.Sort(there)
	if err != nil || !slices.Equal(here, there) {
		p.t.Errorf("%s: xattrs of inode %d (made as %q) are %q, Linux has %q, %v", what, a.Ino, o.place.Name, here, there, err)
		return
	}
	var acls uint32
	for _, name := range here {
		if name == "" {
			continue
		}
		value := query(&canopyv1.Op{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: o.place, Name: []byte(name)}}}).Data
		n, err := unix.Getxattr(proc(o), name, buf)
		if err != nil || !bytes.Equal(value, buf[:max(n, 0)]) {
			p.t.Errorf("%s: %s of inode %d (made as %q) is %x, Linux has %x, %v", what, name, a.Ino, o.place.Name, value, buf[:max(n, 0)], err)
		}
		switch name {
		case accessACLXattr:
			acls |= 1
		case defaultACLXattr:
			acls |= 2
		}
	}
	if a.Acls != acls {
		p.t.Errorf("%s: inode %d (made as %q) tells of ACLs %d, it has %d", what, a.Ino, o.place.Name, a.Acls, acls)
	}
}
