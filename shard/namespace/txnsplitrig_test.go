package namespace

import (
	"slices"

	"github.com/cockroachdb/datadriven"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

// sharesIn returns the shares of a decision, none if there is no record.
func sharesIn(d *schema.Decision) []schema.Share {
	if d == nil {
		return nil
	}
	return d.Shares
}

// fragments returns the subtrees that have names of a directory, home first: each tells
// of its own.
func (c *cluster) fragments(home base.SubtreeID, dir uint64) (all []base.SubtreeID, m shard.FragmentMap) {
	header := func(at base.SubtreeID) shard.FragmentMap {
		b, found, err := c.nodes[c.owner[at]].kv.Get(schema.HeaderKey(c.owner[at], at, base.Ino(dir)))
		if err != nil || !found {
			c.t.Fatalf("no header of %d in subtree %d: %v", dir, at, err)
		}
		h, err := schema.DecodeHeader(b)
		if err != nil {
			c.t.Fatal(err)
		}
		return h.Fragments
	}
	for m = header(home); ; {
		next := m
		for _, f := range m {
			next = next.Refer(f.Subtree, header(f.Subtree))
		}
		if slices.Equal(next, m) {
			break
		}
		m = next
	}
	for _, f := range m {
		if !slices.Contains(all, f.Subtree) {
			all = append(all, f.Subtree)
		}
	}
	return all, m
}

// whole completes what an answer says of split directories, as a client does: each
// fragment tells what it adds (PROTOCOLS F1).
func (c *cluster) whole(r *canopyv1.Result) *canopyv1.Result {
	for _, a := range []**canopyv1.Attr{&r.Attr, &r.Replaced} {
		if len((*a).GetFragments()) == 0 {
			continue
		}
		sum, failed := c.sum(*a)
		if failed != nil {
			return failed
		}
		*a = sum
	}
	return r
}

// sum asks all fragments of a directory what they add to its attributes.
func (c *cluster) sum(a *canopyv1.Attr) (sum *canopyv1.Attr, failed *canopyv1.Result) {
	all, _ := c.fragments(base.SubtreeID(a.Subtree), a.Ino)
	for _, at := range all {
		part := c.query(at, &canopyv1.Op{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: a.Ino}}}})
		if part.Error != 0 {
			return nil, part
		}
		f := part.Attr
		if sum == nil {
			sum = f
			continue
		}
		sum.Size, sum.Nlink, sum.Version = sum.Size+f.Size, sum.Nlink+f.Nlink-2, sum.Version+f.Version
		sum.AtimeNs, sum.MtimeNs, sum.CtimeNs = max(sum.AtimeNs, f.AtimeNs), max(sum.MtimeNs, f.MtimeNs), max(sum.CtimeNs, f.CtimeNs)
		if f.Mode != sum.Mode || f.Uid != sum.Uid || f.Gid != sum.Gid || f.Acls != sum.Acls {
			c.t.Errorf("subtree %d has %v of directory %d, home %v", at, f, a.Ino, sum)
		}
	}
	return sum, nil
}

// list returns all names of a directory.
func (c *cluster) list(d where) *canopyv1.Result {
	out := &canopyv1.Result{}
	var cookie uint64
	for {
		r := c.query(d.subtree, &canopyv1.Op{Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: d.ino, Cookie: cookie}}})
		if r.Error != 0 {
			return r
		}
		out.Entries = append(out.Entries, r.Entries...)
		switch {
		case !r.Eof:
			cookie = r.Entries[len(r.Entries)-1].Cookie
		case r.Through >= uint64(schema.LastCookie):
			return out
		default:
			cookie = r.Through
		}
	}
}

// split moves a range of a directory's names, which lies in one subtree, to a new
// subtree at a shard, or to one that has names of it, by hand.
func (c *cluster) splitDir(home base.SubtreeID, dir uint64, r shard.Range, at base.ShardID, into base.SubtreeID) {
	_, m := c.fragments(home, dir)
	from := m.Find(shard.HashOf(r.First())).Subtree
	if into == 0 {
		c.splits++
		into = base.SubtreeID(base.NewIno(at, uint64(1000+c.splits)))
		c.owner[into] = at
	}
	x, y := c.nodes[c.owner[from]], c.nodes[c.owner[into]]
	s := &memkv.Split{From: x.kv, To: y.kv, Shard: x.id, Other: y.id, Subtree: from, Dir: base.Ino(dir), Names: r, Into: into, Hash: c.hash}
	s.HandOff()
	s.Clean()
	x.load(c.t)
	y.load(c.t)
}

// splitLine is the directive split.
func (c *cluster) splitLine(d *datadriven.TestData) string {
	arg := func(name string) (v string) {
		if d.HasArg(name) {
			d.ScanArgs(c.t, name, &v)
		}
		return v
	}
	at, err := base.ParseShardID(d.CmdArgs[1].Key)
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.dir(d.CmdArgs[0].Key)
	var into base.SubtreeID
	if join := arg("join"); join != "" {
		_, m := c.fragments(dir.subtree, dir.ino)
		into = m.Find(letterHash([]byte(join))).Subtree
	}
	c.splitDir(dir.subtree, dir.ino, letterRange(arg("lo"), arg("hi")), at, into)
	return ""
}
