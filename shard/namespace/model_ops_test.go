package namespace

import (
	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// draw picks one operation. Operations of one entry are drawn before any of them
// runs, and judged in order.
func (m *model) draw() step {
	switch m.pick("operation", 21) {
	case 0, 1, 2:
		return m.drawCreate()
	case 3, 4:
		return m.drawMkdir()
	case 5:
		return m.drawSymlink()
	case 6:
		return m.drawLink()
	case 7:
		return m.drawRemove(false)
	case 8:
		return m.drawRemove(true)
	case 9, 10, 11:
		return m.drawRename()
	case 12:
		return m.drawSetAttr()
	case 13:
		return m.drawReport()
	case 14:
		return m.drawXattr()
	case 15, 16:
		return m.drawLock()
	case 17, 18:
		if m.quotas {
			return m.drawQuota()
		}
		return m.drawCreate()
	case 19:
		return m.drawPolicy()
	}
	return m.drawAnonymous()
}

func (m *model) drawCreate() step {
	dir, name := m.dir("dir"), m.name("name")
	c := &canopyv1.CreateCall{Dir: dir.ino, Name: []byte(name), Mode: uint32(m.pick("mode", 0o777)),
		Exclusive: m.pick("excl", 2) == 0, Truncate: m.pick("trunc", 2) == 0}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Create{Create: c}}, func(res *canopyv1.Result) {
		var n *node
		kind := m.o.bounded(func() (kind fserr.Kind) {
			n, kind = m.o.create(dir, name, c.Exclusive, c.Truncate, c.Mode)
			return kind
		})
		if m.expect(res, kind, "create "+name) {
			m.same(res.Attr, n)
			m.same(res.DirAttr, dir)
			m.laidOut(res, dir)
		}
	}}
}

func (m *model) drawMkdir() step {
	dir, name := m.dir("dir"), m.name("name")
	c := &canopyv1.MkdirCall{Dir: dir.ino, Name: []byte(name), Mode: 0o700}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Mkdir{Mkdir: c}}, func(res *canopyv1.Result) {
		var n *node
		kind := m.o.bounded(func() (kind fserr.Kind) {
			n, kind = m.o.make(dir, name, &node{kind: schema.TypeDir, mode: 0o700})
			return kind
		})
		if m.expect(res, kind, "mkdir "+name) {
			m.same(res.Attr, n)
			m.same(res.DirAttr, dir)
		}
	}}
}

func (m *model) drawSymlink() step {
	dir, name := m.dir("dir"), m.name("name")
	c := &canopyv1.SymlinkCall{Dir: dir.ino, Name: []byte(name), Target: []byte("to/" + name)}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Symlink{Symlink: c}}, func(res *canopyv1.Result) {
		var n *node
		kind := m.o.bounded(func() (kind fserr.Kind) {
			n, kind = m.o.make(dir, name, &node{kind: schema.TypeLink, mode: 0o777, target: string(c.Target)})
			return kind
		})
		if m.expect(res, kind, "symlink "+name) {
			m.same(res.Attr, n)
		}
	}}
}

func (m *model) drawLink() step {
	place, find := m.target()
	dir, name := m.dir("dir"), m.name("new")
	c := &canopyv1.LinkCall{Place: place, Dir: dir.ino, Name: []byte(name)}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Link{Link: c}}, func(res *canopyv1.Result) {
		n, kind := find()
		if kind == fserr.OK {
			kind = m.o.bounded(func() fserr.Kind { return m.o.link(n, dir, name) })
		}
		if m.expect(res, kind, "link "+name) {
			m.same(res.Attr, n)
			m.same(res.DirAttr, dir)
		}
	}}
}

func (m *model) drawRemove(wantDir bool) step {
	dir, name := m.dir("dir"), m.name("name")
	op := &canopyv1.Op{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: dir.ino, Name: []byte(name)}}}
	if wantDir {
		op.Call = &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: dir.ino, Name: []byte(name)}}
	}
	return step{op, func(res *canopyv1.Result) {
		n, kind := m.o.remove(dir, name, wantDir)
		if m.expect(res, kind, "remove "+name) {
			m.gone(dir, name)
			m.same(res.Replaced, n)
			m.same(res.DirAttr, dir)
		}
	}}
}

func (m *model) drawRename() step {
	src, srcName, dst, dstName := m.dir("src"), m.name("from"), m.dir("dst"), m.name("to")
	c := &canopyv1.RenameCall{SrcDir: src.ino, SrcName: []byte(srcName), DstDir: dst.ino, DstName: []byte(dstName),
		Flags: rapid.SampledFrom([]uint32{0, renameNoReplace, renameExchange, renameWhiteout, renameWhiteout | renameNoReplace}).Draw(m.rt, "flags")}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Rename{Rename: c}}, func(res *canopyv1.Result) {
		from, to := src.children[srcName], dst.children[dstName]
		if m.mustWait(res, from, to) {
			return
		}
		kind := m.o.bounded(func() fserr.Kind { return m.o.rename(src, srcName, dst, dstName, c.Flags) })
		if !m.expect(res, kind, "rename "+srcName+" "+dstName) {
			return
		}
		if from != to && c.Flags&(renameExchange|renameWhiteout) == 0 {
			m.gone(src, srcName)
		}
		m.same(res.Attr, from)
		m.same(res.DirAttr, src)
		m.same(res.DstDirAttr, dst)
		if to != nil && from != to {
			m.same(res.Replaced, to)
		}
	}}
}

func (m *model) drawSetAttr() step {
	place, find := m.target()
	c := &canopyv1.SetAttrCall{Place: place, Mask: maskMode, Mode: uint32(m.pick("mode", 0o777))}
	if m.pick("what", 2) == 0 {
		c.Mask, c.Size = maskSize, uint64(m.pick("size", 5000))
	}
	return step{&canopyv1.Op{Call: &canopyv1.Op_SetAttr{SetAttr: c}}, func(res *canopyv1.Result) {
		n, kind := find()
		switch {
		case kind != fserr.OK:
		case c.Mask == maskMode:
			n.mode = c.Mode
		case n.isDir():
			kind = fserr.IsDir
		case n.kind != schema.TypeFile:
			kind = fserr.Invalid
		default:
			kind = m.o.bounded(func() fserr.Kind { n.size, n.epoch = c.Size, n.epoch+1; return fserr.OK })
		}
		if m.expect(res, kind, "setattr") {
			m.same(res.Attr, n)
		}
	}}
}

func (m *model) drawReport() step {
	place, find := m.target()
	c := &canopyv1.ReportSizeCall{Place: place, Size: uint64(m.pick("size", 9000)), SizeEpoch: uint64(1 + m.pick("epoch", 3)), Changed: true}
	return step{&canopyv1.Op{Call: &canopyv1.Op_ReportSize{ReportSize: c}}, func(res *canopyv1.Result) {
		n, kind := find()
		switch {
		case kind != fserr.OK:
		case n.isDir():
			kind = fserr.IsDir
		case n.kind != schema.TypeFile, c.SizeEpoch > n.epoch:
			kind = fserr.Invalid
		case c.SizeEpoch < n.epoch:
			kind = fserr.OldEpoch
			m.dropSent(res)
		default:
			kind = m.o.bounded(func() fserr.Kind { n.size = max(n.size, c.Size); return fserr.OK })
		}
		if m.expect(res, kind, "report") {
			m.same(res.Attr, n)
		}
	}}
}

// dropSent forgets the request just answered: a protocol answer is no result
// (PROTOCOLS C4), so that a repeat may be answered otherwise.
func (m *model) dropSent(res *canopyv1.Result) {
	if fserr.Kind(res.Error).IsProtocol() {
		m.sent = m.sent[:len(m.sent)-1]
	}
}

func (m *model) drawXattr() step {
	place, find := m.target()
	name, value := "trusted."+m.name("xattr"), m.name("value")
	if m.pick("remove", 3) == 0 {
		c := &canopyv1.RemoveXattrCall{Place: place, Name: []byte(name)}
		return step{&canopyv1.Op{Call: &canopyv1.Op_RemoveXattr{RemoveXattr: c}}, func(res *canopyv1.Result) {
			n, kind := find()
			if kind == fserr.OK && n.xattrs[name] == "" {
				kind = fserr.NoData
			}
			if m.expect(res, kind, "removexattr") {
				delete(n.xattrs, name)
			}
		}}
	}
	c := &canopyv1.SetXattrCall{Place: place, Name: []byte(name), Value: []byte(value)}
	return step{&canopyv1.Op{Call: &canopyv1.Op_SetXattr{SetXattr: c}}, func(res *canopyv1.Result) {
		n, kind := find()
		if m.expect(res, kind, "setxattr") {
			n.xattrs[name] = value
		}
	}}
}

func (m *model) drawAnonymous() step {
	dir := m.dir("dir")
	c := &canopyv1.CreateCall{Dir: dir.ino, Mode: 0o600, Anonymous: true}
	return step{&canopyv1.Op{Call: &canopyv1.Op_Create{Create: c}}, func(res *canopyv1.Result) {
		kind := fserr.OK
		switch {
		case dir.purged:
			kind = fserr.Stale
		case dir.removed:
			kind = fserr.NotFound
		}
		if m.expect(res, kind, "create without a name") {
			n := m.o.add(&node{kind: schema.TypeFile, mode: 0o600, linkable: true})
			m.same(res.Attr, n)
			m.held = append(m.held, held{n, &canopyv1.Place{Ino: n.ino}})
		}
	}}
}
