package mds

import (
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// readLater answers a read that met intents of transactions, apart from its batch.
func (st *opStream) readLater(b *readBatch, i int) {
	op, kind := b.ops[i], b.kinds[i]
	answer := func() {
		result := st.readInTime(b, op, kind)
		b.h.metrics.observe(kind, fserr.Kind(result.Error), time.Since(b.started))
		st.queue.put(1, outcome{op.Id, encodeResult(result)})
	}
	if !st.server.spawn(answer) {
		st.queue.put(1, outcome{op.Id, encodeResult(st.server.refusal(fserr.New(fserr.NotReady, "read", errStopping), b.h.shard, base.SubtreeID(op.Subtree)))})
	}
}

// readInTime is readDecided with the time that reads have.
func (st *opStream) readInTime(b *readBatch, op *canopyv1.Op, kind opType) *canopyv1.Result {
	met := time.Now()
	ctx, cancel := context.WithTimeout(st.ctx, readTimeout)
	defer cancel()
	result := st.readDecided(ctx, &readBatch{stream: st, h: b.h, started: b.started}, op, kind)
	st.heatConflict(b, op, kind, met, fserr.Kind(result.Error))
	return result
}

// readDecided asks what became of the transactions that a read meets (PROTOCOLS D3):
// it answers what was before those that were not decided when its snapshot was
// taken, and waits until what was decided is there. It waits, too, for a subtree that
// comes to this shard.
func (st *opStream) readDecided(ctx context.Context, b *readBatch, op *canopyv1.Op, kind opType) *canopyv1.Result {
	wait := retry{next: time.Millisecond, limit: 20 * time.Millisecond}
	for {
		var result *canopyv1.Result
		err := b.h.group.Read(ctx, func(r shard.Reader) error {
			past := map[schema.TxnID]bool{}
			for {
				result = b.h.machine.QueryPast(r, op, past)
				if comes(op, result) {
					return nil // the entry by which it comes is applied, and not visible yet
				}
				if fserr.Kind(result.Error) != fserr.Locked {
					st.complete(b, r, op, kind, result)
					return nil
				}
				passed, err := st.server.passUndecided(ctx, b.h.shard, result.BlockedBy, past)
				if err != nil || !passed {
					return err
				}
			}
		})
		if err != nil {
			return st.server.refusal(err, b.h.shard, base.SubtreeID(op.Subtree))
		}
		if fserr.Kind(result.Error) != fserr.Locked && !comes(op, result) {
			return result
		}
		if !wait.sleep(ctx) {
			return st.server.refusal(fserr.New(fserr.Busy, "read", nil), b.h.shard, base.SubtreeID(op.Subtree))
		}
	}
}

// passUndecided adds those transactions to past that are not decided now, which is
// after the snapshot was taken; false: one of them is not of that kind.
func (s *Server) passUndecided(ctx context.Context, asker base.ShardID, blockers []*canopyv1.TxnId, past map[schema.TxnID]bool) (bool, error) {
	byShard := map[base.ShardID][]schema.TxnID{}
	for _, m := range blockers {
		t := schema.TxnOf(m)
		byShard[t.Shard] = append(byShard[t.Shard], t)
	}
	for at, list := range byShard {
		out, err := s.inquire(ctx, at, asker, list)
		if err != nil {
			return false, err
		}
		for i, o := range out.Outcomes {
			if o.State != canopyv1.TxnState_TXN_RUNNING {
				return false, nil
			}
			past[list[i]] = true
		}
	}
	return len(blockers) > 0, nil
}
