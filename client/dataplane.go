package client

import (
	"context"

	"github.com/canopyfs/canopy/client/data"
)

// DataPlane is what the client needs of the data servers; *data.Data is one.
// All methods are safe for concurrent use and retry by themselves until their
// context ends; a kind OldEpoch means that the file's size epoch ended
// (PROTOCOLS J1).
type DataPlane interface {
	// WriteAt writes p at off on all in-sync replicas and returns the newly
	// allocated bytes. It does not keep p. After an error any part of p may have
	// been written.
	WriteAt(ctx context.Context, f data.File, p []byte, off int64) (allocated uint64, err error)
	// ReadAt fills p; holes and what was never written read as zeros.
	ReadAt(ctx context.Context, f data.File, p []byte, off int64) (n int, err error)
	// Sync makes what was acknowledged in the ranges durable.
	Sync(ctx context.Context, f data.File, ranges ...data.Range) error
	// Close ends connections.
	Close() error
}
