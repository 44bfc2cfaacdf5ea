// Package mountopt is how Canopy mounts: the options that a user may give, the
// flags and time-outs that follow from them, and mount(2) itself. A mount that
// is measured against Canopy's (loadtest's floor file system) takes all of it
// from here, so that both do the same.
//
// It knows nothing of Canopy's servers. Callers: clientfuse, loadtest.
package mountopt

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Options are what a mount was asked for. The zero value is a strict
// read-write mount for the mounting user alone.
type Options struct {
	// Flags of the mount as mount(2) takes them.
	ReadOnly, NoDev, NoSuid, NoExec   bool
	NoAtime, NoDirAtime               bool
	Synchronous, SynchronousDirectory bool
	RelativeAtime, StrictAtime        bool
	// AllowOther lets users other than the mounting one in; permission bits
	// decide what they may do (default_permissions is always on, FUSE K2).
	AllowOther bool
	// ACL shows POSIX ACLs, and lets the kernel check permissions by them (FUSE K3).
	// The server does so in any case.
	ACL bool
	// Relaxed is how long names and attributes may be kept; 0 is strict.
	Relaxed time.Duration
	// CacheInodes is about how many inodes the kernel, and this process for it, keep
	// of those that nobody uses; 0 is DefaultCacheInodes. One takes about 1 KiB here.
	CacheInodes int
	// Subdir is the directory of the namespace that is mounted, "/" or "" for all.
	Subdir string
}

// DefaultCacheInodes is what a mount keeps without the option cache_inodes.
const DefaultCacheInodes = 65536

// InodeLimit is CacheInodes with its default.
func (o Options) InodeLimit() int {
	if o.CacheInodes == 0 {
		return DefaultCacheInodes
	}
	return o.CacheInodes
}

// Default returns the options of a mount with none given: root's mounts are for
// everybody, as those of other file systems are.
func Default() Options { return Options{AllowOther: os.Geteuid() == 0} }

// bit is one option that sets or clears a flag of mount(2).
type bit struct {
	field func(*Options) *bool
	flag  uintptr
	on    string // option that sets it
	off   string // option that clears it
}

func bits() []bit {
	return []bit{
		{func(o *Options) *bool { return &o.ReadOnly }, unix.MS_RDONLY, "ro", "rw"},
		{func(o *Options) *bool { return &o.NoDev }, unix.MS_NODEV, "nodev", "dev"},
		{func(o *Options) *bool { return &o.NoSuid }, unix.MS_NOSUID, "nosuid", "suid"},
		{func(o *Options) *bool { return &o.NoExec }, unix.MS_NOEXEC, "noexec", "exec"},
		{func(o *Options) *bool { return &o.NoAtime }, unix.MS_NOATIME, "noatime", "atime"},
		{func(o *Options) *bool { return &o.NoDirAtime }, unix.MS_NODIRATIME, "nodiratime", "diratime"},
		{func(o *Options) *bool { return &o.Synchronous }, unix.MS_SYNCHRONOUS, "sync", "async"},
		{func(o *Options) *bool { return &o.SynchronousDirectory }, unix.MS_DIRSYNC, "dirsync", ""},
		{func(o *Options) *bool { return &o.RelativeAtime }, unix.MS_RELATIME, "relatime", "norelatime"},
		{func(o *Options) *bool { return &o.StrictAtime }, unix.MS_STRICTATIME, "strictatime", "nostrictatime"},
		{func(o *Options) *bool { return &o.AllowOther }, 0, "allow_other", "allow_root_only"},
		{func(o *Options) *bool { return &o.ACL }, 0, "acl", "noacl"},
	}
}

// ignored are the options that mount(8) and fstab carry for themselves.
func ignored(name string) bool {
	switch name {
	case "", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "nousers",
		"owner", "noowner", "group", "nogroup", "loud", "silent", "default_permissions":
		return true
	}
	return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-") || name == "comment"
}

// Set applies a comma separated list of options, as behind -o. It refuses
// what it does not know, and changes nothing then.
func (o *Options) Set(list string) error {
	next := *o
	for _, option := range strings.Split(list, ",") {
		if err := next.set(strings.TrimSpace(option)); err != nil {
			return err
		}
	}
	*o = next
	return nil
}

const minCacheInodes = 100

func (o *Options) set(option string) error {
	for _, b := range bits() {
		switch option {
		case b.on:
			*b.field(o) = true
			return nil
		case b.off:
			if b.off != "" {
				*b.field(o) = false
				return nil
			}
		}
	}
	name, value, _ := strings.Cut(option, "=")
	switch {
	case ignored(name):
		return nil
	case name == "consistency":
		return o.setConsistency(value)
	case name == "cache_inodes":
		n, err := strconv.Atoi(value)
		if err != nil || n < minCacheInodes {
			return fmt.Errorf("option cache_inodes=%s: want a number, at least %d", value, minCacheInodes)
		}
		o.CacheInodes = n
		return nil
	case name == "subdir":
		if !strings.HasPrefix(value, "/") {
			return fmt.Errorf("option subdir=%s: want an absolute path of the namespace", value)
		}
		o.Subdir = value
		return nil
	}
	return fmt.Errorf("unknown mount option %q", option)
}

// setConsistency takes "strict" and "relaxed=<duration>".
func (o *Options) setConsistency(value string) error {
	if value == "strict" {
		o.Relaxed = 0
		return nil
	}
	mode, length, _ := strings.Cut(value, "=")
	d, err := time.ParseDuration(length)
	if mode != "relaxed" || err != nil || d <= 0 {
		return fmt.Errorf("option consistency=%s: want strict or relaxed=DURATION, e.g. relaxed=1s", value)
	}
	o.Relaxed = d
	return nil
}

// String returns the options as Set takes them, in a fixed order.
func (o Options) String() string {
	var list []string
	for _, b := range bits() {
		if *b.field(&o) {
			list = append(list, b.on)
		}
	}
	if !o.ReadOnly {
		list = append(list, "rw")
	}
	sort.Strings(list)
	if o.Relaxed > 0 {
		list = append(list, "consistency=relaxed="+o.Relaxed.String())
	} else {
		list = append(list, "consistency=strict")
	}
	if o.CacheInodes != 0 {
		list = append(list, "cache_inodes="+strconv.Itoa(o.CacheInodes))
	}
	if o.Subdir != "" && o.Subdir != "/" {
		list = append(list, "subdir="+o.Subdir)
	}
	return strings.Join(list, ",")
}

// mountFlags returns the flags for mount(2).
func (o Options) mountFlags() uintptr {
	var flags uintptr
	for _, b := range bits() {
		if *b.field(&o) {
			flags |= b.flag
		}
	}
	return flags
}
