package mds

import (
	"context"
	"maps"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
	"github.com/canopyfs/canopy/shard/txn"
)

const (
	// recoverInterval is how often a holder looks for transactions that were left.
	recoverInterval = 250 * time.Millisecond
	// suspectAfter is how old locks are before their coordinator is asked: one that
	// lives tells by itself.
	suspectAfter = 500 * time.Millisecond
)

// txnLoop ends what crashed coordinators and participants left: locks whose
// transaction was decided or is gone, and decisions that not all have confirmed.
func (t *tenure) txnLoop() {
	r := &txnRecovery{t: t, seen: map[preparedIn]time.Time{}, resumed: map[schema.TxnID]bool{}}
	for {
		if err := r.look(); err != nil && t.ctx.Err() == nil {
			t.h.server.log.Debug("transactions could not be looked after; trying again", "shard", t.h.shard, "error", err)
		}
		if !pause(t.ctx, recoverInterval) {
			return
		}
	}
}

type txnRecovery struct {
	t       *tenure
	looked  bool                     // the decisions of earlier terms are known
	seen    map[preparedIn]time.Time // locks, since this term first saw them
	resumed map[schema.TxnID]bool    // decisions that were there at the last look
}

type preparedIn struct {
	txn     schema.TxnID
	subtree base.SubtreeID
}

func (r *txnRecovery) look() error {
	var held []preparedIn
	decisions := map[schema.TxnID]*schema.Decision{}
	err := r.t.h.group.Read(r.t.ctx, func(reader shard.Reader) error {
		held = held[:0]
		clear(decisions)
		if err := namespace.Decisions(reader, r.t.h.shard, func(id schema.TxnID, d *schema.Decision) bool {
			decisions[id] = d
			return true
		}); err != nil {
			return err
		}
		return namespace.PreparedTxns(reader, r.t.h.shard, func(p namespace.PreparedInfo) bool {
			held = append(held, preparedIn{p.Txn, p.Subtree})
			return true
		})
	})
	if err != nil {
		return err
	}
	if err := r.resume(decisions); err != nil {
		return err
	}
	return r.ask(held)
}

// resume has decisions carried out that earlier holders took, each once as long as it is
// there.
func (r *txnRecovery) resume(decisions map[schema.TxnID]*schema.Decision) error {
	maps.DeleteFunc(r.resumed, func(id schema.TxnID, _ bool) bool { return decisions[id] == nil })
	var inherited []<-chan struct{}
	for id, d := range decisions {
		if r.resumed[id] || r.t.txns.runs(id) {
			continue
		}
		shares, err := sharesOf(d)
		if err != nil {
			return err
		}
		r.resumed[id] = true
		inherited = append(inherited, r.t.finish(txn.New(id), shares, d.TimeNS))
	}
	if !r.looked {
		r.looked = true
		r.t.inherited.found <- inherited // it has room for the one
	}
	return nil
}

// ask asks the coordinators of locks that are old, and ends what is decided or gone.
func (r *txnRecovery) ask(held []preparedIn) error {
	now := time.Now()
	still := map[preparedIn]bool{}
	suspects := map[base.ShardID][]preparedIn{}
	for _, p := range held {
		still[p] = true
		since, known := r.seen[p]
		if !known {
			r.seen[p], since = now, now
		}
		ownOld := p.txn.Shard == r.t.h.shard && p.txn.Epoch < r.t.epoch // nobody drives it any more
		if ownOld || now.Sub(since) >= suspectAfter {
			suspects[p.txn.Shard] = append(suspects[p.txn.Shard], p)
		}
	}
	for p := range r.seen {
		if !still[p] {
			delete(r.seen, p)
		}
	}
	for coordinator, list := range suspects {
		ctx, cancel := context.WithTimeout(r.t.ctx, peerTimeout)
		err := r.settle(ctx, coordinator, list)
		cancel()
		if err != nil && r.t.ctx.Err() == nil {
			r.t.h.server.log.Debug("a coordinator could not be asked; its locks stay until it can", "shard", r.t.h.shard, "coordinator", coordinator, "error", err)
		}
	}
	return nil
}

func (r *txnRecovery) settle(ctx context.Context, coordinator base.ShardID, list []preparedIn) error {
	ids := make([]schema.TxnID, len(list))
	for i, p := range list {
		ids[i] = p.txn
	}
	out, err := r.t.h.server.inquire(ctx, coordinator, r.t.h.shard, ids)
	if err != nil {
		return err
	}
	for i, o := range out.Outcomes {
		switch o.State {
		case canopyv1.TxnState_TXN_GONE:
			command := &canopyv1.TxnAbortCommand{Txn: ids[i].Proto(), Subtrees: []uint64{uint64(list[i].subtree)}}
			if _, err := r.t.propose(&canopyv1.Command{Own: &canopyv1.Command_TxnAbort{TxnAbort: command}}); err != nil {
				return err
			}
			r.t.h.server.log.Info("locks of a transaction that was given up are freed", "txn", ids[i], "subtree", list[i].subtree)
		case canopyv1.TxnState_TXN_COMMITTED:
			for _, encoded := range o.Commits {
				c := new(canopyv1.TxnCommitCommand)
				if err := c.UnmarshalVT(encoded); err != nil {
					return err
				}
				if _, err := r.t.participate(ctx, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: c}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
