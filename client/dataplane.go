package client

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// DataFile is what the data servers need to know of a file.
type DataFile struct {
	ID        base.DataID
	Layout    *canopyv1.Layout
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut
}

// DataRange is a range of a file, in bytes.
type DataRange struct{ Offset, Length int64 }

// DataPlane is what the client needs of the data servers. All methods are safe
// for concurrent use and retry by themselves until their context ends; a kind
// OldEpoch means that the file's size epoch ended (PROTOCOLS J1).
type DataPlane interface {
	// WriteAt writes p at off on all in-sync replicas and returns the newly
	// allocated bytes. It does not keep p.
	WriteAt(ctx context.Context, f DataFile, p []byte, off int64) (allocated uint64, err error)
	// ReadAt fills p; holes and what was never written read as zeros.
	ReadAt(ctx context.Context, f DataFile, p []byte, off int64) (n int, err error)
	// Sync makes what was acknowledged in the ranges durable.
	Sync(ctx context.Context, f DataFile, ranges []DataRange) error
	// Close ends connections.
	Close() error
}
