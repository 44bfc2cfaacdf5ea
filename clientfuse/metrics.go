package clientfuse

import (
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// op is a kind of request, for metrics.
type op uint8

const (
	opLookup op = iota
	opGetAttr
	opStatx
	opSetAttr
	opMknod
	opMkdir
	opUnlink
	opRmdir
	opRename
	opLink
	opSymlink
	opReadlink
	opGetXattr
	opListXattr
	opSetXattr
	opRemoveXattr
	opCreate
	opTmpfile
	opOpen
	opRead
	opWrite
	opFlush
	opFsync
	opRelease
	opOpenDir
	opReadDir
	opReadDirPlus
	opStatFS
	opGetLk
	opSetLk
	opSetLkw
	opFallocate
	opLseek
	opCount
)

// names returns the operations' names as metrics show them.
func opNames() [opCount]string {
	return [opCount]string{
		opLookup: "lookup", opGetAttr: "getattr", opStatx: "statx", opSetAttr: "setattr", opMknod: "mknod",
		opMkdir: "mkdir", opUnlink: "unlink", opRmdir: "rmdir", opRename: "rename", opLink: "link",
		opSymlink: "symlink", opReadlink: "readlink", opGetXattr: "getxattr", opListXattr: "listxattr",
		opSetXattr: "setxattr", opRemoveXattr: "removexattr", opCreate: "create", opTmpfile: "tmpfile",
		opOpen: "open", opRead: "read", opWrite: "write", opFlush: "flush", opFsync: "fsync",
		opRelease: "release", opOpenDir: "opendir", opReadDir: "readdir", opReadDirPlus: "readdirplus", opStatFS: "statfs",
		opGetLk: "getlk", opSetLk: "setlk", opSetLkw: "setlkw",
		opFallocate: "fallocate", opLseek: "lseek",
	}
}

// metrics are what a mount counts.
type metrics struct {
	latency [opCount]prometheus.Observer
	errors  *prometheus.CounterVec
	names   [opCount]string
}

func newMetrics(reg prometheus.Registerer, nodes, handles func() int) (*metrics, error) {
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "canopy_fuse_request_seconds",
		Help:    "Time from reading a kernel request to its answer, by operation.",
		Buckets: prometheus.ExponentialBuckets(10e-6, 2, 22), // 10 us to 20 s
	}, []string{"op"})
	m := &metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "canopy_fuse_errors_total",
			Help: "Kernel requests answered with an error, by operation and errno.",
		}, []string{"op", "errno"}),
		names: opNames(),
	}
	for o := range opCount {
		m.latency[o] = latency.WithLabelValues(m.names[o])
	}
	if reg == nil {
		return m, nil
	}
	return m, register(reg, latency, m.errors,
		gauge("canopy_fuse_inodes", "Inodes that the kernel knows.", nodes),
		gauge("canopy_fuse_open_files", "Files that are open through the mount.", handles))
}

func gauge(name, help string, value func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func register(reg prometheus.Registerer, all ...prometheus.Collector) error {
	var failed error
	for _, c := range all {
		failed = errors.Join(failed, reg.Register(c))
	}
	return failed
}

func (m *metrics) observe(o op, d time.Duration, s fuse.Status) {
	m.latency[o].Observe(d.Seconds())
	if s != fuse.OK {
		m.errors.WithLabelValues(m.names[o], errnoName(s)).Inc()
	}
}

func errnoName(s fuse.Status) string {
	if name := unix.ErrnoName(syscall.Errno(s)); name != "" {
		return name
	}
	return "unknown"
}
