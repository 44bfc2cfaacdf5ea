// Package small makes, reads and deletes very many small files through a mount:
// two of the four loads by which AI clusters accept storage. Every byte that is
// read is compared with what was written.
package small

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/hist"
)

// The phases, in their order. A file is made by create, write, close; with Sync
// there is an fsync before the close.
const (
	Write = "create+write"  // every file once
	Read  = "open+read"     // every file once, in random order
	Churn = "create+delete" // each worker makes a file and deletes it, in one directory that all share
)

// Options of a run.
type Options struct {
	Dir       string
	Files     int // in all
	SizeBytes int // of each file
	Dirs      int // that the files are spread over
	Workers   int // threads
	Sync      bool
	// Count is told of files that are done; may be nil.
	Count func(n int64)
	// DropCaches is called before reading; may be nil.
	DropCaches func() error
}

// MaxWorkers bounds the threads of a run.
const MaxWorkers = 1024

// Check returns what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case o.Files < 1:
		return fmt.Errorf("--small-files %d: want at least 1", o.Files)
	case o.SizeBytes < 0 || o.SizeBytes > 64<<20:
		return fmt.Errorf("--small-size %d: want 0 to 64 MiB", o.SizeBytes)
	case o.Dirs < 1:
		return fmt.Errorf("--small-dirs %d: want at least 1", o.Dirs)
	case o.Workers < 1 || o.Workers > MaxWorkers:
		return fmt.Errorf("--workers %d: want 1 to %d", o.Workers, MaxWorkers)
	}
	return nil
}

// run is one pass.
type run struct {
	Options
	root string
}

// Run does the phases in a directory of its own, which it removes.
func Run(ctx context.Context, o Options, name string) (s *loadtest.Series, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Count == nil {
		o.Count = func(int64) {}
	}
	root, err := os.MkdirTemp(o.Dir, "loadtest-small-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	r := &run{Options: o, root: root}
	for d := range o.Dirs {
		if err := os.Mkdir(r.dir(d), 0o755); err != nil {
			return nil, err
		}
	}
	s = &loadtest.Series{Name: name, Target: o.Dir}
	order := rand.New(rand.NewPCG(1, uint64(o.Files))).Perm(o.Files)
	phases := []struct {
		name string
		dirs int
		do   func(b *buffers, i int) error
	}{
		{Write, o.Dirs, func(b *buffers, i int) error { return r.write(b, r.file(i), i) }},
		{Read, o.Dirs, func(b *buffers, i int) error { return r.read(b, order[i]) }},
		{Churn, 1, r.churn},
	}
	for _, p := range phases {
		if p.name == Read && o.DropCaches != nil {
			if err := o.DropCaches(); err != nil {
				return nil, err
			}
		}
		ph, err := r.phase(ctx, p.do)
		if err != nil {
			return nil, err
		}
		ph.Phase, ph.Dirs = p.name, fmt.Sprint(p.dirs)
		s.Phases = append(s.Phases, *ph)
	}
	return s, nil
}

func (r *run) dir(d int) string { return filepath.Join(r.root, fmt.Sprintf("d%d", d)) }

func (r *run) file(i int) string {
	return filepath.Join(r.dir(i%r.Dirs), fmt.Sprintf("f%d", i))
}

// buffers are what one worker reads into and compares with.
type buffers struct{ want, got []byte }

// phase gives each file to one of the workers and measures.
func (r *run) phase(ctx context.Context, do func(b *buffers, i int) error) (*loadtest.Phase, error) {
	var next atomic.Int64
	hists := make([]*hist.Histogram, r.Workers)
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for w := range r.Workers {
		hists[w] = hist.New()
		g.Go(func() error {
			b := &buffers{want: content(r.SizeBytes), got: make([]byte, r.SizeBytes+1)}
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= r.Files {
					return nil
				}
				began := time.Now()
				if err := do(b, i); err != nil {
					return err
				}
				hists[w].Record(time.Since(began))
				r.Count(1)
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(start)
	for _, h := range hists[1:] {
		hists[0].Merge(h)
	}
	return &loadtest.Phase{
		Ops: int64(r.Files), Seconds: took.Seconds(), OpsPerSec: float64(r.Files) / took.Seconds(), Latency: hists[0].Latency(),
	}, nil
}

// content returns bytes that no file system can shrink.
func content(n int) []byte {
	b := make([]byte, n+8)
	src := rand.NewPCG(3, 4)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], src.Uint64())
	}
	return b[:n]
}

// stamp makes a file's bytes its own, so that those of another one show.
func stamp(b []byte, i int) {
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(i)+1)
	copy(b, number[:])
	copy(b[max(0, len(b)-8):], number[:])
}

func (r *run) write(b *buffers, name string, i int) (err error) {
	stamp(b.want, i)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(b.want); err != nil {
		return err
	}
	if r.Sync {
		return f.Sync()
	}
	return nil
}

func (r *run) read(b *buffers, i int) error {
	f, err := os.Open(r.file(i))
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.ReadFull(f, b.got)
	if err != io.EOF && err != io.ErrUnexpectedEOF && err != nil {
		return err
	}
	stamp(b.want, i)
	if !bytes.Equal(b.got[:n], b.want) {
		return fmt.Errorf("%s: wrong bytes (%d of %d read)", r.file(i), n, len(b.want))
	}
	return nil
}

func (r *run) churn(b *buffers, i int) error {
	name := filepath.Join(r.root, fmt.Sprintf("c%d", i))
	if err := r.write(b, name, i); err != nil {
		return err
	}
	return os.Remove(name)
}
