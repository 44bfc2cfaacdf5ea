package clustertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// lockCluster is a cluster whose sessions end soon, with two mounts: a file is
// locked by this process through the first, and waited for through the second.
type lockCluster struct {
	*dataCluster
	first *process
	mine  *os.File   // holds the lock through the first mount
	got   chan error // what the waiter's flock answered
	other *os.File   // the waiter's
}

func newLockCluster(t *testing.T) *lockCluster {
	t.Helper()
	c := &lockCluster{dataCluster: newDataCluster(t, 1, []string{"--want-servers", "1"}, nil, "--session-timeout", "6s", "--heartbeat", "1s"), got: make(chan error, 1)}
	var dir string
	c.first, dir = c.anotherMount(t)
	name := filepath.Join(c.secondMount(t), "f")
	if err := os.WriteFile(name, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.mine, err = os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.mine.Close() })
	if err := syscall.Flock(int(c.mine.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if c.other, err = os.OpenFile(name, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.other.Close() })
	if err := syscall.Flock(int(c.other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Fatalf("a lock that the other mount has: %v", err)
	}
	go func() { c.got <- syscall.Flock(int(c.other.Fd()), syscall.LOCK_EX) }()
	return c
}

// wait returns when the waiter has the lock.
func (c *lockCluster) wait(t *testing.T) {
	t.Helper()
	eventually(t, "the second mount gets the lock", func() error {
		select {
		case err := <-c.got:
			if err != nil {
				t.Fatal(err)
			}
			return nil
		default:
			return errors.New("it still waits")
		}
	})
}

// The locks of a mount that is killed go when its session ends, not before.
func TestLocksOfAKilledMount(t *testing.T) {
	t.Parallel()
	c := newLockCluster(t)
	c.first.signal(syscall.SIGKILL)
	<-c.first.done
	c.wait(t)
	if _, err := c.mine.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("a write through the dead mount: %v", err)
	}
}

// A mount that was stopped for longer than its session lives has lost its locks,
// and does not pretend: whoever held them gets EIO until it unlocks.
func TestLocksOfAStoppedMount(t *testing.T) {
	t.Parallel()
	c := newLockCluster(t)
	c.first.signal(syscall.SIGSTOP)
	t.Cleanup(func() { c.first.signal(syscall.SIGCONT) })
	c.wait(t)
	if _, err := c.other.WriteAt([]byte("after!"), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.other.Sync(); err != nil {
		t.Fatal(err)
	}
	c.first.signal(syscall.SIGCONT)
	fd := int(c.mine.Fd())
	eventually(t, "the first mount knows that its lock is lost", func() error {
		if _, err := c.mine.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EIO) {
			return fmt.Errorf("read: %v", err)
		}
		return nil
	})
	if _, err := c.mine.WriteAt([]byte("lost"), 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("write: %v", err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EIO) {
		t.Errorf("lock: %v", err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_UN); err != nil {
		t.Errorf("unlock: %v", err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("lock again, which another mount holds: %v", err)
	}
	got := make([]byte, 6)
	if _, err := c.mine.ReadAt(got, 0); err != nil || string(got) != "after!" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := syscall.Flock(int(c.other.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
		t.Errorf("lock, which is free: %v", err)
	}
}
