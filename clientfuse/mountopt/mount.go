package mountopt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Subtype is the file system's name: mounts have the type "fuse.canopy".
const Subtype = "canopy"

const devFuse = "/dev/fuse"

// Config says what to mount where.
type Config struct {
	Dir     string // mount point; CheckDir is applied to it
	Source  string // first field of /proc/mounts, e.g. "canopy:<cluster>"
	Options Options
	Logger  *slog.Logger // nil: discarded
	Locks   bool         // the file system answers for file locks; else they are the kernel's, within the mount
}

// Mount is a mounted and served file system.
type Mount struct {
	dir    string
	dev    string // "major:minor" of the mount, empty if it could not be found
	server *fuse.Server
	logger *slog.Logger
	// control is a duplicate of the descriptor that go-fuse reads: it tells
	// whether the connection lives. -1 after the end, and of a mount by fusermount3.
	mu      sync.Mutex
	control int
	done    chan struct{}
}

// Serve mounts fs on cfg.Dir and serves it until it is unmounted, by Unmount or
// by anybody. As root it mounts by itself; otherwise with fusermount3.
//
// The process must not touch the mount's files itself (a thread that waits for
// its own process can stop the Go runtime); other processes may.
func Serve(fs fuse.RawFileSystem, cfg Config) (*Mount, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := CheckDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	m := &Mount{dir: dir, logger: cfg.Logger, control: -1, done: make(chan struct{})}
	options := cfg.Options.FuseOptions(cfg.Logger)
	options.FsName, options.EnableLocks = cfg.Source, cfg.Locks
	if os.Geteuid() == 0 {
		err = m.mountDirectly(fs, cfg, options)
	} else {
		err = m.mountBySetuidHelper(fs, cfg, options)
	}
	if err != nil {
		return nil, err
	}
	go m.serve()
	m.dev = deviceOf(dir)
	m.setReadAhead()
	return m, nil
}

// mountDirectly opens the device and calls mount(2) itself. go-fuse's own
// direct mount would do, but that it forces nosuid and nodev and keeps the
// descriptor to itself.
func (m *Mount) mountDirectly(fs fuse.RawFileSystem, cfg Config, options *fuse.MountOptions) error {
	fd, err := unix.Open(devFuse, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return noDevice(err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		fd, os.Geteuid(), os.Getegid(), MaxWriteBytes)
	if cfg.Options.AllowOther {
		data += ",allow_other"
	}
	if err := unix.Mount(cfg.Source, m.dir, "fuse."+Subtype, cfg.Options.mountFlags(), data); err != nil {
		unix.Close(fd)
		return fmt.Errorf("mount %s: %w", m.dir, err)
	}
	undo := func(err error) error {
		return errors.Join(err, unix.Unmount(m.dir, unix.MNT_DETACH))
	}
	control, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		unix.Close(fd)
		return undo(fmt.Errorf("mount %s: %w", m.dir, err))
	}
	server, err := fuse.NewServer(fs, fmt.Sprintf("/dev/fd/%d", fd), options)
	if err != nil {
		unix.Close(control) // go-fuse closed fd
		return undo(fmt.Errorf("mount %s: %w", m.dir, err))
	}
	m.server, m.control = server, control
	return nil
}

func (m *Mount) mountBySetuidHelper(fs fuse.RawFileSystem, cfg Config, options *fuse.MountOptions) error {
	if err := CheckDevice(); err != nil {
		return err
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return errors.New("mounting without being root needs fusermount3 (package fuse3)")
	}
	if cfg.Options.AllowOther && !othersMayBeLetIn(fuseConf) {
		return fmt.Errorf("mount %s: allow_other without being root needs the line user_allow_other in %s", m.dir, fuseConf)
	}
	options.Options = []string{"default_permissions"}
	for _, b := range bits() {
		if b.flag != 0 && *b.field(&cfg.Options) {
			options.Options = append(options.Options, b.on)
		}
	}
	server, err := fuse.NewServer(fs, m.dir, options)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.dir, err)
	}
	m.server = server
	return nil
}

// fuseConf is fusermount3's.
const fuseConf = "/etc/fuse.conf"

// othersMayBeLetIn tells whether fusermount3 takes allow_other from anybody.
func othersMayBeLetIn(conf string) bool {
	b, err := os.ReadFile(conf)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// CheckDevice tells whether this machine has the FUSE device and this user may
// use it.
func CheckDevice() error {
	if err := unix.Access(devFuse, unix.R_OK|unix.W_OK); err != nil {
		return noDevice(err)
	}
	return nil
}

func noDevice(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("no %s on this machine: load the kernel module (modprobe fuse), or give the container the device", devFuse)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: uid %d may not use it (%w): mount as root, or let users in (chmod 666 %s)", devFuse, os.Geteuid(), err, devFuse)
	}
	return fmt.Errorf("%s: %w", devFuse, err)
}

func (m *Mount) serve() {
	m.server.Serve()
	m.mu.Lock()
	if m.control >= 0 {
		unix.Close(m.control)
		m.control = -1
	}
	m.mu.Unlock()
	close(m.done)
}

// Dir returns the mount point, absolute.
func (m *Mount) Dir() string { return m.dir }

// KernelSettings returns what the kernel offered.
func (m *Mount) KernelSettings() *fuse.InitIn { return m.server.KernelSettings() }

// Done is closed when the file system is unmounted and the last request answered.
func (m *Mount) Done() <-chan struct{} { return m.done }

// Wait returns when the file system is unmounted and the last request answered.
func (m *Mount) Wait() { <-m.done }

// Prune asks the kernel to let go of inodes that nothing uses; it answers with a
// FORGET for each that it does. The error is syscall.ENOSYS if it cannot be asked
// (before Linux 6.18). Not for the goroutine of a request (FUSE K4).
func (m *Mount) Prune(ids []uint64) error {
	if s := m.server.PruneNotify(ids); !s.Ok() {
		return fmt.Errorf("prune %d inodes: %w", len(ids), syscall.Errno(s))
	}
	return nil
}

// DropListing has the kernel drop what it keeps of a directory's listing, and its
// attributes. It is for a request's goroutine, too (unlike others, FUSE K4): of a
// directory no request holds what this waits for, as none holds its pages locked.
func (m *Mount) DropListing(id uint64) error {
	if s := m.server.InodeNotify(id, 0, 0); !s.Ok() && s != fuse.ENOENT { // else it knows nothing of it
		return fmt.Errorf("drop the listing of inode %d: %w", id, syscall.Errno(s))
	}
	return nil
}

// Dead reports whether the kernel has ended the connection (unmounted or
// aborted), so that nobody waits for an answer any more.
func (m *Mount) Dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.control < 0 {
		select {
		case <-m.done:
			return true
		default:
			return false
		}
	}
	fds := []unix.PollFd{{Fd: int32(m.control)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// Unmount unmounts. While the mount is busy it tries again until ctx ends; then
// it detaches the mount (it is gone from the tree, those who use it keep it
// until they let go or this process ends) and returns an error that says so.
func (m *Mount) Unmount(ctx context.Context) error {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		err := m.unmountOnce(0)
		switch {
		case err == nil:
			return m.waitEnd(ctx)
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", m.dir, err)
		}
		select {
		case <-m.done:
			return nil
		case <-pause.C:
		case <-ctx.Done():
			if err := m.unmountOnce(unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", m.dir, err)
			}
			return fmt.Errorf("%s was busy: it is detached, and files that are still open there end with this process", m.dir)
		}
	}
}

// waitEnd waits for the last request's answer, which a server that does not
// come back may keep for ever.
func (m *Mount) waitEnd(ctx context.Context) error {
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is unmounted, but requests to the cluster are still unanswered", m.dir)
	}
}

func (m *Mount) unmountOnce(flags int) error {
	select {
	case <-m.done:
		return nil
	default:
	}
	if m.dev != "" && deviceOf(m.dir) != m.dev {
		return nil // somebody else unmounted it; what is there now is not ours
	}
	if os.Geteuid() == 0 {
		err := unix.Unmount(m.dir, flags|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) {
			return nil // no longer a mount point
		}
		return err
	}
	args := []string{"-u", m.dir}
	if flags&unix.MNT_DETACH != 0 {
		args = []string{"-u", "-z", m.dir}
	}
	out, err := exec.Command("fusermount3", args...).CombinedOutput()
	if err != nil && strings.Contains(string(out), "busy") {
		return unix.EBUSY
	}
	return err
}

// setReadAhead raises the mount's read-ahead above the kernel's default of
// 128 KiB, which INIT can only lower. Without the right to do so it stays.
func (m *Mount) setReadAhead() {
	if m.dev == "" {
		return
	}
	name := "/sys/class/bdi/" + m.dev + "/read_ahead_kb"
	if err := os.WriteFile(name, []byte(fmt.Sprint(ReadAheadBytes>>10)), 0); err != nil && !errors.Is(err, syscall.ENOENT) {
		m.logger.Debug("read-ahead stays at the kernel's default", "error", err)
	}
}
