// Package service is what every daemon's front shares: a gRPC server with
// identity, recovery, logging and metrics interceptors, health and reflection,
// and an HTTP server with /metrics, /healthz and /debug/pprof; and a stop that
// drains with a deadline.
//
// Only the daemons' packages (level 5) and cmd may use it; clients use
// api/wire's DialOptions.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/canopyfs/canopy/api/wire"
)

// DefaultDrain is how long a stop waits for calls in flight.
const DefaultDrain = 3 * time.Second

// Config says what to serve, and where.
type Config struct {
	Name       string // of the daemon, for logs and metrics: "mds"
	Listen     string // host:port of gRPC; port 0 takes a free one
	HTTPListen string // host:port of metrics and pprof; "" serves none
	// Memory also serves the parts of this process, at Listen's address and at
	// Advertise; nil: TCP alone.
	Memory    *wire.Memory
	Advertise string // where others reach this server, if not at Listen
	// Cluster returns the cluster id that callers must name if they name one; ""
	// while it is not known yet.
	Cluster func() string
	Drain   time.Duration // 0: DefaultDrain
	Logger  *slog.Logger
	// Registerer takes the server's own metrics; Gatherer is what /metrics shows.
	// Servers in one process need Registerers that differ, by a label say.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	Options    []grpc.ServerOption // more of them
}

// Server is one daemon's front.
type Server struct {
	config   Config
	grpc     *grpc.Server
	health   *health.Server
	http     *http.Server // nil: none
	grpcLis  net.Listener
	memory   []net.Listener // for the parts of this process
	httpLis  net.Listener
	serving  atomic.Bool
	draining chan struct{}

	stopOnce sync.Once
	served   atomic.Bool
	group    errgroup.Group
}

// New binds the listeners and makes the servers; Serve starts them. A port that
// is taken is one clear error.
func New(config Config) (*Server, error) {
	if config.Drain == 0 {
		config.Drain = DefaultDrain
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Registerer == nil {
		config.Registerer = prometheus.NewRegistry()
	}
	s := &Server{config: config, draining: make(chan struct{})}
	var err error
	if s.grpcLis, err = listen(config.Name, config.Listen); err != nil {
		return nil, err
	}
	if config.HTTPListen != "" {
		if s.httpLis, err = listen(config.Name, config.HTTPListen); err != nil {
			s.grpcLis.Close()
			return nil, err
		}
		s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	}
	options, err := s.serverOptions()
	if err != nil {
		s.closeListeners()
		return nil, err
	}
	if config.Memory != nil {
		s.memory = append(s.memory, config.Memory.Listen(s.Addr()))
		if config.Advertise != "" && config.Advertise != s.Addr() {
			s.memory = append(s.memory, config.Memory.Listen(config.Advertise))
		}
	}
	s.grpc = grpc.NewServer(options...)
	s.health = health.NewServer()
	s.SetServing(false)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

// listen binds a TCP address. Its error names the address and what to do.
func listen(name, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: address %s is in use by another process: stop it or choose another address", name, address)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %q: %w", name, address, err)
	}
	return l, nil
}

func (s *Server) closeListeners() {
	s.grpcLis.Close()
	for _, l := range s.memory {
		l.Close()
	}
	if s.httpLis != nil {
		s.httpLis.Close()
	}
}

// GRPC is where services are registered, before Serve.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// Addr is the address that gRPC is bound to.
func (s *Server) Addr() string { return s.grpcLis.Addr().String() }

// HTTPAddr is the address that HTTP is bound to, "" if it serves none.
func (s *Server) HTTPAddr() string {
	if s.httpLis == nil {
		return ""
	}
	return s.httpLis.Addr().String()
}

// Offer lets the other parts of this process call part instead of connecting to
// this server (wire.Local), as long as it accepts connections.
func (s *Server) Offer(part any) {
	for _, l := range s.memory {
		s.config.Memory.Offer(l.Addr().String(), part)
	}
}

// SetServing sets the health, by gRPC and at /healthz. A server starts
// NOT_SERVING.
func (s *Server) SetServing(serving bool) {
	s.serving.Store(serving)
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
}

// Draining is closed when Stop begins: handlers of long streams return then.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Serve starts serving in the background. Wait tells what ended it.
func (s *Server) Serve() {
	if s.served.Swap(true) {
		return
	}
	s.group.Go(func() error { return s.grpc.Serve(s.grpcLis) })
	for _, l := range s.memory {
		s.group.Go(func() error { return s.grpc.Serve(l) })
	}
	if s.http != nil {
		s.group.Go(func() error {
			if err := s.http.Serve(s.httpLis); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
}

// Wait returns when the servers have ended: nil after Stop.
func (s *Server) Wait() error { return s.group.Wait() }

// Stop sets the health to NOT_SERVING, lets calls in flight end for the drain
// time or until ctx is done, cuts the rest, and waits for all. A second call
// waits for the first.
func (s *Server) Stop(ctx context.Context) {
	s.stopOnce.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, s.config.Drain)
		defer cancel()
		s.SetServing(false)
		s.health.Shutdown()
		close(s.draining)
		graceful := make(chan struct{})
		go func() {
			defer close(graceful)
			s.grpc.GracefulStop()
		}()
		select {
		case <-graceful:
		case <-ctx.Done():
			s.grpc.Stop()
			<-graceful
		}
		if s.http != nil {
			if s.http.Shutdown(ctx) != nil {
				s.http.Close()
			}
		}
		s.closeListeners()
	})
	_ = s.group.Wait() // its error is Wait's to tell
}
