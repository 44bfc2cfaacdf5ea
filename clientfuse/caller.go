package clientfuse

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/client"
)

// A FUSE request names its caller's uid, gid and thread, not its supplementary
// groups (FUSE K2): those are read from /proc and kept for a moment.

// groupsFor is how long a thread's groups are believed. Then they are read anew,
// so that neither setgroups(2) nor a thread id that is used again is missed for
// longer; that a (uid, gid) is part of the key makes setuid(2) count at once.
const groupsFor = time.Second

// maxGroupEntries bounds the table.
const maxGroupEntries = 4096

type groupKey struct{ tid, uid, gid uint32 }

type groupEntry struct {
	groups []uint32
	read   time.Time
}

type groupCache struct {
	proc string // "/proc"
	now  func() time.Time

	mu      sync.Mutex
	entries map[groupKey]groupEntry
}

func newGroupCache(proc string, now func() time.Time) *groupCache {
	return &groupCache{proc: proc, now: now, entries: make(map[groupKey]groupEntry)}
}

// cred returns for whom the server is to check. The superuser needs no groups.
// Thread 0 is one of another pid namespace than the mount's: nothing is known of
// it but uid and gid, so that is what counts.
func (c *groupCache) cred(tid, uid, gid uint32) client.Cred {
	cred := client.Cred{UID: uid, GID: gid}
	if uid != 0 && tid != 0 {
		cred.Groups = c.groups(groupKey{tid, uid, gid})
	}
	return cred
}

func (c *groupCache) groups(key groupKey) []uint32 {
	now := c.now()
	c.mu.Lock()
	e, ok := c.entries[key]
	c.mu.Unlock()
	if ok && now.Sub(e.read) < groupsFor {
		return e.groups
	}
	status, err := os.ReadFile(procFile(c.proc, key.tid, "status"))
	if err != nil {
		return nil // it is gone; nobody waits for the answer
	}
	e = groupEntry{groups: parseGroups(status), read: now}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxGroupEntries {
		c.evictLocked(now)
	}
	c.entries[key] = e
	return e.groups
}

// evictLocked drops what is out of date, or half of all if nothing is.
func (c *groupCache) evictLocked(now time.Time) {
	for k, e := range c.entries {
		if now.Sub(e.read) >= groupsFor {
			delete(c.entries, k)
		}
	}
	for k := range c.entries {
		if len(c.entries) <= maxGroupEntries/2 {
			return
		}
		delete(c.entries, k)
	}
}

func procFile(proc string, tid uint32, name string) string {
	return proc + "/" + strconv.FormatUint(uint64(tid), 10) + "/" + name
}

// statusField returns what stands behind name in a /proc/*/status.
func statusField(status []byte, name string) []byte {
	_, rest, ok := bytes.Cut(status, []byte("\n"+name+":"))
	if !ok {
		return nil
	}
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	return value
}

func parseGroups(status []byte) []uint32 {
	var groups []uint32
	for _, field := range bytes.Fields(statusField(status, "Groups")) {
		if g, err := strconv.ParseUint(string(field), 10, 32); err == nil {
			groups = append(groups, uint32(g))
		}
	}
	return groups
}

const sigKill = 9

// killed reports whether the thread has a fatal signal pending, or is gone. The
// kernel turns every signal that ends a process, but one that dumps core, into a
// pending SIGKILL of each thread. A thread that is already past that and exits
// (it closes its files then) is told by its flags.
func killed(proc string, tid uint32) bool {
	if tid == 0 {
		return false // of another pid namespace: unknown
	}
	status, err := os.ReadFile(procFile(proc, tid, "status"))
	if err != nil {
		return os.IsNotExist(err)
	}
	for _, name := range []string{"SigPnd", "ShdPnd"} {
		mask, err := strconv.ParseUint(string(bytes.TrimSpace(statusField(status, name))), 16, 64)
		if err == nil && mask&(1<<(sigKill-1)) != 0 {
			return true
		}
	}
	return exitingBySignal(proc, tid)
}

// Task flags of linux/sched.h.
const (
	taskExiting  = 0x4
	taskSignaled = 0x400
)

func exitingBySignal(proc string, tid uint32) bool {
	stat, err := os.ReadFile(procFile(proc, tid, "stat"))
	if err != nil {
		return os.IsNotExist(err)
	}
	// Behind the command's name in parentheses: state ppid pgrp session tty tpgid flags.
	i := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[i+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	return err == nil && flags&(taskExiting|taskSignaled) == taskExiting|taskSignaled
}

// systemCall returns the call that a thread waits in, as /proc/*/syscall has it: the
// number in decimal, the arguments in hexadecimal. Of a thread of another pid
// namespace nothing is known.
func systemCall(proc string, tid uint32) []string {
	if tid == 0 {
		return nil
	}
	for range 10 {
		line, err := os.ReadFile(procFile(proc, tid, "syscall"))
		if err != nil {
			return nil
		}
		if fields := strings.Fields(string(line)); len(fields) > 0 && fields[0] != "running" {
			return fields
		}
		time.Sleep(time.Millisecond) // it is on its way to sleep, or was woken by a signal
	}
	return nil
}

// getdents(2), which newer machines than this have no number for.
const amd64Getdents = 78

// streamOf returns which open directory a thread reads that waits for the answer; zero if
// that cannot be told, say because another file system of the kernel reads for it.
func streamOf(proc string, tid uint32) stream {
	fields := systemCall(proc, tid)
	if len(fields) < 2 {
		return stream{}
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil || n != unix.SYS_GETDENTS64 && (runtime.GOARCH != "amd64" || n != amd64Getdents) {
		return stream{}
	}
	fd, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 64)
	if err != nil {
		return stream{}
	}
	status, err := os.ReadFile(procFile(proc, tid, "status"))
	if err != nil {
		return stream{}
	}
	process, err := strconv.ParseUint(string(bytes.TrimSpace(statusField(status, "Tgid"))), 10, 32)
	if err != nil || process == 0 {
		return stream{}
	}
	return stream{uint32(process), fd}
}

// chown(2) and lchown(2), which newer machines than this have no numbers for.
const (
	amd64Chown  = 92
	amd64Lchown = 94
)

// isChown tells whether a call is one of chown(2)'s family.
func isChown(fields []string) bool {
	if len(fields) == 0 {
		return false
	}
	switch n, err := strconv.Atoi(fields[0]); {
	case err != nil:
		return false
	case n == unix.SYS_FCHOWN, n == unix.SYS_FCHOWNAT:
		return true
	default:
		return runtime.GOARCH == "amd64" && (n == amd64Chown || n == amd64Lchown)
	}
}
