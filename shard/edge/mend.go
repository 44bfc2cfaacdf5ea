package edge

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// MendKind says what is to be done. The numbers are those of the API's RepairKind.
type MendKind uint32

// What can be mended that takes a look at two subtrees.
const (
	Relink    MendKind = 4  // the link count of a record becomes Links
	Reparent  MendKind = 5  // a header's parent and name become To, Dir and Name
	Reconnect MendKind = 8  // a directory of the subtree of "/" without a name gets one in /lost+found
	Route     MendKind = 9  // the placement map learns who owns a subtree
	NewName   MendKind = 11 // Reconnect of a directory of another subtree, To
)

// Mend is a change that removes a finding, of something in Subtree at Shard. Who makes
// it compares first: Seen is the edge of what is changed, as it was found.
type Mend struct {
	Kind    MendKind
	Shard   base.ShardID
	Subtree base.SubtreeID
	Epoch   base.Epoch
	Seen    Edge
	Links   uint32
	To      base.SubtreeID
	Dir     base.Ino
	Name    []byte
}

// mend adds what mends the last finding.
func (j *joiner) mend(m *Mend) {
	if j.complete() {
		j.Findings[len(j.Findings)-1].Mend = m
	}
}

func mendOf(kind MendKind, seen Edge) *Mend {
	return &Mend{Kind: kind, Shard: seen.Shard, Subtree: seen.Subtree, Epoch: seen.Epoch, Seen: seen}
}

// relink: the names are what there is; the count has to agree. A file without any is
// left as it is: without a link count it would be deleted.
func relink(record Edge, names int) *Mend {
	links := int64(record.Links) - record.Count + int64(names)
	if links <= 0 || links >= 1<<32 {
		return nil
	}
	m := mendOf(Relink, record)
	m.Links = uint32(links)
	return m
}

// reparent: of a directory with one name that name counts.
func reparent(up, down Edge) *Mend {
	m := mendOf(Reparent, up)
	m.To, m.Dir, m.Name = down.Subtree, down.Dir, down.Name
	return m
}

// reconnect: the name is made in the subtree of "/".
func (j *joiner) reconnect(up Edge) *Mend {
	if up.Subtree == base.RootSubtree {
		return mendOf(Reconnect, up)
	}
	root := j.owners[base.RootSubtree]
	if len(root) != 1 {
		return nil
	}
	return &Mend{Kind: NewName, Shard: root[0].Shard, Subtree: base.RootSubtree, Epoch: root[0].Epoch, Seen: up, To: up.Subtree}
}

// Repair returns the order to mend; nil for none.
func (m *Mend) Repair() *canopyv1.Repair {
	if m == nil {
		return nil
	}
	r := &canopyv1.Repair{Kind: canopyv1.RepairKind(m.Kind), Subtree: uint64(m.Subtree), Epoch: uint64(m.Epoch), Ino: uint64(m.Seen.Ino), Version: m.Seen.Version}
	switch m.Kind {
	case Relink:
		r.Seen, r.Want = []int64{int64(m.Seen.Links)}, []int64{int64(m.Links)}
	case Reparent, Reconnect:
		r.At = &canopyv1.RepairPlace{Dir: uint64(m.Seen.Dir), Subtree: uint64(m.Seen.To), Name: m.Seen.Name}
		r.To = &canopyv1.RepairPlace{Dir: uint64(m.Dir), Subtree: uint64(m.To), Name: m.Name}
	case NewName:
		r.To = &canopyv1.RepairPlace{Subtree: uint64(m.To)}
	}
	return r
}
