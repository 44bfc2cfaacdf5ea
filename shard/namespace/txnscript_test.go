package namespace

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// isTxnScript says which scripts of testdata are of transactions over shards.
func isTxnScript(path string) bool { return strings.HasPrefix(filepath.Base(path), "d_") }

// TestTransactionScripts runs testdata/d_*: several shards in one script, and a
// driver that can stop anywhere. The directives:
//
//	init shards=N
//	run                operations, a line each, to their ends
//	txn NAME [steps=K] an operation: its prepares, K at most
//	decide NAME        the verdict, in the coordinator's log
//	commit NAME SHARD  at one participant; abort NAME SHARD
//	finish NAME        all that is left to be told
//	crash SHARD        a new lease epoch, the caches built anew
//	ask NAME           what the coordinator's log says
//	state SHARD KIND ...
//	tree               all that can be reached
//	tick               all clocks go on
//	split PATH SHARD lo=A [hi=B] [join=PATH]
//	                   names that begin with A to before B get a fragment at the shard,
//	                   or join the one that has the names of letter join
func TestTransactionScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !isTxnScript(path) {
			return
		}
		var c *cluster
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "init" {
				var shards int
				d.ScanArgs(t, "shards", &shards)
				hash := shard.NameHash
				if d.HasArg("hash") {
					hash = testHash(t, d)
				}
				c = newHashedShards(t, shards, hash)
				return ""
			}
			c.t = t
			return c.directive(d)
		})
	})
}

func (c *cluster) directive(d *datadriven.TestData) string {
	arg := func(i int) string { return d.CmdArgs[i].Key }
	shardArg := func(i int) *shardRig {
		id, err := base.ParseShardID(arg(i))
		if err != nil {
			c.t.Fatal(err)
		}
		return c.nodes[id]
	}
	switch d.Cmd {
	case "run":
		var b strings.Builder
		for _, line := range strings.Split(d.Input, "\n") {
			fmt.Fprintln(&b, c.line(parseLine(c.t, nil, line)))
		}
		return b.String()
	case "txn":
		return c.beginLine(d)
	case "decide":
		return formatResult(c.txns[arg(0)].decide()) + "\n"
	case "finish":
		c.txns[arg(0)].finish()
		return ""
	case "commit", "abort":
		return c.deliver(d.Cmd, c.txns[arg(0)], shardArg(1))
	case "crash":
		n := shardArg(0)
		n.lease++
		n.load(c.t)
		return ""
	case "ask":
		x := c.txns[arg(0)]
		decision, err := DecisionOf(c.nodes[x.shard].kv, x.shard, x.id)
		if err != nil {
			c.t.Fatal(err)
		}
		if decision == nil {
			return "no record\n"
		}
		return decision.String() + "\n"
	case "state":
		n := shardArg(0)
		var kinds []string
		for _, a := range d.CmdArgs[1:] {
			kinds = append(kinds, a.Key)
		}
		return n.dump(kinds)
	case "tree":
		return c.tree()
	case "split":
		return c.splitLine(d)
	case "tick":
		for _, n := range c.nodes {
			n.now += 1000
		}
		return ""
	}
	c.t.Fatalf("unknown directive %s", d.Cmd)
	return ""
}

func (c *cluster) line(l *words) string {
	if l == nil {
		return ""
	}
	if l.op == "hold" {
		at, p := c.place(l.arg(1))
		c.held[l.arg(0)] = &canopyv1.Place{Ino: p.Ino, Dir: uint64(at)}
		return "held " + numText(p.Ino)
	}
	if l.op == "part" { // of a split directory: the fragment that has a letter
		d := c.dir(l.arg(1))
		_, m := c.fragments(d.subtree, d.ino)
		at := m.Find(letterHash([]byte(l.arg(2)))).Subtree
		c.held[l.arg(0)] = &canopyv1.Place{Ino: d.ino, Dir: uint64(at)}
		return "held " + numText(uint64(at))
	}
	if l.op == "times" {
		at, p := c.place(l.arg(0))
		a := c.whole(c.query(at, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: p}}})).Attr
		return fmt.Sprintf("a=%d m=%d c=%d", a.GetAtimeNs(), a.GetMtimeNs(), a.GetCtimeNs())
	}
	at, op := c.operation(l)
	r := c.do(at, op)
	if l.op == "ls" && r.Error == 0 {
		r = c.list(c.dir(l.arg(0)))
	}
	if l.op == "ls" && r.Error == 0 {
		var names []string
		for _, e := range r.Entries {
			names = append(names, string(e.Name)+"="+numText(e.Ino))
		}
		return strings.Join(names, " ")
	}
	return textOf(r)
}

// textOf is a short form of an answer.
func textOf(r *canopyv1.Result) string {
	if r.Error != 0 {
		return fserr.Kind(r.Error).Error()
	}
	out := "ok"
	for _, a := range []struct {
		name string
		attr *canopyv1.Attr
	}{{"", r.Attr}, {" replaced", r.Replaced}} {
		if a.attr != nil {
			out += fmt.Sprintf("%s {%s %o n=%d u=%d s=%d c=%d v=%d in %s}", a.name, numText(a.attr.Ino), a.attr.Mode, a.attr.Nlink,
				a.attr.Uid, a.attr.Size, a.attr.CtimeNs, a.attr.Version, numText(a.attr.Subtree))
		}
	}
	if r.Data != nil {
		out += fmt.Sprintf(" data=%q", r.Data)
	}
	for _, l := range r.Locks {
		out += fmt.Sprintf(" lock of %x", l.Client)
	}
	return out
}

func (c *cluster) beginLine(d *datadriven.TestData) string {
	steps := 1 << 30
	if d.HasArg("steps") {
		d.ScanArgs(c.t, "steps", &steps)
	}
	at, op := c.operation(parseLine(c.t, nil, d.Input))
	op.Subtree = uint64(at)
	c.seq++
	op.Seq = c.seq
	x := c.begin(op, c.request(op))
	for all, tries := steps, 0; ; tries++ {
		for steps = all; steps > 0 && x.step(); steps-- {
		}
		if x.failed != fserr.Moved || tries == 16 {
			break
		}
		x.finish()
		if x.told != nil {
			op, at = redirected(x.told, op)
			op.Subtree = uint64(at)
			x = c.begin(op, c.request(op))
		} else {
			x = x.again()
		}
	}
	c.txns[d.CmdArgs[0].Key] = x
	switch {
	case x.failed != 0:
		return x.failed.Error() + "\n"
	case x.verdict == nil:
		return "prepared so far\n"
	case x.verdict.Op != nil:
		return fmt.Sprintf("verdict: carried out by the decision, for %d more\n", len(x.verdict.Fragments))
	}
	out := "verdict: " + textOf(x.verdict.Result) + "\n"
	for _, e := range x.verdict.Edits {
		for _, edit := range e.Edits {
			out += fmt.Sprintf("  %s: %s", numText(uint64(e.Subtree)), strings.ToLower(strings.TrimPrefix(edit.Kind.String(), "TXN_EDIT_")))
			if len(edit.Name) > 0 {
				out += fmt.Sprintf(" %q", edit.Name)
			}
			out += "\n"
		}
	}
	return out
}

func (c *cluster) deliver(what string, x *driven, n *shardRig) string {
	for _, s := range x.decided {
		if what == "commit" && base.ShardID(s.Shard) == n.id {
			n.own(c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: s.Commit}})
		}
	}
	if what == "abort" {
		for _, a := range x.asked {
			if x.shardOf(0, a.Subtree) == n.id {
				n.own(c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnAbort{TxnAbort: &canopyv1.TxnAbortCommand{Txn: x.id.Proto(), Subtrees: []uint64{uint64(a.Subtree)}}}})
			}
		}
	}
	return ""
}

func (n *shardRig) dump(kinds []string) string {
	var b strings.Builder
	err := n.kv.Scan(nil, nil, func(key, value []byte) (bool, error) {
		text := schema.Format(key)
		for _, k := range kinds {
			if parts := strings.SplitN(text, "/", 3); strings.HasPrefix(parts[2], k) {
				fmt.Fprintf(&b, "%s = %s\n", text, schema.FormatValue(key, value))
			}
		}
		return true, nil
	})
	if err != nil {
		return err.Error()
	}
	return b.String()
}
