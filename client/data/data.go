package data

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/client/data/poolmap"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// Config says who writes, and where the layout services are.
type Config struct {
	// LayoutServices returns the addresses known now, in order of preference. It
	// is asked again at each connection attempt.
	LayoutServices func() []string
	Cluster        string        // refuse servers of another cluster; "" accepts any
	Client         base.ClientID // required; no two Datas share one, since each numbers its own writes
	// Incarnation tells lives of one client id apart; a larger one fences the
	// smaller (PROTOCOLS J3). 0: 1, right for an id that is random per process.
	Incarnation uint64
	// Access is for what concerns no file of a caller: deletion, what servers hold, and
	// Files without an Access of their own.
	Access Access
	// MaxInFlightBytes bounds what all calls together have sent or asked for and
	// not got answered yet. 0: DefaultMaxInFlightBytes.
	MaxInFlightBytes int64
	// ConnectionsPerServer: 0 means DefaultConnectionsPerServer.
	ConnectionsPerServer int
	// AttemptTimeout bounds one try at one server, before another is made. 0:
	// DefaultAttemptTimeout.
	AttemptTimeout time.Duration
	// Labels say where this client is, KEY=VALUE with the keys zone, rack and host:
	// reads go to the nearest replica. The machine's name counts as host if none is
	// given.
	Labels     []string
	Memory     *wire.Memory          // connects to servers of this process; nil: TCP alone
	Logger     *slog.Logger          // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Default settings.
const (
	DefaultMaxInFlightBytes     = 64 << 20
	DefaultConnectionsPerServer = 1
	DefaultAttemptTimeout       = 10 * time.Second
)

// Access has what allows requests about a file (PROTOCOLS J4). It is called before
// each one, by any number of goroutines.
type Access interface {
	// Capability returns a capability to write, or else to read. refused is one that
	// a data server refused, nil before: then it returns another, for which it may
	// have to ask. The caller does not change what it returns.
	Capability(ctx context.Context, write bool, refused []byte) ([]byte, error)
}

// File is what the data servers need to know of a file. Its slices are only
// read.
type File struct {
	ID        base.DataID
	Layout    *canopyv1.Layout
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut // cuts of the file that servers may not know yet, oldest first
	Access    Access          // nil: Config.Access
}

// Range is a range of a file, in bytes.
type Range struct{ Offset, Length int64 }

// Data is one client's data path.
type Data struct {
	config   Config
	logger   *slog.Logger
	watcher  *poolmap.Watcher
	metrics  *metrics
	budget   *budget
	memory   mem.BufferPool // of payloads
	closed   chan struct{}
	closing  sync.Once
	absences absences

	mu        sync.Mutex
	troubles  troubles
	links     map[base.NodeID]*serverLinks
	sequences map[groupKey]*sequence
}

// New starts a Data. It does not wait for a connection: the first call does.
func New(config Config) (*Data, error) {
	if config.Client == 0 || config.LayoutServices == nil {
		return nil, fserr.New(fserr.Invalid, "data", errors.New("a client id and layout services are needed"))
	}
	if config.Incarnation == 0 {
		config.Incarnation = 1
	}
	if config.MaxInFlightBytes == 0 {
		config.MaxInFlightBytes = DefaultMaxInFlightBytes
	}
	if config.ConnectionsPerServer == 0 {
		config.ConnectionsPerServer = DefaultConnectionsPerServer
	}
	if config.AttemptTimeout == 0 {
		config.AttemptTimeout = DefaultAttemptTimeout
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	host, _ := os.Hostname() // without it the labels alone count
	config.Labels = stripe.WithHost(config.Labels, host)
	m, err := newMetrics(config.Registerer)
	if err != nil {
		return nil, err
	}
	d := &Data{
		config: config, logger: config.Logger, metrics: m,
		budget:    &budget{size: config.MaxInFlightBytes},
		memory:    link.NewPool(),
		closed:    make(chan struct{}),
		links:     map[base.NodeID]*serverLinks{},
		sequences: map[groupKey]*sequence{},
	}
	d.watcher = poolmap.Watch(poolmap.Config{
		Addresses: config.LayoutServices, Cluster: config.Cluster, Caller: d.caller, Logger: config.Logger,
	})
	return d, nil
}

func (d *Data) caller() wire.Caller {
	host, _ := os.Hostname()
	return wire.Caller{Cluster: d.config.Cluster, Client: uint64(d.config.Client), Host: host, PID: os.Getpid()}
}

// Close ends all calls with kind NotConnected, and connections.
func (d *Data) Close() error {
	d.closing.Do(func() {
		close(d.closed)
		d.watcher.Close()
		d.mu.Lock()
		links := d.links
		d.links = nil
		d.mu.Unlock()
		for _, l := range links {
			l.close()
		}
	})
	return nil
}
