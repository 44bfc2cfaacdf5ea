package client

import (
	"context"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// wire returns the credential as messages carry it.
func (c Cred) wire() *canopyv1.Credential {
	if c.UID == 0 && c.GID == 0 && len(c.Groups) == 0 {
		return superuser
	}
	return &canopyv1.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
}

// superuser is for what the client does on behalf of an open handle, whose
// permissions were checked when it was opened. Never changed.
var superuser = &canopyv1.Credential{}

// op makes an operation addressed to n's subtree.
func (n *Inode) op(cred Cred) *canopyv1.Op {
	return &canopyv1.Op{Subtree: uint64(n.subtreeID()), Cred: cred.wire()}
}

// opOn makes an operation on a name in the directory n, addressed to the subtree that
// has it.
func (n *Inode) opOn(cred Cred, name string) *canopyv1.Op {
	return &canopyv1.Op{Subtree: uint64(n.subtreeFor(name)), Cred: cred.wire()}
}

// entered returns the inode that an answer about name in dir describes, with a
// reference, and its attributes as they are to be shown.
func (c *Client) entered(ctx context.Context, cred Cred, dir *Inode, name string, res *canopyv1.Result, asked time.Time) (*Inode, *Attr, error) {
	if err := c.complete(ctx, cred, res); err != nil {
		return nil, nil, err
	}
	attr := res.Attr
	if attr == nil {
		return nil, nil, fserr.New(fserr.Malformed, "lookup", nil)
	}
	n := c.inodes.enter(base.Ino(attr.Ino), attr.Mode, dir.subtreeID())
	n.at(dir, name)
	n.grant(c, res)
	c.cache.putName(dir.ino, name, attr, asked)
	return n, n.show(attr), nil
}

// sawDir takes a directory's attributes that came along with an answer. What one
// fragment has of them is not known to be the directory's.
func (c *Client) sawDir(dir *Inode, attr *Attr, asked time.Time) *Attr {
	if attr == nil || isPartial(attr) {
		c.cache.dropAttr(dir.ino)
		return nil
	}
	dir.see(attr)
	c.cache.putAttr(attr, asked)
	return attr
}

// Lookup finds name in dir. The Inode holds a reference. dirAttr is the
// directory's attributes if the answer carried them, else nil; they can come with
// the error that there is no such name.
func (c *Client) Lookup(ctx context.Context, cred Cred, dir *Inode, name string) (n *Inode, attr, dirAttr *Attr, err error) {
	if attr := c.cache.lookup(dir.ino, name); attr != nil {
		n := c.inodes.enter(base.Ino(attr.Ino), attr.Mode, dir.subtreeID())
		n.at(dir, name)
		return n, n.show(attr), nil, nil
	}
	for try := 0; ; try++ {
		asked := time.Now()
		op := dir.opOn(cred, name)
		op.Call = &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: uint64(dir.ino), Name: []byte(name)}}
		res, err := c.do(ctx, opLookup, op)
		if res == nil {
			c.cache.dropName(dir.ino, name)
			return nil, nil, nil, err
		}
		foreign := res.Error == 0 && res.Attr != nil && (liesElsewhere(res.Attr) || isPartial(res.Attr))
		n, attr, dirAttr, err = c.lookedUp(ctx, cred, dir, name, res, asked)
		if !foreign || fserr.KindOf(err) != fserr.Stale || try == relocations {
			return n, attr, dirAttr, err
		}
		// It was removed between the two questions: the name says what is there now.
	}
}

// lookedUp takes in the answer to a lookup.
func (c *Client) lookedUp(ctx context.Context, cred Cred, dir *Inode, name string, res *canopyv1.Result, asked time.Time) (n *Inode, attr, dirAttr *Attr, err error) {
	if res.DirAttr != nil {
		dirAttr = c.sawDir(dir, res.DirAttr, asked)
	}
	if res.Error != 0 {
		c.cache.dropName(dir.ino, name)
		return nil, nil, dirAttr, &fserr.Error{Kind: fserr.Kind(res.Error), Op: opLookup.String(), Err: detail(res)}
	}
	n, attr, err = c.entered(ctx, cred, dir, name, res, asked)
	return n, attr, dirAttr, err
}

// Parent returns dir's parent directory (".."); the root is its own parent. The
// Inode holds a reference.
func (c *Client) Parent(ctx context.Context, cred Cred, dir *Inode) (*Inode, *Attr, error) {
	if dir.ino == base.RootIno {
		attr, err := c.GetAttr(ctx, cred, dir)
		return dir, attr, err
	}
	asked := time.Now()
	op := dir.op(cred)
	op.Call = &canopyv1.Op_Parent{Parent: &canopyv1.ParentCall{Dir: uint64(dir.ino)}}
	res, err := c.do(ctx, opParent, op)
	if err == nil {
		err = c.complete(ctx, cred, res)
	}
	if err != nil {
		return nil, nil, err
	}
	if res.Attr == nil {
		return nil, nil, fserr.New(fserr.Malformed, "parent", nil)
	}
	n := c.inodes.enter(base.Ino(res.Attr.Ino), res.Attr.Mode, dir.subtreeID())
	return n, c.sawDir(n, res.Attr, asked), nil
}

// GetAttr returns the attributes of n, this client's buffered writes included.
func (c *Client) GetAttr(ctx context.Context, cred Cred, n *Inode) (*Attr, error) {
	if attr := c.cache.attr(n.ino); attr != nil {
		return n.show(attr), nil
	}
	attr, err := c.fetchAttr(ctx, n)
	if err != nil {
		return nil, err
	}
	return n.show(attr), nil
}

// fetchAttr asks the server for n's attributes.
func (c *Client) fetchAttr(ctx context.Context, n *Inode) (*Attr, error) {
	res, err := c.fetchResult(ctx, n, 0)
	if err != nil {
		return nil, err
	}
	return res.Attr, nil
}

// fetchResult is fetchAttr, and brings a capability with the rights, if any.
func (c *Client) fetchResult(ctx context.Context, n *Inode, rights uint32) (*canopyv1.Result, error) {
	asked := time.Now()
	if n.isDir && c.inodes.dirs.splitMap(n.ino) != nil {
		attr, err := c.sumOf(ctx, n, nil, 0, asked)
		if fserr.KindOf(err) != fserr.Again {
			return &canopyv1.Result{Attr: attr}, err
		}
	}
	op := &canopyv1.Op{Subtree: uint64(n.subtreeID()), Cred: superuser,
		Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: n.place(), DataRights: rights}}}
	res, in, err := c.doIn(ctx, opGetAttr, op)
	if err == nil && isPartial(res.Attr) {
		attr, err := c.sumOf(ctx, n, res, in.subtree, asked)
		return &canopyv1.Result{Attr: attr}, err
	}
	if err != nil {
		c.cache.dropAttr(n.ino)
		return nil, err
	}
	if res.Attr == nil {
		return nil, fserr.New(fserr.Malformed, "getattr", nil)
	}
	n.movedTo(res.Place, res.Attr)
	n.see(res.Attr)
	n.grant(c, res)
	c.cache.putAttr(res.Attr, asked)
	return res, nil
}

// sumOf returns the attributes of a split directory, after the subtree from answered
// first.
func (c *Client) sumOf(ctx context.Context, n *Inode, first *canopyv1.Result, from base.SubtreeID, asked time.Time) (*Attr, error) {
	attr, err := c.gather(ctx, n.ino, first, from)
	c.cache.dropAttr(n.ino)
	if err != nil {
		return nil, err
	}
	n.see(attr)
	c.cache.putAttr(attr, asked)
	return attr, nil
}

// Access answers nil or an error as access(2) does; mask has its bits.
func (c *Client) Access(ctx context.Context, cred Cred, n *Inode, mask uint32) error {
	op := n.op(cred)
	op.Call = &canopyv1.Op_Access{Access: &canopyv1.AccessCall{Place: n.place(), Mask: mask}}
	res, err := c.do(ctx, opAccess, op)
	if err == nil {
		n.movedTo(res.Place, res.Attr)
	}
	return err
}

// Readlink returns the target of the symbolic link n.
func (c *Client) Readlink(ctx context.Context, cred Cred, n *Inode) (string, error) {
	op := n.op(cred)
	op.Call = &canopyv1.Op_Readlink{Readlink: &canopyv1.ReadlinkCall{Place: n.place()}}
	res, err := c.do(ctx, opReadlink, op)
	if err != nil {
		return "", err
	}
	n.movedTo(res.Place, res.Attr)
	return string(res.Data), nil
}

// InodeOf returns the inode of an entry that ReadDir of dir returned, with a
// reference, as Lookup of its name would. If the entry has attributes, they are
// replaced by those that this client shows, its buffered writes included.
func (c *Client) InodeOf(dir *Inode, e *DirEntry) *Inode {
	subtree := dir.subtreeID() // of a file at says it
	if e.Subtree != 0 && e.Type == modeDir {
		subtree = base.SubtreeID(e.Subtree)
	}
	n := c.inodes.enter(base.Ino(e.Ino), e.Type, subtree)
	n.at(dir, string(e.Name))
	if e.Attr != nil {
		e.Attr = n.show(e.Attr)
	}
	return n
}
