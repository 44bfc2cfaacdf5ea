package layoutsvc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
	"github.com/canopyfs/canopy/placement"
)

// ensureDefaultPool makes the default pool when enough servers are there.
func (t *term) ensureDefaultPool(ctx context.Context) error {
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	if _, ok := data.Pools[DefaultPool]; ok {
		return nil
	}
	servers := present(data)
	if len(servers) < t.s.config.WantServers {
		t.s.logger.Info("waiting for data servers", "have", len(servers), "want", t.s.config.WantServers)
		return nil
	}
	return t.makePool(ctx, DefaultPool, "default", stripe.Copies(t.s.config.Replicas), servers)
}

// EnsurePool implements the service. There is one pool of each class, made when
// it is first asked for: what is never used costs nothing.
func (s *instance) EnsurePool(ctx context.Context, r *canopyv1.EnsurePoolRequest) (*canopyv1.EnsurePoolResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.EnsurePoolResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	pool, err := t.ensurePool(ctx, r.Redundancy)
	if placement.IsConflict(err) {
		err = fserr.New(fserr.NotReady, "ensure a pool", errors.Join(err, s.store.Sync(ctx)))
	}
	if err != nil {
		detail := err.Error()
		if e := (*fserr.Error)(nil); errors.As(err, &e) && e.Err != nil {
			detail = e.Err.Error() // the kind is said anyway
		}
		return &canopyv1.EnsurePoolResponse{Error: uint32(fserr.KindOf(err)), Detail: detail}, nil
	}
	return &canopyv1.EnsurePoolResponse{Pool: uint64(pool)}, nil
}

func (t *term) ensurePool(ctx context.Context, class *canopyv1.Redundancy) (base.PoolID, error) {
	const op = "ensure a pool"
	if err := stripe.ValidateClass(class); err != nil {
		return 0, err
	}
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	if _, ok := data.Pools[DefaultPool]; !ok {
		return 0, fserr.New(fserr.NotReady, op, fmt.Errorf("the cluster is not complete: %d of %d data servers have come", len(present(data)), t.s.config.WantServers))
	}
	last := DefaultPool
	for id, p := range data.Pools {
		if proto.Equal(stripe.RedundancyOf(p.Value), class) {
			return id, nil
		}
		last = max(last, id)
	}
	text := stripe.ClassText(class)
	if stripe.Erasure(class) {
		return 0, fserr.New(fserr.NotSupported, op, fmt.Errorf("%s: these data servers keep whole copies only (replica:N)", text))
	}
	servers := withRoom(data)
	if need := stripe.Members(class); len(servers) < need {
		return 0, fserr.New(fserr.NoSpace, op, fmt.Errorf("%s needs %d data servers that are alive, not drained and not full: there are %d", text, need, len(servers)))
	}
	return last + 1, t.makePool(ctx, last+1, text, class, servers)
}

// present returns the servers that are alive and stay.
func present(data *placement.DataMap) []stripe.Server {
	var servers []stripe.Server
	for id, s := range data.Servers {
		if s.Value.Alive && !s.Value.Draining {
			servers = append(servers, stripe.Server{ID: id, Labels: domainsOf(s.Value)})
		}
	}
	return servers
}

// withRoom returns those present that take bytes.
func withRoom(data *placement.DataMap) []stripe.Server {
	var servers []stripe.Server
	for _, s := range present(data) {
		if !isFull(data.Servers[s.ID].Value) {
			servers = append(servers, s)
		}
	}
	return servers
}

func (t *term) makePool(ctx context.Context, id base.PoolID, name string, class *canopyv1.Redundancy, servers []stripe.Server) error {
	pool, err := newPool(id, name, class, t.s.config.PGs, servers)
	if err != nil {
		return err
	}
	if err := t.s.store.CreatePool(ctx, t.lead, pool); err != nil {
		return err
	}
	t.s.logger.Info("made a pool", "pool", id, "name", name, "class", stripe.ClassText(class), "pgs", len(pool.Pgs), "servers", len(servers))
	t.s.warnShared(pool, servers)
	return nil
}

func newPool(id base.PoolID, name string, class *canopyv1.Redundancy, pgs int, servers []stripe.Server) (*canopyv1.Pool, error) {
	groups, err := stripe.Assign(pgs, stripe.Members(class), servers)
	if err != nil {
		return nil, err
	}
	pool := &canopyv1.Pool{
		Pool: uint64(id), Name: name, Replicas: uint32(stripe.Members(class)), Layout: stripe.Default(id), Redundancy: class,
	}
	for i, members := range groups {
		pg := &canopyv1.PlacementGroup{Pg: uint32(i), Epoch: 1}
		for _, m := range members {
			pg.Members = append(pg.Members, uint64(m))
		}
		pg.InSync = append(pg.InSync, pg.Members...)
		pool.Pgs = append(pool.Pgs, pg)
	}
	return pool, nil
}

// domainsOf returns a server's labels; its host is a failure domain also if no
// label says so.
func domainsOf(s *canopyv1.DataServerInfo) []string { return stripe.WithHost(s.Labels, s.Host) }

// warnShared tells of placement groups whose members lie in one failure domain,
// if the servers' labels say that there is more than one place.
func (s *instance) warnShared(pool *canopyv1.Pool, servers []stripe.Server) {
	byID := map[uint64]stripe.Server{}
	labelled := false
	for _, x := range servers {
		byID[uint64(x.ID)] = x
		labelled = labelled || len(x.Labels) > 1
	}
	if !labelled {
		return
	}
	shared := map[string]int{}
	for _, pg := range pool.Pgs {
		var members []stripe.Server
		for _, m := range pg.Members {
			members = append(members, byID[m])
		}
		shared[stripe.Shared(members)]++
	}
	for domain, n := range shared {
		if domain != "" {
			s.logger.Warn("placement groups have members in the same failure domain: too few have data servers", "domain", domain, "pgs", n, "of", len(pool.Pgs))
		}
	}
}
