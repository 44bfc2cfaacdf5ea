package mds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// importAttempt bounds one call to the target. A batch whose answer is late goes
// again, and is taken once.
const importAttempt = 3 * time.Second

// moveTarget is the shard that takes a subtree in, as migrate.Target: its holder,
// wherever that is. For one goroutine.
type moveTarget struct {
	server *Server
	to     base.ShardID
	last   base.NodeID // that answered as the holder
	conns  map[string]*grpc.ClientConn
}

// Import asks the target's holder.
func (m *moveTarget) Import(ctx context.Context, step *canopyv1.ImportCommand) (answer *canopyv1.ImportResponse, err error) {
	request := &canopyv1.ImportRequest{Shard: uint64(m.to), Command: step}
	err = m.atHolder(ctx, func(ctx context.Context, at canopyv1.MigrationClient) (fserr.Kind, error) {
		if at == nil {
			answer = m.server.takeIn(ctx, request)
		} else if answer, err = at.Import(ctx, request); err != nil {
			return fserr.OK, err
		}
		return fserr.Kind(answer.Error), nil
	})
	return answer, err
}

// holderComes is how long a shard that starts, or lost its holder, may be without one.
const holderComes = 4 * time.Second

// serves asks whether the target has a holder, or gets one soon.
func (m *moveTarget) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, holderComes)
	defer cancel()
	wait := retry{next: 20 * time.Millisecond, limit: 200 * time.Millisecond}
	for {
		err := m.servesNow(ctx)
		if fserr.KindOf(err) != fserr.NotReady || !wait.sleep(ctx) {
			return err
		}
	}
}

func (m *moveTarget) servesNow(ctx context.Context) error {
	return m.atHolder(ctx, func(ctx context.Context, at canopyv1.MigrationClient) (fserr.Kind, error) {
		if at == nil {
			return m.server.serving(ctx, m.to), nil
		}
		answer, err := at.ListMoves(ctx, &canopyv1.ListMovesRequest{Shard: uint64(m.to)})
		return fserr.Kind(answer.GetError()), err
	})
}

// atHolder calls do at the nodes of the shard in turn, the likely holder first,
// until one is the holder; do gets nil for this node.
func (m *moveTarget) atHolder(ctx context.Context, do func(context.Context, canopyv1.MigrationClient) (fserr.Kind, error)) error {
	var failures []error
	for _, node := range m.candidates() {
		var at canopyv1.MigrationClient
		if node != m.server.Node() {
			conn, err := m.conn(m.server.place.Map().Node(node).GetAddress())
			if err != nil {
				failures = append(failures, err)
				continue
			}
			at = canopyv1.NewMigrationClient(conn)
		}
		attempt, cancel := context.WithTimeout(wire.Caller{Cluster: m.server.cluster}.Context(ctx), importAttempt)
		kind, err := do(attempt, at)
		cancel()
		switch {
		case err != nil:
			failures = append(failures, fmt.Errorf("node %v: %w", node, err))
		case kind == fserr.NotHolder || kind == fserr.UnknownShard || kind == fserr.NotReady:
			failures = append(failures, fmt.Errorf("node %v: %w", node, kind))
		default:
			m.last = node
			return nil
		}
	}
	m.last = 0
	return fserr.New(fserr.NotReady, "shard "+m.to.String(), errors.Join(append([]error{errNoHolder}, failures...)...))
}

var errNoHolder = errors.New("no holder answers")

// candidates returns the nodes with a replica of the shard, the likely holder first.
func (m *moveTarget) candidates() []base.NodeID {
	s := m.server
	info := s.place.Map().Shard(m.to)
	var order []base.NodeID
	seen := map[base.NodeID]bool{0: true}
	add := func(node base.NodeID) {
		if !seen[node] {
			seen[node] = true
			order = append(order, node)
		}
	}
	add(m.last)
	if h := s.lookup(m.to); h != nil {
		node, _, _ := h.group.Holder()
		add(node)
	}
	add(base.NodeID(info.GetHolderNode()))
	for _, r := range info.GetReplicas() {
		if s.place.Map().Node(base.NodeID(r.Node)).GetAlive() {
			add(base.NodeID(r.Node))
		}
	}
	return order
}

func (m *moveTarget) conn(address string) (*grpc.ClientConn, error) {
	if conn := m.conns[address]; conn != nil {
		return conn, nil
	}
	if address == "" {
		return nil, fserr.New(fserr.NotReady, "shard "+m.to.String(), errors.New("the address of its node is not known"))
	}
	conn, err := grpc.NewClient(address, append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	if m.conns == nil {
		m.conns = map[string]*grpc.ClientConn{}
	}
	m.conns[address] = conn
	return conn, nil
}

func (m *moveTarget) close() {
	for _, conn := range m.conns {
		conn.Close()
	}
	m.conns = nil
}
