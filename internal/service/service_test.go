package service_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/service"
)

type clusterServer struct {
	canopyv1.UnimplementedClusterServer
	server *service.Server
	seen   chan service.Identity
}

func (c *clusterServer) Status(ctx context.Context, _ *canopyv1.StatusRequest) (*canopyv1.StatusResponse, error) {
	id := service.IdentityOf(ctx)
	switch id.Mount {
	case "panic":
		panic("boom")
	case "busy":
		return nil, fserr.New(fserr.Busy, "status", nil)
	}
	c.seen <- id
	return &canopyv1.StatusResponse{}, nil
}

func (c *clusterServer) WatchMap(_ *canopyv1.WatchMapRequest, stream grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	if err := stream.Send(&canopyv1.PlacementMap{}); err != nil {
		return err
	}
	if service.IdentityOf(stream.Context()).Mount == "stuck" {
		<-stream.Context().Done()
		return nil
	}
	<-c.server.Draining()
	return nil
}

func start(t *testing.T) (*service.Server, *clusterServer, canopyv1.ClusterClient) {
	t.Helper()
	registry := prometheus.NewRegistry()
	s, err := service.New(service.Config{
		Name: "test", Listen: "127.0.0.1:0", HTTPListen: "127.0.0.1:0", Drain: 300 * time.Millisecond,
		Cluster: func() string { return "c1" }, Registerer: registry, Gatherer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	impl := &clusterServer{server: s, seen: make(chan service.Identity, 1)}
	canopyv1.RegisterClusterServer(s.GRPC(), impl)
	s.Serve()
	conn, err := grpc.NewClient(s.Addr(), append(wire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop(context.Background())
		if err := s.Wait(); err != nil {
			t.Error(err)
		}
	})
	return s, impl, canopyv1.NewClusterClient(conn)
}

func TestIdentity(t *testing.T) {
	_, impl, client := start(t)
	caller := wire.Caller{Cluster: "c1", Client: 0xabc, Host: "höst", PID: 7, Mount: "/mnt"}
	if _, err := client.Status(caller.Context(t.Context()), &canopyv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
	id := <-impl.seen
	if id.Client != 0xabc || id.PID != 7 || id.Mount != "/mnt" || id.Cluster != "c1" || id.Host != "h??st" || id.Peer == "" {
		t.Errorf("identity %+v", id)
	}
	caller.Cluster = ""
	if _, err := client.Status(caller.Context(t.Context()), &canopyv1.StatusRequest{}); err != nil {
		t.Errorf("a caller that does not know the cluster yet: %v", err)
	}
	<-impl.seen
	caller.Cluster = "c2"
	_, err := client.Status(caller.Context(t.Context()), &canopyv1.StatusRequest{})
	if status.Code(err) != fserr.WrongCluster.Code() || !strings.Contains(err.Error(), "c2") {
		t.Errorf("a caller of another cluster: %v", err)
	}
	bad := metadata.AppendToOutgoingContext(t.Context(), wire.MetadataClient, "zz")
	if _, err := client.Status(bad, &canopyv1.StatusRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad client id: %v", err)
	}
}

// TestOtherVersionsAreRefused: a caller of another version learns which side to
// upgrade, before any of its messages is read; tools without a version are served.
func TestOtherVersionsAreRefused(t *testing.T) {
	_, impl, client := start(t)
	for version, want := range map[string]string{"2": "upgrade the servers", "0": "upgrade the caller", "x": "invalid syntax"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), wire.MetadataProtocol, version)
		_, err := client.Status(ctx, &canopyv1.StatusRequest{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("version %s: %v, want %q", version, err, want)
		}
		if kind := fserr.KindOf(err); version != "x" && kind != fserr.WrongVersion {
			t.Errorf("version %s: kind %v", version, kind)
		}
	}
	select {
	case <-impl.seen:
		t.Error("a call of another version was served")
	default:
	}
	if _, err := client.Status(t.Context(), &canopyv1.StatusRequest{}); err != nil {
		t.Errorf("a tool without a version: %v", err)
	}
	<-impl.seen
}

func TestPanicsAndErrorsAreAnswers(t *testing.T) {
	_, impl, client := start(t)
	for mount, want := range map[string]codes.Code{"panic": codes.Internal, "busy": codes.ResourceExhausted} {
		_, err := client.Status(wire.Caller{Mount: mount}.Context(t.Context()), &canopyv1.StatusRequest{})
		if status.Code(err) != want {
			t.Errorf("%s: %v", mount, err)
		}
	}
	if _, err := client.Status(t.Context(), &canopyv1.StatusRequest{}); err != nil {
		t.Errorf("after a panic: %v", err)
	}
	<-impl.seen
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

func TestHealthAndMetrics(t *testing.T) {
	s, impl, client := start(t)
	base := "http://" + s.HTTPAddr()
	if code, _ := get(t, base+"/healthz"); code != http.StatusServiceUnavailable {
		t.Errorf("healthz before serving: %d", code)
	}
	s.SetServing(true)
	if code, _ := get(t, base+"/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("a plain health probe: %v, %v", health, err)
	}
	if _, err := client.Status(t.Context(), &canopyv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
	<-impl.seen
	if _, text := get(t, base+"/metrics"); !strings.Contains(text, `grpc_method="Status"`) {
		t.Error("metrics do not show the call")
	}
	if code, _ := get(t, base+"/debug/pprof/goroutine?debug=1"); code != http.StatusOK {
		t.Errorf("pprof: %d", code)
	}
}

func TestStopDrainsAndThenCuts(t *testing.T) {
	for _, mount := range []string{"polite", "stuck"} {
		s, _, client := start(t)
		stream, err := client.WatchMap(wire.Caller{Mount: mount}.Context(t.Context()), &canopyv1.WatchMapRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		s.Stop(t.Context())
		took := time.Since(begin)
		_, err = stream.Recv()
		if polite := mount == "polite"; polite != (err == io.EOF) || took > await.Limit(t, 5*time.Second) {
			t.Errorf("%s: stream ended with %v after %v", mount, err, took)
		}
	}
}

func TestPortInUse(t *testing.T) {
	s, _, _ := start(t)
	for _, config := range []service.Config{
		{Name: "second", Listen: s.Addr()},
		{Name: "second", Listen: "127.0.0.1:0", HTTPListen: s.HTTPAddr()},
	} {
		_, err := service.New(config)
		if err == nil || !strings.Contains(err.Error(), "in use") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line about the address", err)
		}
	}
}
