package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// InEpoch tells in which lease epoch the entries are that Apply gets from now on.
func (m *Machine) InEpoch(epoch base.LeaseEpoch) { m.lease = epoch }

// decide decides a transaction, stores the client's result (PROTOCOLS C4) and makes
// this shard's changes. It is accepted in the lease epoch that the transaction's id
// names, and in no other (PROTOCOLS D1): whoever asked a later holder was told that
// it is aborted.
func (b *batch) decide(c *canopyv1.TxnDecideCommand) (*canopyv1.Result, error) {
	t := schema.TxnOf(c.Txn)
	if t.Shard != b.id || t.Epoch != b.m.lease {
		return nil, fserr.NotHolder
	}
	q := c.Request
	stored, err := b.answered(q)
	if stored != nil || err != nil {
		at := b.nowNS
		if d, err := DecisionOf(b.r, b.id, t); err != nil {
			return nil, err
		} else if d != nil {
			at = d.TimeNS // this is a copy of the command that decided
		}
		return &canopyv1.Result{Stored: stored, TimeNs: at}, err
	}
	b.follow(c.TimeNs)
	decided := b.nowNS
	if len(c.Op) > 0 {
		if err := b.decideOp(t, c); err != nil {
			return nil, err
		}
		result, err := b.answered(q)
		return &canopyv1.Result{Stored: result, TimeNs: decided}, err
	}
	if err := b.storeResult(q, c.Result); err != nil {
		return nil, err
	}
	if !c.Commit {
		if _, err := b.abort(&canopyv1.TxnAbortCommand{Txn: c.Txn, Subtrees: c.Release}); err != nil {
			return nil, err
		}
	} else if err := b.decideShares(t, c.Shares, decided); err != nil {
		return nil, err
	}
	result, err := b.answered(q)
	return &canopyv1.Result{Stored: result, TimeNs: decided}, err
}

// decideShares commits what is to be done here, and records the rest.
func (b *batch) decideShares(t schema.TxnID, shares []*canopyv1.TxnShare, decided int64) error {
	d := &schema.Decision{TimeNS: decided}
	for _, s := range shares {
		s.Commit.TimeNs = decided
		if base.ShardID(s.Shard) == b.id {
			if _, err := b.commit(s.Commit); err != nil {
				return err
			}
			continue
		}
		encoded, err := s.Commit.MarshalVT()
		if err != nil {
			return err
		}
		d.Shares = append(d.Shares, schema.Share{Shard: base.ShardID(s.Shard), Subtree: base.SubtreeID(s.Commit.Subtree), Commit: encoded})
	}
	if len(d.Shares) == 0 {
		return nil
	}
	return b.set(schema.DecisionKey(b.id, t), d)
}

// storeResult stores the result of a request that is answered now. Times that were
// left open in it are the entry's.
func (b *batch) storeResult(q *canopyv1.TxnRequest, encoded []byte) error {
	result := new(canopyv1.Result)
	if err := result.UnmarshalVT(encoded); err != nil {
		return fserr.Malformed
	}
	for _, a := range []*canopyv1.Attr{result.Attr, result.Replaced} {
		if a == nil {
			continue
		}
		for _, t := range []*int64{&a.AtimeNs, &a.MtimeNs, &a.CtimeNs, &a.BtimeNs} {
			if *t == 0 {
				*t = b.nowNS
			}
		}
	}
	encoded, err := result.MarshalVT()
	if err != nil {
		return err
	}
	b.keepResult(q, encoded)
	return nil
}

// keepResult stores a result as it is.
func (b *batch) keepResult(q *canopyv1.TxnRequest, encoded []byte) {
	s := b.m.subtrees[base.SubtreeID(q.Subtree)]
	client := base.ClientID(q.Client)
	floor := max(base.Seq(q.Floor), b.m.sessions[client].Base)
	w := s.windows[client]
	if w == nil {
		w = &window{floor: floor}
		s.windows[client] = w
	}
	if len(w.pending) == 0 {
		b.windows = append(b.windows, openWindow{w, s.id, client})
	}
	w.store(base.Seq(q.Seq), floor, encoded)
}

// forget drops a decision that all participants have confirmed.
func (b *batch) forget(c *canopyv1.TxnForgetCommand) (*canopyv1.Result, error) {
	return &canopyv1.Result{}, b.w.Delete(schema.DecisionKey(b.id, schema.TxnOf(c.Txn)))
}

// DecisionOf returns what the shard's log says of a transaction that it
// coordinates: nil if it is not decided, or all is done.
func DecisionOf(r shard.Reader, id base.ShardID, t schema.TxnID) (*schema.Decision, error) {
	b, found, err := r.Get(schema.DecisionKey(id, t))
	if err != nil || !found {
		return nil, err
	}
	return schema.DecodeDecision(b)
}

// Decisions lists the decisions that not all participants have confirmed.
func Decisions(r shard.Reader, id base.ShardID, fn func(schema.TxnID, *schema.Decision) bool) error {
	lo, hi := schema.KindRange(id, base.ShardMeta, schema.KindDecision)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		t, _ := schema.TxnIn(key)
		d, err := schema.DecodeDecision(value)
		return err == nil && fn(t, d), err
	})
}

// HasIntents reports whether transactions have prepared something in a subtree: none
// does any more once it is frozen (PROTOCOLS E4).
func HasIntents(r shard.Reader, id base.ShardID, subtree base.SubtreeID) (bool, error) {
	b, found, err := r.Get(schema.SubtreeKey(id, subtree))
	if err != nil || !found {
		return false, err
	}
	s, err := schema.DecodeSubtree(b)
	return err == nil && s.Intents > 0, err
}

// PreparedInfo is a transaction that has locked something in a subtree.
type PreparedInfo struct {
	Txn     schema.TxnID
	Subtree base.SubtreeID
	SinceNS int64
}

// PreparedTxns lists what transactions have locked in the shard. It reads nothing
// but the subtrees' states where there are none.
func PreparedTxns(r shard.Reader, id base.ShardID, fn func(PreparedInfo) bool) error {
	var subtrees []base.SubtreeID
	err := eachSubtree(r, id, func(subtree base.SubtreeID, s schema.Subtree) {
		if s.Intents > 0 {
			subtrees = append(subtrees, subtree)
		}
	})
	if err != nil {
		return err
	}
	for _, subtree := range subtrees {
		lo, hi := schema.KindRange(id, subtree, schema.KindPrepared)
		err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
			t, _ := schema.TxnIn(key)
			p, err := schema.DecodePrepared(value)
			if err != nil {
				return false, err
			}
			return fn(PreparedInfo{t, subtree, p.SinceNS}), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
