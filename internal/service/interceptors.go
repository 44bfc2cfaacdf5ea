package service

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// serverOptions returns wire's options and the interceptors, outermost first:
// metrics, logging, identity, errors to statuses, recovery.
func (s *Server) serverOptions() ([]grpc.ServerOption, error) {
	metrics := grpcprom.NewServerMetrics()
	if err := s.config.Registerer.Register(metrics); err != nil {
		return nil, fmt.Errorf("%s: metrics: %w", s.config.Name, err)
	}
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "canopy_panics_recovered_total",
		Help: "Calls that panicked and were answered with an internal error.",
	})
	if err := s.config.Registerer.Register(panics); err != nil {
		return nil, fmt.Errorf("%s: metrics: %w", s.config.Name, err)
	}
	recoverPanic := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		panics.Inc()
		s.config.Logger.Error("a call panicked", "panic", p, "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error")
	})
	ours := selector.MatchFunc(func(_ context.Context, m interceptors.CallMeta) bool {
		return strings.HasPrefix(m.Service, "canopy.")
	})
	identity := auth.AuthFunc(func(ctx context.Context) (context.Context, error) {
		ctx, err := identify(ctx, s.config.Cluster)
		return ctx, fserr.Status(err)
	})
	log := logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		s.config.Logger.Log(ctx, slog.Level(level), msg, fields...)
	})
	logOptions := []logging.Option{logging.WithLogOnEvents(logging.FinishCall), logging.WithLevels(logLevel)}
	options := append(wire.ServerOptions(),
		grpc.ChainUnaryInterceptor(
			metrics.UnaryServerInterceptor(),
			selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(log, logOptions...), ours),
			selector.UnaryServerInterceptor(auth.UnaryServerInterceptor(identity), ours),
			unaryStatus,
			recovery.UnaryServerInterceptor(recoverPanic),
		),
		grpc.ChainStreamInterceptor(
			metrics.StreamServerInterceptor(),
			selector.StreamServerInterceptor(logging.StreamServerInterceptor(log, logOptions...), ours),
			selector.StreamServerInterceptor(auth.StreamServerInterceptor(identity), ours),
			streamStatus,
			recovery.StreamServerInterceptor(recoverPanic),
		),
	)
	return append(options, s.config.Options...), nil
}

// logLevel keeps what happens all the time out of the log: calls that succeed,
// answers of servers that start or stop, and streams whose client went away. What
// callers do wrong is no warning of this process's.
func logLevel(code codes.Code) logging.Level {
	switch code {
	case codes.OK, codes.Canceled, codes.NotFound, codes.AlreadyExists, codes.Unavailable:
		return logging.LevelDebug
	case codes.Unknown, codes.Internal, codes.DataLoss:
		return logging.LevelError
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented, codes.Unauthenticated:
		return logging.LevelInfo // the caller's fault, and the caller is told
	}
	return logging.LevelWarn
}

func unaryStatus(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, req)
	return answer, asStatus(err)
}

func streamStatus(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return asStatus(handler(srv, stream))
}

// asStatus gives an error of ours its gRPC code.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return fserr.Status(err)
}
