package clientfuse

import (
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/canopyfs/canopy/client"
)

// GetXAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	c := f.begin(opGetXattr, cancel, h)
	if s := f.options.XattrStatus(name); !s.Ok() {
		return 0, c.end(s)
	}
	n := f.nodes.get(h.NodeId)
	if n == nil {
		return 0, c.end(estale)
	}
	if kind := aclKind(name); kind != 0 && f.lacksACL(c, n, kind) {
		return 0, c.end(fuse.ENODATA)
	}
	value, err := f.backend.GetXattr(c, c.cred(), n.inode, name)
	if err != nil {
		return 0, c.end(errno(err))
	}
	size, s := fit(dest, value)
	return size, c.end(s)
}

// fit copies value into dest if there is room: programs ask for the size first,
// with no room at all.
func fit(dest, value []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

// ListXAttr implements fuse.RawFileSystem. Attributes of the trusted class are
// shown to the superuser only, as ext4 does, and none that this mount denies.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	c := f.begin(opListXattr, cancel, h)
	n := f.nodes.get(h.NodeId)
	if n == nil {
		return 0, c.end(estale)
	}
	names, err := f.backend.ListXattr(c, c.cred(), n.inode)
	if err != nil {
		return 0, c.end(errno(err))
	}
	var list []byte
	for _, name := range names {
		if c.uid != 0 && strings.HasPrefix(name, "trusted.") || !f.options.XattrStatus(name).Ok() {
			continue
		}
		list = append(append(list, name...), 0)
	}
	size, s := fit(dest, list)
	return size, c.end(s)
}

// SetXAttr implements fuse.RawFileSystem.
func (f *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	c := f.begin(opSetXattr, cancel, &in.InHeader)
	if s := f.options.XattrStatus(name); !s.Ok() {
		return c.end(s)
	}
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return c.end(estale)
	}
	n.inodeChanges.begin() // an ACL changes the mode
	defer n.inodeChanges.end()
	return c.end(errno(f.backend.SetXattr(c, c.cred(), n.inode, name, value, in.Flags)))
}

const capabilityXattr = "security.capability"

// RemoveXAttr implements fuse.RawFileSystem.
func (f *fileSystem) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := f.begin(opRemoveXattr, cancel, h)
	if s := f.options.XattrStatus(name); !s.Ok() {
		return c.end(s)
	}
	n := f.nodes.get(h.NodeId)
	if n == nil {
		return c.end(estale)
	}
	n.inodeChanges.begin()
	defer n.inodeChanges.end()
	cred := c.cred()
	if name == capabilityXattr {
		// The kernel lets nobody remove it who may not; but a write removes it, in
		// the writer's name.
		cred = client.Cred{}
	}
	return c.end(errno(f.backend.RemoveXattr(c, cred, n.inode, name)))
}
