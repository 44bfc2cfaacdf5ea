package namespace

import (
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// checkShard checks what a shard has beside its subtrees, and tells what other shards
// have to agree with: who is given what (PROTOCOLS E2).
func (m *Machine) checkShard(r shard.Reader, look Look) error {
	for id := range look.Only {
		// Whether a subtree is no more is asked for: all that ever were would be many.
		gone, err := GoneSubtrees(r, m.cfg.Shard, []base.SubtreeID{id})
		if err != nil {
			return err
		}
		if len(gone) > 0 {
			if err := look.Edge(edge.Edge{Kind: edge.Gone, Shard: m.cfg.Shard, Subtree: id}); err != nil {
				return err
			}
		}
	}
	if len(look.Only) == 0 {
		if err := m.checkDecisions(r, look); err != nil {
			return err
		}
	}
	var coming []edge.Edge
	for _, kind := range []schema.Kind{schema.KindImport, schema.KindJoin} {
		lo, hi := schema.KindRange(m.cfg.Shard, base.ShardMeta, kind)
		err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
			i, err := schema.DecodeImport(value)
			if err != nil {
				return false, err
			}
			number, _, _ := schema.InoOf(key)
			e := edge.Edge{Kind: edge.Coming, Shard: m.cfg.Shard, Subtree: base.SubtreeID(number), To: base.SubtreeID(number), Ino: i.Root, Peer: i.From, Epoch: i.Epoch}
			if kind == schema.KindJoin { // by the subtree that it comes from
				e.To = i.Into
			}
			if i.State == schema.ImportRunning && (len(look.Only) == 0 || look.Only[e.Subtree]) {
				coming = append(coming, e)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	for _, e := range coming {
		if err := look.Edge(e); err != nil {
			return err
		}
	}
	return nil
}

// checkDecisions reports decisions that somebody does not confirm (PROTOCOLS D4).
func (m *Machine) checkDecisions(r shard.Reader, look Look) error {
	lo, hi := schema.KindRange(m.cfg.Shard, base.ShardMeta, schema.KindDecision)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		d, err := schema.DecodeDecision(value)
		if err != nil {
			return false, err
		}
		txn, _ := schema.TxnIn(key)
		if age := time.Duration(look.NowNS - d.TimeNS); age > overdue {
			look.Found(Finding{Invariant: "6", Object: "transaction " + txn.String(),
				Problem: "it was decided " + age.Round(time.Second).String() + " ago, and not every shard has confirmed it"})
		}
		return true, nil
	})
}

// checkStay tells where a subtree has gone, or goes.
func (m *Machine) checkStay(r shard.Reader, look Look, id base.SubtreeID, s *schema.Subtree) error {
	if s.State == schema.HandedOff {
		err := look.Edge(edge.Edge{Kind: edge.Left, Shard: m.cfg.Shard, Subtree: id, Peer: s.ToShard, Epoch: s.Epoch, Ino: s.Root})
		if err != nil {
			return err
		}
	}
	b, found, err := r.Get(schema.MoveKey(m.cfg.Shard, id))
	if err != nil || !found {
		return err
	}
	x, err := schema.DecodeMove(b)
	if err != nil {
		return err
	}
	return look.Edge(edge.Edge{Kind: edge.Going, Shard: m.cfg.Shard, Subtree: id, To: x.Into, Peer: x.To, Epoch: x.Epoch, Ino: x.Root})
}
