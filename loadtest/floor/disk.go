package floor

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/loadtest/hist"
)

const (
	recordBytes      = 4 << 10
	overwriteFile    = 16 << 20
	maxAppendedBytes = 1 << 30
)

// Fdatasync measures writes of 4 KiB, each followed by fdatasync(2), for the
// given time, in a temporary file below dir: at the end of a file that grows
// (new space each time), or over space that was written before.
func Fdatasync(ctx context.Context, dir string, overwrite bool, d time.Duration) (r *Result, err error) {
	f, err := os.CreateTemp(dir, "canopy-fdatasync-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, recordBytes)
	if _, err := rand.Read(block); err != nil {
		return nil, err
	}
	end := int64(maxAppendedBytes)
	if overwrite {
		if err := fill(f, overwriteFile); err != nil {
			return nil, err
		}
		end = overwriteFile
	}
	fd := int(f.Fd())
	r = &Result{Hist: hist.New()}
	start := time.Now()
	for off := int64(0); ctx.Err() == nil && time.Since(start) < d; off = (off + recordBytes) % end {
		began := time.Now()
		if _, err := unix.Pwrite(fd, block, off); err != nil {
			return nil, &os.PathError{Op: "write", Path: f.Name(), Err: err}
		}
		if err := unix.Fdatasync(fd); err != nil {
			return nil, &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		r.Ops++
		r.Hist.Record(time.Since(began))
	}
	r.Seconds = time.Since(start).Seconds()
	return r, ctx.Err()
}

func fill(f *os.File, size int64) error {
	block := make([]byte, 1<<20)
	if _, err := rand.Read(block); err != nil {
		return err
	}
	for off := int64(0); off < size; off += int64(len(block)) {
		if _, err := f.WriteAt(block, off); err != nil {
			return err
		}
	}
	return f.Sync()
}
