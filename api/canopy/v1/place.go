// Package canopyv1 has the messages and services of the protocol, all generated but for
// what asks messages about themselves.
package canopyv1

// Place returns the place that an operation addresses, nil if it addresses a
// directory or nothing.
func (x *Op) Place() *Place {
	switch c := x.GetCall().(type) {
	case *Op_GetAttr:
		return c.GetAttr.GetPlace()
	case *Op_Readlink:
		return c.Readlink.GetPlace()
	case *Op_GetXattr:
		return c.GetXattr.GetPlace()
	case *Op_ListXattr:
		return c.ListXattr.GetPlace()
	case *Op_StatFs:
		return c.StatFs.GetPlace()
	case *Op_Access:
		return c.Access.GetPlace()
	case *Op_GetLock:
		return c.GetLock.GetPlace()
	case *Op_WaitLock:
		return c.WaitLock.GetPlace()
	case *Op_GetQuota:
		return c.GetQuota.GetPlace()
	case *Op_Link:
		return c.Link.GetPlace()
	case *Op_SetAttr:
		return c.SetAttr.GetPlace()
	case *Op_SetXattr:
		return c.SetXattr.GetPlace()
	case *Op_RemoveXattr:
		return c.RemoveXattr.GetPlace()
	case *Op_ReportSize:
		return c.ReportSize.GetPlace()
	case *Op_ReserveAppend:
		return c.ReserveAppend.GetPlace()
	case *Op_FillAppend:
		return c.FillAppend.GetPlace()
	case *Op_SetLock:
		return c.SetLock.GetPlace()
	case *Op_DropLocks:
		return c.DropLocks.GetPlace()
	}
	return nil
}

// Dir returns the directory that an operation addresses, by number or as that of a
// place: the first operand's (PROTOCOLS C4). 0: it addresses none.
func (x *Op) Dir() uint64 {
	switch c := x.GetCall().(type) {
	case *Op_Lookup:
		return c.Lookup.GetDir()
	case *Op_ReadDir:
		return c.ReadDir.GetDir()
	case *Op_MarkNames:
		return c.MarkNames.GetDir()
	case *Op_Parent:
		return c.Parent.GetDir()
	case *Op_GetPolicy:
		return c.GetPolicy.GetDir()
	case *Op_Create:
		return c.Create.GetDir()
	case *Op_Mkdir:
		return c.Mkdir.GetDir()
	case *Op_Mknod:
		return c.Mknod.GetDir()
	case *Op_Symlink:
		return c.Symlink.GetDir()
	case *Op_Unlink:
		return c.Unlink.GetDir()
	case *Op_Rmdir:
		return c.Rmdir.GetDir()
	case *Op_Rename:
		return c.Rename.GetSrcDir()
	case *Op_SetQuota:
		return c.SetQuota.GetDir()
	case *Op_SetPolicy:
		return c.SetPolicy.GetDir()
	}
	p := x.Place()
	if p.GetDir() != 0 && len(p.GetName()) > 0 {
		return p.Dir
	}
	return p.GetIno()
}

// Name returns the name that an operation addresses in Dir, nil if it addresses none.
func (x *Op) Name() []byte {
	switch c := x.GetCall().(type) {
	case *Op_Lookup:
		return c.Lookup.GetName()
	case *Op_Create:
		return c.Create.GetName()
	case *Op_Mkdir:
		return c.Mkdir.GetName()
	case *Op_Mknod:
		return c.Mknod.GetName()
	case *Op_Symlink:
		return c.Symlink.GetName()
	case *Op_Unlink:
		return c.Unlink.GetName()
	case *Op_Rmdir:
		return c.Rmdir.GetName()
	case *Op_Rename:
		return c.Rename.GetSrcName()
	}
	if p := x.Place(); p.GetDir() != 0 {
		return p.GetName()
	}
	return nil
}

// At returns a copy of the operation at another place; the operation itself may be
// on its way. One that has no place is returned as it is.
func (x *Op) At(p *Place) *Op {
	if x.Place() == nil {
		return x
	}
	b, err := x.MarshalVT()
	y := new(Op)
	if err != nil || y.UnmarshalVT(b) != nil {
		return x // it cannot be: what is in memory is well-formed
	}
	at := y.Place()
	at.Ino, at.Dir, at.Name = p.GetIno(), p.GetDir(), p.GetName()
	return y
}
