package placement_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/placement/embedded"
)

// cable forwards TCP connections and can be pulled out.
type cable struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

func newCable(t *testing.T, target string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{listener: l, target: target, conns: map[net.Conn]struct{}{}}
	c.wg.Go(c.accept)
	t.Cleanup(func() {
		l.Close()
		c.pull(true)
		c.wg.Wait()
	})
	return c
}

func (c *cable) accept() {
	for {
		in, err := c.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.target)
		if err != nil || !c.track(in, out) {
			in.Close()
			continue
		}
		c.wg.Go(func() { io.Copy(out, in); out.Close(); in.Close() })
		c.wg.Go(func() { io.Copy(in, out); in.Close(); out.Close() })
	}
}

func (c *cable) track(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		if c.cut {
			conn.Close()
		} else {
			c.conns[conn] = struct{}{}
		}
	}
	return !c.cut
}

func (c *cable) pull(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for conn := range c.conns {
			conn.Close()
		}
		clear(c.conns)
	}
}

func TestWatchAfterCompaction(t *testing.T) {
	t.Parallel()
	direct, e := newStore(t)
	ctx := t.Context()
	link := newCable(t, e.Address())
	s := open(t, placement.Config{Endpoints: []string{link.listener.Addr().String()}})
	put := func(subtree, epoch uint64) {
		t.Helper()
		if _, err := direct.PutRoute(ctx, &canopyv1.SubtreeRoute{Subtree: subtree, Epoch: epoch, Shard: 1}); err != nil {
			t.Fatal(err)
		}
	}
	put(1, 1)
	eventually(t, s, "route 1", func() bool { return s.Map().Route(1) != nil })
	info := &canopyv1.ServiceInfo{Kind: placement.LayoutService, Id: 1, Address: "x"}
	service := direct.RegisterService(info)
	eventually(t, s, "the service", func() bool { return len(s.Map().Services(placement.LayoutService)) == 1 })

	link.pull(true)
	for epoch := uint64(2); epoch < 20; epoch++ {
		put(1, epoch)
	}
	service.Close(ctx) // its deletion is in the compacted past
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Address()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	answer, err := raw.Get(ctx, "/canopy/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Compact(ctx, answer.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if s.Map().Route(1).Epoch != 1 {
		t.Fatal("the cable leaks")
	}
	link.pull(false)
	eventually(t, s, "what happened behind the compaction", func() bool {
		return s.Map().Route(1).GetEpoch() == 19 && len(s.Map().Services(placement.LayoutService)) == 0
	})
	put(2, 1)
	eventually(t, s, "a change after it", func() bool { return s.Map().Route(2) != nil })
}

// TestEtcdAwayAndBack: the last known map is served, and registrations and
// watches come back, on an etcd that was restarted after all leases lapsed.
func TestEtcdAwayAndBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := startEtcd(t, dir)
	address := e.Address()
	s := open(t, placement.Config{Endpoints: []string{address}})
	info := &canopyv1.NodeInfo{Node: 1, Address: "a"}
	if err := s.ClaimNode(t.Context(), info, 0, noPersist); err != nil {
		t.Fatal(err)
	}
	alive := s.KeepNodeAlive(info)
	defer alive.Close(context.Background())
	eventually(t, s, "the node is alive", func() bool { return s.Map().Node(1).GetAlive() })
	e.Close()
	eventually(t, s, "the outage is noticed", func() bool { return !s.Reachable() })
	if s.Map().Node(1) == nil {
		t.Error("the map was forgotten")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if _, err := s.PutRoute(ctx, &canopyv1.SubtreeRoute{Subtree: 1, Epoch: 1, Shard: 1}); err == nil {
		t.Error("a write without etcd succeeded")
	}
	cancel()
	e, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Listen: address})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	eventually(t, s, "etcd is back", s.Reachable)
	eventually(t, s, "the registration is back", func() bool {
		return s.Sync(context.Background()) == nil && s.Map().Node(1).GetAlive()
	})
	if _, err := s.PutRoute(t.Context(), &canopyv1.SubtreeRoute{Subtree: 1, Epoch: 1, Shard: 1}); err != nil {
		t.Error(err)
	}
}

func TestPortInUseIsOneLine(t *testing.T) {
	t.Parallel()
	_, e := newStore(t)
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: e.Address()})
	if err == nil {
		t.Fatal("two servers on one port")
	}
	t.Log(err)
}
