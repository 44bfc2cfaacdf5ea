package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/local"
)

// pidFile is where the process that serves a mount point is recorded.
func pidFile(dir string) string {
	return filepath.Join(local.RunDir(), "mount-"+url.QueryEscape(dir)+".pid")
}

// recordPid records this process as the server of dir and returns what removes
// the record. Without a record umount(8) works too, it only waits for nothing.
func recordPid(dir string, logger *slog.Logger) (remove func()) {
	name := pidFile(dir)
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
	}
	if err != nil {
		logger.Warn("recording the mount's process", "error", err)
		return func() {}
	}
	return func() { os.Remove(name) }
}

// unmountWait is how long umount(8) waits for a mount's last bytes.
const unmountWait = 60 * time.Second

// unmountMain is umount.fuse.canopy: "DIR [-flnrv] [-t type] [-N ns]".
func unmountMain(args []string, stderr io.Writer) int {
	if err := unmountByHelper(args[1:]); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", filepath.Base(args[0]), err)
		return mountFailed
	}
	return 0
}

func unmountByHelper(args []string) error {
	var dir string
	flags := unix.UMOUNT_NOFOLLOW
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-t" || a == "-N":
			i++
		case strings.HasPrefix(a, "-"):
			if strings.Contains(a, "l") {
				flags |= unix.MNT_DETACH
			}
			if strings.Contains(a, "f") {
				flags |= unix.MNT_FORCE
			}
		default:
			dir = a
		}
	}
	if dir == "" {
		return errors.New("usage: umount MOUNTPOINT")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	pid := servedBy(dir)
	// The mount goes first: if it is busy nothing else happens. Its process
	// notices, makes everything durable and ends.
	if err := unix.Unmount(dir, flags); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if pid == 0 || flags&(unix.MNT_DETACH|unix.MNT_FORCE) != 0 {
		return nil
	}
	return waitForEnd(pid)
}

// servedBy returns the process that serves the mount on dir, 0 if not known.
func servedBy(dir string) int {
	b, err := os.ReadFile(pidFile(dir))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	// The record may be that of a process which was killed, and the number may
	// belong to another by now.
	own, _ := os.Readlink("/proc/self/exe")
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil || theirs != own {
		return 0
	}
	return pid
}

// waitForEnd waits until the process is gone.
func waitForEnd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(unmountWait); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("unmounted, but process %d is still writing to the cluster", pid)
		}
		n, err := unix.Poll(poll, int(left.Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
