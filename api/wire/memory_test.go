package wire_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/canopyfs/canopy/api/wire"
)

// peerHealth is a health service that notes who asked last.
type peerHealth struct {
	*health.Server
	network string
}

func (h *peerHealth) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	p, _ := peer.FromContext(ctx)
	h.network = p.Addr.Network()
	return h.Server.Check(ctx, r)
}

// TestMemory: parts of one process meet in memory, by the server's address;
// other addresses, and servers that are gone, are the network's.
func TestMemory(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	memory := wire.NewMemory()
	address := tcp.Addr().String()
	near := memory.Listen(address)
	s, h := grpc.NewServer(), &peerHealth{Server: health.NewServer()}
	grpc_health_v1.RegisterHealthServer(s, h)
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(tcp) })
	served.Go(func() { _ = s.Serve(near) })
	defer served.Wait()
	defer s.Stop()
	ask := func(m *wire.Memory) string {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), m.DialOption())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		return h.network
	}
	if got := ask(memory); got != "memory" {
		t.Errorf("a part of this process came by %s", got)
	}
	if got := ask(nil); got != "tcp" {
		t.Errorf("without a Memory: by %s", got)
	}
	if got := ask(wire.NewMemory()); got != "tcp" {
		t.Errorf("an address that no server here has: by %s", got)
	}
	near.Close()
	if got := ask(memory); got != "tcp" {
		t.Errorf("after the listener was closed: by %s", got)
	}
}
