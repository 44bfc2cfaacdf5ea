package namespace

import (
	"sync/atomic"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Config says which shard a Machine is of.
type Config struct {
	Shard base.ShardID
	// Hash is the hash of names, nil for shard.NameHash. Another one is for tests
	// of collisions: it changes the format.
	Hash func(name []byte) shard.Hash
	// CountNow is up to how many names one operation counts for a quota itself; 0
	// is the format's. Another one is for tests: it changes what apply does.
	CountNow int
	// MaxRecorded is in the place of the constant; 0 is that. It is for tests.
	MaxRecorded int
}

// Machine is the state machine of one shard. Load and Apply are called by one
// goroutine at a time; Query and the other methods by any number, also during
// Apply: they read nothing that Apply changes.
type Machine struct {
	cfg Config

	// What Load read and Apply keeps equal to the stored state. Apply's alone.
	state    *schema.ShardState // nil: no bootstrap yet
	lease    base.LeaseEpoch    // in which Apply runs
	sessions map[base.ClientID]*schema.Session
	ended    map[base.ClientID]*schema.Ended
	subtrees map[base.SubtreeID]*subtree
	scratch  []byte // of encodings, kept from batch to batch

	recordings recordings // of subtrees that are copied
	still      standstills
	moved      atomic.Uint64
}

// Moved counts what this machine has applied that gave a subtree, or a part of one, to
// another holder, or took one in: it tells whether there was one between two looks, and
// nothing else.
func (m *Machine) Moved() uint64 { return m.moved.Load() }

// subtree is what Apply keeps in memory of one subtree.
type subtree struct {
	schema.Subtree
	id            base.SubtreeID
	counters      schema.Counters
	countersDirty bool
	windows       map[base.ClientID]*window
	locked        map[base.ClientID]int // inodes in which a client has locks; none is 0
	quotas        map[base.Ino]*quota
	above         map[base.Ino][]*quota // of quotasAbove; valid while quotas and the tree between them stay
	policies      policies
	move          *schema.Move          // nil: it does not move
	members       map[base.Ino]struct{} // directories of a carve before its hand-off
	forgotten     bool                  // in this batch: it was removed, and none of its rows is to be written
}

func newSubtree(id base.SubtreeID, s schema.Subtree) *subtree {
	return &subtree{Subtree: s, id: id, windows: map[base.ClientID]*window{}, locked: map[base.ClientID]int{},
		quotas: map[base.Ino]*quota{}, above: map[base.Ino][]*quota{},
		policies: policies{set: map[base.Ino]*canopyv1.LayoutPolicy{}}}
}

// New returns a Machine. Load comes before anything else.
func New(cfg Config) *Machine {
	if cfg.Hash == nil {
		cfg.Hash = shard.NameHash
	}
	if cfg.CountNow == 0 {
		cfg.CountNow = countNow
	}
	if cfg.MaxRecorded == 0 {
		cfg.MaxRecorded = MaxRecorded
	}
	m := &Machine{cfg: cfg}
	m.reset()
	return m
}

func (m *Machine) reset() {
	m.state = nil
	m.sessions = map[base.ClientID]*schema.Session{}
	m.ended = map[base.ClientID]*schema.Ended{}
	m.subtrees = map[base.SubtreeID]*subtree{}
	m.recordings.clear()
}

// Apply runs encoded Command messages in order at the entry's time and returns
// one encoded Result for each. An error means that the replica is broken. The
// returned slices are the caller's to keep and not to change.
func (m *Machine) Apply(w shard.Writer, timeNS int64, commands [][]byte) ([][]byte, error) {
	b := newBatch(m, w, timeNS)
	results := make([][]byte, len(commands))
	var command canopyv1.Command
	for i, c := range commands {
		command.Reset()
		if err := command.UnmarshalVT(c); err != nil {
			command.Reset() // an empty command is malformed
		}
		result, err := b.run(&command)
		if err != nil {
			return nil, err
		}
		results[i] = result
	}
	if err := b.flush(); err != nil {
		return nil, err
	}
	if b.restated {
		m.still.note(m.subtrees)
	}
	return results, nil
}

// Query answers a read on r. It is a pure function of r and op.
func (m *Machine) Query(r shard.Reader, op *canopyv1.Op) *canopyv1.Result {
	if c := op.GetLocate(); c != nil {
		result, err := m.locate(r, c)
		if result, err = outcome(op, result, err); err != nil {
			return failure(err)
		}
		return result
	}
	return m.QueryPast(r, op, nil)
}

// QueryPast is Query that passes by the intents of the transactions in undecided,
// none of which was decided as of r: it answers what was before them. Whoever
// meets another gets Locked with blocked_by (PROTOCOLS D3).
func (m *Machine) QueryPast(r shard.Reader, op *canopyv1.Op, undecided map[schema.TxnID]bool) *canopyv1.Result {
	v, redirect, err := m.viewOf(r, op)
	if err != nil {
		return failure(err)
	}
	if redirect != nil {
		return redirect
	}
	v.locks.past = undecided
	handler := queryHandler(op)
	if handler == nil {
		return failure(fserr.Malformed)
	}
	result, err := handler(v, op)
	if e, ok := err.(*elsewhere); ok && e.place != nil {
		// A file with a record of its own in another subtree: no need to send the
		// client there if that is the shard's, too.
		there, viewErr := v.viewIn(e.subtree)
		if viewErr != nil {
			return failure(viewErr)
		}
		if there != nil {
			result, err = handler(there, op.At(e.place))
			if next, ok := err.(*elsewhere); ok && next.place == nil && uint64(next.ino) == e.place.Dir {
				err = next.at(e.place)
			}
		}
	}
	if result, err = outcome(op, result, err); err != nil {
		return failure(err)
	}
	return result
}

// viewOf returns the view of the operation's subtree, or where else to ask.
func (m *Machine) viewOf(r shard.Reader, op *canopyv1.Op) (*view, *canopyv1.Result, error) {
	id := base.SubtreeID(op.GetSubtree())
	b, found, err := r.Get(schema.SubtreeKey(m.cfg.Shard, id))
	if err != nil {
		return nil, nil, err
	}
	if !found || id == base.ShardMeta {
		redirect, err := unknown(r, m.cfg.Shard, op)
		return nil, redirect, err
	}
	s, err := schema.DecodeSubtree(b)
	if err != nil {
		return nil, nil, err
	}
	if redirect := route(op, s); redirect != nil && redirect.Error != uint32(fserr.Frozen) {
		return nil, redirect, nil
	}
	v := &view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash}
	v.in(id, s)
	return v, nil, nil
}

// route returns how an operation is refused that s, the state of its subtree
// here, does not allow; nil when it may run. The zero s is a subtree that was
// never here.
func route(op *canopyv1.Op, s *schema.Subtree) *canopyv1.Result {
	if s.State == schema.Active && op.GetEpoch() <= uint64(s.Epoch) {
		return nil
	}
	if s.State == schema.Removed {
		return &canopyv1.Result{Error: uint32(fserr.Stale)}
	}
	r := &canopyv1.Redirect{Subtree: op.GetSubtree(), Epoch: uint64(s.Epoch)}
	switch s.State {
	case schema.Active, schema.Frozen:
		if op.GetEpoch() > uint64(s.Epoch) {
			// The client has seen an owner that this replica has not heard of.
			return &canopyv1.Result{Error: uint32(fserr.NotHolder), Redirect: r}
		}
		return &canopyv1.Result{Error: uint32(fserr.Frozen), Redirect: r}
	case schema.HandedOff:
		r.Shard = uint64(s.ToShard)
	}
	return &canopyv1.Result{Error: uint32(fserr.Moved), Redirect: r}
}

// failure returns the result of an operation that failed. An error that is no
// Kind comes from storage or a damaged value.
func failure(err error) *canopyv1.Result {
	if e, ok := err.(*blocked); ok {
		return e.result()
	}
	if k, ok := err.(fserr.Kind); ok {
		return &canopyv1.Result{Error: uint32(k)}
	}
	return &canopyv1.Result{Error: uint32(fserr.IO), Detail: err.Error()}
}
