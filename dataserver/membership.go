package dataserver

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// membership is the server's relation to the layout service's leader:
// registration, heartbeats, reports.
type membership struct {
	addresses []string // configured
	caller    func() wire.Caller
	lease     *lease
	logger    *slog.Logger
	request   func() *canopyv1.RegisterServerRequest
	usage     func() (total, free uint64)
	adopted   func() uint64           // revision of the map that is served by
	offer     func(*canopyv1.PoolMap) // returns when the map, or a newer one, is adopted

	ring  func() uint64                  // version of the keys of capabilities
	adopt func(*canopyv1.CapabilityRing) // takes newer ones

	server atomic.Uint64 // 0 until registered
	ttl    atomic.Int64  // of the lease
	wake   chan struct{} // send a heartbeat now
	ended  chan struct{} // closed when run returned: no more heartbeats

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	leader string // "" if unknown
	next   int    // in addresses
}

const (
	memberRetryMin = 50 * time.Millisecond
	memberRetryMax = time.Second
	memberTimeout  = 2 * time.Second
	leaveTimeout   = time.Second
)

func (m *membership) id() base.NodeID { return base.NodeID(m.server.Load()) }

// poke makes the next heartbeat leave at once.
func (m *membership) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// client returns a client of the leader, or of the next instance that may know
// it.
func (m *membership) client() (canopyv1.LayoutServiceClient, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	address := m.leader
	if address == "" {
		address = m.addresses[m.next%len(m.addresses)]
		m.next++
	}
	conn := m.conns[address]
	if conn == nil {
		options := append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		var err error
		if conn, err = grpc.NewClient("passthrough:///"+address, options...); err != nil {
			return nil, address, err
		}
		m.conns[address] = conn
	}
	return canopyv1.NewLayoutServiceClient(conn), address, nil
}

// learn notes where the leader is after an answer or a failure.
func (m *membership) learn(asked, leader string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ok:
		m.leader = asked
	default:
		m.leader = leader
	}
}

func (m *membership) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.Close()
	}
}

// call does one call to the leader and learns from its answer. The kind is what
// the service answered.
func (m *membership) call(ctx context.Context, do func(context.Context, canopyv1.LayoutServiceClient) (kind uint32, detail, leader string, err error)) error {
	client, address, err := m.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.caller().Context(ctx), memberTimeout)
	defer cancel()
	kind, detail, leader, err := do(ctx, client)
	if err != nil {
		m.learn(address, "", false)
		return fserr.New(fserr.KindOf(err), "layout service "+address, err)
	}
	notLeader := fserr.Kind(kind) == fserr.NotHolder
	m.learn(address, leader, !notLeader)
	if kind != 0 {
		return fserr.New(fserr.Kind(kind), "layout service "+address, fmt.Errorf("%s", detail))
	}
	return nil
}

// run registers and keeps the lease, until ctx is done. It returns an error if
// this server may never serve.
func (m *membership) run(ctx context.Context, registered func(*canopyv1.RegisterServerResponse) error) error {
	for ctx.Err() == nil {
		if err := m.register(ctx, registered); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil // told to end before it was registered: there is no lease to keep
		}
		if err := m.beat(ctx); err != nil {
			return err
		}
	}
	return nil
}

// final reports whether an answer means that trying again is useless.
func final(err error) bool {
	switch fserr.KindOf(err) {
	case fserr.WrongCluster, fserr.WrongVersion, fserr.Fenced, fserr.Malformed:
		return true
	}
	return false
}

func (m *membership) register(ctx context.Context, registered func(*canopyv1.RegisterServerResponse) error) error {
	quiet := time.Now().Add(3 * time.Second) // at a cluster's start the layout service may come later
	for delay := memberRetryMin; ; {
		asked := m.lease.clock()
		var answer *canopyv1.RegisterServerResponse
		err := m.call(ctx, func(ctx context.Context, c canopyv1.LayoutServiceClient) (uint32, string, string, error) {
			var err error
			answer, err = c.RegisterServer(ctx, m.request())
			return answer.GetError(), answer.GetDetail(), answer.GetLeaderAddress(), err
		})
		if err == nil {
			m.server.Store(answer.Server)
			m.ttl.Store(int64(answer.LeaseMs) * int64(time.Millisecond))
			if err := registered(answer); err != nil {
				return err
			}
			m.lease.extend(asked, time.Duration(m.ttl.Load()))
			return nil
		}
		if final(err) {
			return fmt.Errorf("the layout service refuses this data server: %w", err)
		}
		if now := time.Now(); now.After(quiet) {
			m.logger.Warn("no layout service takes this data server yet; it serves nothing until one does", "error", err)
			quiet = now.Add(10 * time.Second)
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)):
			delay = min(delay*3/2, memberRetryMax)
		case <-ctx.Done():
			return nil
		}
	}
}

// beat sends heartbeats until the server must register again (nil).
func (m *membership) beat(ctx context.Context) error {
	ttl := time.Duration(m.ttl.Load())
	wait := time.Duration(0)
	for {
		select {
		case <-time.After(wait):
		case <-m.wake:
		case <-ctx.Done():
			return nil
		}
		err := m.heartbeat(ctx)
		switch {
		case err == nil:
			wait = ttl / 4
		case fserr.KindOf(err) == fserr.SessionExpired:
			m.logger.Warn("this server must register again", "error", err)
			return nil
		case final(err):
			m.lease.end()
			return fmt.Errorf("the layout service refuses this data server: %w", err)
		default:
			if ctx.Err() == nil {
				m.logger.Warn("heartbeat", "error", err)
			}
			wait = memberRetryMin + rand.N(ttl/16)
		}
	}
}

func (m *membership) heartbeat(ctx context.Context) error {
	asked := m.lease.clock()
	total, free := m.usage()
	request := &canopyv1.HeartbeatServerRequest{
		Server: m.server.Load(), Incarnation: m.request().Incarnation, MapRevision: m.adopted(), TotalBytes: total, FreeBytes: free,
		CapabilityVersion: m.ring(),
	}
	var answer *canopyv1.HeartbeatServerResponse
	err := m.call(ctx, func(ctx context.Context, c canopyv1.LayoutServiceClient) (uint32, string, string, error) {
		var err error
		answer, err = c.HeartbeatServer(ctx, request)
		return answer.GetError(), answer.GetDetail(), answer.GetLeaderAddress(), err
	})
	if err != nil {
		return err
	}
	// The map before the lease: if the lease before had run out, others may have
	// gone on without this server, and under the old map it would serve what they
	// have changed since.
	m.offer(answer.Map)
	m.adopt(answer.CapabilityRing)
	m.lease.extend(asked, time.Duration(answer.LeaseMs)*time.Millisecond)
	return nil
}

// leave gives the lease up, so that nobody waits for its end. Called after run
// has been told to end, it waits for that.
func (m *membership) leave(ctx context.Context) {
	<-m.ended
	if !m.lease.valid() {
		return
	}
	m.lease.end()
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	err := m.call(ctx, func(ctx context.Context, c canopyv1.LayoutServiceClient) (uint32, string, string, error) {
		answer, err := c.HeartbeatServer(ctx, &canopyv1.HeartbeatServerRequest{
			Server: m.server.Load(), Incarnation: m.request().Incarnation, MapRevision: m.adopted(), Leaving: true,
		})
		return answer.GetError(), answer.GetDetail(), answer.GetLeaderAddress(), err
	})
	if err != nil {
		m.logger.Info("the lease could not be given up; it runs out", "error", err)
	}
}

// report asks the leader to change an in-sync set, and returns the group as it
// then is. An error of kind OldEpoch comes with the present group.
func (m *membership) report(ctx context.Context, request *canopyv1.ReportReplicaRequest) (*canopyv1.PlacementGroup, error) {
	var answer *canopyv1.ReportReplicaResponse
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for delay := memberRetryMin; ; delay = min(2*delay, memberRetryMax) {
		err := m.reportOnce(ctx, request, &answer)
		if kind := fserr.KindOf(err); err == nil || kind == fserr.OldEpoch || kind == fserr.Invalid || kind == fserr.Permission {
			return answer.GetPg(), err
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)):
		case <-ctx.Done():
			return nil, fserr.New(fserr.NotReady, "report replica", err)
		}
	}
}

func (m *membership) reportOnce(ctx context.Context, request *canopyv1.ReportReplicaRequest, answer **canopyv1.ReportReplicaResponse) error {
	client, address, err := m.client()
	if err != nil {
		return err
	}
	// The leader may wait for the leaving server's lease.
	ctx, cancel := context.WithTimeout(m.caller().Context(ctx), 2*time.Duration(m.ttl.Load())+memberTimeout)
	defer cancel()
	got, err := client.ReportReplica(ctx, request)
	if err != nil {
		m.learn(address, "", false)
		return err
	}
	m.learn(address, got.LeaderAddress, fserr.Kind(got.Error) != fserr.NotHolder)
	*answer = got
	if got.Error != 0 {
		return fserr.New(fserr.Kind(got.Error), "report replica", fmt.Errorf("%s", got.Detail))
	}
	return nil
}

// reportScrub tells the leader what a scrub found, again while there is none.
func (m *membership) reportScrub(ctx context.Context, request *canopyv1.ReportScrubRequest) error {
	for {
		err := m.call(ctx, func(ctx context.Context, c canopyv1.LayoutServiceClient) (uint32, string, string, error) {
			answer, err := c.ReportScrub(ctx, request)
			return answer.GetError(), answer.GetDetail(), answer.GetLeaderAddress(), err
		})
		if kind := fserr.KindOf(err); err == nil || kind == fserr.OldEpoch || kind == fserr.Invalid || kind == fserr.NotFound || kind == fserr.Malformed {
			return err
		}
		select {
		case <-time.After(memberRetryMax/2 + rand.N(memberRetryMax)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hostName is for people.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
