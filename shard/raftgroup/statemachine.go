package raftgroup

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// stateMachine is Dragonboat's on-disk state machine of one replica: it numbers,
// times and leases (admit), the Machine does the rest. Dragonboat calls Open,
// Update, Sync and RecoverFromSnapshot one at a time, and the others alongside.
type stateMachine struct {
	g       *Group
	store   Store
	machine Machine
	lo, hi  []byte // the shard's range
	applied atomic.Uint64
	seq     atomic.Uint64 // of the last commit in the store

	rec       schema.Lease
	decoded   entry
	outs      []outcome
	installs  atomic.Uint64 // snapshots installed: what was read before is not one state
	checksums checksums
	upkeep    upkeep
	closed    chan struct{} // by Close: Dragonboat will not call any more
	closeOnce sync.Once
}

var _ sm.IOnDiskStateMachine = (*stateMachine)(nil)

func newStateMachine(g *Group) *stateMachine {
	m := &stateMachine{g: g, store: g.host.cfg.Store, machine: g.cfg.Machine, closed: make(chan struct{})}
	m.lo, m.hi = schema.ShardRange(g.cfg.Shard)
	m.checksums.init(m)
	m.upkeep.init(g)
	return m
}

// Open loads the state and returns the applied index.
func (m *stateMachine) Open(<-chan struct{}) (uint64, error) {
	if err := m.load(); err != nil {
		return 0, err
	}
	m.g.opened(m.rec)
	return m.applied.Load(), nil
}

func (m *stateMachine) load() error {
	snap := m.store.NewSnapshot()
	rec, applied, err := readPosition(snap, m.g.cfg.Shard)
	if err == nil {
		m.rec = rec
		m.applied.Store(applied)
		err = m.machine.Load(snap)
	}
	return errors.Join(err, snap.Close())
}

// Update applies entries in one batch, with the applied index in it (A4). An
// error stops the process: only what cannot be helped is one.
func (m *stateMachine) Update(entries []sm.Entry) ([]sm.Entry, error) {
	m.outs = m.outs[:0]
	began := m.g.host.waited()
	b := m.store.NewBatch()
	bytes := 0
	for i := range entries {
		bytes += len(entries[i].Cmd)
		if err := m.apply(b, entries[i]); err != nil {
			return nil, errors.Join(m.broken(entries[i].Index, err), b.Close())
		}
		m.applied.Store(entries[i].Index)
		if m.decoded.checksum != 0 && m.outs[len(m.outs)-1].accepted {
			var err error
			if b, err = m.checkpoint(b); err != nil {
				return nil, err
			}
		}
	}
	if err := m.commit(b); err != nil {
		return nil, err
	}
	m.upkeep.note(m.applied.Load(), len(entries), bytes)
	m.g.metrics.applied(m.applied.Load(), len(entries))
	m.share(m.g.host.waited() - began)
	m.g.applied(m.outs, m.rec)
	clear(m.outs) // results belong to the callers
	return entries, nil
}

// share divides the time that a batch took among its commands.
func (m *stateMachine) share(took time.Duration) {
	n := 0
	for i := range m.outs {
		n += len(m.outs[i].results)
	}
	for i := range m.outs {
		m.outs[i].apply = took / time.Duration(max(n, 1))
	}
}

func (m *stateMachine) apply(b shard.Batch, raw sm.Entry) error {
	e := &m.decoded
	if err := decodeEntry(raw.Cmd, e); err != nil {
		return err
	}
	next, ok := admit(m.rec, e)
	out := outcome{epoch: e.epoch, number: e.number, index: raw.Index, lease: e.lease, accepted: ok}
	if ok {
		m.rec = next
		if len(e.commands) > 0 {
			if f, ok := m.machine.(LeaseFollower); ok {
				f.InEpoch(next.Epoch)
			}
			results, err := m.machine.Apply(b, next.TimeNS, e.commands)
			if err != nil {
				return err
			}
			if len(results) != len(e.commands) {
				return fmt.Errorf("the machine gave %d results for %d commands", len(results), len(e.commands))
			}
			out.results = results
		}
	} else {
		m.g.metrics.refused.Inc()
	}
	m.outs = append(m.outs, out)
	return nil
}

// broken reports what stops this replica.
func (m *stateMachine) broken(index uint64, err error) error {
	m.g.log.Error("apply failed: this replica is broken", "index", index, "err", err)
	if f := m.g.host.cfg.OnReplicaFailed; f != nil {
		f(m.g.cfg.Shard, err)
	}
	return err
}

// commit writes the position in the log with the changes and ends the batch.
func (m *stateMachine) commit(b shard.Batch) error {
	var buf [96]byte
	err := errors.Join(
		b.Set(schema.LeaseKey(m.g.cfg.Shard), schema.EncodeLease(buf[:0], m.rec)),
		b.Set(schema.AppliedKey(m.g.cfg.Shard), schema.EncodeUint64(m.applied.Load())),
	)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	seq, err := b.Commit()
	if err == nil {
		m.seq.Store(seq)
	}
	return errors.Join(err, b.Close())
}

// checkpoint makes the state as of the last entry visible, and has its checksum
// computed aside.
func (m *stateMachine) checkpoint(b shard.Batch) (shard.Batch, error) {
	if err := m.commit(b); err != nil {
		return nil, err
	}
	m.checksums.compute(m.decoded.checksum, m.applied.Load())
	return m.store.NewBatch(), nil
}

// Lookup is not used: reads go by Group.Read.
func (m *stateMachine) Lookup(any) (any, error) { return nil, errors.ErrUnsupported }

// Sync makes what was applied durable, if it is not yet (A5).
func (m *stateMachine) Sync() error { return m.store.Flush(m.seq.Load()) }

// PrepareSnapshot takes the state as it is between two batches.
func (m *stateMachine) PrepareSnapshot() (any, error) {
	return &prepared{snap: m.store.NewSnapshot(), installs: m.installs.Load()}, nil
}

// SaveSnapshot streams a prepared snapshot to a follower. Local snapshots have
// no data: the state is in the store.
func (m *stateMachine) SaveSnapshot(ctx any, w io.Writer, stop <-chan struct{}) error {
	p := ctx.(*prepared)
	err := writeSnapshot(pacedWriter{w, newPacer(stop)}, p.snap, m.g.cfg.Shard, m.lo, m.hi, stop)
	if err == nil && p.installs != m.installs.Load() {
		err = sm.ErrSnapshotAborted // the range was excised under the snapshot
	}
	if cerr := p.snap.Close(); err == nil { // Dragonboat knows some errors by identity
		err = cerr
	}
	return err
}

// RecoverFromSnapshot replaces the state by a stream of SaveSnapshot (A4).
func (m *stateMachine) RecoverFromSnapshot(r io.Reader, stop <-chan struct{}) error {
	m.installs.Add(1)
	m.checksums.invalidate()
	err := m.store.Install(m.lo, m.hi, func(set func(key, value []byte) error) error {
		return readSnapshot(pacedReader{r, newPacer(stop)}, m.g.cfg.Shard, m.lo, m.hi, stop, set)
	})
	if errors.Is(err, sm.ErrSnapshotStopped) {
		return sm.ErrSnapshotStopped
	}
	if err != nil {
		return err
	}
	if err := m.load(); err != nil {
		return err
	}
	m.g.log.Info("snapshot installed", "index", m.applied.Load())
	m.g.metrics.snapshotsInstalled.Inc()
	m.g.opened(m.rec)
	return nil
}

// Close is the last call.
func (m *stateMachine) Close() error {
	m.closeOnce.Do(func() { close(m.closed) })
	return nil
}
