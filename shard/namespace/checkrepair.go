package namespace

import (
	"bytes"
	"hash/fnv"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// What a check proposes. Each Repair carries what was seen, so that apply can tell
// whether it is still so: see repair.go.

func (c *checker) repair(kind canopyv1.RepairKind, ino base.Ino) *canopyv1.Repair {
	return &canopyv1.Repair{Kind: kind, Subtree: uint64(c.subtree), Epoch: uint64(c.epoch), Ino: uint64(ino)}
}

// recountDir: a header counts what was found. Its version tells whether the names are
// those that were counted.
func (c *checker) recountDir(d *checkedDir) *canopyv1.Repair {
	r := c.repair(canopyv1.RepairKind_REPAIR_DIR_COUNTS, d.Ino)
	r.Version = d.Version
	r.Seen = []int64{int64(d.Entries), int64(d.Subdirs), int64(d.Displaced)}
	r.Want = []int64{int64(d.entries), int64(d.subdirs), int64(d.displaced)}
	return r
}

// recount: what a subtree's counters are wrong by is the same however the subtree
// changes meanwhile, until they are repaired.
func (c *checker) recount(have schema.Counters) (*canopyv1.Repair, error) {
	times, err := mendedOf(c.r, c.id, c.subtree)
	r := c.repair(canopyv1.RepairKind_REPAIR_COUNTERS, c.root)
	r.Seen = []int64{int64(times)}
	r.Want = []int64{int64(c.counted.Files - have.Files), int64(c.counted.Directories - have.Directories), int64(c.counted.Bytes - have.Bytes)}
	return r, err
}

// recharged: so of an account; the time of its last count tells which it is.
func (c *checker) recharged(dir base.Ino, q *schema.Quota, have schema.Usage) *canopyv1.Repair {
	r := c.repair(canopyv1.RepairKind_REPAIR_QUOTA, dir)
	r.Seen = []int64{int64(q.ID), q.SinceNS}
	r.Want = []int64{have.Inodes - q.Usage.Inodes, have.Bytes - q.Usage.Bytes, have.Crossing - q.Usage.Crossing}
	return r
}

// reparent: a header says what the one name says that leads to it.
func (c *checker) reparent(h *directory, dir base.Ino, name []byte) *canopyv1.Repair {
	r := c.repair(canopyv1.RepairKind_REPAIR_PARENT, h.Ino)
	r.Version = h.Version
	r.At = repairPlace(h.Parent, h.ParentSubtree, h.Name)
	r.To = repairPlace(dir, c.subtree, bytes.Clone(name))
	return r
}

func repairPlace(dir base.Ino, subtree base.SubtreeID, name []byte) *canopyv1.RepairPlace {
	return &canopyv1.RepairPlace{Dir: uint64(dir), Subtree: uint64(subtree), Name: name}
}

// relist: a record's list names the directories where its names are; nil if some of
// them are in other subtrees.
func (c *checker) relist(n *schema.Inode, dirs []base.Ino) *canopyv1.Repair {
	if int64(n.Nlink) != int64(len(dirs)) || len(dirs) > maxRelisted {
		return nil
	}
	r := c.repair(canopyv1.RepairKind_REPAIR_NAMES, n.Ino)
	r.Version = n.Version
	for _, d := range dirs {
		r.Want = append(r.Want, int64(d))
	}
	return r
}

// maxRelisted bounds what one command carries.
const maxRelisted = 1 << 16

// dropRow: a row that belongs to nothing goes.
func (c *checker) dropRow(key, value []byte) *canopyv1.Repair {
	r := c.repair(canopyv1.RepairKind_REPAIR_ROW, 0)
	r.Key, r.Sum = bytes.Clone(key[8:]), valueSum(value)
	return r
}

func valueSum(value []byte) uint64 {
	h := fnv.New64a()
	h.Write(value)
	return h.Sum64()
}

func (c *checker) endClients() *canopyv1.Repair {
	return c.repair(canopyv1.RepairKind_REPAIR_CLIENTS, c.root)
}
