package chunkstore

import (
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Deallocate implements File. A file system that cannot make holes gets zeros.
func (f osFile) Deallocate(offset, length int64) error {
	err := f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	return f.writeZeros(offset, min(length, size-offset))
}

// Zero implements File. ext4 and xfs do it in one step, tmpfs in two, others get
// zeros written.
func (f osFile) Zero(offset, length int64) error {
	err := f.fallocate(unix.FALLOC_FL_ZERO_RANGE, offset, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
		if err == nil {
			err = f.fallocate(0, offset, length)
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.writeZeros(offset, length)
	}
	return err
}

func (f osFile) fallocate(mode uint32, offset, length int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), mode, offset, length)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
		return nil
	}
}

func (f osFile) writeZeros(offset, length int64) error {
	zeros := make([]byte, min(max(length, 0), 1<<20))
	for length > 0 {
		n, err := f.WriteAt(zeros[:min(length, int64(len(zeros)))], offset)
		if err != nil {
			return err
		}
		offset, length = offset+int64(n), length-int64(n)
	}
	return nil
}

// NextData implements File. A file system that does not know its holes has none.
func (f osFile) NextData(offset int64) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return 0, io.EOF
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return offset, nil
	case err != nil:
		return 0, &fs.PathError{Op: "lseek", Path: f.Name(), Err: err}
	}
	return at, nil
}
