package namespace

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// operation builds the operation of a line:
//
//	create PATH [mode=] [umask=] [excl] [trunc] [anon]   mkdir PATH [mode=] [umask=]   mknod PATH mode= [rdev=] [umask=]
//	symlink PATH TARGET   link PLACE PATH   unlink PATH   rmdir PATH   rename PATH PATH [noreplace] [exchange] [whiteout]
//	setattr PLACE [mode=] [uid-to=] [gid-to=] [size=] [atime=] [mtime=] [atime-now] [mtime-now] [killpriv] [handle] [read=]
//	setx PLACE NAME VALUE [create] [replace]   rmx PLACE NAME   getx PLACE NAME   listx PLACE
//	setacl PLACE access|default LIST   getacl PLACE access|default
//	report PLACE size= epoch= [alloc=] [changed] [killpriv] [read=]   reserve PLACE len=   fill PLACE off= len= epoch=
//	lookup PATH   getattr PLACE   readlink PLACE   access PLACE mask=   parent PLACE
//	open-session   close-session
func (r *rig) operation(l *words) *canopyv1.Op {
	switch l.op {
	case "create":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: dir, Name: name, Mode: uint32(l.num("mode", 0o644)),
			Exclusive: l.flag("excl"), Truncate: l.flag("trunc"), Anonymous: l.flag("anon"), Ino: l.num("ino", 0), Umask: uint32(l.num("umask", 0))}}}
	case "mkdir":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: dir, Name: name, Mode: uint32(l.num("mode", 0o755)),
			Umask: uint32(l.num("umask", 0))}}}
	case "mknod":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Mknod{Mknod: &canopyv1.MknodCall{Dir: dir, Name: name, Mode: uint32(l.num("mode", 0)), Rdev: l.num("rdev", 0),
			Umask: uint32(l.num("umask", 0))}}}
	case "symlink":
		dir, name := r.split(l.arg(0))
		_, target := r.split("/" + l.arg(1))
		return &canopyv1.Op{Call: &canopyv1.Op_Symlink{Symlink: &canopyv1.SymlinkCall{Dir: dir, Name: name, Target: target}}}
	case "link":
		dir, name := r.split(l.arg(1))
		return &canopyv1.Op{Call: &canopyv1.Op_Link{Link: &canopyv1.LinkCall{Place: r.place(l.arg(0)), Dir: dir, Name: name}}}
	case "unlink":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: dir, Name: name}}}
	case "rmdir":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: dir, Name: name}}}
	case "rename":
		src, srcName := r.split(l.arg(0))
		dst, dstName := r.split(l.arg(1))
		c := &canopyv1.RenameCall{SrcDir: src, SrcName: srcName, DstDir: dst, DstName: dstName, Flags: uint32(l.num("flags", 0))}
		if l.flag("noreplace") {
			c.Flags |= renameNoReplace
		}
		if l.flag("exchange") {
			c.Flags |= renameExchange
		}
		if l.flag("whiteout") {
			c.Flags |= renameWhiteout
		}
		return &canopyv1.Op{Call: &canopyv1.Op_Rename{Rename: c}}
	case "setattr":
		return &canopyv1.Op{Call: &canopyv1.Op_SetAttr{SetAttr: r.setAttrCall(l)}}
	case "open-session":
		return &canopyv1.Op{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Host: "host", Pid: 7, Mount: "/mnt"}}}
	case "close-session":
		return &canopyv1.Op{Call: &canopyv1.Op_CloseSession{CloseSession: &canopyv1.CloseSessionCall{}}}
	}
	if op := r.xattrOperation(l); op != nil {
		return op
	}
	if op := r.lockOperation(l); op != nil {
		return op
	}
	if op := r.quotaOperation(l); op != nil {
		return op
	}
	if op := r.sizeOperation(l); op != nil {
		return op
	}
	return r.readOperation(l)
}

func (r *rig) setAttrCall(l *words) *canopyv1.SetAttrCall {
	c := &canopyv1.SetAttrCall{Place: r.place(l.arg(0)), Mode: uint32(l.num("mode", 0)), Uid: uint32(l.num("uid-to", 0)),
		Gid: uint32(l.num("gid-to", 0)), Size: l.num("size", 0), AtimeNs: int64(l.num("atime", 0)), MtimeNs: int64(l.num("mtime", 0)),
		ByHandle: l.flag("handle"), AccessedNs: int64(l.num("read", 0))}
	for name, bit := range map[string]uint32{"mode": maskMode, "uid-to": maskUID, "gid-to": maskGID, "size": maskSize,
		"atime": maskAtime, "mtime": maskMtime, "read": maskAccessed} {
		if _, ok := l.opts[name]; ok {
			c.Mask |= bit
		}
	}
	if _, ok := l.opts["report"]; ok {
		c.Report = &canopyv1.ReportSizeCall{Size: l.num("report", 0), SizeEpoch: l.num("epoch", 1), Changed: true,
			AllocatedBytes: l.num("alloc", 0), KillPriv: l.flag("killing"), MtimeNs: int64(l.num("written", 0))}
	}
	for name, bit := range map[string]uint32{"atime-now": maskAtimeNow, "mtime-now": maskMtimeNow, "killpriv": maskKillPriv} {
		if l.flag(name) {
			c.Mask |= bit
		}
	}
	return c
}

func (r *rig) xattrOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "setx":
		_, value := r.split("/" + l.arg(2))
		_, name := r.split("/" + l.arg(1))
		c := &canopyv1.SetXattrCall{Place: r.place(l.arg(0)), Name: name, Value: value}
		if l.flag("create") {
			c.Flags |= xattrCreate
		}
		if l.flag("replace") {
			c.Flags |= xattrReplace
		}
		return &canopyv1.Op{Call: &canopyv1.Op_SetXattr{SetXattr: c}}
	case "rmx":
		return &canopyv1.Op{Call: &canopyv1.Op_RemoveXattr{RemoveXattr: &canopyv1.RemoveXattrCall{Place: r.place(l.arg(0)), Name: []byte(l.arg(1))}}}
	case "getx":
		return &canopyv1.Op{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: r.place(l.arg(0)), Name: []byte(l.arg(1))}}}
	case "setacl":
		return &canopyv1.Op{Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: r.place(l.arg(0)),
			Name: []byte("system.posix_acl_" + l.arg(1)), Value: formatACL(aclOfText(l.t, l.arg(2)))}}}
	case "listx":
		return &canopyv1.Op{Call: &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: r.place(l.arg(0))}}}
	}
	return nil
}

func (r *rig) sizeOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "report":
		return &canopyv1.Op{Call: &canopyv1.Op_ReportSize{ReportSize: &canopyv1.ReportSizeCall{Place: r.place(l.arg(0)), Size: l.num("size", 0),
			SizeEpoch: l.num("epoch", 1), AllocatedBytes: l.num("alloc", 0), Changed: l.flag("changed"), KillPriv: l.flag("killpriv"),
			MtimeNs: int64(l.num("mtime", 0)), FreedBytes: l.num("freed", 0), Counted: l.flag("counted"), DataVersion: l.num("dv", 0),
			ReservedEnd: l.num("reserved", 0), Refused: l.flag("refused"),
			AccessedNs: int64(l.num("read", 0))}}}
	case "reserve":
		return &canopyv1.Op{Call: &canopyv1.Op_ReserveAppend{ReserveAppend: &canopyv1.ReserveAppendCall{Place: r.place(l.arg(0)), Length: l.num("len", 0)}}}
	case "fill":
		return &canopyv1.Op{Call: &canopyv1.Op_FillAppend{FillAppend: &canopyv1.FillAppendCall{Place: r.place(l.arg(0)), Offset: l.num("off", 0),
			Length: l.num("len", 0), SizeEpoch: l.num("epoch", 1), AllocatedBytes: l.num("alloc", 0)}}}
	}
	return nil
}

func (r *rig) readOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "lookup":
		dir, name := r.split(l.arg(0))
		return &canopyv1.Op{Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: dir, Name: name}}}
	case "getattr":
		return &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: r.place(l.arg(0))}}}
	case "readlink":
		return &canopyv1.Op{Call: &canopyv1.Op_Readlink{Readlink: &canopyv1.ReadlinkCall{Place: r.place(l.arg(0))}}}
	case "access":
		return &canopyv1.Op{Call: &canopyv1.Op_Access{Access: &canopyv1.AccessCall{Place: r.place(l.arg(0)), Mask: uint32(l.num("mask", 0))}}}
	case "parent":
		return &canopyv1.Op{Call: &canopyv1.Op_Parent{Parent: &canopyv1.ParentCall{Dir: r.place(l.arg(0)).Ino}}}
	}
	return r.policyOperation(l)
}

// ownCommand builds the holder's own command of a line:
//
//	end-sessions CLIENT...   purge [@NAME ...] [reloc=@NAME,...] [before=]   deletion-done @NAME...
//	cut-done PLACE epoch=    checksum    bootstrap    quota-counted DIR    tally-done DIR
func (r *rig) ownCommand(l *words) *canopyv1.Command {
	held := func(names []string) (inos []uint64) {
		for _, n := range names {
			inos = append(inos, r.place(n).Ino)
		}
		return inos
	}
	switch l.op {
	case "end-sessions":
		c := &canopyv1.EndSessionsCommand{}
		for _, a := range l.args {
			n, err := strconv.ParseUint(a, 16, 64)
			if err != nil {
				r.t.Fatal(err)
			}
			c.Clients = append(c.Clients, n)
		}
		return &canopyv1.Command{Own: &canopyv1.Command_EndSessions{EndSessions: c}}
	case "purge":
		c := &canopyv1.PurgeCommand{Subtree: 1, Orphans: held(l.args), BeforeNs: int64(l.num("before", 0))}
		if v := l.opts["reloc"]; v != "" {
			c.Relocations = held(strings.Split(v, ","))
		}
		return &canopyv1.Command{Own: &canopyv1.Command_Purge{Purge: c}}
	case "deletion-done":
		return &canopyv1.Command{Own: &canopyv1.Command_DeletionDone{DeletionDone: &canopyv1.DeletionDoneCommand{Subtree: 1, DataIds: held(l.args)}}}
	case "cut-done":
		p := r.place(l.arg(0))
		return &canopyv1.Command{Own: &canopyv1.Command_CutDone{CutDone: &canopyv1.CutDoneCommand{Subtree: 1, DataId: p.Ino, Place: p, SizeEpoch: l.num("epoch", 0)}}}
	case "quota-counted":
		c, err := r.m.CountQuota(r.kv, 1, base.Ino(r.place(l.arg(0)).Ino))
		if err != nil {
			r.t.Fatal(err)
		}
		return &canopyv1.Command{Own: &canopyv1.Command_QuotaCounted{QuotaCounted: c}}
	case "tally-done":
		dir := base.Ino(r.place(l.arg(0)).Ino)
		return &canopyv1.Command{Own: &canopyv1.Command_TallyDone{TallyDone: &canopyv1.TallyDoneCommand{
			Subtree: 1, Dir: uint64(dir), Id: r.m.subtrees[1].quotas[dir].ID}}}
	case "checksum":
		return &canopyv1.Command{Own: &canopyv1.Command_Checksum{Checksum: &canopyv1.ChecksumCommand{Token: 1}}}
	case "bootstrap":
		return &canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: &canopyv1.BootstrapCommand{
			Cluster: l.opts["cluster"], Shard: l.num("shard", 1), Subtree: l.num("subtree", 0), Epoch: 1, RootMode: 0o755}}}
	}
	return nil
}

// queues prints what waits for the holder's workers.
func (r *rig) queues() string {
	var out []string
	must := func(err error) {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	must(Orphans(r.kv, testShard, 1, 0, func(o OrphanInfo) bool {
		out = append(out, fmt.Sprintf("orphan %s since=%d dir=%v", formatIno(uint64(o.Ino)), o.SinceNS, o.Directory))
		return true
	}))
	must(Relocations(r.kv, testShard, 1, 0, func(x RelocationInfo) bool {
		out = append(out, fmt.Sprintf("relocation %s since=%d to dir=%s %q", formatIno(uint64(x.Ino)), x.SinceNS, formatIno(x.To.Dir), x.To.Name))
		return true
	}))
	must(Deletions(r.kv, testShard, 1, 0, func(x DeletionInfo) bool {
		out = append(out, fmt.Sprintf("deletion %s size=%d components=%d", formatIno(uint64(x.DataID)), x.SizeBytes, len(x.Layout.GetComponents())))
		return true
	}))
	must(r.m.Cuts(r.kv, 1, 0, func(x CutInfo) bool {
		s := fmt.Sprintf("cut %s at dir=%s %q epoch=%d old=%d", formatIno(uint64(x.DataID)), formatIno(x.Place.Dir), x.Place.Name, x.SizeEpoch, x.OldSizeBytes)
		for _, c := range x.Cuts {
			s += fmt.Sprintf(" %d@%d", c.Size, c.SizeEpoch)
		}
		out = append(out, s)
		return true
	}))
	if out == nil {
		return "nothing"
	}
	return strings.Join(out, "\n")
}

func (r *rig) sessionList() string {
	var out []string
	var clients []SessionInfo
	if err := Sessions(r.kv, testShard, func(s SessionInfo) bool { clients = append(clients, s); return true }); err != nil {
		r.t.Fatal(err)
	}
	for _, s := range clients {
		floor, err := Floor(r.kv, testShard, s.Client)
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%v %s:%d %s opened=%d floor=%d", s.Client, s.Host, s.PID, s.Mount, s.OpenedNS, floor))
	}
	if err := Subtrees(r.kv, testShard, func(s SubtreeInfo) bool {
		out = append(out, fmt.Sprintf("subtree %d epoch=%d %s root=%s files=%d directories=%d bytes=%d",
			s.Subtree, s.Epoch, s.State, formatIno(uint64(s.Root)), s.Files, s.Directories, s.Bytes))
		return true
	}); err != nil {
		r.t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

// aclOfText reads what ACL.String writes.
func aclOfText(t testing.TB, text string) schema.ACL {
	var a schema.ACL
	for _, entry := range strings.Split(text, ",") {
		f := strings.Split(entry, ":")
		tags := map[string][2]schema.ACLTag{"u": {schema.ACLUserObj, schema.ACLUser}, "g": {schema.ACLGroupObj, schema.ACLGroup},
			"m": {schema.ACLMask}, "o": {schema.ACLOther}}[f[0]]
		e := schema.ACLEntry{Tag: tags[0]}
		if f[1] != "" {
			id, err := strconv.ParseUint(f[1], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			e.Tag, e.ID = tags[1], uint32(id)
		}
		for i, c := range f[2] {
			if c != '-' {
				e.Perm |= 4 >> i
			}
		}
		a = append(a, e)
	}
	return a
}
