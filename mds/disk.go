package mds

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

const (
	// diskInterval is how often the disk is looked at: what a node can write in
	// that time is far less than the reserve.
	diskInterval = 100 * time.Millisecond
	// DefaultDiskReserve is the reserve on a large disk; on a small one it is a
	// quarter of it.
	DefaultDiskReserve = 512 << 20
	// compactInterval is how often a full node asks for Raft snapshots, after which
	// the log before them goes.
	compactInterval = 10 * time.Second
)

// room is how much a shard may write.
type room int32

const (
	roomForAll    room = iota
	roomToFree         // only what gives space back, and what clients and the node need to go on
	roomForNobody      // only the node's own commands
)

// disk watches the disk below the data directory. Neither Dragonboat nor Pebble
// survives a disk without space: so the shards of a node stop taking new things
// while there still is some, of which deletions and the node's own work live.
type disk struct {
	path    string
	usage   func(dir string) (totalBytes, freeBytes uint64, err error)
	reserve uint64 // bytes; 0: DefaultDiskReserve
	last    atomic.Pointer[diskUsage]
	full    atomic.Bool // with a margin against flapping
}

type diskUsage struct{ total, free, reserve uint64 }

// statfs is Config.DiskUsage of a real disk.
func statfs(dir string) (totalBytes, freeBytes uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil
}

// look asks the file system.
func (d *disk) look() error {
	total, free, err := d.usage(d.path)
	if err != nil {
		return err
	}
	u := &diskUsage{total: total, free: free, reserve: d.reserve}
	if u.reserve == 0 {
		u.reserve = min(DefaultDiskReserve, u.total/4)
	}
	d.last.Store(u)
	d.full.Store(u.isFull(d.full.Load()))
	return nil
}

// startable refuses a start that would end amid writing: a node opens its store
// and its log by writing to them.
func (d *disk) startable() error {
	if err := d.look(); err != nil {
		return fmt.Errorf("mds: %w", err)
	}
	if u := d.last.Load(); u.free < u.reserve/8 {
		return fmt.Errorf("mds: the disk of %s is full: %d bytes are free, a start needs %d", d.path, u.free, u.reserve/8)
	}
	return nil
}

// isFull tells whether the reserve is used; one that was used counts until a
// quarter more is free.
func (u *diskUsage) isFull(was bool) bool {
	if was {
		return u.free < u.reserve+u.reserve/4
	}
	return u.free < u.reserve
}

// watchDisk looks at the disk until ctx ends.
func (s *Server) watchDisk(ctx context.Context) {
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	var compacted time.Time
	for {
		was := s.disk.full.Load()
		if err := s.disk.look(); err != nil {
			s.log.Error("the free space of the data directory is not known", "error", err)
		}
		full := s.disk.full.Load()
		if full != was {
			s.tellDisk(full)
		}
		s.setRoom()
		if full && time.Since(compacted) > compactInterval {
			compacted = time.Now()
			s.spawn(func() { s.compact(ctx) })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellDisk logs and publishes a change: the holders of this node's shards, here and
// elsewhere, act on it.
func (s *Server) tellDisk(full bool) {
	u := s.disk.last.Load()
	if full {
		s.log.Error("the disk is full: the shards of this node take nothing new until there is space", "directory", s.disk.path,
			"free_bytes", u.free, "reserve_bytes", u.reserve)
	} else {
		s.log.Info("there is space again: the shards of this node take everything", "free_bytes", u.free)
	}
	s.tellNode()
}

// tellNode publishes what others have to know before they give this node a replica.
func (s *Server) tellNode() { s.alive.TellNode(s.info, s.disk.full.Load(), s.drained.Load()) }

// setRoom decides what each shard may write: as little as the fullest node of its
// replicas has room for, since what the holder takes in all of them have to keep.
func (s *Server) setRoom() {
	own := roomForAll
	if u := s.disk.last.Load(); s.disk.full.Load() {
		own = roomToFree
		if u.free < u.reserve/4 {
			own = roomForNobody
		}
	}
	m := s.place.Map()
	for _, h := range s.allHosted() {
		at, why := own, s.info.Node
		for _, r := range m.Shard(h.shard).GetReplicas() {
			n := m.Node(base.NodeID(r.Node))
			if r.Node != s.info.Node && n.GetAlive() && n.GetDiskFull() && at < roomToFree {
				at, why = roomToFree, r.Node
			}
		}
		h.room.Store(int32(at))
		h.fullNode.Store(why)
	}
}

// compact gives back what of the Raft log is in the store already.
func (s *Server) compact(ctx context.Context) {
	for _, h := range s.allHosted() {
		if err := h.group.Snapshot(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("a Raft snapshot for want of space", "shard", h.shard, "error", err)
		}
	}
}

// readOnly says in words why the shard takes nothing new, "" if it does.
func (h *hosted) readOnly() string {
	switch room(h.room.Load()) {
	case roomToFree:
		return fmt.Sprintf("the disk of node %d is full: only deletions are taken", h.fullNode.Load())
	case roomForNobody:
		return fmt.Sprintf("the disk of node %d is full: nothing is taken", h.fullNode.Load())
	}
	return ""
}

// takes tells whether a shard with that much room takes an operation.
func (r room) takes(kind opType, op *canopyv1.Op) bool {
	switch kind {
	case opOpenSession, opCloseSession, opDropLocks:
		return true // a client needs a session to read, and to be told of the full disk
	}
	if r != roomToFree {
		return r == roomForAll
	}
	switch kind {
	case opUnlink, opRmdir, opRemoveXattr, opReportSize, opFillAppend:
		return true
	case opSetAttr:
		return canopyv1.SetAttrMask(op.GetSetAttr().GetMask())&canopyv1.SetAttrMask_SET_ATTR_SIZE != 0
	case opSetLock:
		return op.GetSetLock().GetUnlock()
	}
	return false
}
