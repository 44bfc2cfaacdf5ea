package clientfuse

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/clientfuse/mountopt"
)

// A kernel that checks by ACLs asks for the ACL of each inode whose attributes it
// has just taken in. Nearly none has one, and the attributes say so.

// knownACLs is what attributes told about an inode's ACLs.
type knownACLs struct {
	of        *node // nil: of none
	kinds     canopyv1.AclKind
	asked, at time.Time // when the server was asked, and when it had answered
}

func aclsOf(n *node, a *client.Attr, asked, at time.Time) knownACLs {
	if a.GetNlink() == 0 {
		return knownACLs{} // not complete, or gone
	}
	return knownACLs{n, canopyv1.AclKind(a.GetAcls()), asked, at}
}

// aclKind returns which ACL an extended attribute is, or ACL_NONE.
func aclKind(name string) canopyv1.AclKind {
	switch name {
	case mountopt.AccessACL:
		return canopyv1.AclKind_ACL_ACCESS
	case mountopt.DefaultACL:
		return canopyv1.AclKind_ACL_DEFAULT
	}
	return canopyv1.AclKind_ACL_NONE
}

// keepACLs leaves what a GETATTR told to the question for the ACL that follows,
// beside what it leaves of the walk.
func (f *fileSystem) keepACLs(c *call, known knownACLs) {
	if !f.options.ACL || !f.sameCalls(c) {
		return
	}
	l := f.sameCall.take(c.tid)
	if l == nil {
		l = &lastCall{tid: c.tid, asked: known.asked, at: known.at}
	}
	l.acls = known
	f.sameCall.put(l)
}

// lacksACL says whether n is known to have no ACL of the kind. The question is
// part of the walk that its thread does, which goes on after it.
func (f *fileSystem) lacksACL(c *call, n *node, kind canopyv1.AclKind) bool {
	if l := c.last; l != nil && f.sameCalls(c) {
		next := *l
		next.attr, next.dir, next.dirAttr = nil, nil, nil
		f.sameCall.put(&next)
		k := l.acls
		return k.of == n && k.kinds&kind == 0 && c.start.Sub(k.at) <= sameCallWithin && !n.inodeChanges.since(k.asked)
	}
	// What the kernel keeps for a time may be as old as that.
	sawAt := clockStart.Add(time.Duration(n.sawAt.Load()))
	return canopyv1.AclKind(n.acls.Load())&kind == 0 && c.start.Sub(sawAt) < f.options.Relaxed && !n.inodeChanges.since(sawAt)
}
