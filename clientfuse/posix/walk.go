package posix

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// crossWalk: a path that is walked through one mount goes the way that the other
// one has made, from the moment at which that one's rename returned. One thread
// walks the same path all the time while the other exchanges its directories,
// and another one, through the same mount, does the same.
func crossWalk(t *testing.T, a, b string) {
	walked(t, a, b, "there")
	walked(t, b, b, "here")
}

// walked has numbered trees exchanged below one directory and walks below the other.
func walked(t *testing.T, writer, reader, label string) {
	const rounds = 60
	tree := func(name string, version int) {
		must(t, "mkdir", os.MkdirAll(filepath.Join(writer, name, "sub"), 0o755))
		must(t, "symlink", unix.Symlink(strconv.Itoa(version), filepath.Join(writer, name, "sub", "version")))
	}
	tree("cur", 0)
	var done atomic.Int64
	var stop atomic.Bool
	var walkers sync.WaitGroup
	defer walkers.Wait()
	defer stop.Store(true)
	errs := make(chan error, 1)
	walkers.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		buf := make([]byte, 64)
		for !stop.Load() {
			least := done.Load()
			n, err := unix.Readlink(filepath.Join(reader, "cur", "sub", "version"), buf)
			if err == nil {
				var got int64
				if got, err = strconv.ParseInt(string(buf[:n]), 10, 64); err == nil && got < least {
					err = fmt.Errorf("the walk leads to version %d after the rename of version %d had returned", got, least)
				}
			}
			if err != nil {
				select {
				case errs <- err:
				default:
				}
				return
			}
		}
	})
	for i := 1; i <= rounds; i++ {
		tree("next", i)
		must(t, "exchange", unix.Renameat2(unix.AT_FDCWD, filepath.Join(writer, "next"), unix.AT_FDCWD, filepath.Join(writer, "cur"), unix.RENAME_EXCHANGE))
		done.Store(int64(i))
		// What was exchanged stays: a walk that has reached it goes on in it.
		must(t, "rename", unix.Rename(filepath.Join(writer, "next"), filepath.Join(writer, fmt.Sprintf("%s%d", label, i))))
	}
	stop.Store(true)
	walkers.Wait()
	must(t, "remove", os.RemoveAll(filepath.Join(writer, "cur")))
	select {
	case err := <-errs:
		t.Error(err)
	default:
	}
}
