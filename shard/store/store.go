package store

import (
	"context"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// FormatVersion is what this binary writes. A store of a newer one is refused.
const FormatVersion = 1

// Options says where and whose a store is.
type Options struct {
	Dir     string
	Cluster string      // refused if the store is another cluster's
	Node    base.NodeID // refused if the store is another node's
	FS      vfs.FS      // nil: the disk
	// CacheBytes and MemTableBytes bound memory; 0 takes the defaults.
	CacheBytes    int64
	MemTableBytes int64
	Logger        *slog.Logger          // nil: none
	Registerer    prometheus.Registerer // nil: none
}

// Store is one node's store. Its methods are safe for concurrent use.
type Store struct{}

// Open opens or makes the store in o.Dir, and makes a new incarnation durable.
// A store of a newer format, of another cluster or of another node is an error
// that says so.
func Open(o Options) (*Store, error) { return nil, fserr.Internal }

// Incarnation counts the opens of this store, this one included. It is durable.
// Whoever starts the node compares it with what the cluster saw of it last: a
// store whose count is not the next one is older than that (PROTOCOLS A6).
func (s *Store) Incarnation() uint64 { return 0 }

// NewSnapshot returns the state as it is now.
func (s *Store) NewSnapshot() shard.Snapshot { return nil }

// NewBatch returns an empty batch over the present state. At most one batch may
// be open for a range of keys at a time.
func (s *Store) NewBatch() shard.Batch { return nil }

// Flush returns when every batch up to seq, which Commit returned, is durable:
// at once if that is so already (PROTOCOLS A5).
func (s *Store) Flush(seq uint64) error { return fserr.Internal }

// Install replaces what lies in [lo, hi), atomically and durably, by what fill
// sets, which must come in key order (PROTOCOLS A4). Nobody may write to the
// range meanwhile. If fill fails nothing changes.
func (s *Store) Install(lo, hi []byte, fill func(set func(key, value []byte) error) error) error {
	return fserr.Internal
}

// Wipe removes what lies in [lo, hi), durably.
func (s *Store) Wipe(lo, hi []byte) error { return fserr.Internal }

// Checksum is the SHA-256 of a range's keys and values, each with its length in
// front, without those that schema.ChecksumSkips.
func (s *Store) Checksum(ctx context.Context, r shard.Reader, lo, hi []byte) (sum [32]byte, keys, bytes int64, err error) {
	return sum, 0, 0, fserr.Internal
}

// Close flushes and closes the store. Snapshots and batches must be closed.
func (s *Store) Close() error { return nil }
