package namespace

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/migrate"
	"github.com/canopyfs/canopy/shard/schema"
)

// shards are machines of several shards in memory, a client that follows redirects,
// and drivers of moves between them.
type shards struct {
	t     testing.TB
	of    map[base.ShardID]*machineOf
	where map[base.SubtreeID]base.ShardID // the client's map
	now   int64
	seq   uint64

	// fault, if set, is asked before each step of a move whether it fails, and after.
	fault func(step string, after bool) error
	steps []string
	// observe, if set, sees each write as it was sent at last.
	observe  func(*canopyv1.Op)
	small    bool // batches, so that there are many
	recorded int  // keys that a machine remembers; 0: as many as it does
	twice    bool // each step is done twice, and then comes of another attempt
}

// machineOf is one shard.
type machineOf struct {
	s   *shards
	id  base.ShardID
	m   *Machine
	kv  *memkv.Store
	log []logEntry
}

func newShards(t testing.TB, n int) *shards {
	s := &shards{t: t, of: map[base.ShardID]*machineOf{}, where: map[base.SubtreeID]base.ShardID{1: 1}, now: 1000}
	for i := range n {
		x := &machineOf{s: s, id: base.ShardID(i + 1), kv: memkv.New()}
		s.of[x.id] = x
		x.load()
		boot := &canopyv1.BootstrapCommand{Cluster: "test", Shard: uint64(x.id)}
		if x.id == 1 {
			boot.Subtree, boot.Epoch, boot.RootIno, boot.RootMode = 1, 1, 1, 0o755
		}
		x.must(&canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: boot}})
		x.must(&canopyv1.Command{Client: 0xa1, Op: &canopyv1.Op{Seq: s.nextSeq(), Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	}
	return s
}

func (s *shards) nextSeq() uint64 { s.seq++; return s.seq }

func (x *machineOf) load() {
	x.m = New(Config{Shard: x.id, MaxRecorded: x.s.recorded})
	if err := x.m.Load(x.kv); err != nil {
		x.s.t.Fatal(err)
	}
}

func (x *machineOf) apply(commands ...*canopyv1.Command) []*canopyv1.Result {
	x.s.t.Helper()
	x.s.now++
	e := logEntry{time: x.s.now}
	for _, c := range commands {
		b, err := c.MarshalVT()
		if err != nil {
			x.s.t.Fatal(err)
		}
		e.commands = append(e.commands, b)
	}
	x.log = append(x.log, e)
	encoded, err := x.m.Apply(x.kv, e.time, e.commands)
	if err != nil {
		x.s.t.Fatalf("shard %v: apply: %v", x.id, err)
	}
	var out []*canopyv1.Result
	for _, b := range encoded {
		r := &canopyv1.Result{}
		if err := r.UnmarshalVT(b); err != nil {
			x.s.t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func (x *machineOf) must(c *canopyv1.Command) *canopyv1.Result {
	x.s.t.Helper()
	r := x.apply(c)[0]
	if r.Error != 0 {
		x.s.t.Fatalf("shard %v: %v: %v %s", x.id, c, fserr.Kind(r.Error), r.Detail)
	}
	return r
}

// equalAnew holds that a machine that applies the whole log anew, with restarts in
// between, has the same state.
func (x *machineOf) equalAnew() {
	x.s.t.Helper()
	y := &machineOf{s: x.s, id: x.id, kv: memkv.New()}
	y.load()
	for i, e := range x.log {
		if _, err := y.m.Apply(y.kv, e.time, e.commands); err != nil {
			x.s.t.Fatal(err)
		}
		if i%7 == 3 {
			y.load()
		}
	}
	if d := x.kv.Diff(y.kv, schema.Format); d != "" {
		x.s.t.Errorf("shard %v: the log applied anew, with restarts, gives another state:\n%s", x.id, d)
	}
}

// do runs an operation where its subtree is, along redirects, and returns it as it
// was sent at last.
func (s *shards) do(op *canopyv1.Op) *canopyv1.Result {
	s.t.Helper()
	if !IsRead(op) && op.Seq == 0 {
		op.Seq = s.nextSeq()
	}
	op.Cred = &canopyv1.Credential{}
	for range 8 {
		x := s.of[s.owner(base.SubtreeID(op.Subtree))]
		if x == nil {
			s.t.Fatalf("subtree %d is nowhere", op.Subtree)
		}
		var r *canopyv1.Result
		if IsRead(op) {
			r = x.m.Query(x.kv, op)
		} else {
			r = x.apply(&canopyv1.Command{Client: 0xa1, Floor: 1, Op: op})[0]
		}
		if fserr.Kind(r.Error) != fserr.Moved {
			if s.observe != nil && !IsRead(op) {
				s.observe(op)
			}
			return r
		}
		if r.Redirect.GetShard() == 0 && r.Redirect.GetSubtree() == op.Subtree {
			s.t.Fatalf("%v: moved to nowhere: %v", op, r.Redirect)
		}
		op.Subtree = r.Redirect.Subtree
		if _, known := s.where[base.SubtreeID(op.Subtree)]; r.Redirect.Shard != 0 && (!known || r.Redirect.Dir == 0) {
			s.where[base.SubtreeID(op.Subtree)] = base.ShardID(r.Redirect.Shard)
		}
	}
	s.t.Fatalf("%v: redirected for ever", op)
	return nil
}

// dir finds a directory: its number and subtree.
func (s *shards) dir(path string) (ino, subtree uint64) {
	ino, subtree = 1, 1
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		op := &canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: ino, Name: []byte(name)}}}
		r := s.do(op)
		if r.Error != 0 {
			return 0, 0
		}
		ino, subtree = r.Attr.Ino, r.Attr.Subtree
		if r.Attr.Nlink == 0 { // only where it is: ask there
			r = s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: ino}}}})
			if r.Error != 0 {
				s.t.Fatalf("%s in subtree %d: %v", path, subtree, fserr.Kind(r.Error))
			}
			subtree = r.Attr.Subtree
		}
	}
	return ino, subtree
}

func splitPath(path string) (dir string, name []byte) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], []byte(path[i+1:])
}

func (s *shards) mkdir(path string) *canopyv1.Result {
	dir, name := splitPath(path)
	ino, subtree := s.dir(dir)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: ino, Name: name, Mode: 0o755}}})
}

func (s *shards) create(path string) *canopyv1.Result {
	dir, name := splitPath(path)
	ino, subtree := s.dir(dir)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: ino, Name: name, Mode: 0o644, Exclusive: true}}})
}

func (s *shards) unlink(path string) *canopyv1.Result {
	dir, name := splitPath(path)
	ino, subtree := s.dir(dir)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: ino, Name: name}}})
}

func (s *shards) rmdir(path string) *canopyv1.Result {
	dir, name := splitPath(path)
	ino, subtree := s.dir(dir)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: ino, Name: name}}})
}

func (s *shards) rename(from, to string) *canopyv1.Result {
	fromDir, fromName := splitPath(from)
	toDir, toName := splitPath(to)
	src, subtree := s.dir(fromDir)
	dst, dstSubtree := s.dir(toDir)
	return s.do(&canopyv1.Op{Subtree: subtree, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{
		SrcDir: src, SrcName: fromName, DstDir: dst, DstName: toName, DstSubtree: dstSubtree}}})
}

// tree lists everything below /, by path, with the subtree of directories.
func (s *shards) tree() string {
	var lines []string
	var walk func(path string, ino, subtree uint64)
	walk = func(path string, ino, subtree uint64) {
		for _, e := range s.list(ino, subtree) {
			p := path + "/" + string(e.Name)
			if e.Type != schema.TypeDir {
				lines = append(lines, fmt.Sprintf("%s ino=%d", p, e.Ino))
				continue
			}
			a := s.stat(e.Ino, e.Subtree)
			lines = append(lines, fmt.Sprintf("%s/ ino=%d links=%d size=%d", p, e.Ino, a.Nlink, a.Size))
			walk(p, e.Ino, a.Subtree)
		}
	}
	walk("", 1, 1)
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

var errCrash = errors.New("crash")

// Move and the rest make a shard a migrate.Source.
func (x *machineOf) Move(_ context.Context, c *canopyv1.MoveCommand) (*canopyv1.Move, error) {
	if err := x.s.step(c.Step.String(), false); err != nil {
		return nil, err
	}
	r := x.apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})[0]
	if x.s.twice && r.Error == 0 {
		x.again(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: c}})
		late := proto.CloneOf(c)
		late.Attempt--
		x.refuses(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: late}})
	}
	if err := x.s.step(c.Step.String(), true); err != nil {
		return nil, err
	}
	if r.Error != 0 {
		return nil, &fserr.Error{Kind: fserr.Kind(r.Error), Path: r.Detail}
	}
	return r.Move, nil
}

func (s *shards) step(name string, after bool) error {
	if !after {
		s.steps = append(s.steps, name)
	}
	if s.fault == nil {
		return nil
	}
	return s.fault(name, after)
}

func (x *machineOf) Read(_ context.Context, fn func(shard.Reader) error) error { return fn(x.kv) }

func (x *machineOf) Changed(subtree base.SubtreeID, attempt, round uint64) ([]string, bool) {
	return x.m.Changed(subtree, attempt, round)
}

func (x *machineOf) Recorded(subtree base.SubtreeID, attempt uint64) int {
	return x.m.Recorded(subtree, attempt)
}

func (x *machineOf) Policy(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error) {
	return x.m.PolicyFor(r, subtree, dir)
}

func (x *machineOf) Waits(shard.Reader, base.SubtreeID) (bool, error) { return false, nil }

// target makes a shard a migrate.Target.
type target struct{ *machineOf }

func (x target) Import(_ context.Context, c *canopyv1.ImportCommand) (*canopyv1.ImportResponse, error) {
	if err := x.s.step(c.Step.String(), false); err != nil {
		return nil, err
	}
	r := x.apply(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: c}})[0]
	if x.s.twice && r.Error == 0 {
		if second := x.again(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: c}}); second.Error != 0 {
			x.s.t.Errorf("%v, done twice: %v %s", c.Step, fserr.Kind(second.Error), second.Detail)
		}
		late := proto.CloneOf(c)
		late.Attempt--
		x.refuses(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: late}})
	}
	if err := x.s.step(c.Step.String(), true); err != nil {
		return nil, err
	}
	return &canopyv1.ImportResponse{Error: r.Error, Detail: r.Detail, Batch: r.Move.GetBatches(), Counts: r.MoveCounts}, nil
}

// again applies a command that was applied a moment ago: that changes nothing.
func (x *machineOf) again(c *canopyv1.Command) *canopyv1.Result {
	x.s.t.Helper()
	before := x.kv.Clone()
	x.s.now--
	r := x.apply(c)[0]
	if d := before.Diff(x.kv, schema.Format); d != "" {
		x.s.t.Errorf("%v, once more, changed\n%s", c, d)
	}
	return r
}

func (x *machineOf) refuses(c *canopyv1.Command) {
	x.s.t.Helper()
	if kind := fserr.Kind(x.again(c).Error); kind != fserr.OldEpoch && kind != fserr.NotFound {
		x.s.t.Errorf("%v, of another attempt: %v", c, kind)
	}
}

// begin begins to move a directory.
func (s *shards) begin(path string, to base.ShardID) (from base.ShardID, subtree base.SubtreeID, r *canopyv1.Result) {
	ino, in := s.dir(path)
	subtree = base.SubtreeID(in)
	if subtree != 1 {
		delete(s.where, subtree) // it may have moved: ask the map
	}
	from = s.owner(subtree)
	r = s.of[from].apply(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
		Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: in, Dir: ino, ToShard: uint64(to)}}})[0]
	return from, subtree, r
}

// driver makes a driver of a move.
func (s *shards) driver(from base.ShardID, subtree base.SubtreeID, to base.ShardID) *migrate.Driver {
	d := migrate.New(from, subtree, s.of[from], target{s.of[to]}, func() time.Duration { return time.Duration(s.now) })
	if s.small {
		d.Limits = migrate.Limits{BatchBytes: 400, WalkNames: 3, CalmKeys: 1, RotateKeys: 4, Border: 1 << 10}
	}
	return d
}

// migrate moves a directory; between is called after each step.
func (s *shards) migrate(path string, to base.ShardID, between func(step int)) {
	s.t.Helper()
	from, subtree, r := s.begin(path, to)
	if r.Error != 0 {
		s.t.Fatalf("migrate %s: %v %s", path, fserr.Kind(r.Error), r.Detail)
	}
	s.drive(from, subtree, to, between)
}

// drive drives a move that has begun to its end.
func (s *shards) drive(from base.ShardID, subtree base.SubtreeID, to base.ShardID, between func(step int)) {
	s.t.Helper()
	d := s.driver(from, subtree, to)
	for step := 0; ; step++ {
		done, err := d.Step(s.t.Context())
		if errors.Is(err, errCrash) {
			d = s.driver(from, subtree, to)
			err = nil
		}
		if err != nil && fserr.KindOf(err) != fserr.OldEpoch {
			s.t.Fatalf("step %d: %v", step, err)
		}
		if done {
			break
		}
		if step > 10000 {
			s.t.Fatalf("it never ends: %v", s.steps[len(s.steps)-20:])
		}
		if m := d.Move(); between != nil && m != nil && m.Phase <= schema.MoveCopying {
			between(step) // later they wait, or cross the border
		}
	}
}

// owner is where a client asks first: what it knows, else what the map says, which
// owners write.
func (s *shards) owner(subtree base.SubtreeID) base.ShardID {
	if _, known := s.where[subtree]; !known {
		for id, x := range s.of {
			_ = eachSubtree(x.kv, id, func(found base.SubtreeID, t schema.Subtree) {
				if found == subtree && (t.State == schema.Active || t.State == schema.Frozen) {
					s.where[subtree] = id
				}
			})
		}
	}
	return s.where[subtree]
}
