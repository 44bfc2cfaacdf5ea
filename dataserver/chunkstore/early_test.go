package chunkstore

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// earlyFS tells of ranges whose write-back begins.
type earlyFS struct {
	OS
	started chan [2]int64
}

func (e *earlyFS) OpenFile(name string, flag int) (File, error) {
	f, err := e.OS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &earlyFile{f, e}, nil
}

type earlyFile struct {
	File
	fs *earlyFS
}

func (f *earlyFile) StartSync(offset, length int64) error {
	f.fs.started <- [2]int64{offset, length}
	return f.File.StartSync(offset, length)
}

// TestLargeWritesBeginEarly: the way to the disk of a large write begins without a
// sync, of the file's bytes that it covers; a small one waits. A column that goes
// meanwhile is no harm.
func TestLargeWritesBeginEarly(t *testing.T) {
	fs := &earlyFS{started: make(chan [2]int64)} // a disk whose queue is full until it is asked
	s := open(t, t.TempDir(), Options{FS: fs})
	large, small, gone := Key{Pool: 1, PG: 2, Data: 10}, Key{Pool: 1, PG: 2, Data: 11}, Key{Pool: 1, PG: 2, Data: 12}
	put(t, s, small, make([]byte, earlyBytes-1))
	put(t, s, large, make([]byte, 2<<20)) // over the border of a group
	put(t, s, gone, make([]byte, earlyBytes))
	if err := s.Delete(gone); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-fs.started:
		if want := [2]int64{BlockBytes, 2<<20 + BlockBytes}; got != want {
			t.Errorf("began to write %v, want %v", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing is written before the sync")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-fs.started:
		t.Errorf("began to write %v", got)
	default:
	}
}

// A column may be dropped while its way to the disk begins: the descriptor of a
// closed file is not used, it may be another's by then.
func TestStartSyncOfAClosedFile(t *testing.T) {
	f, err := OS{}.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.StartSync(0, BlockBytes); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.StartSync(0, BlockBytes); err == nil || errors.Is(err, syscall.EBADF) {
		t.Errorf("after its close the kernel was asked: %v", err)
	}
}
