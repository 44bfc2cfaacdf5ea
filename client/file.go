package client

import (
	"context"

	"github.com/canopyfs/canopy/internal/fserr"
)

// File is an open regular file. Handles of one client on one inode share
// buffers: each sees the others' writes at once.
type File struct {
	node  *Inode
	flags uint32
}

// Inode returns the file's inode; the reference is the handle's.
func (f *File) Inode() *Inode { return f.node }

// Flags returns the flags that the file was opened with.
func (f *File) Flags() uint32 { return f.flags }

// ReadAt reads at off into p. It returns fewer bytes than len(p) only at the
// end of the file: 0 at or beyond it. It never returns io.EOF.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return 0, fserr.New(fserr.Internal, "read", nil)
}

// WriteAt writes p at off. Unless the file was opened with O_SYNC or O_DSYNC
// the bytes are buffered when it returns; p may be re-used then.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return 0, fserr.New(fserr.Internal, "write", nil)
}

// Append writes p at the end of the file, in a range that no other append of
// any client gets (PROTOCOLS J2), and returns where. The bytes are visible to
// every client when it returns.
func (f *File) Append(ctx context.Context, p []byte) (off int64, err error) {
	return 0, fserr.New(fserr.Internal, "append", nil)
}

// Flush is what close(2) does for each descriptor: all bytes written to the
// file by this client are visible to every client when it returns. It reports
// failed background writes.
func (f *File) Flush(ctx context.Context) error { return fserr.New(fserr.Internal, "flush", nil) }

// Fsync does what Flush does, and makes the bytes durable on all in-sync replicas.
func (f *File) Fsync(ctx context.Context) error { return fserr.New(fserr.Internal, "fsync", nil) }

// Truncate sets the size of the file, which must be open for writing.
func (f *File) Truncate(ctx context.Context, size uint64) error {
	return fserr.New(fserr.Internal, "truncate", nil)
}

// Close flushes and gives the handle up, whatever it returns.
func (f *File) Close(ctx context.Context) error { return fserr.New(fserr.Internal, "close", nil) }
