package data

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Config says who writes, and where the layout services are.
type Config struct {
	// LayoutServices returns the addresses known now, in order of preference. It
	// is asked again at each connection attempt.
	LayoutServices func() []string
	Cluster        string        // refuse servers of another cluster; "" accepts any
	Client         base.ClientID // required
	// Incarnation tells lives of one client id apart; a larger one fences the
	// smaller (PROTOCOLS J3). 0: 1, right for an id that is random per process.
	Incarnation uint64
	// MaxInFlightBytes bounds what all calls together have sent or asked for and
	// not got answered yet. 0: DefaultMaxInFlightBytes.
	MaxInFlightBytes int64
	// ConnectionsPerServer: 0 means DefaultConnectionsPerServer.
	ConnectionsPerServer int
	// AttemptTimeout bounds one try at one server, before another is made. 0:
	// DefaultAttemptTimeout.
	AttemptTimeout time.Duration
	Logger         *slog.Logger          // nil: none
	Registerer     prometheus.Registerer // nil: none
}

// Default settings.
const (
	DefaultMaxInFlightBytes     = 64 << 20
	DefaultConnectionsPerServer = 1
	DefaultAttemptTimeout       = 10 * time.Second
)

// File is what the data servers need to know of a file. Its slices are only
// read.
type File struct {
	ID        base.DataID
	Layout    *canopyv1.Layout
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut // cuts of the file that servers may not know yet, oldest first
}

// Range is a range of a file, in bytes.
type Range struct{ Offset, Length int64 }

// Data is one client's data path.
type Data struct {
	config Config
}

// New starts a Data. It does not wait for a connection: the first call does.
func New(config Config) (*Data, error) {
	return nil, fserr.New(fserr.Internal, "data", nil)
}

// Close ends all calls with kind NotConnected, and connections.
func (d *Data) Close() error { return fserr.New(fserr.Internal, "close", nil) }

// WriteAt writes p at off. It returns when all in-sync replicas have it (in
// memory: Sync makes it durable), with the bytes newly allocated, counted once
// and not per replica. p is not kept. After an error any part of p may have been
// written.
func (d *Data) WriteAt(ctx context.Context, f File, p []byte, off int64) (allocated uint64, err error) {
	return 0, fserr.New(fserr.Internal, "write", nil)
}

// ReadAt fills p with what is at off: holes and what was never written read as
// zeros, so n is len(p) unless there is an error. The caller bounds the range by
// the file's size.
func (d *Data) ReadAt(ctx context.Context, f File, p []byte, off int64) (n int, err error) {
	return 0, fserr.New(fserr.Internal, "read", nil)
}

// Sync makes all that was acknowledged in the ranges durable on all in-sync
// replicas; without ranges, in the whole file.
func (d *Data) Sync(ctx context.Context, f File, ranges ...Range) error {
	return fserr.New(fserr.Internal, "sync", nil)
}

// Cut tells every column of the file its cuts (f.Cuts), durably. When it returns
// nil the cuts need not be sent with requests any more (PROTOCOLS J1).
func (d *Data) Cut(ctx context.Context, f File) error {
	return fserr.New(fserr.Internal, "cut", nil)
}

// Delete removes all bytes of the data id. nil means that every member of every
// placement group, those out of sync too, has confirmed and keeps a tombstone
// against late writes (PROTOCOLS H3). A repetition is harmless.
func (d *Data) Delete(ctx context.Context, id base.DataID, layout *canopyv1.Layout) error {
	return fserr.New(fserr.Internal, "delete", nil)
}

// Usage returns capacity and free bytes of a pool as a mount should show them:
// those of the servers that are alive, divided by the number of replicas.
func (d *Data) Usage(ctx context.Context, pool base.PoolID) (totalBytes, freeBytes uint64, err error) {
	return 0, 0, fserr.New(fserr.Internal, "usage", nil)
}

// PoolMap waits for a pool map and returns the newest known. It is shared: do
// not change it.
func (d *Data) PoolMap(ctx context.Context) (*canopyv1.PoolMap, error) {
	return nil, fserr.New(fserr.Internal, "pool map", nil)
}

// DefaultLayout returns the layout that files of the pool get if nobody says
// otherwise. It is shared: do not change it.
func (d *Data) DefaultLayout(ctx context.Context, pool base.PoolID) (*canopyv1.Layout, error) {
	return nil, fserr.New(fserr.Internal, "default layout", nil)
}

// Location says where a piece of a file lies.
type Location struct {
	FileOffset   int64
	Length       int64
	Component    uint32
	Column       uint32
	ColumnOffset uint64
	PG           base.PGID
	PGEpoch      base.Epoch
	Servers      []*canopyv1.DataServerInfo // in-sync ones, primary first
}

// Locate returns where the pieces of a range of a file lie, in file order.
func (d *Data) Locate(ctx context.Context, f File, r Range) ([]Location, error) {
	return nil, fserr.New(fserr.Internal, "locate", nil)
}

// StatColumns returns what every data server holds of a data id, by server.
func (d *Data) StatColumns(ctx context.Context, id base.DataID) (map[base.NodeID][]*canopyv1.ColumnInfo, error) {
	return nil, fserr.New(fserr.Internal, "stat columns", nil)
}
