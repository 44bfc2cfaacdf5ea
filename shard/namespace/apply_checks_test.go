package namespace

import (
	"fmt"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// PROTOCOLS A1: what matters is checked in apply. The commands of this file go
// straight into the log, as a front would send them that checks nothing, or that
// checked while something else was true: apply refuses each that violates
// ownership, lease of the session, permission or existence, on every kind of
// write, and changes nothing.

// violation spoils a command that would be right.
type violation struct {
	name  string
	spoil func(r *rig, c *canopyv1.Command)
	want  fserr.Kind
}

// owned puts the subtree into another state, as an entry before this one did.
func owned(state schema.OwnState) func(*rig, *canopyv1.Command) {
	return func(r *rig, _ *canopyv1.Command) {
		r.put(schema.SubtreeKey(testShard, 1), &schema.Subtree{Epoch: 3, State: state, Root: 1, ToShard: 7})
		r.load()
	}
}

// violations are refused whatever the operation is.
var violations = []violation{
	{"the subtree is not here", func(_ *rig, c *canopyv1.Command) { c.Op.Subtree = 9 }, fserr.Moved},
	{"the subtree was handed off", owned(schema.HandedOff), fserr.Moved},
	{"the subtree is being imported", owned(schema.Importing), fserr.Moved},
	{"the subtree is frozen", owned(schema.Frozen), fserr.Frozen},
	{"the client knows a later owner", func(_ *rig, c *canopyv1.Command) { c.Op.Epoch = 4 }, fserr.NotHolder},
	{"no session was opened", func(_ *rig, c *canopyv1.Command) { c.Client = 0xbad }, fserr.SessionExpired},
	{"the session ended", func(r *rig, _ *canopyv1.Command) { r.mustRun("end-sessions a1") }, fserr.SessionExpired},
	{"an earlier session's request", func(r *rig, c *canopyv1.Command) {
		c.Op.Seq, c.Floor = r.seq[0xa1], r.seq[0xa1]
		r.mustRun("end-sessions a1")
		r.seq[0xa1] += 10
		r.mustRun("open-session")
	}, fserr.BelowFloor},
	{"the client has the answer", func(r *rig, c *canopyv1.Command) {
		r.seq[0xa1] += 10
		r.mustRun("create /answered")
	}, fserr.BelowFloor},
	{"no client", func(_ *rig, c *canopyv1.Command) { c.Client = 0 }, fserr.Malformed},
	{"no sequence number", func(_ *rig, c *canopyv1.Command) { c.Op.Seq = 0 }, fserr.Malformed},
	{"a holder's command from a client", func(_ *rig, c *canopyv1.Command) {
		c.Own = &canopyv1.Command_Purge{Purge: &canopyv1.PurgeCommand{Subtree: 1}}
	}, fserr.Malformed},
	{"the command of a client without an operation", func(_ *rig, c *canopyv1.Command) { c.Op = nil }, fserr.Malformed},
}

// writes are all operations that change the namespace: right ones as root, what
// user 5 is told, and how each is told that what it names does not exist.
// Reports of bytes are made through a file that is open: Linux asks for
// permission when it is opened.
var writes = []struct {
	line    string
	asUser  fserr.Kind
	missing string // the same on something that is not there
	absent  fserr.Kind
}{
	{"create /ro/new", fserr.Access, "create @gone/new", fserr.Stale},
	{"create /ro/f trunc", fserr.Access, "create @gone/f trunc", fserr.Stale},
	{"create /ro/x anon", fserr.Access, "create @gone/x anon", fserr.Stale},
	{"mkdir /ro/new", fserr.Access, "mkdir @gone/new", fserr.Stale},
	{"mknod /ro/new mode=10644", fserr.Access, "mknod @gone/new mode=10644", fserr.Stale},
	{"mknod /open/new mode=20644", fserr.Permission, "mknod @gone/new mode=20644", fserr.Stale},
	{"symlink /ro/new to", fserr.Access, "symlink @gone/new to", fserr.Stale},
	{"link /ro/f /ro/new", fserr.Access, "link @gonefile /ro/new", fserr.Stale},
	{"unlink /ro/f", fserr.Access, "unlink /ro/none", fserr.NotFound},
	{"unlink /sticky/f", fserr.Permission, "unlink @gone/f", fserr.Stale},
	{"rmdir /ro/d", fserr.Access, "rmdir /ro/none", fserr.NotFound},
	{"rmdir /sticky/d", fserr.Permission, "rmdir @gone/d", fserr.Stale},
	{"rename /ro/f /open/new", fserr.Access, "rename /ro/none /open/new", fserr.NotFound},
	{"rename /open/f /ro/new", fserr.Access, "rename /open/f @gone/new", fserr.Stale},
	{"rename /sticky/f /open/new", fserr.Permission, "rename @gone/f /open/new", fserr.Stale},
	{"rename /open/f /sticky/f", fserr.Permission, "rename /open/none /sticky/f", fserr.NotFound},
	{"rename /open/f /sticky/f exchange", fserr.Permission, "rename /open/f /sticky/none exchange", fserr.NotFound},
	{"setattr /ro/f mode=600", fserr.Permission, "setattr @gonefile mode=600", fserr.Stale},
	{"setattr /ro/f uid-to=5", fserr.Permission, "setattr @gonefile uid-to=5", fserr.Stale},
	{"setattr /ro/f gid-to=5", fserr.Permission, "setattr @gonefile gid-to=5", fserr.Stale},
	{"setattr /ro/f mtime=7", fserr.Permission, "setattr @gonefile mtime=7", fserr.Stale},
	{"setattr /ro/f mtime-now", fserr.Access, "setattr @gonefile mtime-now", fserr.Stale},
	{"setattr /ro/f size=7", fserr.Access, "setattr @gonefile size=7", fserr.Stale},
	{"setx /ro/f user.a 2", fserr.Access, "setx @gonefile user.a 2", fserr.Stale},
	{"setx /open/f trusted.a 2", fserr.Permission, "setx @gonefile trusted.a 2", fserr.Stale},
	{"rmx /ro/f user.a", fserr.Access, "rmx @gonefile user.a", fserr.Stale},
	{"report /ro/f size=9 changed", fserr.OK, "report @gonefile size=9 changed", fserr.Stale},
	{"reserve /ro/f len=9", fserr.OK, "reserve @gonefile len=9", fserr.Stale},
	{"lock /ro/f w 0 9 owner=2", fserr.OK, "lock @gonefile w 0 9", fserr.Stale},
	{"unlock /ro/f 0 0", fserr.OK, "unlock @gonefile 0 0", fserr.Stale},
	{"drop /ro/f handle=1", fserr.OK, "drop @gonefile handle=1", fserr.Stale},
	{"fill /ro/appended len=10", fserr.OK, "fill @gonefile len=10", fserr.Stale},
	{"quota /ro inodes=9", fserr.Permission, "quota @gone inodes=9", fserr.Stale},
	{"policy /ro class=dataset", fserr.Permission, "policy @gone class=dataset", fserr.Stale},
}

// newCheckedRig makes the tree that the table above works on.
func newCheckedRig(t *testing.T) *rig {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	for _, l := range []string{
		"mkdir /ro", "create /ro/f", "setx /ro/f user.a 1", "mkdir /ro/d", "create /ro/appended", "reserve /ro/appended len=10", "lock /ro/f w 20 5",
		"mkdir /open mode=777", "create /open/f mode=666", "mkdir /sticky mode=1777", "create /sticky/f mode=666", "mkdir /sticky/d mode=777",
		"mkdir /gone", "create /gonefile",
	} {
		r.mustRun("%s", l)
	}
	r.places["gone"], r.places["gonefile"] = r.place("/gone"), r.place("/gonefile")
	r.mustRun("rmdir /gone")
	r.mustRun("unlink /gonefile")
	r.mustRun("purge @gone @gonefile")
	return r
}

func (r *rig) parsed(line string) *canopyv1.Command { return r.commandOf(parseLine(r.t, nil, line)) }

// changes returns what differs from before, but for the shard's own state (its
// time moves) and, if the result is stored, the results.
func (r *rig) changes(before *memkv.Store) string {
	var kept []string
	for line := range strings.Lines(before.Diff(r.kv, schema.Format)) {
		if !strings.Contains(line, "/-/shard") && !strings.Contains(line, "/results ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestApplyRefusesEveryWrite is rule A1 for what does not depend on the
// operation: who owns the subtree, and whose session the request is of.
func TestApplyRefusesEveryWrite(t *testing.T) {
	kinds := map[string]bool{}
	for _, w := range writes {
		r := newCheckedRig(t)
		c := r.parsed(w.line)
		kinds[fmt.Sprintf("%T", c.Op.Call)] = true
		if got := r.decode(r.apply(c)[0]); got.Error != 0 {
			t.Errorf("%s, which is right: %v", w.line, fserr.Kind(got.Error))
		}
		for _, v := range violations {
			r := newCheckedRig(t)
			c := r.parsed(w.line)
			v.spoil(r, c)
			before := r.kv.Clone()
			got := r.decode(r.apply(c)[0])
			if fserr.Kind(got.Error) != v.want {
				t.Errorf("%s, though %s: %v, want %v", w.line, v.name, fserr.Kind(got.Error), v.want)
			}
			if diff := r.changes(before); diff != "" {
				t.Errorf("%s, though %s, changed\n%s", w.line, v.name, diff)
			}
		}
	}
	if want := 18; len(kinds) != want {
		t.Errorf("%d kinds of writes are tried, want %d: %v", len(kinds), want, kinds)
	}
}

// TestApplyChecksPermission is rule A1 for permissions and existence: what a
// front or a kernel checked when things were different counts for nothing.
func TestApplyChecksPermission(t *testing.T) {
	for _, w := range writes {
		for _, try := range []struct {
			line string
			want fserr.Kind
		}{{w.line + " uid=5", w.asUser}, {w.missing, w.absent}} {
			r := newCheckedRig(t)
			c := r.parsed(try.line)
			before := r.kv.Clone()
			got := r.decode(r.apply(c)[0])
			if fserr.Kind(got.Error) != try.want {
				t.Errorf("%s: %v, want %v", try.line, fserr.Kind(got.Error), try.want)
			}
			if diff := r.changes(before); try.want != fserr.OK && diff != "" {
				t.Errorf("%s was refused, and changed\n%s", try.line, diff)
			}
		}
	}
}

// TestApplyKnowsEveryWrite: an operation that changes something is in the table
// above; a new one has to be put there.
func TestApplyKnowsEveryWrite(t *testing.T) {
	calls := (&canopyv1.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("call").Fields()
	writes := 0
	for i := range calls.Len() {
		op := &canopyv1.Op{}
		m := op.ProtoReflect()
		m.Set(calls.Get(i), m.NewField(calls.Get(i)))
		if applyHandler(op) != nil {
			writes++
		} else if name := string(calls.Get(i).Name()); !IsRead(op) && !strings.HasSuffix(name, "_session") {
			t.Errorf("%s is neither read nor applied", name)
		}
	}
	if writes != 18 {
		t.Errorf("%d operations change the namespace; the tables of this file know 18", writes)
	}
}

// TestApplyChecksTheHoldersCommands is rule A1 for the holder's own commands: a
// holder that was told otherwise, or that decided before the subtree went, changes
// nothing.
func TestApplyChecksTheHoldersCommands(t *testing.T) {
	lines := []string{"purge @orphan", "purge reloc=@moved", "deletion-done @queued", "cut-done @cut epoch=9",
		"quota-counted /ro", "tally-done /big"}
	setup := func() *rig {
		r := newCheckedRig(t)
		for _, l := range []string{
			"create /orphan", "create /moved", "create /queued", "report /queued size=5 changed", "create /cut", "setattr /cut size=5",
		} {
			r.mustRun("%s", l)
		}
		for _, n := range []string{"orphan", "moved", "queued", "cut"} {
			r.places[n] = r.place("/" + n)
		}
		r.mustRun("unlink /orphan")
		r.mustRun("rename /moved /moved2")
		r.mustRun("unlink /queued")
		r.mustRun("purge @queued")
		r.countNow = 1
		r.load()
		for _, l := range []string{"quota /ro inodes=99", "quota /open inodes=99", "mkdir /big", "create /big/1", "create /big/2"} {
			r.mustRun("%s", l)
		}
		r.run("rename /big /open/big") // begins a tally
		return r
	}
	for _, l := range lines {
		for _, state := range []schema.OwnState{schema.Active, schema.Frozen, schema.Importing, schema.HandedOff} {
			r := setup()
			c := r.parsed(l)
			owned(state)(r, nil)
			before := r.kv.Clone()
			got, diff := r.decode(r.apply(c)[0]), r.changes(before)
			switch {
			case state == schema.Active && (got.Error != 0 || diff == ""):
				t.Errorf("%s: %v, changed %q", l, fserr.Kind(got.Error), diff)
			case state != schema.Active && (fserr.Kind(got.Error) != fserr.Moved || diff != ""):
				t.Errorf("%s in a subtree that is %v: %v, changed\n%s", l, state, fserr.Kind(got.Error), diff)
			}
		}
	}
	r := setup()
	for line, want := range map[string]fserr.Kind{
		"bootstrap cluster=other":        fserr.WrongCluster,
		"bootstrap cluster=test shard=2": fserr.Invalid,
	} {
		if got := r.own(r.parsed(line)); fserr.Kind(got.Error) != want {
			t.Errorf("%s: %v, want %v", line, fserr.Kind(got.Error), want)
		}
	}
	// A file that has a name is no orphan, whatever the holder read before.
	before := r.kv.Clone()
	r.places["named"] = r.place("/ro/f")
	r.mustRun("purge @named")
	if diff := r.changes(before); diff != "" {
		t.Errorf("a purge of a file with a name changed\n%s", diff)
	}
}
