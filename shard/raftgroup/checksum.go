package raftgroup

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/canopyfs/canopy/internal/fserr"
)

// keptChecksums is how many a replica remembers.
const keptChecksums = 16

// checksums are the checksum jobs of a replica, by token.
type checksums struct {
	m *stateMachine

	mu       sync.Mutex
	jobs     map[uint64]*checksumJob
	order    []uint64
	requests []checksumRequest // tokens that wait for an entry
	closed   bool
}

type checksumJob struct {
	done chan struct{}
	sum  Checksum
	err  error
	over bool // done is closed
}

type checksumRequest struct {
	token   uint64
	onIndex func(index uint64, err error)
}

func (c *checksums) init(m *stateMachine) {
	c.m = m
	c.jobs = make(map[uint64]*checksumJob)
}

// jobLocked returns the job of a token, which may not have begun.
func (c *checksums) jobLocked(token uint64) *checksumJob {
	j, ok := c.jobs[token]
	if !ok {
		j = &checksumJob{done: make(chan struct{})}
		c.jobs[token] = j
		c.order = append(c.order, token)
		if len(c.order) > keptChecksums {
			c.jobs[c.order[0]].end(Checksum{}, fserr.New(fserr.NotFound, "checksum", errors.New("dropped for newer ones")))
			delete(c.jobs, c.order[0])
			c.order = c.order[1:]
		}
	}
	return j
}

// end finishes a job; c.mu is held.
func (j *checksumJob) end(sum Checksum, err error) {
	if j.over {
		return
	}
	j.sum, j.err, j.over = sum, err, true
	close(j.done)
}

// compute takes the state as it is now and computes its checksum on a goroutine
// of the group.
func (c *checksums) compute(token, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	j := c.jobLocked(token)
	snap := c.m.store.NewSnapshot()
	installs := c.m.installs.Load()
	c.m.g.workers.Add(1)
	go func() {
		defer c.m.g.workers.Done()
		sum, keys, bytes, err := c.m.store.Checksum(c.m.g.ctx, snap, c.m.lo, c.m.hi)
		err = errors.Join(err, snap.Close())
		if err == nil && installs != c.m.installs.Load() {
			err = fserr.New(fserr.NotReady, "checksum", errors.New("a snapshot was installed meanwhile"))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		j.end(Checksum{Sum: sum, Keys: keys, Bytes: bytes, Index: index}, err)
	}()
}

// invalidate is called before the state is replaced.
func (c *checksums) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		j.end(Checksum{}, fserr.New(fserr.NotReady, "checksum", errors.New("a snapshot was installed meanwhile")))
	}
}

func (c *checksums) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, j := range c.jobs {
		j.end(Checksum{}, fserr.New(fserr.NotReady, "checksum", errors.New("the replica stops")))
	}
	for _, r := range c.requests {
		r.onIndex(0, fserr.New(fserr.NotReady, "checksum", nil))
	}
	c.requests = nil
}

func (c *checksums) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests) > 0
}

func (c *checksums) take() (token uint64, onIndex func(index uint64, err error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[0]
	c.requests = c.requests[1:]
	return r.token, r.onIndex
}

// ProposeChecksum puts an entry into the log at which every replica computes its
// checksum, and returns the token under which they keep it, and its log index.
func (g *Group) ProposeChecksum(ctx context.Context) (token, index uint64, err error) {
	// The lease is needed to propose; this gets it, or says who has it.
	if err := g.waitForLease(ctx); err != nil {
		return 0, 0, err
	}
	type outcome struct {
		index uint64
		err   error
	}
	out := make(chan outcome, 1)
	r := checksumRequest{rand.Uint64() | 1, func(index uint64, err error) { out <- outcome{index, err} }}
	c := &g.sm.checksums
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return 0, 0, g.err(fserr.NotReady, "checksum")
	case len(c.requests) >= keptChecksums:
		c.mu.Unlock()
		return 0, 0, g.err(fserr.Busy, "checksum")
	}
	c.requests = append(c.requests, r)
	c.mu.Unlock()
	g.poke()
	select {
	case o := <-out:
		return r.token, o.index, o.err
	case <-ctx.Done():
		return 0, 0, fserr.New(fserr.TimedOut, "checksum", ctx.Err())
	}
}

// ReplicaChecksum waits until this replica has applied the token's entry and
// computed the checksum there. The last few are kept; NotFound for one that was
// dropped, NotReady if the replica's state was replaced meanwhile.
func (g *Group) ReplicaChecksum(ctx context.Context, token uint64) (Checksum, error) {
	c := &g.sm.checksums
	c.mu.Lock()
	j := c.jobLocked(token)
	if c.closed {
		j.end(Checksum{}, g.err(fserr.NotReady, "checksum"))
	}
	c.mu.Unlock()
	select {
	case <-j.done:
		return j.sum, j.err
	case <-ctx.Done():
		return Checksum{}, fserr.New(fserr.TimedOut, "checksum", ctx.Err())
	}
}
