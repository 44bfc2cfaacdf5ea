package layoutsvc

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
	"github.com/canopyfs/canopy/placement"
)

// notLeader says where the leader is, as far as etcd tells.
func (s *instance) notLeader(ctx context.Context) (kind uint32, detail, leader string) {
	leader, err := s.store.Leader(ctx, placement.LayoutService)
	if err != nil {
		return uint32(fserr.NotReady), "the leader is unknown: " + err.Error(), ""
	}
	if leader == s.address {
		leader = "" // it was, or will be
	}
	return uint32(fserr.NotHolder), "this layout service does not lead", leader
}

// WatchPools implements the service.
func (s *instance) WatchPools(r *canopyv1.WatchPoolsRequest, stream canopyv1.LayoutService_WatchPoolsServer) error {
	changes, cancel := s.store.Subscribe()
	defer cancel()
	// The first map is sent in any case, unless the caller has it.
	sent, first := r.HaveRevision, true
	for {
		if data := s.store.Data(); data.Revision > sent || first && data.Revision != sent {
			if err := stream.Send(data.PoolMap()); err != nil {
				return err
			}
			sent = data.Revision
		}
		first = false
		select {
		case <-changes:
		case <-s.draining:
			return fserr.New(fserr.NotReady, "watch pools", fmt.Errorf("the layout service is stopping"))
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// StripeMap implements the service.
func (s *instance) StripeMap(_ context.Context, r *canopyv1.StripeMapRequest) (*canopyv1.StripeMapResponse, error) {
	ranges, revision, err := s.stripeMap(r)
	if err != nil {
		return &canopyv1.StripeMapResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	return &canopyv1.StripeMapResponse{Revision: revision, Ranges: ranges}, nil
}

// maxStripeRanges bounds one answer; the caller asks on behind the last range.
const maxStripeRanges = 4096

func (s *instance) stripeMap(r *canopyv1.StripeMapRequest) ([]*canopyv1.StripeRange, uint64, error) {
	data := s.store.Data()
	layout := r.Layout
	if layout == nil {
		layout = stripe.Default(DefaultPool)
	}
	pool, ok := data.Pools[base.PoolID(layout.Pool)]
	if !ok {
		return nil, 0, fserr.New(fserr.NotFound, "stripe map", fmt.Errorf("there is no pool %d", layout.Pool))
	}
	pgs := 0
	for key := range data.PGs {
		if key.Pool == base.PoolID(pool.Value.Pool) {
			pgs++
		}
	}
	m, err := stripe.NewMap(layout, base.DataID(r.DataId), pgs)
	if err != nil {
		return nil, 0, err
	}
	var out []*canopyv1.StripeRange
	for _, p := range m.PiecesAtMost(r.Offset, r.Length, maxStripeRanges) {
		pg := data.PGs[placement.PGKey{Pool: base.PoolID(layout.Pool), PG: p.PG}].Value
		out = append(out, &canopyv1.StripeRange{
			Offset: p.FileOffset, Length: p.Length, Component: p.Component, Column: p.Column.Column,
			ColumnOffset: p.ColumnOffset, Pg: uint32(p.PG), PgEpoch: pg.GetEpoch(), Servers: pg.GetInSync(),
		})
	}
	return out, data.Revision, nil
}

// ReportReplica implements the service.
func (s *instance) ReportReplica(ctx context.Context, r *canopyv1.ReportReplicaRequest) (*canopyv1.ReportReplicaResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.ReportReplicaResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	pg, revision, err := t.report(ctx, r)
	response := &canopyv1.ReportReplicaResponse{Pg: pg, Revision: revision}
	if err != nil {
		response.Error, response.Detail = uint32(fserr.KindOf(err)), err.Error()
	}
	return response, nil
}

// report changes an in-sync set by compare-and-set. A member that leaves has
// confirmed, or its lease has run out, when it returns without error (PROTOCOLS
// J3): the primary may then acknowledge what that member does not have.
func (t *term) report(ctx context.Context, r *canopyv1.ReportReplicaRequest) (*canopyv1.PlacementGroup, uint64, error) {
	pg, revision, err := t.change(ctx, r)
	if err != nil || r.InSync || r.Server == r.Reporter {
		return pg, revision, err
	}
	return pg, revision, t.confirmed(ctx, base.NodeID(r.Server), revision)
}

func (t *term) change(ctx context.Context, r *canopyv1.ReportReplicaRequest) (*canopyv1.PlacementGroup, uint64, error) {
	const op = "report replica"
	t.changes.Lock()
	defer t.changes.Unlock()
	key := placement.PGKey{Pool: base.PoolID(r.Pool), PG: base.PGID(r.Pg)}
	known, ok := t.s.store.Data().PGs[key]
	if !ok {
		return nil, 0, fserr.New(fserr.NotFound, op, fmt.Errorf("there is no pg %d.%d", r.Pool, r.Pg))
	}
	pg := known.Value
	if pg.Epoch != r.Epoch {
		return pg, uint64(known.Revision), fserr.New(fserr.OldEpoch, op, fmt.Errorf("epoch is %d, not %d", pg.Epoch, r.Epoch))
	}
	if len(pg.InSync) == 0 || pg.InSync[0] != r.Reporter && (r.InSync || r.Server != r.Reporter) {
		return pg, uint64(known.Revision), fserr.New(fserr.Permission, op, fmt.Errorf("server %d is not the primary", r.Reporter))
	}
	var next *canopyv1.PlacementGroup
	if r.InSync {
		next = with(pg, base.NodeID(r.Server))
	} else {
		next = without(pg, base.NodeID(r.Server))
	}
	if next == nil || len(next.InSync) > len(next.Members) {
		return pg, uint64(known.Revision), fserr.New(fserr.Invalid, op, fmt.Errorf("in sync are %v of %v: server %d cannot be set to %v", pg.InSync, pg.Members, r.Server, r.InSync))
	}
	if r.InSync && !t.serves(base.NodeID(r.Server)) {
		return pg, uint64(known.Revision), fserr.New(fserr.Invalid, op, fmt.Errorf("server %d has no lease", r.Server))
	}
	revision, err := t.s.store.PutPG(ctx, t.lead, key.Pool, next, known.Revision)
	if err != nil {
		return nil, 0, fserr.New(fserr.NotReady, op, err)
	}
	t.s.metrics.epochs.Inc()
	t.s.logger.Info("in-sync set changed", "pool", key.Pool, "pg", key.PG, "epoch", next.Epoch, "server", r.Server, "in_sync", r.InSync)
	return next, uint64(revision), nil
}

// serves reports whether the server's lease runs, and it is not known to be a
// new start without what the one before had not synced.
func (t *term) serves(id base.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.servers[id]
	return l != nil && !time.Now().After(l.until) && !(l.knocks && l.lostUnsynced)
}

type metrics struct {
	epochs  prometheus.Counter
	expired prometheus.Counter
	losses  prometheus.Counter
	moves   prometheus.Counter

	rotations prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *instance) (*metrics, error) {
	m := &metrics{
		epochs:  prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_layout_epochs_total", Help: "Placement group epochs written by this instance."}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_layout_leases_expired_total", Help: "Data servers excluded because their lease ran out."}),
	}
	m.losses = prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_layout_losses_total", Help: "Placement groups whose only source lost what was not synced."})
	m.moves = prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_layout_member_changes_total", Help: "Changes of a placement group's members by this instance."})
	m.rotations = prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_layout_key_rotations_total", Help: "New keys of capabilities made by this instance."})
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	collectors := []prometheus.Collector{m.epochs, m.expired, m.losses, m.moves, m.rotations,
		gauge("canopy_layout_leading", "1 while this instance leads.", func() float64 {
			if s.leading() != nil {
				return 1
			}
			return 0
		}),
		gauge("canopy_layout_servers_alive", "Data servers that are alive.", func() float64 {
			n := 0
			for _, v := range s.store.Data().Servers {
				if v.Value.Alive {
					n++
				}
			}
			return float64(n)
		}),
		gauge("canopy_layout_pgs_degraded", "Placement groups with fewer members in sync than the pool has replicas.", func() float64 {
			n := 0
			data := s.store.Data()
			for key, v := range data.PGs {
				if len(v.Value.InSync) < int(data.Pools[key.Pool].Value.GetReplicas()) {
					n++
				}
			}
			return float64(n)
		}),
		gauge("canopy_layout_pgs_stuck", "Placement groups that lack a copy and that nothing can be done about now; of the leader.", func() float64 {
			t := s.leading()
			if t == nil {
				return 0
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			return float64(len(t.stuck))
		}),
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("layoutsvc: metrics: %w", err)
		}
	}
	return m, nil
}
