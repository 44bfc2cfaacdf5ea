//go:build linux

package namespace

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// drawName seldom draws a name that is longer than they may be, or as long, or no text.
func (p *pair) drawName() string {
	if p.rnd.IntN(30) == 0 {
		return pick(p, strings.Repeat("n", MaxNameBytes), strings.Repeat("n", MaxNameBytes+1), "\xff\n\x01")
	}
	return pick(p, "a", "b", "c", "d")
}

// drawUmask draws a umask and returns how a call is made under it.
func (p *pair) drawUmask() (umask uint32, under func(func() error) error) {
	umask = pick(p, uint32(0), 0o022, 0o077, 0o777, 0o010)
	return umask, func(call func() error) error {
		defer unix.Umask(unix.Umask(int(umask)))
		return call()
	}
}

func (p *pair) fileMode() uint32 {
	return pick(p, uint32(0o644), 0o600, 0o666, 0o4755, 0o2755, 0o6755, 0o2745, 0o7777, 0)
}

func (p *pair) dirMode() uint32 {
	return pick(p, uint32(0o777), 0o777, 0o777, 0o1777, 0o2777, 0o3777, 0o755, 0o700, 0o711, 0o766)
}

func (p *pair) draw(u user) *action {
	switch p.rnd.IntN(30) {
	case 20:
		return p.drawAccess()
	case 21, 22, 23:
		return p.drawSetACL()
	case 24, 25, 26:
		return p.drawXattr()
	case 0, 1:
		return p.drawCreate()
	case 2, 3, 4:
		return p.drawMkdir()
	case 5:
		return p.drawMknod()
	case 6:
		return p.drawSymlink()
	case 7:
		return p.drawLink(u)
	case 8, 9:
		return p.drawRemove()
	case 10, 11, 12, 13:
		return p.drawRename()
	}
	return p.drawChange()
}

// has returns the type of a name, 0 if there is none.
func (p *pair) has(dir *twin, name string) uint32 {
	var st unix.Stat_t
	if unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Mode & schema.TypeMask
}

func (p *pair) drawCreate() *action {
	dir, name, mode := p.dirTwin(), p.drawName(), p.fileMode()
	umask, under := p.drawUmask()
	c := &canopyv1.CreateCall{Dir: dir.place.Ino, Name: []byte(name), Mode: mode, Umask: umask, Exclusive: p.rnd.IntN(2) == 0}
	flags := unix.O_CREAT | unix.O_WRONLY | unix.O_EXCL
	existed := p.has(dir, name)
	if !c.Exclusive {
		if existed != 0 && existed != schema.TypeFile && existed != schema.TypeDir {
			return nil // following it, or waiting for its other end, is the mount's affair
		}
		c.Truncate = true
		flags = unix.O_CREAT | unix.O_WRONLY | unix.O_TRUNC
	}
	return &action{fmt.Sprintf("create %q in %d, mode %o umask %o exclusive %v", name, c.Dir, mode, umask, c.Exclusive),
		&canopyv1.Op{Call: &canopyv1.Op_Create{Create: c}},
		func() error {
			return under(func() error {
				fd, err := unix.Openat(dir.fd, name, flags, mode)
				if err == nil {
					_ = unix.Close(fd)
				}
				return err
			})
		},
		func(res *canopyv1.Result) {
			if !res.Existed {
				p.add(dir, name, res.Attr)
			}
		}}
}

func (p *pair) drawMkdir() *action {
	dir, name, mode := p.dirTwin(), p.drawName(), p.dirMode()
	umask, under := p.drawUmask()
	c := &canopyv1.MkdirCall{Dir: dir.place.Ino, Name: []byte(name), Mode: mode, Umask: umask}
	return &action{fmt.Sprintf("mkdir %q in %d, mode %o umask %o", name, dir.place.Ino, mode, umask),
		&canopyv1.Op{Call: &canopyv1.Op_Mkdir{Mkdir: c}},
		func() error { return under(func() error { return unix.Mkdirat(dir.fd, name, mode) }) },
		func(res *canopyv1.Result) { p.add(dir, name, res.Attr) }}
}

func (p *pair) drawMknod() *action {
	dir, name := p.dirTwin(), p.drawName()
	mode := pick(p, schema.TypeFIFO, schema.TypeSocket, schema.TypeChar) | p.fileMode()
	umask, under := p.drawUmask()
	c := &canopyv1.MknodCall{Dir: dir.place.Ino, Name: []byte(name), Mode: mode, Rdev: 0x103, Umask: umask}
	return &action{fmt.Sprintf("mknod %q in %d, mode %o umask %o", name, dir.place.Ino, mode, umask),
		&canopyv1.Op{Call: &canopyv1.Op_Mknod{Mknod: c}},
		func() error { return under(func() error { return unix.Mknodat(dir.fd, name, mode, 0x103) }) },
		func(res *canopyv1.Result) { p.add(dir, name, res.Attr) }}
}

func (p *pair) drawSymlink() *action {
	dir, name := p.dirTwin(), p.drawName()
	target := pick(p, "nowhere", "", strings.Repeat("t", MaxTargetBytes), strings.Repeat("t", MaxTargetBytes+1))
	return &action{fmt.Sprintf("symlink %q in %d to %d bytes", name, dir.place.Ino, len(target)),
		&canopyv1.Op{Call: &canopyv1.Op_Symlink{Symlink: &canopyv1.SymlinkCall{Dir: dir.place.Ino, Name: []byte(name), Target: []byte(target)}}},
		func() error { return unix.Symlinkat(target, dir.fd, name) },
		func(res *canopyv1.Result) { p.add(dir, name, res.Attr) }}
}

// drawLink leaves out what protected_hardlinks forbids: that is the kernel's rule
// over any file system.
func (p *pair) drawLink(u user) *action {
	o, dir, name := p.objs[p.rnd.IntN(len(p.objs))], p.dirTwin(), p.drawName()
	var st unix.Stat_t
	if unix.Fstat(o.fd, &st) != nil || u.uid != 0 && int(st.Uid) != u.uid {
		return nil
	}
	return &action{fmt.Sprintf("link %d as %s in %d", o.place.Ino, name, dir.place.Ino),
		&canopyv1.Op{Call: &canopyv1.Op_Link{Link: &canopyv1.LinkCall{Place: o.place, Dir: dir.place.Ino, Name: []byte(name)}}},
		func() error { return unix.Linkat(unix.AT_FDCWD, proc(o), dir.fd, name, unix.AT_SYMLINK_FOLLOW) }, nil}
}

// proc is a path to an inode whatever its names are.
func proc(o *twin) string { return fmt.Sprintf("/proc/thread-self/fd/%d", o.fd) }

func (p *pair) drawRemove() *action {
	dir, name := p.dirTwin(), p.drawName()
	if p.rnd.IntN(2) == 0 {
		return &action{fmt.Sprintf("unlink %s in %d", name, dir.place.Ino),
			&canopyv1.Op{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: dir.place.Ino, Name: []byte(name)}}},
			func() error { return unix.Unlinkat(dir.fd, name, 0) }, nil}
	}
	return &action{fmt.Sprintf("rmdir %s in %d", name, dir.place.Ino),
		&canopyv1.Op{Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: dir.place.Ino, Name: []byte(name)}}},
		func() error { return unix.Unlinkat(dir.fd, name, unix.AT_REMOVEDIR) }, nil}
}

func (p *pair) drawRename() *action {
	src, from, dst, to := p.dirTwin(), p.drawName(), p.dirTwin(), p.drawName()
	flags := uint32(pick(p, 0, 0, 0, 0, renameNoReplace, renameExchange, renameWhiteout, renameWhiteout|renameNoReplace, renameWhiteout|renameExchange))
	var made func(*canopyv1.Result)
	if flags&renameWhiteout != 0 {
		made = func(*canopyv1.Result) { p.addWhiteout(src, from) }
	}
	return &action{fmt.Sprintf("rename %s in %d to %s in %d, flags %d", from, src.place.Ino, to, dst.place.Ino, flags),
		&canopyv1.Op{Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
			SrcDir: src.place.Ino, SrcName: []byte(from), DstDir: dst.place.Ino, DstName: []byte(to), Flags: flags}}},
		func() error { return unix.Renameat2(src.fd, from, dst.fd, to, uint(flags)) }, made}
}

// addWhiteout takes in what a rename left under the old name; nothing, if both
// names were of one inode.
func (p *pair) addWhiteout(dir *twin, name string) {
	res := p.m.Query(p.kv, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: dir.place.Ino, Name: []byte(name)}},
		Cred: &canopyv1.Credential{}})
	a := res.GetAttr()
	if a == nil {
		p.t.Errorf("%s in %d is not there after a rename with a whiteout: %v", name, dir.place.Ino, fserr.Kind(res.Error))
		return
	}
	if a.Mode&schema.TypeMask == schema.TypeChar && !p.knows(a.Ino) {
		p.add(dir, name, a)
	}
}

func (p *pair) knows(ino uint64) bool {
	return slices.ContainsFunc(p.objs, func(o *twin) bool { return o.place.Ino == ino })
}

// drawChange changes an inode's attributes. A symlink's are left out: mounts reach
// them by few calls, and ext4 refuses some.
func (p *pair) drawChange() *action {
	o := p.objs[p.rnd.IntN(len(p.objs))]
	if o.kind == schema.TypeLink {
		return nil
	}
	c := &canopyv1.SetAttrCall{Place: o.place}
	op := &canopyv1.Op{Call: &canopyv1.Op_SetAttr{SetAttr: c}}
	what := func(format string, args ...any) string {
		return fmt.Sprintf("%s of %d (made as %q)", fmt.Sprintf(format, args...), o.place.Ino, o.place.Name)
	}
	switch p.rnd.IntN(7) {
	case 0, 1:
		c.Mask, c.Mode = maskMode, p.fileMode()
		if o.isDir {
			c.Mode = p.dirMode()
		}
		return &action{what("chmod %o", c.Mode), op, func() error { return unix.Chmod(proc(o), c.Mode) }, nil}
	case 2, 3:
		uid, gid := pick(p, -1, 0, 5, 6), pick(p, -1, 0, 5, 50, 6)
		if uid < 0 && gid < 0 {
			c.Mask = maskKillPriv
		}
		if uid >= 0 {
			c.Mask, c.Uid = c.Mask|maskUID, uint32(uid)
		}
		if gid >= 0 {
			c.Mask, c.Gid = c.Mask|maskGID, uint32(gid)
		}
		return &action{what("chown %d:%d", uid, gid), op, func() error { return unix.Chown(proc(o), uid, gid) }, nil}
	case 4:
		c.Mask, c.Size = maskSize, uint64(p.rnd.IntN(10000))
		return &action{what("truncate %d", c.Size), op, func() error { return unix.Truncate(proc(o), int64(c.Size)) }, nil}
	case 5:
		c.Mask = maskAtimeNow | maskMtimeNow
		return &action{what("utimes now"), op, func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, proc(o), nil, 0) }, nil}
	}
	c.Mask, c.MtimeNs = maskMtime, 7_000_000_000+int64(p.now)
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(c.MtimeNs)}
	return &action{what("utimes %d", c.MtimeNs), op, func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, proc(o), ts, 0) }, nil}
}
