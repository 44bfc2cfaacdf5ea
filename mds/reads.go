package mds

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

const (
	// readBatches is how many batches of reads of one stream run at once.
	readBatches = 4
	// readTimeout bounds a batch of reads that waits for a lease.
	readTimeout = 5 * time.Second
	// batchBytes bounds the answers of one batch of reads: the rest is Busy.
	batchBytes = 8 << 20
)

// readBatch are the reads of one request: they see one snapshot.
type readBatch struct {
	stream  *opStream
	h       *hosted
	ops     []*canopyv1.Op
	kinds   []opType
	started time.Time
	queried time.Time // its queries began
	inline  bool      // whoever asks waits for all answers
}

// startReaders starts the goroutines that answer reads, as many as batches may run
// at once. They live as long as the node does, and not for one batch, because a
// query needs a deep stack: a new goroutine grew its own, copy by copy, each time.
func (s *Server) startReaders() {
	for range 16 * runtime.GOMAXPROCS(0) {
		s.tasks.Go(func() error {
			for {
				select {
				case b := <-s.reads:
					b.run()
				case <-s.run.Done():
					return nil
				}
			}
		})
	}
}

// fewReads is up to how many operations the receiving goroutine answers itself.
const fewReads = 8

// quick says that a batch costs less than handing it to a reader: a few reads of
// single objects under a lease that stands.
func (b *readBatch) quick() bool {
	if len(b.ops) > fewReads || !b.h.group.Serving() {
		return false
	}
	for _, kind := range b.kinds {
		switch kind {
		case opReadDir, opListXattr, opStatFs, opWaitLock, opCancelWait, opListQuotas, opLocate, opMarkNames:
			return false
		}
	}
	return true
}

// read answers a quick batch at once, which saves two changes of goroutine, and
// gives any other to a reader; it waits while too many of this stream or of the
// node run. A stream that ends leaves its batches unanswered: so does the node,
// whose streams end before its readers.
func (st *opStream) read(b *readBatch) {
	if b.quick() {
		answers := st.runReads(st.ctx, b)
		st.queue.deliver(len(answers), answers...)
		return
	}
	select {
	case st.slots <- struct{}{}:
	case <-st.ctx.Done():
		return
	}
	st.reads.Add(1)
	select {
	case st.server.reads <- b:
	case <-st.ctx.Done():
		st.reads.Done()
		<-st.slots
	}
}

// run answers a batch, on a reader.
func (b *readBatch) run() {
	st := b.stream
	defer func() { <-st.slots; st.reads.Done() }()
	ctx, cancel := context.WithTimeout(st.ctx, readTimeout)
	defer cancel()
	answers := st.runReads(ctx, b)
	st.queue.put(len(answers), answers...)
}

// runReads answers a batch under one lease check (PROTOCOLS B4). What meets a
// transaction's intent is answered later, and is not among the answers.
func (st *opStream) runReads(ctx context.Context, b *readBatch) []outcome {
	answers := make([]outcome, len(b.ops))
	kinds := make([]fserr.Kind, len(b.ops))
	err := b.h.group.Read(ctx, func(r shard.Reader) error { return st.query(b, r, answers, kinds) })
	if err != nil {
		kind := fserr.KindOf(err)
		for i, op := range b.ops {
			kinds[i] = kind
			answers[i] = outcome{op.Id, encodeResult(st.server.refusal(err, b.h.shard, base.SubtreeID(op.Subtree)))}
		}
	}
	took := time.Since(b.started)
	st.heatReads(b, kinds, took)
	answered := answers[:0]
	for i, kind := range b.kinds {
		switch {
		case kinds[i] == fserr.Locked && b.inline:
			answers[i].result = encodeResult(st.readInTime(b, b.ops[i], kind))
		case kinds[i] == fserr.Locked:
			st.readLater(b, i)
			continue
		case kinds[i] == fserr.Frozen && !b.inline && st.readArrived(b, i):
			continue
		}
		b.h.metrics.observe(kind, kinds[i], took)
		answered = append(answered, answers[i])
	}
	return answered
}

// query answers the batch from one snapshot. A panic becomes an error: a read
// must not end the process.
func (st *opStream) query(b *readBatch, r shard.Reader, answers []outcome, kinds []fserr.Kind) (err error) {
	defer func() {
		if p := recover(); p != nil {
			st.server.log.Error("a read panicked", "shard", b.h.shard, "panic", p, "stack", string(debug.Stack()))
			err = fserr.New(fserr.Internal, "read", fmt.Errorf("panic: %v", p))
		}
	}()
	size := 0
	b.queried = time.Now()
	for i, op := range b.ops {
		result := &canopyv1.Result{Error: uint32(fserr.Busy), Detail: "too much was asked for in one batch"}
		if size < batchBytes {
			result = b.h.machine.Query(r, op)
		}
		soon := comes(op, result)
		st.complete(b, r, op, b.kinds[i], result)
		if kinds[i] = fserr.Kind(result.Error); soon {
			kinds[i] = fserr.Frozen // for a moment
		}
		answers[i] = outcome{op.Id, encodeResult(result)}
		size += len(answers[i].result)
	}
	return nil
}

// complete adds to an answer what only the node knows.
func (st *opStream) complete(b *readBatch, r shard.Reader, op *canopyv1.Op, kind opType, result *canopyv1.Result) {
	st.grantRead(result, b.started)
	switch {
	case kind == opMarkNames:
		st.marked(b.h, op, result)
	}
	switch {
	case fserr.Kind(result.Error) == fserr.Moved:
		result.Redirect = st.server.moved(result.Redirect, b.h.shard, base.SubtreeID(op.Subtree))
	case fserr.Kind(result.Error) == fserr.Busy:
		result.RetryAfterMs = retryAfterMS()
	case kind == opStatFs:
		var waiting uint64
		if t := b.h.tenure(); t != nil {
			var err error
			if waiting, err = t.waitingBytes(r); err != nil {
				st.server.log.Warn("what waits for deletion could not be counted", "shard", b.h.shard, "error", err)
			}
		}
		st.server.usage.fill(result, waiting)
	}
}
