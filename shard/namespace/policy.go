package namespace

import (
	"maps"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/policy"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxPolicies bounds the directories of a subtree that have a policy: Apply keeps
// all of them in memory.
const maxPolicies = 16384

// maxResolved bounds the directories whose policy Apply remembers.
const maxResolved = 1 << 16

// policies are the layout policies of a subtree, as Apply keeps them: what was
// set, equal to the stored state, and what follows for directories that were
// asked for. The latter is a function of the stored state and kept for speed
// alone, so it is thrown away whenever that changes: a replica that starts anew
// comes to the same layouts.
type policies struct {
	set      map[base.Ino]*canopyv1.LayoutPolicy
	resolved map[base.Ino]*resolved
}

// resolved is what holds for new files of a directory.
type resolved struct {
	policy.Effective
	layout schema.Layout
}

func (p *policies) load(r shard.Reader, id base.ShardID, subtree base.SubtreeID) error {
	*p = policies{set: map[base.Ino]*canopyv1.LayoutPolicy{}}
	lo, hi := schema.KindRange(id, subtree, schema.KindPolicy)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		own, err := schema.DecodePolicy(value)
		if err != nil {
			return false, err
		}
		dir, _, _ := schema.InoOf(key)
		p.set[base.Ino(dir)] = own.Proto()
		return true, nil
	})
}

// forget drops what was resolved: a policy changed, or a directory moved.
func (p *policies) forget() { p.resolved = nil }

// layoutIn returns the layout of a file that is made in d.
func (b *batch) layoutIn(d *directory) (schema.Layout, error) {
	r, err := b.resolvePolicy(d)
	if err != nil || r == nil {
		return d.Layout, err
	}
	return r.layout, nil
}

// resolvePolicy returns what holds in d, nil if there is no policy at all. It
// walks up to the next directory that it remembers; without policies, and for a
// directory that got a file before, it reads nothing.
func (b *batch) resolvePolicy(d *directory) (*resolved, error) {
	p := &b.sub.policies
	if len(p.set) == 0 {
		return nil, nil
	}
	var path []*directory
	above := &resolved{layout: d.Layout}
	for range maxDepth {
		if r := p.resolved[d.Ino]; r != nil {
			above = r
			break
		}
		path = append(path, d)
		if d.Ino == b.root {
			break
		}
		up, err := b.above(d)
		if err != nil {
			return nil, err
		}
		d = up
	}
	if p.resolved == nil || len(p.resolved)+len(path) > maxResolved {
		p.resolved = map[base.Ino]*resolved{}
	}
	for i := len(path) - 1; i >= 0; i-- {
		d := path[i]
		if own := p.set[d.Ino]; own != nil || d.Seen.Level != 0 && above.Auto {
			e := above.Below(uint64(d.Ino), own, d.Seen.Level)
			above = &resolved{e, schema.LayoutOf(e.Layout(d.Layout.Proto()))}
		}
		p.resolved[d.Ino] = above
	}
	return above, nil
}

// setPolicy changes what is set on a directory.
func setPolicy(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetSetPolicy()
	if !identityOf(op.Cred).isRoot() {
		return nil, fserr.Permission
	}
	d, err := b.directory(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	if d.Removed {
		return nil, fserr.NotFound
	}
	if err := b.changesAll(d); err != nil {
		return nil, err
	}
	set := b.sub.policies.set
	next, err := policy.Merge(set[d.Ino], c.Set, c.Clear)
	switch {
	case err != nil:
		r := &canopyv1.Result{}
		if e, ok := err.(*fserr.Error); ok && e.Err != nil {
			r.Detail = e.Err.Error()
		}
		return r, fserr.KindOf(err)
	case next != nil && set[d.Ino] == nil && len(set) >= maxPolicies:
		return nil, fserr.NoSpace
	}
	if err := b.putPolicy(d.Ino, next); err != nil {
		return nil, err
	}
	d.Seen = schema.Seen{}
	d.CtimeNS = b.nowNS
	d.Version++
	b.touch(d)
	return &canopyv1.Result{Attr: b.dirAttr(d)}, nil
}

// putPolicy replaces what is set on a directory; nil: nothing is.
func (b *batch) putPolicy(dir base.Ino, next *canopyv1.LayoutPolicy) error {
	p := &b.sub.policies
	if next == nil {
		if p.set[dir] == nil {
			return nil
		}
		delete(p.set, dir)
		p.forget()
		return b.w.Delete(schema.PolicyKey(b.id, b.subtree, dir))
	}
	stored := schema.PolicyOf(next)
	p.set[dir] = stored.Proto() // what a replica that starts anew would read
	p.forget()
	return b.set(schema.PolicyKey(b.id, b.subtree, dir), stored)
}

// directoryMoved is called when a directory gets another parent: what lies below
// inherits from there from now on.
func (b *batch) directoryMoved() { b.sub.policies.forget() }

// fileSeen is what observe needs to know of a file before a report.
type fileSeen struct {
	sizeBytes uint64
	hasData   bool
}

func sawFile(n *schema.Inode) fileSeen { return fileSeen{n.SizeBytes, n.HasData} }

// observe counts a reported file for the policy auto, and chooses again when
// enough are counted. What was seen stands in the directory's header, so every
// replica chooses the same.
func (b *batch) observe(o *object, before fileSeen) error {
	if len(b.sub.policies.set) == 0 || o.home != inDentry {
		return nil
	}
	d, err := b.directory(o.entry.dir)
	if err != nil {
		return err
	}
	r, err := b.resolvePolicy(d)
	if err != nil || !r.Auto {
		return err
	}
	first := o.inode.HasData && !before.hasData
	if !first && o.inode.SizeBytes == before.sizeBytes {
		return nil
	}
	d.Seen.Bytes = addBytes(d.Seen.Bytes, o.inode.SizeBytes-before.sizeBytes)
	if first {
		d.Seen.Files++
	}
	b.touch(d)
	if d.Seen.Files < policy.Window {
		return nil
	}
	if level := policy.LevelOf(d.Seen.Bytes / d.Seen.Files); level != d.Seen.Level {
		d.Seen.Level = level
		b.sub.policies.forget()
	}
	d.Seen.Files /= 2
	d.Seen.Bytes /= 2
	return nil
}

// getPolicy answers what is set on a directory and above it, or all that is set.
func getPolicy(v *view, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetGetPolicy()
	if c.Dir == 0 {
		return allPolicies(v)
	}
	d, err := v.directory(base.Ino(c.Dir))
	if err != nil {
		return nil, err
	}
	if !d.isHome() {
		return nil, v.atHome(d)
	}
	path, err := v.pathUp(d)
	if err != nil {
		return nil, err
	}
	out := &canopyv1.Result{}
	top := path[len(path)-1]
	switch {
	case !top.isHome(): // the subtree of a fragment: its home knows where it is
		out.Place, out.Attr = &canopyv1.Place{Ino: uint64(top.Ino)}, pointerTo(top.Ino, schema.TypeDir, top.Fragments.Home())
	case top.ParentSubtree != v.subtree:
		// The subtree's root has what it inherited; the paths begin there.
		out.Place = &canopyv1.Place{Ino: uint64(top.Ino), Dir: uint64(top.Parent), Name: top.Name}
		out.Attr = pointerTo(top.Parent, schema.TypeDir, top.ParentSubtree)
	}
	for i, d := range path {
		own, err := v.policyOf(d.Ino)
		if err != nil {
			return nil, err
		}
		out.Policies = append(out.Policies, dirPolicy(d, own, pathText(path[i:])))
	}
	return out, nil
}

func allPolicies(v *view) (*canopyv1.Result, error) {
	var all policies
	if err := all.load(v.r, v.id, v.subtree); err != nil {
		return nil, err
	}
	out := &canopyv1.Result{}
	for _, ino := range slices.Sorted(maps.Keys(all.set)) {
		d, err := v.directory(ino)
		if isElsewhere(err) {
			continue // carved out, with its policy
		}
		if err != nil {
			return nil, err
		}
		if d.Removed || !d.isHome() { // what a fragment has is what it inherits
			continue
		}
		path, err := v.pathUp(d)
		if err != nil {
			return nil, err
		}
		out.Policies = append(out.Policies, dirPolicy(d, all.set[ino], pathText(path)))
	}
	return out, nil
}

func dirPolicy(d *directory, own *canopyv1.LayoutPolicy, path []byte) *canopyv1.DirPolicy {
	return &canopyv1.DirPolicy{Dir: uint64(d.Ino), Path: path, Policy: own,
		Level: d.Seen.Level, Files: d.Seen.Files, Bytes: d.Seen.Bytes, Layout: d.Layout.Proto()}
}

func (v *view) policyOf(dir base.Ino) (*canopyv1.LayoutPolicy, error) {
	b, found, err := v.r.Get(schema.PolicyKey(v.id, v.subtree, dir))
	if err != nil || !found {
		return nil, err
	}
	own, err := schema.DecodePolicy(b)
	if err != nil {
		return nil, err
	}
	return own.Proto(), nil
}

// pathUp returns a directory and all above it in the subtree, the root last.
func (v *view) pathUp(d *directory) ([]*directory, error) {
	path := []*directory{d}
	for range maxDepth {
		if d.Ino == v.root {
			break
		}
		up, err := v.above(d)
		if err != nil {
			return nil, err
		}
		d = up
		path = append(path, d)
	}
	return path, nil
}

// above returns the directory that d inherits from: its parent, or the subtree's
// root if the parent lies in another subtree. A subtree's root says what holds
// there, also what it inherited when it was made one; so does one that is a copy of a
// split directory's header, or what is left of that.
func (v *view) above(d *directory) (*directory, error) {
	if d.ParentSubtree == v.subtree && d.isHome() {
		up, err := v.headerIn(v.subtree, d.Parent)
		if !isElsewhere(err) {
			return up, err
		}
	}
	return v.headerIn(v.subtree, v.root)
}

// pathText returns the path of the first of directories as of pathUp.
func pathText(up []*directory) []byte {
	var out []byte
	for i := len(up) - 2; i >= 0; i-- {
		out = append(append(out, '/'), up[i].Name...)
	}
	if out == nil {
		return []byte("/")
	}
	return out
}
