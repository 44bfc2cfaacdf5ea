// Package bulk writes and reads large files: through a mount, and on the local
// disk the way that a store with two copies has to, every byte twice.
package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Options of a measurement.
type Options struct {
	Dir        string
	Bytes      int64 // of each file
	BlockBytes int   // of each write and read
	Files      int   // written and read at the same time
	Copies     int   // each block goes to that many files; 1 or 2
	// Count is told of bytes written and read; may be nil.
	Count func(n int64)
	// DropCaches is called between writing and reading; may be nil.
	DropCaches func() error
}

// Result is what was measured. Bytes counts each byte once, however many
// copies were written.
type Result struct {
	Bytes           int64
	Write, Read     time.Duration // write ends with fsync
	WriteMB, ReadMB float64       // 10^6 bytes per second
}

// Check returns what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case o.Bytes < 1:
		return fmt.Errorf("--size %d: want at least 1 byte", o.Bytes)
	case o.BlockBytes < 8 || o.BlockBytes > 64<<20:
		return fmt.Errorf("--block %d: want 8 bytes to 64 MiB", o.BlockBytes)
	case o.Files < 1 || o.Files > 256:
		return fmt.Errorf("--files %d: want 1 to 256", o.Files)
	}
	return nil
}

// Run writes files with fsync, reads one copy of each back and compares, and
// removes them.
func Run(ctx context.Context, o Options) (r *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Count == nil {
		o.Count = func(int64) {}
	}
	dir, err := os.MkdirTemp(o.Dir, "loadtest-data-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r = &Result{Bytes: o.Bytes * int64(o.Files)}
	start := time.Now()
	if err := o.each(ctx, func(ctx context.Context, i int) error { return o.write(ctx, dir, i) }); err != nil {
		return nil, err
	}
	r.Write = time.Since(start)
	if o.DropCaches != nil {
		if err := o.DropCaches(); err != nil {
			return nil, err
		}
	}
	start = time.Now()
	if err := o.each(ctx, func(ctx context.Context, i int) error { return o.read(ctx, dir, i) }); err != nil {
		return nil, err
	}
	r.Read = time.Since(start)
	r.WriteMB = float64(r.Bytes) / 1e6 / r.Write.Seconds()
	r.ReadMB = float64(r.Bytes) / 1e6 / r.Read.Seconds()
	return r, nil
}

func (o *Options) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range o.Files {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

func fileName(dir string, i, c int) string {
	return filepath.Join(dir, fmt.Sprintf("file.%d.%d", i, c))
}

// block returns bytes that no file system can shrink; stamp makes it differ by
// file and offset, so that a block that lands in the wrong place shows.
func block(n int) []byte {
	b := make([]byte, n+8)
	src := rand.NewPCG(1, 2)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], src.Uint64())
	}
	return b[:n]
}

func stamp(b []byte, file int, off int64) {
	if len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, uint64(file)<<48^uint64(off))
	}
}

func (o *Options) write(ctx context.Context, dir string, i int) (err error) {
	var copies []*os.File
	defer func() {
		for _, f := range copies {
			err = errors.Join(err, f.Close())
		}
	}()
	for c := range max(o.Copies, 1) {
		f, err := os.OpenFile(fileName(dir, i, c), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		copies = append(copies, f)
	}
	data := block(o.BlockBytes)
	for off := int64(0); off < o.Bytes; off += int64(o.BlockBytes) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b := data[:min(int64(len(data)), o.Bytes-off)]
		stamp(b, i, off)
		for _, f := range copies {
			if _, err := f.WriteAt(b, off); err != nil {
				return err
			}
		}
		o.Count(int64(len(b)))
	}
	for _, f := range copies {
		if err := f.Sync(); err != nil {
			return err
		}
		// Best effort: without privileges this is how a reader gets a cold cache.
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return nil
}

func (o *Options) read(ctx context.Context, dir string, i int) error {
	name := fileName(dir, i, 0)
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	want := block(o.BlockBytes)
	data := make([]byte, o.BlockBytes)
	for off := int64(0); off < o.Bytes; off += int64(o.BlockBytes) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b := data[:min(int64(len(data)), o.Bytes-off)]
		if _, err := f.ReadAt(b, off); err != nil {
			return err
		}
		stamp(want[:len(b)], i, off)
		if !bytes.Equal(b, want[:len(b)]) {
			return fmt.Errorf("%s: wrong bytes at offset %d", name, off)
		}
		o.Count(int64(len(b)))
	}
	return nil
}
