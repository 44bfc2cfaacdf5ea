package mds

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
	"github.com/canopyfs/canopy/shard/txn"
)

// transactionService serves api's Transaction service: what other nodes ask of the
// shards that this one holds (PROTOCOLS B6).
type transactionService struct {
	canopyv1.UnimplementedTransactionServer
	server *Server
}

func (x *transactionService) term(id uint64) (*tenure, error) {
	h := x.server.lookup(base.ShardID(id))
	if h == nil {
		return nil, fserr.Status(x.server.notHosted(base.ShardID(id)))
	}
	t := h.tenure()
	if t == nil {
		return nil, fserr.Status(fserr.New(fserr.NotHolder, "transaction", nil))
	}
	return t, nil
}

// Participate proposes a part of a transaction.
func (x *transactionService) Participate(ctx context.Context, request *canopyv1.ParticipateRequest) (*canopyv1.ParticipateResponse, error) {
	t, err := x.term(request.Shard)
	if err != nil {
		return nil, err
	}
	var command canopyv1.Command
	if err := command.UnmarshalVT(request.Command); err != nil {
		return nil, fserr.Status(fserr.New(fserr.Malformed, "transaction", err))
	}
	switch command.Own.(type) {
	case *canopyv1.Command_TxnPrepare, *canopyv1.Command_TxnCommit, *canopyv1.Command_TxnAbort:
	default:
		return nil, fserr.Status(fserr.New(fserr.Malformed, "transaction", nil))
	}
	if command.Client != 0 || command.Op != nil {
		return nil, fserr.Status(fserr.New(fserr.Malformed, "transaction", nil))
	}
	result, err := t.confirm(ctx, &command)
	if err != nil {
		return nil, fserr.Status(err)
	}
	return &canopyv1.ParticipateResponse{Result: encodeResult(result)}, nil
}

// participate proposes a part of a transaction here. The result has an error kind
// where the log refused it.
func (t *tenure) participate(ctx context.Context, command *canopyv1.Command) (*canopyv1.Result, error) {
	encoded, err := command.MarshalVT()
	if err != nil {
		return nil, err
	}
	answer, err := t.h.group.Propose(ctx, encoded)
	if err != nil {
		return nil, err
	}
	result := new(canopyv1.Result)
	if err := result.UnmarshalVT(answer); err != nil {
		return nil, err
	}
	if c := command.GetTxnCommit(); c != nil && result.Error == 0 {
		t.committed(c)
	}
	return result, nil
}

// confirm is participate for a coordinator, which may tell its client once it has the
// answer: that is held back as an acknowledgement is (PROTOCOLS F3).
func (t *tenure) confirm(ctx context.Context, command *canopyv1.Command) (*canopyv1.Result, error) {
	result, err := t.participate(ctx, command)
	if c := command.GetTxnCommit(); c != nil && err == nil && result.Error == 0 {
		if free := t.heldBack(c); free != nil {
			waitFor(ctx, markDeadline, free)
		}
	}
	return result, err
}

// committed lets the map and the term's workers know what a commit made here.
func (t *tenure) committed(c *canopyv1.TxnCommitCommand) {
	t.activity.Add(1)
	for _, e := range c.Edits {
		if e.Kind != canopyv1.TxnEditKind_TXN_EDIT_SUBTREE {
			continue
		}
		if h, err := schema.DecodeHeader(e.Header); err == nil {
			t.h.server.publishRoute(t.h, t.epoch, &canopyv1.SubtreeRoute{
				Subtree: c.Subtree, Shard: uint64(t.h.shard), Epoch: 1, RootIno: uint64(h.Ino)})
		}
	}
}

// Inquire answers what became of transactions that this node coordinates.
func (x *transactionService) Inquire(ctx context.Context, request *canopyv1.InquireRequest) (*canopyv1.InquireResponse, error) {
	t, err := x.term(request.Shard)
	if err != nil {
		return nil, err
	}
	out, err := t.outcomes(ctx, request)
	if err != nil {
		return nil, fserr.Status(err)
	}
	return out, nil
}

// outcomes answers by PROTOCOLS D1: from the log, or from this term's table.
func (t *tenure) outcomes(ctx context.Context, request *canopyv1.InquireRequest) (*canopyv1.InquireResponse, error) {
	decisions := make([]*schema.Decision, len(request.Txns))
	_, epoch, self := t.h.group.Holder()
	err := t.h.group.Read(ctx, func(r shard.Reader) (err error) {
		for i, id := range request.Txns {
			if decisions[i], err = namespace.DecisionOf(r, t.h.shard, schema.TxnOf(id)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, now, still := t.h.group.Holder(); !self || !still || epoch != t.epoch || now != t.epoch {
		return nil, fserr.New(fserr.NotHolder, "inquire", nil)
	}
	out := &canopyv1.InquireResponse{}
	for i, id := range request.Txns {
		// The table is asked after the log: what is still in it was not decided when
		// the log was read.
		d, x := decisions[i], schema.TxnOf(id)
		o := &canopyv1.TxnOutcome{}
		switch txn.Answer(x, t.epoch, d != nil, t.txns.runs(x)) {
		case txn.NotMine:
			return nil, fserr.New(fserr.NotHolder, "inquire", nil)
		case txn.Running:
			o.State = canopyv1.TxnState_TXN_RUNNING
		case txn.Gone:
			o.State = canopyv1.TxnState_TXN_GONE
		case txn.Committed:
			o.State = canopyv1.TxnState_TXN_COMMITTED
			for _, s := range d.Shares {
				if s.Shard == base.ShardID(request.Asker) {
					o.Commits = append(o.Commits, s.Commit)
				}
			}
		}
		out.Outcomes = append(out.Outcomes, o)
	}
	return out, nil
}

// inquire asks a coordinator what became of transactions, on behalf of the shard
// asker.
func (s *Server) inquire(ctx context.Context, coordinator, asker base.ShardID, txns []schema.TxnID) (out *canopyv1.InquireResponse, err error) {
	request := &canopyv1.InquireRequest{Shard: uint64(coordinator), Asker: uint64(asker)}
	for _, t := range txns {
		request.Txns = append(request.Txns, t.Proto())
	}
	err = s.atHolder(ctx, coordinator, func(ctx context.Context, t *tenure) (err error) {
		out, err = t.outcomes(ctx, request)
		return err
	}, func(ctx context.Context, c canopyv1.TransactionClient) (err error) {
		out, err = c.Inquire(ctx, request)
		return err
	})
	if err == nil && len(out.Outcomes) != len(txns) {
		err = fserr.New(fserr.Malformed, "inquire", nil)
	}
	return out, err
}

// tell has a shard's holder propose a part of a transaction.
func (s *Server) tell(ctx context.Context, id base.ShardID, command *canopyv1.Command) (result *canopyv1.Result, err error) {
	var encoded []byte
	err = s.atHolder(ctx, id, func(ctx context.Context, t *tenure) (err error) {
		result, err = t.confirm(ctx, command)
		return err
	}, func(ctx context.Context, c canopyv1.TransactionClient) error {
		if encoded == nil {
			var err error
			if encoded, err = command.MarshalVT(); err != nil {
				return err
			}
		}
		answer, err := c.Participate(ctx, &canopyv1.ParticipateRequest{Shard: uint64(id), Command: encoded})
		if err != nil {
			return err
		}
		result = new(canopyv1.Result)
		return result.UnmarshalVT(answer.Result)
	})
	return result, err
}
