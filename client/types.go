package client

import (
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
)

// Config says which cluster to use and how. Cluster is required.
type Config struct {
	// Cluster is host:port[,host:port...] of metadata nodes. Any one that answers
	// is enough; it tells of all the others.
	Cluster string
	// Mount is a label that operators see in session lists, e.g. the mount point.
	Mount string
	// Labels say where this process is, KEY=VALUE with the keys zone, rack and host:
	// bytes are read from the nearest replica.
	Labels []string
	// Relaxed is how old cached names and attributes may be. 0 is strict: every
	// call asks the server.
	Relaxed time.Duration
	// WriteBufferBytes bounds the written bytes that wait in memory, over all
	// files; a writer that finds it full waits. Default 128 MiB.
	WriteBufferBytes int64
	// DialTimeout bounds how long Connect waits for a first node to answer when
	// its context has no deadline. Default 10 s.
	DialTimeout time.Duration
	// Logger receives warnings. Default: discarded.
	Logger *slog.Logger
	// Registerer receives the client's metrics, if not nil.
	Registerer prometheus.Registerer
	// Memory connects to servers that run in this process; nil: TCP alone.
	Memory *wire.Memory
	// Data replaces the data servers of the cluster, for tests. nil: the cluster's.
	Data DataPlane
}

// Cred says for whom an operation is checked. UID 0 passes as root on Linux.
type Cred struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups
	// Umask is taken off the modes of what is made, unless the directory has a
	// default ACL.
	Umask uint32
}

// InGroup reports whether the group is the primary or a supplementary one.
func (c Cred) InGroup(gid uint32) bool { return c.GID == gid || slices.Contains(c.Groups, gid) }

// Attr is what stat shows. An *Attr that a call returned is shared: read it,
// never change it.
type Attr = canopyv1.Attr

// DirEntry is one name of a listing.
type DirEntry = canopyv1.DirEntry

// StatFS is the size of the file system.
type StatFS = canopyv1.StatFs

// Lock is a lock of any client, as Locks lists it.
type Lock = canopyv1.Lock

// SetAttr is a change of attributes: what Mask names (canopyv1.SetAttrMask bits).
type SetAttr struct {
	Mask             canopyv1.SetAttrMask
	Mode             uint32 // permission bits
	UID, GID         uint32
	Size             uint64 // bytes
	AtimeNS, MtimeNS int64  // nanoseconds since 1970
	// Handle, if set, is the handle by which it is asked (ftruncate, fchmod): a
	// change of size needs no permission if the handle is open for writing.
	Handle *File

	accessedNS int64 // of SET_ATTR_ACCESSED
}

// Created is what Create answers. Inode holds a reference, File is open; the
// caller releases and closes them.
type Created struct {
	Inode   *Inode
	Attr    *Attr // of the file
	DirAttr *Attr // of the directory, nil if not known
	Existed bool  // the name was there; File is that file, opened
	File    *File
}

// ReadDirRequest asks for a page of a listing.
type ReadDirRequest struct {
	// Cookie of the last entry seen; 0 starts. The entries "." and ".." are
	// not part of a listing; their cookies are 1 and 2 by convention, and 0 to 2
	// all start at the first name.
	Cookie uint64
	// Mark is what the page before answered (PROTOCOLS F3); nil starts a listing.
	Mark *Mark
	// MaxEntries and MaxBytes (names and attributes together, about) bound the
	// page; 0 lets the client choose.
	MaxEntries, MaxBytes int
	// Plus asks for attributes too, of files with several links as well.
	Plus bool
}

// ReadDirPage is a page of a listing.
type ReadDirPage struct {
	Entries []*DirEntry
	Mark    *Mark // for the next page's request
	EOF     bool  // nothing follows
}
