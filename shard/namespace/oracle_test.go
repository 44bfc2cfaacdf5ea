package namespace

import (
	"maps"
	"slices"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// oracle is what a file system is, told as simply as possible: nodes and maps. It
// shares nothing with the machine but the words. Everything runs as root.
type oracle struct {
	root *node
	all  []*node // also those without a name
}

type node struct {
	ino      uint64
	kind     uint32
	mode     uint32
	nlink    uint32
	size     uint64
	epoch    uint64
	target   string
	xattrs   map[string]string
	locks    map[uint64]*[lockedBytes]byte // by owner: 0 free, 1 shared, 2 exclusive
	children map[string]*node              // of a directory
	parent   *node
	removed  bool // a directory without a name
	purged   bool
	linkable bool
	bound    *bound // of a directory with a quota
	policy   string // class that is set on a directory
}

func newOracle() *oracle {
	root := &node{ino: 1, kind: schema.TypeDir, mode: 0o755, children: map[string]*node{}, xattrs: map[string]string{}}
	root.parent = root
	return &oracle{root: root, all: []*node{root}}
}

func (n *node) isDir() bool { return n.kind == schema.TypeDir }

// links is what stat shows.
func (n *node) links() uint32 {
	if !n.isDir() {
		return n.nlink
	}
	if n.removed {
		return 0
	}
	links := uint32(2)
	for _, c := range n.children {
		if c.isDir() {
			links++
		}
	}
	return links
}

func (n *node) names() []string { return slices.Sorted(maps.Keys(n.children)) }

func (o *oracle) add(n *node) *node {
	n.xattrs = map[string]string{}
	if n.kind == schema.TypeFile {
		n.epoch = 1
	}
	o.all = append(o.all, n)
	return n
}

// make adds a new node under a name.
func (o *oracle) make(dir *node, name string, n *node) (*node, fserr.Kind) {
	if dir.purged {
		return nil, fserr.Stale
	}
	if dir.children[name] != nil {
		return nil, fserr.Exist
	}
	if dir.removed {
		return nil, fserr.NotFound
	}
	n.nlink = 1
	if n.isDir() {
		n.children, n.parent = map[string]*node{}, dir
	}
	dir.children[name] = o.add(n)
	return n, fserr.OK
}

// create is open with O_CREAT.
func (o *oracle) create(dir *node, name string, exclusive, truncate bool, mode uint32) (*node, fserr.Kind) {
	n, kind := o.make(dir, name, &node{kind: schema.TypeFile, mode: mode})
	if kind != fserr.Exist || exclusive {
		return n, kind
	}
	n = dir.children[name]
	if n.isDir() {
		return nil, fserr.IsDir
	}
	if truncate && n.kind == schema.TypeFile {
		n.size, n.epoch = 0, n.epoch+1
	}
	return n, fserr.OK
}

func (o *oracle) link(n, dir *node, name string) fserr.Kind {
	switch {
	case n.purged, dir.purged:
		return fserr.Stale
	case dir.children[name] != nil:
		return fserr.Exist
	case dir.removed:
		return fserr.NotFound
	case n.isDir():
		return fserr.Permission
	case n.nlink == 0 && !n.linkable:
		return fserr.NotFound
	}
	n.linkable = false
	n.nlink++
	dir.children[name] = n
	return fserr.OK
}

func (o *oracle) remove(dir *node, name string, wantDir bool) (*node, fserr.Kind) {
	n := dir.children[name]
	switch {
	case dir.purged:
		return nil, fserr.Stale
	case n == nil:
		return nil, fserr.NotFound
	case wantDir && !n.isDir():
		return nil, fserr.NotDir
	case !wantDir && n.isDir():
		return nil, fserr.IsDir
	case wantDir && len(n.children) > 0:
		return nil, fserr.NotEmpty
	}
	delete(dir.children, name)
	n.lose()
	return n, fserr.OK
}

func (n *node) lose() {
	if n.isDir() {
		n.removed, n.bound = true, nil
	} else {
		n.nlink--
	}
}

func (n *node) below(ancestor *node) bool {
	for at := n; ; at = at.parent {
		if at == ancestor {
			return true
		}
		if at == at.parent {
			return false
		}
	}
}

func (o *oracle) rename(src *node, srcName string, dst *node, dstName string, flags uint32) fserr.Kind {
	if src.purged || dst.purged {
		return fserr.Stale
	}
	from, to := src.children[srcName], dst.children[dstName]
	switch {
	case from == nil, flags == renameExchange && to == nil:
		return fserr.NotFound
	case flags&renameNoReplace != 0 && to != nil:
		return fserr.Exist
	case from == to:
		return fserr.OK
	case to == nil && dst.removed:
		return fserr.NotFound
	case from.isDir() && src != dst && dst.below(from):
		return fserr.Invalid
	case to != nil && to.isDir() && src != dst && src.below(to):
		if flags == renameExchange {
			return fserr.Invalid
		}
		return fserr.NotEmpty
	}
	if flags == renameExchange {
		src.children[srcName], dst.children[dstName] = to, from
		from.movedTo(dst)
		to.movedTo(src)
		return fserr.OK
	}
	if to != nil {
		switch {
		case from.isDir() && !to.isDir():
			return fserr.NotDir
		case !from.isDir() && to.isDir():
			return fserr.IsDir
		case to.isDir() && len(to.children) > 0:
			return fserr.NotEmpty
		}
		to.lose()
	}
	delete(src.children, srcName)
	if flags&renameWhiteout != 0 {
		src.children[srcName] = o.add(&node{kind: schema.TypeChar, nlink: 1})
	}
	dst.children[dstName] = from
	from.movedTo(dst)
	return fserr.OK
}

func (n *node) movedTo(dir *node) {
	if n.isDir() {
		n.parent = dir
	}
}

// purge forgets every node without a name.
func (o *oracle) purge() {
	o.all = slices.DeleteFunc(o.all, func(n *node) bool {
		if n != o.root && (n.removed || !n.isDir() && n.nlink == 0) {
			n.purged = true
		}
		return n.purged
	})
}

// counts returns what the counters must say.
func (o *oracle) counts() (files, directories, bytes uint64) {
	seen := map[*node]bool{}
	var walk func(*node)
	walk = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		if !n.isDir() {
			files++
			if n.kind == schema.TypeFile {
				bytes += n.size
			}
			return
		}
		directories++
		for _, c := range n.children {
			walk(c)
		}
	}
	walk(o.root)
	return files, directories, bytes
}
