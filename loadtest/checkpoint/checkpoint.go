// Package checkpoint does what a training job does every few minutes: all ranks
// write their part at once, into a file each or into disjoint ranges of one file;
// when all have synced, the checkpoint is published by a rename; then it is read
// back, each part through another rank's mount, and compared with its checksum.
package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options of a run.
type Options struct {
	Dirs       []string // a directory of the same file system for each mount; ranks take turns
	Ranks      int
	Bytes      int64 // of each rank
	BlockBytes int   // of each write and read
	OneFile    bool  // disjoint ranges of one file, else a file for each rank
	// Count is told of bytes written and read; may be nil.
	Count func(n int64)
	// DropCaches is called before reading; may be nil.
	DropCaches func() error
}

// Result is what was measured, in 10^6 bytes per second over all ranks.
type Result struct {
	WriteMB, ReadMB float64
	Write           time.Duration // until the last rank had synced
	FirstRank       time.Duration // until the first one had
	Publish         time.Duration // manifest, its sync, rename and sync of the directory
}

// Check returns what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case len(o.Dirs) == 0:
		return errors.New("say where: --path DIR[,DIR...]")
	case o.Ranks < 1 || o.Ranks > 1024:
		return fmt.Errorf("--ranks %d: want 1 to 1024", o.Ranks)
	case o.Bytes < 1:
		return fmt.Errorf("--size %d: want at least 1 byte", o.Bytes)
	case o.BlockBytes < 8 || o.BlockBytes > 64<<20:
		return fmt.Errorf("--block %d: want 8 bytes to 64 MiB", o.BlockBytes)
	}
	return nil
}

// Names inside of a checkpoint.
const (
	manifestName = "manifest.json"
	oneFileName  = "checkpoint.bin"
)

// manifest says what a complete checkpoint consists of.
type manifest struct {
	Parts []part `json:"parts"`
}

// part is what one rank wrote.
type part struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	CRC32C uint32 `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// run is one checkpoint.
type run struct {
	Options
	name string // of the run's directory, the same on every mount
}

func (r *run) path(rank int, elem ...string) string {
	return filepath.Join(append([]string{r.Dirs[rank%len(r.Dirs)], r.name}, elem...)...)
}

// Run writes, publishes, reads and removes one checkpoint.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Count == nil {
		o.Count = func(int64) {}
	}
	root, err := os.MkdirTemp(o.Dirs[0], "loadtest-checkpoint-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	r := &run{Options: o, name: filepath.Base(root)}
	if err := r.sameEverywhere(); err != nil {
		return nil, err
	}
	res = &Result{}
	parts, err := r.writeAll(ctx, res)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := r.publish(parts); err != nil {
		return nil, err
	}
	res.Publish = time.Since(start)
	if o.DropCaches != nil {
		if err := o.DropCaches(); err != nil {
			return nil, err
		}
	}
	start = time.Now()
	if err := r.readAll(ctx); err != nil {
		return nil, err
	}
	total := float64(o.Bytes) * float64(o.Ranks) / 1e6
	res.ReadMB, res.WriteMB = total/time.Since(start).Seconds(), total/res.Write.Seconds()
	return res, nil
}

// sameEverywhere makes the directory of what is not complete yet, and sees that
// every mount shows it.
func (r *run) sameEverywhere() error {
	if err := os.Mkdir(r.path(0, "writing"), 0o755); err != nil {
		return err
	}
	for i, dir := range r.Dirs {
		if _, err := os.Stat(r.path(i, "writing")); err != nil {
			return fmt.Errorf("%s does not show what was made in %s: %w", dir, r.Dirs[0], err)
		}
	}
	if !r.OneFile {
		return nil
	}
	// Sized before the ranks start, as such programs do: then no rank's write moves
	// the end of the file.
	f, err := os.OpenFile(r.path(0, "writing", oneFileName), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(r.Bytes*int64(r.Ranks)), f.Close())
}

func (r *run) writeAll(ctx context.Context, res *Result) ([]part, error) {
	parts, took := make([]part, r.Ranks), make([]time.Duration, r.Ranks)
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for rank := range r.Ranks {
		g.Go(func() (err error) {
			parts[rank], err = r.write(ctx, rank)
			took[rank] = time.Since(start)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	res.Write, res.FirstRank = took[0], took[0]
	for _, d := range took {
		res.Write, res.FirstRank = max(res.Write, d), min(res.FirstRank, d)
	}
	return parts, nil
}

// write writes and syncs one rank's part.
func (r *run) write(ctx context.Context, rank int) (p part, err error) {
	p = part{File: fmt.Sprintf("rank.%d", rank), Bytes: r.Bytes}
	if r.OneFile {
		p.File, p.Offset = oneFileName, int64(rank)*r.Bytes
	}
	f, err := os.OpenFile(r.path(rank, "writing", p.File), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	block := content(rank, r.BlockBytes)
	for done := int64(0); done < r.Bytes; {
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
		b := block[:min(int64(len(block)), r.Bytes-done)]
		if len(b) >= 8 {
			binary.LittleEndian.PutUint64(b, uint64(done)) // a block in the wrong place shows
		}
		p.CRC32C = crc32.Update(p.CRC32C, castagnoli, b)
		if _, err := f.WriteAt(b, p.Offset+done); err != nil {
			return p, err
		}
		done += int64(len(b))
		r.Count(int64(len(b)))
	}
	return p, f.Sync()
}

// content returns a rank's bytes, which no file system can shrink.
func content(rank, n int) []byte {
	b := make([]byte, n+8)
	src := rand.NewPCG(uint64(rank), 7)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], src.Uint64())
	}
	return b[:n]
}

// publish makes the checkpoint visible, whole or not at all.
func (r *run) publish(parts []part) error {
	text, err := json.Marshal(manifest{Parts: parts})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.path(0, "writing", manifestName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(r.path(0, "writing"), r.path(0, "complete")); err != nil {
		return err
	}
	d, err := os.Open(r.path(0))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readAll reads each part through the mount of the rank after the one that wrote
// it, as a job does that starts again elsewhere.
func (r *run) readAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for rank := range r.Ranks {
		g.Go(func() error { return r.read(ctx, rank) })
	}
	return g.Wait()
}

func (r *run) read(ctx context.Context, rank int) error {
	text, err := os.ReadFile(r.path(rank+1, "complete", manifestName))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s: %w", manifestName, err)
	}
	if len(m.Parts) != r.Ranks {
		return fmt.Errorf("%s: %d parts, want %d", manifestName, len(m.Parts), r.Ranks)
	}
	p := m.Parts[rank]
	name := r.path(rank+1, "complete", p.File)
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b, crc := make([]byte, r.BlockBytes), uint32(0)
	for done := int64(0); done < p.Bytes; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b := b[:min(int64(len(b)), p.Bytes-done)]
		if _, err := f.ReadAt(b, p.Offset+done); err != nil {
			return err
		}
		crc = crc32.Update(crc, castagnoli, b)
		done += int64(len(b))
		r.Count(int64(len(b)))
	}
	if crc != p.CRC32C {
		return fmt.Errorf("%s: wrong bytes in %d to %d (rank %d)", name, p.Offset, p.Offset+p.Bytes, rank)
	}
	return nil
}
