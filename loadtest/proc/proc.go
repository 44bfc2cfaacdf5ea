// Package proc reads what Linux says about processes and the machine: CPU
// time by process, and what a report notes so that numbers can be compared.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is USER_HZ, which Linux fixes at 100 for user space.
const ticksPerSecond = 100

// CPU returns the user and system time that process pid (with its threads, not
// its children) has used. root is normally "/proc".
func CPU(root string, pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", root, pid))
	if err != nil {
		return 0, fmt.Errorf("no process %d on this machine: %w", pid, err)
	}
	return parseStat(b)
}

// parseStat reads utime and stime, fields 14 and 15. The command's name, field
// 2, stands in parentheses and may hold anything.
func parseStat(b []byte) (time.Duration, error) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return 0, fmt.Errorf("stat of a process: no command name in %q", b)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("stat of a process: %d fields", len(f))
	}
	var ticks uint64
	for _, s := range f[11:13] {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat of a process: %w", err)
		}
		ticks += v
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// Self returns the CPU time of this process.
func Self() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Machine is what a report says about where it was made.
type Machine struct {
	Host    string `json:"host"`
	CPUs    int    `json:"cpus"`
	Kernel  string `json:"kernel"`
	Go      string `json:"go"`
	MemMiB  uint64 `json:"memory_mib"`
	Started string `json:"started"` // RFC 3339
}

// ThisMachine describes the machine, with now as the start.
func ThisMachine(now time.Time) Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Started: now.UTC().Format(time.RFC3339)}
	m.Host, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.MemMiB = si.Totalram * uint64(si.Unit) >> 20
	}
	return m
}

// DropCaches writes dirty pages and drops clean ones, names and inodes. It
// needs root; the error says so otherwise.
func DropCaches() error {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0o200); err != nil {
		return fmt.Errorf("cannot drop the kernel's caches (root is needed): %w", err)
	}
	return nil
}

// FSType returns the type of the file system at path as a name if it is known,
// else as the number of statfs(2).
func FSType(path string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", fmt.Errorf("statfs %s: %w", path, err)
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.BTRFS_SUPER_MAGIC: "btrfs", unix.FUSE_SUPER_MAGIC: "fuse", unix.NFS_SUPER_MAGIC: "nfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
	}
	if n, ok := names[int64(st.Type)]; ok {
		return n, nil
	}
	return fmt.Sprintf("0x%x", st.Type), nil
}

// Group is processes whose CPU time is reported together.
type Group struct {
	Who  string
	Pids []int
}

// Sample returns the CPU time that each group has used.
func Sample(root string, groups []Group) ([]time.Duration, error) {
	sums := make([]time.Duration, len(groups))
	for i, g := range groups {
		for _, pid := range g.Pids {
			t, err := CPU(root, pid)
			if err != nil {
				return nil, fmt.Errorf("CPU time of %s: %w", g.Who, err)
			}
			sums[i] += t
		}
	}
	return sums, nil
}
