package namespace

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// TestScripts runs testdata/*. The directives:
//
//	init [hash=length|letter] [count=N]  a new shard; hash=length makes names of one
//	                       length collide, hash=letter has borders between first
//	                       letters, count=N is Config.CountNow
//	run [batch] [k=v ...]  operations, a line each; batch: all in one entry. k=v apply to all lines
//	state [KIND ...]       the stored keys and values
//	load                   restart: caches are built anew
//	check                  fsck
//	carve DIR into=N step=begin|handoff|clean|forget [same]  what a migration does to
//	                       the state; to shard 2, or same: to this one
//	split DIR into=N [from=N] [lo=LETTER] [hi=LETTER] [step=handoff|clean]  what a
//	                       move of a range of names does to the state
//	time N                 the holder's clock
//
// A line is an operation with paths and options, see operation. Common options:
// uid, gid, groups, client, seq, floor, subtree, epoch. "hold NAME PATH" remembers a
// place, as a mount does for an open file; "@NAME" addresses it.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if isTxnScript(path) {
			return // of TestTransactionScripts
		}
		var r *rig
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "init":
				var hash func([]byte) shard.Hash
				if d.HasArg("hash") {
					hash = testHash(t, d)
				}
				r = newRig(t, hash)
				if d.HasArg("count") {
					d.ScanArgs(t, "count", &r.countNow)
					r.load()
				}
				out := formatResult(r.bootstrap())
				if !d.HasArg("nosession") {
					r.openSession(0xa1)
				}
				return out + "\n"
			case "run":
				r.t = t
				return r.script(d)
			case "state":
				var kinds []string
				for _, a := range d.CmdArgs {
					kinds = append(kinds, a.Key)
				}
				return r.dump(kinds)
			case "load":
				r.load()
				return ""
			case "carve":
				return r.carve(d)
			case "split":
				return r.splitDir(d)
			case "check":
				return r.check()
			case "time":
				now, err := strconv.ParseInt(d.CmdArgs[0].Key, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				r.now = now
				return ""
			}
			t.Fatalf("unknown directive %s", d.Cmd)
			return ""
		})
	})
}

// script runs the lines of one run directive.
func (r *rig) script(d *datadriven.TestData) string {
	var defaults []string
	batch := false
	for _, a := range d.CmdArgs {
		if a.Key == "batch" {
			batch = true
			continue
		}
		defaults = append(defaults, a.Key+"="+strings.Join(a.Vals, ","))
	}
	var out strings.Builder
	var commands []*canopyv1.Command
	for _, line := range strings.Split(d.Input, "\n") {
		l := parseLine(r.t, defaults, line)
		if l == nil {
			continue
		}
		if batch {
			commands = append(commands, r.commandOf(l))
			continue
		}
		fmt.Fprintln(&out, r.line(l))
	}
	if batch {
		for _, b := range r.apply(commands...) {
			fmt.Fprintln(&out, formatResult(r.decode(b)))
		}
	}
	return out.String()
}

// words is one line: an operation, its arguments, and its options.
type words struct {
	t    testing.TB
	op   string
	args []string
	opts map[string]string
}

func parseLine(t testing.TB, defaults []string, line string) *words {
	l := &words{t: t, opts: map[string]string{}}
	for _, f := range append(defaults[:len(defaults):len(defaults)], strings.Fields(line)...) {
		k, v, isOpt := strings.Cut(f, "=")
		switch {
		case isOpt:
			l.opts[k] = v
		case l.op == "":
			l.op = f
		default:
			l.args = append(l.args, f)
		}
	}
	if l.op == "" {
		return nil
	}
	return l
}

func (l *words) arg(i int) string {
	if i >= len(l.args) {
		l.t.Fatalf("%s: argument %d is missing", l.op, i+1)
	}
	return l.args[i]
}

func (l *words) flag(name string) bool {
	for _, a := range l.args {
		if a == name {
			return true
		}
	}
	return false
}

func (l *words) num(name string, byDefault uint64) uint64 {
	v, ok := l.opts[name]
	if !ok {
		return byDefault
	}
	b := 10
	switch name {
	case "mode", "umask":
		b = 8
	case "client":
		b = 16
	}
	n, err := strconv.ParseUint(v, b, 64)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

func (l *words) cred() *canopyv1.Credential {
	c := &canopyv1.Credential{Uid: uint32(l.num("uid", 0)), Gid: uint32(l.num("gid", l.num("uid", 0)))}
	if g := l.opts["groups"]; g != "" {
		for _, s := range strings.Split(g, ",") {
			n, err := strconv.ParseUint(s, 10, 32)
			if err != nil {
				l.t.Fatal(err)
			}
			c.Groups = append(c.Groups, uint32(n))
		}
	}
	return c
}

// commandOf makes the command of a line that changes something.
func (r *rig) commandOf(l *words) *canopyv1.Command {
	if own := r.ownCommand(l); own != nil {
		return own
	}
	op := r.operation(l)
	if op == nil {
		r.t.Fatalf("unknown operation %s", l.op)
	}
	op.Cred = l.cred()
	op.Subtree = l.num("subtree", 1)
	if l.op == "open-session" || l.op == "close-session" {
		op.Subtree = 0
	}
	op.Epoch = l.num("at-epoch", 0)
	client := l.num("client", 0xa1)
	c := r.command(client, op)
	if _, ok := l.opts["seq"]; ok {
		op.Seq = l.num("seq", 0)
		r.seq[client] = max(r.seq[client]-1, op.Seq)
	}
	c.Floor = l.num("floor", op.Seq)
	return c
}

// line runs one line and prints its outcome.
func (r *rig) line(l *words) string {
	switch l.op {
	case "hold":
		p := r.place(l.arg(1))
		r.places[l.arg(0)] = p
		return "held " + formatIno(p.Ino)
	case "ls":
		return r.list(l)
	case "whereis":
		return r.whereIs(l)
	case "locate":
		in := r.owner(l.num("subtree", 1))
		p, err := in.m.Locate(in.kv, base.SubtreeID(l.num("subtree", 1)), r.place(l.arg(0)))
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s dir=%s %q", formatIno(p.Ino), formatIno(p.Dir), p.Name)
	case "getino":
		return formatResult(r.m.Query(r.kv, &canopyv1.Op{Subtree: 1, Cred: l.cred(), Call: &canopyv1.Op_GetAttr{
			GetAttr: &canopyv1.GetAttrCall{Place: numberPlace(l.arg(0))}}}))
	case "linkino":
		dir, name := r.split(l.arg(1))
		return formatResult(r.do(0xa1, &canopyv1.Op{Subtree: 1, Cred: l.cred(), Call: &canopyv1.Op_Link{
			Link: &canopyv1.LinkCall{Place: numberPlace(l.arg(0)), Dir: dir, Name: name}}}))
	case "getacl":
		res := r.m.Query(r.kv, &canopyv1.Op{Subtree: 1, Cred: l.cred(), Call: &canopyv1.Op_GetXattr{
			GetXattr: &canopyv1.GetXattrCall{Place: r.place(l.arg(0)), Name: []byte("system.posix_acl_" + l.arg(1))}}})
		if res.Error != 0 {
			return formatResult(res)
		}
		a, err := parseACL(res.Data)
		if err != nil {
			return err.Error()
		}
		return a.String()
	case "layout": // makes a file and tells what it was made with
		dir, name := r.split(l.arg(0))
		return layoutText(r.do(0xa1, &canopyv1.Op{Subtree: l.num("subtree", 1), Cred: l.cred(), Call: &canopyv1.Op_Create{
			Create: &canopyv1.CreateCall{Dir: dir, Name: name, Mode: 0o644, Exclusive: true}}}).GetAttr().GetLayout())
	case "many": // makes files that are reported with one size
		for i := range l.num("n", 0) {
			r.mustRun("create %s-%d", l.arg(0), i)
			r.mustRun("report %s-%d size=%d changed", l.arg(0), i, l.num("size", 0))
		}
		return "made"
	case "queues":
		return r.queues()
	case "sessions":
		return r.sessionList()
	case "count":
		return r.count()
	case "counted":
		return r.counted()
	case "drop-tallies":
		return r.dropTallies()
	}
	if op := r.operation(l); op != nil && IsRead(op) {
		op.Cred, op.Subtree, op.Epoch = l.cred(), l.num("subtree", 1), l.num("at-epoch", 0)
		return formatResult(r.ask(op))
	}
	return formatResult(r.decode(r.owner(l.num("subtree", 1)).apply(r.commandOf(l))[0]))
}

// list prints a page of a listing. With id=X the next page of X continues it.
func (r *rig) list(l *words) string {
	c := &canopyv1.ReadDirCall{Dir: r.place(l.arg(0)).Ino, MaxEntries: uint32(l.num("max", 0)), MaxBytes: uint32(l.num("bytes", 0)),
		Plus: l.flag("plus"), ResolveLinks: l.flag("links")}
	if x := l.opts["last"]; x != "" {
		c.Last = uint64(letterRange("", x).Last())
	}
	if x := l.opts["at"]; x != "" {
		c.Cookie = uint64(letterRange(x, "").First()) - 1
	}
	id := l.opts["id"]
	if at, ok := r.marks[id]; ok && id != "" {
		c.Cookie, c.Mark = at[0], at[1]
	}
	res := r.ask(&canopyv1.Op{Subtree: l.num("subtree", 1), Cred: l.cred(), Call: &canopyv1.Op_ReadDir{ReadDir: c}})
	if res.Error != 0 {
		return formatResult(res)
	}
	var out []string
	for _, e := range res.Entries {
		s := fmt.Sprintf("%s=%s", e.Name, formatIno(e.Ino))
		if e.Attr != nil {
			s += fmt.Sprintf("{%s}", formatAttr(e.Attr))
		}
		if e.Subtree > 1 {
			s += fmt.Sprintf("@%d", e.Subtree)
		}
		out = append(out, s)
		r.marks[id] = [2]uint64{e.Cookie, res.Mark}
	}
	if res.Eof {
		out = append(out, "end"+through(res.Through))
	}
	return strings.Join(out, " ")
}

// numberPlace addresses "#N", the shard's Nth inode, by its number alone.
func numberPlace(s string) *canopyv1.Place {
	n, _ := strconv.ParseUint(strings.TrimPrefix(s, "#"), 10, 64)
	return &canopyv1.Place{Ino: uint64(base.NewIno(testShard, n))}
}
