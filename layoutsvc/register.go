package layoutsvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// serverKind is the kind under which data servers' ids are allocated.
const serverKind = "dataserver"

// RegisterServer implements the service. A new incarnation means that the old
// one is dead (a lock in the data directory sees to that); what it had in flight
// is lost, so it leaves all in-sync sets where another member remains, and is
// compared with that one before it returns.
func (s *instance) RegisterServer(ctx context.Context, r *canopyv1.RegisterServerRequest) (*canopyv1.RegisterServerResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.RegisterServerResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	id, err := t.register(ctx, r)
	if placement.IsConflict(err) {
		// As in exclude; the server tries again soon.
		err = fserr.New(fserr.NotReady, "register", errors.Join(err, s.store.Sync(ctx)))
	}
	if err != nil {
		level := slog.LevelWarn
		if fserr.KindOf(err) == fserr.NotReady {
			level = slog.LevelDebug // it tries again soon
		}
		s.logger.Log(ctx, level, "a data server cannot register", "server", r.Server, "address", r.Address, "error", err)
		return &canopyv1.RegisterServerResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	if t.lost() {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.RegisterServerResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	m := s.store.Data()
	return &canopyv1.RegisterServerResponse{
		Cluster: m.Cluster,
		LeaseMs: uint32(s.config.ServerLease / time.Millisecond),
		Map:     m.PoolMap(),
		Server:  uint64(id),

		CapabilityRing: s.store.Capabilities().Value,
	}, nil
}

func (t *term) register(ctx context.Context, r *canopyv1.RegisterServerRequest) (base.NodeID, error) {
	const op = "register"
	data := t.s.store.Data()
	switch {
	case r.Address == "" || r.Incarnation == 0:
		return 0, fserr.New(fserr.Malformed, op, fmt.Errorf("address %q, incarnation %d", r.Address, r.Incarnation))
	case r.Cluster != "" && r.Cluster != data.Cluster:
		return 0, fserr.New(fserr.WrongCluster, op, fmt.Errorf("the data directory belongs to cluster %s, this is %s", r.Cluster, data.Cluster))
	case (r.Cluster == "") != (r.Server == 0):
		return 0, fserr.New(fserr.Malformed, op, fmt.Errorf("server %d of cluster %q", r.Server, r.Cluster))
	}
	id := base.NodeID(r.Server)
	if id == 0 {
		fresh, err := t.s.store.AllocateID(ctx, serverKind)
		if err != nil {
			return 0, err
		}
		id = base.NodeID(fresh)
	}
	if known := data.Servers[id].Value; known == nil || known.Incarnation != r.Incarnation {
		t.hear(id, r.LostUnsynced)
		if other := t.awaits(id); other != 0 {
			return 0, fserr.New(fserr.NotReady, op, fmt.Errorf("server %d may be alive: waiting for it or for the end of its lease", other))
		}
		if other := t.hopesFor(id); other != 0 {
			return 0, fserr.New(fserr.NotReady, op, fmt.Errorf("server %d may come back with what this one lost: waiting a little", other))
		}
		// The record comes last: it says that this start has been dealt with.
		if err := t.refuseOldCopy(id, r); err != nil {
			return 0, err
		}
		if err := t.returned(ctx, id, r.LostUnsynced); err != nil {
			return 0, err
		}
		if err := t.record(ctx, id, r); err != nil {
			return 0, err
		}
	}
	if err := t.ensureDefaultPool(ctx); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.servers[id] = &lease{incarnation: r.Incarnation, heard: true, until: time.Now().Add(t.s.config.ServerLease + leaseMargin)}
	t.wakeLocked()
	return id, nil
}

// refuseOldCopy refuses a data directory that is older than what the cluster saw
// of it (PROTOCOLS A6).
func (t *term) refuseOldCopy(id base.NodeID, r *canopyv1.RegisterServerRequest) error {
	known := t.s.store.Data().Servers[id].Value
	if known == nil || known.Incarnation <= r.Incarnation {
		return nil
	}
	return fserr.New(fserr.Fenced, "register", fmt.Errorf(
		"the data directory of server %d is at incarnation %d, the cluster saw %d: it is an old copy; use the newest one, or an empty directory", id, r.Incarnation, known.Incarnation))
}

// record writes the registration.
func (t *term) record(ctx context.Context, id base.NodeID, r *canopyv1.RegisterServerRequest) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	known := t.s.store.Data().Servers[id]
	next := &canopyv1.DataServerInfo{
		Server: uint64(id), Address: r.Address, HttpAddress: r.HttpAddress, Incarnation: r.Incarnation, Alive: true,
		Labels: r.Labels, TotalBytes: r.TotalBytes, FreeBytes: r.FreeBytes, Pid: r.Pid, Host: r.Host,
		Draining: known.Value.GetDraining(),
	}
	_, err := t.s.store.PutServer(ctx, t.lead, next, known.Revision)
	return err
}

// HeartbeatServer implements the service.
func (s *instance) HeartbeatServer(ctx context.Context, r *canopyv1.HeartbeatServerRequest) (*canopyv1.HeartbeatServerResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.HeartbeatServerResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	err := t.renew(ctx, r)
	if err == nil && r.Leaving {
		err = t.leave(ctx, r)
	}
	if err != nil {
		return &canopyv1.HeartbeatServerResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	if t.lost() {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.HeartbeatServerResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	response := &canopyv1.HeartbeatServerResponse{LeaseMs: uint32(s.config.ServerLease / time.Millisecond)}
	if m := s.store.Data(); m.Revision > r.MapRevision {
		response.Map = m.PoolMap()
	}
	if ring := s.store.Capabilities().Value; ring.GetVersion() != r.CapabilityVersion {
		response.CapabilityRing = ring
	}
	return response, nil
}

// usageEvery is how often a server's usage is written if it changed little.
const usageEvery = 10 * time.Second

// renew extends the lease. The extension stands before the answer is sent; the
// server counts from before it asked.
func (t *term) renew(ctx context.Context, r *canopyv1.HeartbeatServerRequest) error {
	id := base.NodeID(r.Server)
	known := t.s.store.Data().Servers[id]
	if known.Value == nil {
		return fserr.New(fserr.SessionExpired, "heartbeat", fmt.Errorf("server %d is unknown: it must register", id))
	}
	if known.Value.Incarnation != r.Incarnation {
		return fserr.New(fserr.Fenced, "heartbeat", fmt.Errorf("server %d has incarnation %d, not %d", id, known.Value.Incarnation, r.Incarnation))
	}
	now := time.Now()
	t.mu.Lock()
	l := t.servers[id]
	if l == nil {
		l = &lease{incarnation: r.Incarnation}
		t.servers[id] = l
	}
	if l.incarnation != r.Incarnation {
		t.mu.Unlock()
		return fserr.New(fserr.SessionExpired, "heartbeat", fmt.Errorf("server %d must register", id))
	}
	l.heard, l.goneSince = true, time.Time{}
	l.until = now.Add(t.s.config.ServerLease + leaseMargin)
	l.adopted = max(l.adopted, r.MapRevision)
	write := !known.Value.Alive || farApart(known.Value.FreeBytes, r.FreeBytes, r.TotalBytes) ||
		known.Value.FreeBytes != r.FreeBytes && now.Sub(l.reportedAt) > usageEvery
	if write {
		l.reportedAt = now
	}
	t.wakeLocked()
	t.mu.Unlock()
	if !write {
		return nil
	}
	return t.recordUsage(ctx, id, r)
}

// leave ends the lease of a server that stops and serves no more, so that nobody
// waits for the lease to run out.
func (t *term) leave(ctx context.Context, r *canopyv1.HeartbeatServerRequest) error {
	id := base.NodeID(r.Server)
	t.mu.Lock()
	if l := t.servers[id]; l != nil && l.incarnation == r.Incarnation {
		l.until, l.gaveUp = time.Time{}, true
	}
	t.wakeLocked()
	t.mu.Unlock()
	return t.exclude(ctx, id)
}

// farApart reports whether usage changed by more than a hundredth of the disk.
func farApart(a, b, total uint64) bool {
	return math.Abs(float64(a)-float64(b)) > float64(total)/100
}

func (t *term) recordUsage(ctx context.Context, id base.NodeID, r *canopyv1.HeartbeatServerRequest) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	known := t.s.store.Data().Servers[id]
	if known.Value == nil {
		return nil
	}
	next := proto.CloneOf(known.Value)
	next.Alive, next.TotalBytes, next.FreeBytes = true, r.TotalBytes, r.FreeBytes
	_, err := t.s.store.PutServer(ctx, t.lead, next, known.Revision)
	if placement.IsConflict(err) {
		return nil // somebody else wrote; the next heartbeat comes soon
	}
	return err
}
