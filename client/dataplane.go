package client

import (
	"context"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
)

// DataPlane is what the client needs of the data servers; *data.Data is one.
// All methods are safe for concurrent use and retry by themselves until their
// context ends; a kind OldEpoch means that the file's size epoch ended
// (PROTOCOLS J1).
type DataPlane interface {
	// WriteAt writes p at off on all in-sync replicas. It does not keep p. After
	// an error any part of p may have been written.
	WriteAt(ctx context.Context, f data.File, p []byte, off int64) (data.Written, error)
	// ReadAt fills p; holes and what was never written read as zeros.
	ReadAt(ctx context.Context, f data.File, p []byte, off int64) (n int, err error)
	// Sync makes what was acknowledged in the ranges durable. An error of cause
	// data.ErrLost says that some of what acks acknowledged may be gone.
	Sync(ctx context.Context, f data.File, acks data.Acks, ranges ...data.Range) error
	// Punch makes a range zeros and gives its space back; Reserve gives the holes of a
	// range space. What they return counts after an error too.
	Punch(ctx context.Context, f data.File, r data.Range) (freed uint64, acks data.Acks, err error)
	Reserve(ctx context.Context, f data.File, r data.Range) (allocated uint64, acks data.Acks, err error)
	// Seek returns the first offset at or behind off that has data, or with hole one
	// that has none; -1 if there is none.
	Seek(ctx context.Context, f data.File, off int64, hole bool) (int64, error)
	// Allocated returns how many bytes of the file have space.
	Allocated(ctx context.Context, f data.File) (uint64, error)
	// Usage returns the size of a pool and what is free, in bytes of files.
	Usage(ctx context.Context, pool base.PoolID) (totalBytes, freeBytes uint64, err error)
	// Safe returns the acks that still count as far as is known.
	Safe(acks data.Acks) data.Acks
	// Close ends connections.
	Close() error
}
