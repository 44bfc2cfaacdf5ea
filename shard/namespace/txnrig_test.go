package namespace

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// cluster is some shards, each a machine over a store in memory, and a driver of
// transactions whose steps a test takes one by one.
type cluster struct {
	t      testing.TB
	hash   func([]byte) shard.Hash
	nodes  map[base.ShardID]*shardRig
	owner  map[base.SubtreeID]base.ShardID
	seq    uint64
	number uint64
	txns   map[string]*driven
	held   map[string]*canopyv1.Place // places, as a mount has of an open file
	spread int                        // subtrees made: they go round
	splits int                        // fragments made
	open   map[uint64]bool            // requests that have no answer
}

type shardRig struct {
	id    base.ShardID
	hash  func([]byte) shard.Hash
	m     *Machine
	kv    *memkv.Store
	lease base.LeaseEpoch
	now   int64
}

const txnClient = 0xa1

func newTxnShards(t testing.TB, shards int) *cluster {
	return newHashedShards(t, shards, shard.NameHash)
}

func newHashedShards(t testing.TB, shards int, hash func([]byte) shard.Hash) *cluster {
	c := &cluster{t: t, hash: hash, nodes: map[base.ShardID]*shardRig{}, owner: map[base.SubtreeID]base.ShardID{1: 1},
		txns: map[string]*driven{}, held: map[string]*canopyv1.Place{}, open: map[uint64]bool{}}
	for id := base.ShardID(1); id <= base.ShardID(shards); id++ {
		n := &shardRig{id: id, hash: hash, kv: memkv.New(), lease: 5, now: 1000 * int64(id)}
		c.nodes[id] = n
		n.load(t)
		boot := &canopyv1.BootstrapCommand{Cluster: "test", Shard: uint64(id)}
		if id == 1 {
			boot.Subtree, boot.Epoch, boot.RootIno, boot.RootMode = 1, 1, 1, 0o755
		}
		n.own(t, &canopyv1.Command{Own: &canopyv1.Command_Bootstrap{Bootstrap: boot}})
		c.seq++
		n.apply(t, &canopyv1.Command{Client: txnClient, Floor: c.seq, Op: &canopyv1.Op{Seq: c.seq,
			Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}}})
	}
	return c
}

func (n *shardRig) load(t testing.TB) {
	n.m = New(Config{Shard: n.id, Hash: n.hash})
	if err := n.m.Load(n.kv); err != nil {
		t.Fatal(err)
	}
}

func (n *shardRig) apply(t testing.TB, c *canopyv1.Command) *canopyv1.Result {
	t.Helper()
	encoded, err := c.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	n.m.InEpoch(n.lease)
	results, err := n.m.Apply(n.kv, n.now, [][]byte{encoded})
	if err != nil {
		t.Fatalf("shard %d: apply: %v", n.id, err)
	}
	r := new(canopyv1.Result)
	if err := r.UnmarshalVT(results[0]); err != nil {
		t.Fatal(err)
	}
	return r
}

func (n *shardRig) own(t testing.TB, c *canopyv1.Command) *canopyv1.Result { return n.apply(t, c) }

// where is a directory and where its header is.
type where struct {
	ino     uint64
	subtree base.SubtreeID
}

func (c *cluster) query(subtree base.SubtreeID, op *canopyv1.Op) *canopyv1.Result {
	r, _ := c.queryAt(subtree, op)
	return r
}

// queryAt is query, and tells which subtree answered: a client follows redirects.
func (c *cluster) queryAt(subtree base.SubtreeID, op *canopyv1.Op) (*canopyv1.Result, base.SubtreeID) {
	if op.Cred == nil {
		op.Cred = &canopyv1.Credential{}
	}
	for range 8 {
		op.Subtree = uint64(subtree)
		n := c.nodes[c.owner[subtree]]
		if n == nil {
			return &canopyv1.Result{Error: uint32(fserr.Moved)}, subtree
		}
		r := n.m.Query(n.kv, op)
		next, at := redirected(r, op)
		if next == nil {
			return r, subtree
		}
		op, subtree = next, at
	}
	c.t.Fatalf("%v: too many redirects", op)
	return nil, 0
}

// redirected returns where an operation goes on that is elsewhere, nil if it is not.
func redirected(r *canopyv1.Result, op *canopyv1.Op) (*canopyv1.Op, base.SubtreeID) {
	if fserr.Kind(r.Error) != fserr.Moved || r.Redirect.GetSubtree() == op.Subtree && r.Place == nil {
		return nil, 0
	}
	if r.Place != nil {
		op = op.At(r.Place)
	}
	return op, base.SubtreeID(r.Redirect.Subtree)
}

func (c *cluster) lookup(d where, name string) *canopyv1.Result {
	r, _ := c.lookupAt(d, name)
	return r
}

func (c *cluster) lookupAt(d where, name string) (*canopyv1.Result, base.SubtreeID) {
	return c.queryAt(d.subtree, &canopyv1.Op{Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: d.ino, Name: []byte(name)}}})
}

// dir finds a directory by its path.
func (c *cluster) dir(path string) where {
	d := where{1, 1}
	first, rest, _ := strings.Cut(path, "/")
	if p := c.held[first]; p != nil {
		d, path = where{p.Ino, base.SubtreeID(p.Dir)}, rest
	}
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		r := c.lookup(d, name)
		if r.Error != 0 {
			return where{1 << 60, d.subtree}
		}
		d = where{r.Attr.Ino, base.SubtreeID(r.Attr.Subtree)}
	}
	return d
}

func (c *cluster) split(path string) (where, []byte) {
	i := strings.LastIndexByte(path, '/')
	return c.dir(path[:i]), []byte(path[i+1:])
}

// place addresses what a path names, and the subtree to ask in.
func (c *cluster) place(path string) (base.SubtreeID, *canopyv1.Place) {
	if path == "/" {
		return 1, &canopyv1.Place{Ino: 1}
	}
	if p := c.held[path]; p != nil {
		return base.SubtreeID(p.Dir), &canopyv1.Place{Ino: p.Ino}
	}
	d, name := c.split(path)
	r, at := c.lookupAt(d, string(name))
	switch {
	case r.Error != 0:
		return d.subtree, &canopyv1.Place{Dir: d.ino, Name: name}
	case r.Attr.Mode&schema.TypeMask == schema.TypeDir, r.Attr.Nlink != 1, base.SubtreeID(r.Attr.Subtree) != at:
		return base.SubtreeID(r.Attr.Subtree), &canopyv1.Place{Ino: r.Attr.Ino}
	}
	return at, &canopyv1.Place{Ino: r.Attr.Ino, Dir: d.ino, Name: name}
}

// driven is a transaction that a test drives.
type driven struct {
	c        *cluster
	op       *canopyv1.Op
	request  *canopyv1.TxnRequest
	shard    base.ShardID
	id       schema.TxnID
	plan     *TxnPlan
	first    bool
	forwards TxnForwards
	verdict  *TxnVerdict
	failed   fserr.Kind       // a prepare was refused
	told     *canopyv1.Result // what the client is told of where its operation goes
	asked    []TxnAsk         // one for each subtree
	timeNS   int64
	decided  []*canopyv1.TxnShare
}

func (c *cluster) begin(op *canopyv1.Op, request *canopyv1.TxnRequest) *driven {
	return c.beginWith(op, request, TxnForwards{})
}

func (c *cluster) beginWith(op *canopyv1.Op, request *canopyv1.TxnRequest, forwards TxnForwards) *driven {
	c.number++
	at := c.owner[base.SubtreeID(op.Subtree)]
	d := &driven{c: c, op: op, request: request, shard: at, first: true, forwards: forwards,
		id: schema.TxnID{Shard: at, Epoch: c.nodes[at].lease, Number: c.number}}
	d.plan = NewTxnPlan(op, at, forwards, func(bool, base.ShardID, base.Ino, []byte) base.ShardID {
		c.spread++
		return base.ShardID(1 + c.spread%len(c.nodes))
	})
	d.plan.hash = c.hash
	return d
}

// again is the next try of one that failed, and gave all back.
func (d *driven) again() *driven { return d.c.beginWith(d.op, d.request, d.forwards) }

func (d *driven) shardOf(a base.ShardID, subtree base.SubtreeID) base.ShardID {
	if a != 0 {
		return a
	}
	return d.c.owner[subtree]
}

// step sends the prepares of one step; false: there is a verdict, or one was refused.
func (d *driven) step() bool {
	asks, verdict, err := d.plan.Step()
	if err != nil {
		d.c.t.Fatal(err)
	}
	if verdict != nil {
		if verdict.Kind.IsProtocol() {
			d.failed = verdict.Kind
			return false
		}
		d.verdict = verdict
		return false
	}
	for _, a := range asks {
		if a.Subtree != 0 && !slices.ContainsFunc(d.asked, func(o TxnAsk) bool { return o.Subtree == a.Subtree }) {
			d.asked = append(d.asked, a)
		}
		p := &canopyv1.TxnPrepareCommand{Txn: d.id.Proto(), Subtree: uint64(a.Subtree), TimeNs: d.timeNS, Wants: []*canopyv1.TxnWant{a.Want}}
		if d.first {
			p.Request, d.first = d.request, false
		}
		n := d.c.nodes[d.shardOf(a.Shard, a.Subtree)]
		if n == nil { // not active anywhere
			d.failed = fserr.Moved
			return false
		}
		r := n.own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnPrepare{TxnPrepare: p}})
		d.timeNS = max(d.timeNS, r.TimeNs)
		if r.Error != 0 {
			d.refused(a, r)
			return false
		}
		if r.Stored != nil {
			d.c.t.Fatal("a request that was answered runs again")
		}
		d.plan.Tell(a, r.Facts[0])
	}
	return true
}

// refused does what a coordinator does when a prepare is refused.
func (d *driven) refused(a TxnAsk, r *canopyv1.Result) {
	d.failed = fserr.Kind(r.Error)
	red, own := r.Redirect, uint64(a.Subtree) == d.op.Subtree
	if d.failed != fserr.Moved || red.GetDir() == 0 && r.Place == nil {
		return
	}
	if own && (r.Place != nil || d.plan.Addressed(red)) {
		d.told = r
		return
	}
	d.forwards.Learn(a.Subtree, red)
}

// prepare takes all steps.
func (d *driven) prepare() *driven {
	for d.step() {
	}
	return d
}

// decide puts the verdict into the coordinator's log.
func (d *driven) decide() *canopyv1.Result {
	cmd := &canopyv1.TxnDecideCommand{Txn: d.id.Proto(), Request: d.request, TimeNs: d.timeNS, Commit: d.verdict.Kind == fserr.OK}
	if op := d.verdict.Op; op != nil {
		cmd.Op, _ = op.MarshalVT()
		for _, id := range d.verdict.Fragments {
			cmd.Fragments = append(cmd.Fragments, &canopyv1.TxnShare{Shard: uint64(d.shardOf(0, id)),
				Commit: &canopyv1.TxnCommitCommand{Txn: cmd.Txn, Subtree: uint64(id)}})
		}
		return d.decideOp(cmd)
	}
	cmd.Result, _ = d.verdict.Result.MarshalVT()
	edited := map[base.SubtreeID]bool{}
	var shares []*canopyv1.TxnShare
	for _, e := range d.verdict.Edits {
		edited[e.Subtree] = true
		shares = append(shares, &canopyv1.TxnShare{Shard: uint64(d.shardOf(e.Shard, e.Subtree)),
			Commit: &canopyv1.TxnCommitCommand{Txn: cmd.Txn, Subtree: uint64(e.Subtree), Edits: e.Edits}})
		if e.Shard != 0 {
			d.c.owner[e.Subtree] = e.Shard
		}
	}
	for _, a := range d.asked {
		if !edited[a.Subtree] {
			shares = append(shares, &canopyv1.TxnShare{Shard: uint64(d.shardOf(0, a.Subtree)),
				Commit: &canopyv1.TxnCommitCommand{Txn: cmd.Txn, Subtree: uint64(a.Subtree)}})
		}
		if d.shardOf(0, a.Subtree) == d.shard {
			cmd.Release = append(cmd.Release, uint64(a.Subtree))
		}
	}
	if cmd.Commit {
		cmd.Shares, cmd.Release = shares, nil
	}
	r := d.c.nodes[d.shard].own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnDecide{TxnDecide: cmd}})
	if r.Error != 0 {
		return r
	}
	for _, s := range shares {
		s.Commit.TimeNs = r.TimeNs
	}
	d.decided = shares
	out := new(canopyv1.Result)
	if err := out.UnmarshalVT(r.Stored); err != nil {
		d.c.t.Fatal(err)
	}
	return out
}

// decideOp is decide for an operation that the decision carries out.
func (d *driven) decideOp(cmd *canopyv1.TxnDecideCommand) *canopyv1.Result {
	n := d.c.nodes[d.shard]
	r := n.own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnDecide{TxnDecide: cmd}})
	if r.Error != 0 {
		return r
	}
	out := new(canopyv1.Result)
	if err := out.UnmarshalVT(r.Stored); err != nil {
		d.c.t.Fatal(err)
	}
	d.verdict.Kind, d.decided = fserr.Kind(out.Error), []*canopyv1.TxnShare{}
	record, err := DecisionOf(n.kv, n.id, d.id)
	if err != nil {
		d.c.t.Fatal(err)
	}
	for _, s := range sharesIn(record) {
		c := new(canopyv1.TxnCommitCommand)
		if err := c.UnmarshalVT(s.Commit); err != nil {
			d.c.t.Fatal(err)
		}
		d.decided = append(d.decided, &canopyv1.TxnShare{Shard: uint64(s.Shard), Commit: c})
	}
	return out
}

// finish has the other shards commit, or all abort.
func (d *driven) finish() {
	if d.verdict == nil || d.verdict.Kind != fserr.OK || d.decided == nil {
		for _, a := range d.asked {
			n := d.c.nodes[d.shardOf(0, a.Subtree)]
			if n == nil {
				continue
			}
			n.own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnAbort{
				TxnAbort: &canopyv1.TxnAbortCommand{Txn: d.id.Proto(), Subtrees: []uint64{uint64(a.Subtree)}}}})
		}
		return
	}
	for _, s := range d.decided {
		if base.ShardID(s.Shard) != d.shard {
			d.c.nodes[base.ShardID(s.Shard)].own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: s.Commit}})
		}
	}
	d.c.nodes[d.shard].own(d.c.t, &canopyv1.Command{Own: &canopyv1.Command_TxnForget{TxnForget: &canopyv1.TxnForgetCommand{Txn: d.id.Proto()}}})
}

// do runs an operation to its end, as a transaction if it takes one.
func (c *cluster) do(subtree base.SubtreeID, op *canopyv1.Op) *canopyv1.Result {
	op.Subtree = uint64(subtree)
	if op.Cred == nil {
		op.Cred = &canopyv1.Credential{}
	}
	if IsRead(op) {
		return c.whole(c.query(subtree, op))
	}
	c.seq++
	op.Seq = c.seq
	for range 8 {
		r := c.doOnce(op)
		next, at := redirected(r, op)
		if next == nil {
			return c.whole(r)
		}
		op = next
		op.Subtree = uint64(at)
	}
	c.t.Fatalf("%v: too many redirects", op)
	return nil
}

// doOnce runs an operation as the subtree does that it is addressed to.
func (c *cluster) doOnce(op *canopyv1.Op) *canopyv1.Result {
	n := c.nodes[c.owner[base.SubtreeID(op.Subtree)]]
	if n == nil {
		return &canopyv1.Result{Error: uint32(fserr.Moved)}
	}
	r := n.apply(c.t, &canopyv1.Command{Client: txnClient, Floor: c.floor(), Op: op})
	if fserr.Kind(r.Error) != fserr.CrossSubtree || !TxnCall(op) {
		return r
	}
	forwards := TxnForwards{}
	for range 16 {
		d := c.beginWith(op, c.request(op), forwards).prepare()
		switch {
		case d.failed == 0:
			r = d.decide()
		case d.told != nil:
			r = d.told
		default:
			r = &canopyv1.Result{Error: uint32(d.failed)}
		}
		d.finish()
		if d.failed != fserr.Moved && d.failed != fserr.Busy || d.told != nil {
			break
		}
	}
	return r
}

func (c *cluster) request(op *canopyv1.Op) *canopyv1.TxnRequest {
	return &canopyv1.TxnRequest{Client: txnClient, Seq: op.Seq, Floor: c.floor(), Subtree: op.Subtree}
}

// floor is the lowest request that has no answer.
func (c *cluster) floor() uint64 {
	floor := c.seq
	for _, d := range c.txns {
		if d.decided == nil {
			floor = min(floor, d.op.Seq)
		}
	}
	for seq := range c.open {
		floor = min(floor, seq)
	}
	return floor
}

// operation parses a line: an operation with paths, and the subtree that it is
// addressed to.
func (c *cluster) operation(l *words) (base.SubtreeID, *canopyv1.Op) {
	op := &canopyv1.Op{Cred: l.cred()}
	var at base.SubtreeID
	switch l.op {
	case "mkdir":
		d, name := c.split(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: d.ino, Name: name, Mode: uint32(l.num("mode", 0o755))}}
	case "create":
		d, name := c.split(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: d.ino, Name: name, Mode: uint32(l.num("mode", 0o644)), Exclusive: true}}
	case "unlink":
		d, name := c.split(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: d.ino, Name: name}}
	case "rmdir":
		d, name := c.split(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: d.ino, Name: name}}
	case "rename":
		s, from := c.split(l.arg(0))
		d, to := c.split(l.arg(1))
		at, op.Call = s.subtree, &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{SrcDir: s.ino, SrcName: from, DstDir: d.ino, DstName: to,
			DstSubtree: uint64(d.subtree), Flags: uint32(l.num("flags", 0))}}
	case "link":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		d, to := c.split(l.arg(1))
		op.Call = &canopyv1.Op_Link{Link: &canopyv1.LinkCall{Place: p, Dir: d.ino, Name: to, DirSubtree: uint64(d.subtree)}}
	case "setx":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: p, Name: []byte(l.arg(1)), Value: []byte(l.arg(2)), Flags: uint32(l.num("flags", 0))}}
	case "acl":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: p, Name: []byte(defaultACLXattr), Value: formatACL(schema.ACL{
			{Tag: schema.ACLUserObj, Perm: 7}, {Tag: schema.ACLGroupObj, Perm: uint8(l.num("group", 5))}, {Tag: schema.ACLOther, Perm: 0}})}}
	case "rmx":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_RemoveXattr{RemoveXattr: &canopyv1.RemoveXattrCall{Place: p, Name: []byte(l.arg(1))}}
	case "lsx":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: p}}
	case "getx":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: p, Name: []byte(l.arg(1))}}
	case "setattr":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		call := &canopyv1.SetAttrCall{Place: p, Mode: uint32(l.num("mode", 0)), Uid: uint32(l.num("owner", 0)), Size: l.num("size", 0),
			AtimeNs: int64(l.num("atime", 0)), MtimeNs: int64(l.num("mtime", 0))}
		for name, bit := range map[string]canopyv1.SetAttrMask{"atime": canopyv1.SetAttrMask_SET_ATTR_ATIME, "mtime": canopyv1.SetAttrMask_SET_ATTR_MTIME,
			"mode": canopyv1.SetAttrMask_SET_ATTR_MODE, "owner": canopyv1.SetAttrMask_SET_ATTR_UID, "size": canopyv1.SetAttrMask_SET_ATTR_SIZE} {
			if _, ok := l.opts[name]; ok {
				call.Mask |= uint32(bit)
			}
		}
		op.Call = &canopyv1.Op_SetAttr{SetAttr: call}
	case "lock":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: p, Lock: &canopyv1.Lock{Owner: 1, Kind: canopyv1.LockKind_LOCK_POSIX, Last: 9, Exclusive: true, Handle: 1}}}
	case "locks":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: p}}
	case "stat":
		var p *canopyv1.Place
		at, p = c.place(l.arg(0))
		op.Call = &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: p}}
	case "spread":
		d := c.dir(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_SetPolicy{SetPolicy: &canopyv1.SetPolicyCall{Dir: d.ino, Set: &canopyv1.LayoutPolicy{Spread: "children"}}}
	case "ls":
		d := c.dir(l.arg(0))
		at, op.Call = d.subtree, &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: d.ino}}
	default:
		c.t.Fatalf("unknown operation %s", l.op)
	}
	return at, op
}

// tree lists all that can be reached from the root: path, inode, links, kind.
func (c *cluster) tree() string {
	var b strings.Builder
	var walk func(d where, path string, depth int)
	walk = func(d where, path string, depth int) {
		if depth > 50 {
			fmt.Fprintf(&b, "%s: too deep\n", path)
			return
		}
		r := c.list(d)
		if r.Error != 0 {
			fmt.Fprintf(&b, "%s: %v\n", path, fserr.Kind(r.Error))
			return
		}
		var names []string
		for _, e := range r.Entries {
			names = append(names, string(e.Name))
		}
		slices.Sort(names)
		for _, name := range names {
			at, p := c.place(path + "/" + name)
			a := c.whole(c.query(at, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: p}}}))
			if a.Error != 0 {
				fmt.Fprintf(&b, "%s/%s: %v\n", path, name, fserr.Kind(a.Error))
				continue
			}
			fmt.Fprintf(&b, "%s/%s %s %o n=%d v=%d\n", path, name, numText(a.Attr.Ino), a.Attr.Mode, a.Attr.Nlink, a.Attr.Subtree>>base.InoCounterBits)
			if a.Attr.Mode&schema.TypeMask == schema.TypeDir {
				walk(where{a.Attr.Ino, base.SubtreeID(a.Attr.Subtree)}, path+"/"+name, depth+1)
			}
		}
	}
	walk(where{1, 1}, "", 0)
	return b.String()
}

// numText prints a number as shard and counter.
func numText(ino uint64) string {
	return fmt.Sprintf("%d#%d", base.Ino(ino).Shard(), ino&(1<<base.InoCounterBits-1))
}
