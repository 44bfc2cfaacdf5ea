// Package embedded runs one etcd member inside the process, for `canopy up` and
// tests. Its data directory is an ordinary one: a stand-alone etcd can take it
// over. Only cmd and tests use it.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Config says where etcd keeps its data and listens.
type Config struct {
	Dir string
	// Listen is host:port for clients, "" a free loopback port. Anyone who reaches
	// it can change the placement map: keep it on loopback or a trusted network.
	Listen string
	// ReadyTimeout bounds the start. 0: 30 s.
	ReadyTimeout time.Duration
	Logger       *slog.Logger // etcd's warnings and errors go here
}

// Etcd is a running member.
type Etcd struct {
	etcd    *embed.Etcd
	address string
	closing *atomic.Bool // etcd then calls its own closed listeners errors
}

// Start starts etcd and returns when it serves.
func Start(ctx context.Context, config Config) (*Etcd, error) {
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	if config.ReadyTimeout == 0 {
		config.ReadyTimeout = 30 * time.Second
	}
	c := embed.NewConfig()
	c.Name = "canopy"
	c.Dir = filepath.Clean(config.Dir)
	listen := url.URL{Scheme: "http", Host: config.Listen}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "1h"
	c.QuotaBackendBytes = 2 << 30
	c.EnableGRPCGateway = false
	closing := new(atomic.Bool)
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(config.Logger, closing))
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return nil, explain(config, err)
	}
	e := &Etcd{etcd: etcd, address: etcd.Clients[0].Addr().String(), closing: closing}
	ready := time.NewTimer(config.ReadyTimeout)
	defer ready.Stop()
	select {
	case <-etcd.Server.ReadyNotify():
		return e, nil
	case err = <-etcd.Err():
	case <-etcd.Server.StopNotify():
		err = errors.New("it stopped")
	case <-ready.C:
		err = fmt.Errorf("it was not ready within %v", config.ReadyTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.Close()
	return nil, explain(config, err)
}

func explain(config Config, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("etcd: address %s is in use by another process: stop it or choose another address", config.Listen)
	}
	return fmt.Errorf("etcd in %s: %w", config.Dir, err)
}

// Address returns host:port for clients.
func (e *Etcd) Address() string { return e.address }

// Err gets an error when etcd fails while it runs.
func (e *Etcd) Err() <-chan error { return e.etcd.Err() }

// Close stops etcd and waits for it.
func (e *Etcd) Close() {
	e.closing.Store(true)
	e.etcd.Close()
}

// zapTo returns a zap logger that hands warnings and errors to log until closing
// is true. Warnings are information: at each start etcd has some about a
// configuration that is meant to be as it is.
func zapTo(log *slog.Logger, closing *atomic.Bool) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(&core{log: log.With("component", "etcd"), closing: closing})
}

// core is a zapcore.Core over slog.
type core struct {
	log     *slog.Logger
	closing *atomic.Bool
	fields  []zapcore.Field
}

func (c *core) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel && !c.closing.Load()
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log, closing: c.closing, fields: append(append([]zapcore.Field(nil), c.fields...), fields...)}
}

func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelInfo
	if entry.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(append([]zapcore.Field(nil), c.fields...), fields...) {
		f.AddTo(encoder)
	}
	args := make([]any, 0, 2*len(encoder.Fields))
	for key, value := range encoder.Fields {
		args = append(args, key, value)
	}
	c.log.Log(context.Background(), level, entry.Message, args...)
	return nil
}

func (c *core) Sync() error { return nil }
