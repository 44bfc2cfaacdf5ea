package mds

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
	"github.com/canopyfs/canopy/shard/schema"
	"github.com/canopyfs/canopy/shard/txn"
)

// errUndecided is the error of a decision that may or may not be in the log.
var errUndecided = errors.New("it is not known whether the decision is in the log")

// decide puts the verdict into the log and has it carried out. It returns the
// client's result as the log stored it.
func (x *transaction) decide(ctx context.Context, v *namespace.TxnVerdict) ([]byte, error) {
	command, remote, err := x.decision(v)
	if err != nil || !x.c.Decide() {
		x.abort(x.c.Abort())
		return nil, fserr.New(fserr.Internal, "decide", err)
	}
	answer, err := x.propose(ctx, command)
	switch {
	case err != nil:
		if abort := x.c.Decided(verdictOf(err), v.Kind == fserr.OK, nil); abort != nil {
			x.abort(abort)
		}
		return nil, err
	case v.Kind != fserr.OK:
		x.abort(x.c.Decided(txn.Accepted, false, nil))
		return answer.Stored, nil
	}
	shares := command.GetTxnDecide().Shares
	if v.Op != nil {
		if shares, remote, err = x.carriedOut(ctx, answer); err != nil || len(remote) == 0 {
			return answer.Stored, nil
		}
	}
	x.c.Decided(txn.Accepted, true, remote)
	var own []*canopyv1.TxnCommitCommand
	for _, s := range shares {
		if base.ShardID(s.Shard) == x.t.h.shard {
			x.t.committed(s.Commit)
			own = append(own, s.Commit)
		}
	}
	patience := commitPatience
	if v.Split {
		patience = splitPatience
	}
	var waited []<-chan struct{}
	if free := x.t.heldBack(own...); free != nil {
		waited, patience = append(waited, free), splitPatience
	}
	if len(remote) == 0 {
		x.t.txns.end(x.c.ID)
	} else {
		waited = append(waited, x.t.finish(x.c, shares, answer.TimeNs))
	}
	if !waitFor(x.t.ctx, patience, waited...) {
		return nil, fserr.New(fserr.NotReady, "transaction", errTermOver)
	}
	return answer.Stored, nil
}

// waitFor waits until all of done are closed, for some time; false: ctx ended before.
func waitFor(ctx context.Context, patience time.Duration, done ...<-chan struct{}) bool {
	if len(done) == 0 {
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, d := range done {
		select {
		case <-d:
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// carriedOut returns the shares of a decision whose operation the log carried out: they
// stand in its record. Without a record, nobody of another shard has one: the operation
// failed, or all confirmed before; locks that are left are given back.
func (x *transaction) carriedOut(ctx context.Context, answer *canopyv1.Result) ([]*canopyv1.TxnShare, []txn.Participant, error) {
	var d *schema.Decision
	if errorOf(answer.Stored) == fserr.OK {
		err := x.t.h.group.Read(ctx, func(r shard.Reader) (err error) {
			d, err = namespace.DecisionOf(r, x.t.h.shard, x.c.ID)
			return err
		})
		if err != nil {
			x.t.txns.end(x.c.ID) // whoever looks for what is left finds the record
			return nil, nil, err
		}
	}
	if d == nil {
		x.abort(x.c.Decided(txn.Accepted, false, nil))
		return nil, nil, nil
	}
	shares, err := sharesOf(d)
	if err != nil {
		return nil, nil, err
	}
	var remote []txn.Participant
	for _, s := range shares {
		remote = append(remote, txn.Participant{Shard: base.ShardID(s.Shard), Subtree: base.SubtreeID(s.Commit.Subtree)})
	}
	return shares, remote, nil
}

// sharesOf returns what is to be done elsewhere for a decision.
func sharesOf(d *schema.Decision) (shares []*canopyv1.TxnShare, err error) {
	for _, s := range d.Shares {
		c := new(canopyv1.TxnCommitCommand)
		if err := c.UnmarshalVT(s.Commit); err != nil {
			return nil, err
		}
		shares = append(shares, &canopyv1.TxnShare{Shard: uint64(s.Shard), Commit: c})
	}
	return shares, nil
}

// decision makes the command, and tells which participants have to confirm.
func (x *transaction) decision(v *namespace.TxnVerdict) (command *canopyv1.Command, remote []txn.Participant, err error) {
	d := &canopyv1.TxnDecideCommand{Txn: x.c.ID.Proto(), Request: x.request, TimeNs: x.timeNS, Commit: v.Kind == fserr.OK, Result: encodeResult(v.Result)}
	if v.Op != nil {
		if d.Op, err = v.Op.MarshalVT(); err != nil {
			return nil, nil, err
		}
		for _, id := range v.Fragments {
			d.Fragments = append(d.Fragments, &canopyv1.TxnShare{Shard: uint64(x.shardOf(id)),
				Commit: &canopyv1.TxnCommitCommand{Txn: d.Txn, Subtree: uint64(id)}})
		}
		return &canopyv1.Command{Own: &canopyv1.Command_TxnDecide{TxnDecide: d}}, nil, nil
	}
	own := map[uint64]bool{}
	for _, e := range v.Edits {
		shard := e.Shard
		if shard == 0 {
			shard = x.shardOf(e.Subtree)
		}
		d.Shares = append(d.Shares, &canopyv1.TxnShare{Shard: uint64(shard),
			Commit: &canopyv1.TxnCommitCommand{Txn: d.Txn, Subtree: uint64(e.Subtree), Edits: e.Edits}})
		own[uint64(e.Subtree)] = true
	}
	for _, p := range x.c.Asked() {
		switch {
		case !d.Commit && p.Shard == x.t.h.shard:
			d.Release = append(d.Release, uint64(p.Subtree))
		case d.Commit && !own[uint64(p.Subtree)]:
			// It was only asked: it gives its locks back with an empty commit.
			d.Shares = append(d.Shares, &canopyv1.TxnShare{Shard: uint64(p.Shard),
				Commit: &canopyv1.TxnCommitCommand{Txn: d.Txn, Subtree: uint64(p.Subtree)}})
		}
	}
	for _, s := range d.Shares {
		if base.ShardID(s.Shard) != x.t.h.shard {
			remote = append(remote, txn.Participant{Shard: base.ShardID(s.Shard), Subtree: base.SubtreeID(s.Commit.Subtree)})
		}
	}
	return &canopyv1.Command{Own: &canopyv1.Command_TxnDecide{TxnDecide: d}}, remote, nil
}

// propose puts the decision into this term's log, again until the log says what it
// made of it: only then is it known. The group refuses it once the term is over.
func (x *transaction) propose(ctx context.Context, command *canopyv1.Command) (*canopyv1.Result, error) {
	unknown := false
	wait := retry{next: 5 * time.Millisecond, limit: 200 * time.Millisecond}
	for {
		answer, err := x.t.participate(x.t.ctx, command)
		if err == nil && answer.Error == 0 {
			return answer, nil
		}
		kind := fserr.KindOf(err)
		if err == nil {
			kind = fserr.Kind(answer.Error)
		}
		switch kind {
		case fserr.TimedOut, fserr.Interrupted:
			unknown = true
		case fserr.Busy:
			if err != nil { // the queue is full
				break
			}
			fallthrough
		default:
			if unknown {
				return nil, fserr.New(kind, "decide", errUndecided)
			}
			return nil, fserr.New(kind, "decide", err)
		}
		if !wait.sleep(x.t.ctx) {
			return nil, fserr.New(fserr.NotReady, "decide", errUndecided)
		}
	}
}

func verdictOf(err error) txn.Verdict {
	if errors.Is(err, errUndecided) {
		return txn.NoAnswer
	}
	return txn.Refused
}

// abort gives back what participants may have locked. They are told in the
// background: a participant that does not hear asks itself.
func (x *transaction) abort(told []txn.Participant) {
	t, id := x.t, x.c.ID
	if told == nil && x.unknown() {
		return // it stays in the table: it may be decided yet
	}
	byShard := map[base.ShardID][]uint64{}
	for _, p := range told {
		byShard[p.Shard] = append(byShard[p.Shard], uint64(p.Subtree))
	}
	// Nobody who asks from here on is told that it runs: it will not be decided.
	t.txns.end(id)
	for at, subtrees := range byShard {
		command := &canopyv1.Command{Own: &canopyv1.Command_TxnAbort{TxnAbort: &canopyv1.TxnAbortCommand{Txn: id.Proto(), Subtrees: subtrees}}}
		t.h.server.spawn(func() {
			ctx, cancel := context.WithTimeout(t.ctx, peerTimeout)
			defer cancel()
			if _, err := t.h.server.tell(ctx, at, command); err != nil && ctx.Err() == nil {
				t.h.server.log.Debug("a participant was not told of an abort: it will ask", "txn", id, "shard", at, "error", err)
			}
		})
	}
}

// finish has the participants of other shards commit, again until each has
// confirmed, which closes done, and then forgets the decision.
func (t *tenure) finish(c *txn.Coordinator, shares []*canopyv1.TxnShare, decidedNS int64) (done chan struct{}) {
	done = make(chan struct{})
	left := make(chan struct{}, len(shares))
	count := 0
	for _, s := range shares {
		if base.ShardID(s.Shard) == t.h.shard {
			continue
		}
		count++
		s.Commit.TimeNs = decidedNS
		if !t.h.server.spawn(func() {
			if t.commitAt(base.ShardID(s.Shard), s.Commit) {
				left <- struct{}{}
			}
		}) {
			return done
		}
	}
	t.h.server.spawn(func() {
		for range count {
			select {
			case <-left:
			case <-t.ctx.Done():
				return
			}
		}
		close(done)
		command := &canopyv1.Command{Own: &canopyv1.Command_TxnForget{TxnForget: &canopyv1.TxnForgetCommand{Txn: c.ID.Proto()}}}
		wait := retry{next: forgetAfter, limit: time.Second} // nobody waits for it
		for wait.sleep(t.ctx) {
			if _, err := t.propose(command); err == nil {
				t.txns.end(c.ID)
				return
			}
		}
	})
	return done
}

// commitAt has one participant commit; false: the term is over.
func (t *tenure) commitAt(at base.ShardID, c *canopyv1.TxnCommitCommand) bool {
	wait := retry{next: 5 * time.Millisecond, limit: time.Second}
	for {
		r, err := t.h.server.tell(t.ctx, at, &canopyv1.Command{Own: &canopyv1.Command_TxnCommit{TxnCommit: c}})
		if err == nil && r.Error == 0 {
			return true
		}
		if t.ctx.Err() == nil {
			t.h.server.log.Warn("a decided transaction is not committed everywhere yet; trying again", "txn", schema.TxnOf(c.Txn), "shard", at, "subtree", c.Subtree, "error", err, "answer", r.GetError())
		}
		if !wait.sleep(t.ctx) {
			return false
		}
	}
}
