package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// The functions below are for the shard's holder. Each scans r in key order and
// calls fn until it returns false; all return an error only when the state cannot
// be read. What fn is given is its own. fn must not use r.

// SubtreeInfo is the state of one subtree and its counters.
type SubtreeInfo struct {
	Subtree     base.SubtreeID
	Epoch       base.Epoch
	State       string // "active", "frozen", "importing", "handed-off"
	Root        base.Ino
	Files       uint64 // inodes with a name that are no directories
	Directories uint64
	Bytes       uint64 // sizes of the files
}

// Subtrees lists the subtrees that the shard knows.
func Subtrees(r shard.Reader, id base.ShardID, fn func(SubtreeInfo) bool) error {
	var all []SubtreeInfo
	err := eachSubtree(r, id, func(subtree base.SubtreeID, s schema.Subtree) {
		all = append(all, SubtreeInfo{Subtree: subtree, Epoch: s.Epoch, State: s.State.String(), Root: s.Root})
	})
	if err != nil {
		return err
	}
	for _, s := range all {
		c, err := countersOf(r, id, s.Subtree)
		if err != nil {
			return err
		}
		s.Files, s.Directories, s.Bytes = c.Files, c.Directories, c.Bytes
		if !fn(s) {
			return nil
		}
	}
	return nil
}

// RootFragments returns the fragments of a subtree's root, as the subtree knows them, if
// it is one of several or was one; nil if the whole directory lies in it.
func RootFragments(r shard.Reader, id base.ShardID, subtree base.SubtreeID, root base.Ino) (shard.FragmentMap, error) {
	value, found, err := r.Get(schema.HeaderKey(id, subtree, root))
	if err != nil || !found {
		return nil, err
	}
	h, err := schema.DecodeHeader(value)
	if err != nil || !h.Fragments.Split() && h.Fragments.Home() == subtree {
		return nil, err
	}
	return h.Fragments, nil
}

// OrphanInfo is an inode without a name.
type OrphanInfo struct {
	Subtree   base.SubtreeID
	Ino       base.Ino
	SinceNS   int64 // when it lost its last name
	Directory bool
	Bytes     uint64 // that one copy of its data takes
}

// Orphans lists the orphans of a subtree above ino after (PROTOCOLS H2).
func Orphans(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.Ino, fn func(OrphanInfo) bool) error {
	lo, hi := above(id, subtree, schema.KindOrphan, schema.OrphanKey(id, subtree, after+1))
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if !schema.IsSelf(key) {
			return true, nil // an xattr
		}
		o, err := schema.DecodeOrphan(value)
		if err != nil {
			return false, err
		}
		ino, _, _ := schema.InoOf(key)
		info := OrphanInfo{Subtree: subtree, Ino: base.Ino(ino), SinceNS: o.SinceNS, Directory: o.Inode == nil}
		if o.Inode != nil {
			info.Bytes = o.Inode.AllocatedBytes
		}
		return fn(info), nil
	})
}

// above returns the keys of a kind from first on.
func above(id base.ShardID, subtree base.SubtreeID, kind schema.Kind, first []byte) (lo, hi []byte) {
	_, hi = schema.KindRange(id, subtree, kind)
	return first, hi
}

// RelocationInfo says where an inode went.
type RelocationInfo struct {
	Subtree   base.SubtreeID
	Ino       base.Ino
	SinceNS   int64 // when it last moved
	To        *canopyv1.Place
	ToSubtree base.SubtreeID
}

// Relocations lists the relocations of a subtree above ino after (PROTOCOLS H1).
func Relocations(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.Ino, fn func(RelocationInfo) bool) error {
	lo, hi := above(id, subtree, schema.KindRelocation, schema.RelocationKey(id, subtree, after+1))
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		x, err := schema.DecodeRelocation(value)
		if err != nil {
			return false, err
		}
		ino, _, _ := schema.InoOf(key)
		to := &canopyv1.Place{Ino: ino, Dir: uint64(x.Dir), Name: x.Name}
		return fn(RelocationInfo{subtree, base.Ino(ino), x.SinceNS, to, x.Subtree}), nil
	})
}

// DeletionInfo is data that is to be deleted.
type DeletionInfo struct {
	Subtree base.SubtreeID
	DataID  base.DataID
	Layout  *canopyv1.Layout
	// SizeBytes bounds where columns can be; MaxFileSize when the file was
	// truncated, or a client may have written bytes that it never reported.
	SizeBytes uint64
	SinceNS   int64
}

// Deletions lists the deletion queue of a subtree above data id after (PROTOCOLS H3).
func Deletions(r shard.Reader, id base.ShardID, subtree base.SubtreeID, after base.DataID, fn func(DeletionInfo) bool) error {
	lo, hi := above(id, subtree, schema.KindDeletion, schema.DeletionKey(id, subtree, after+1))
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		x, err := schema.DecodeDeletion(value)
		if err != nil {
			return false, err
		}
		data, _, _ := schema.InoOf(key)
		return fn(DeletionInfo{subtree, base.DataID(data), x.Layout.Proto(), x.SizeBytes, x.SinceNS}), nil
	})
}

// CutInfo is a file with cuts that the data servers may not all know. When they
// do, a CutDoneCommand with Place, DataID and SizeEpoch drops them.
type CutInfo struct {
	Subtree   base.SubtreeID
	Place     *canopyv1.Place
	DataID    base.DataID
	Layout    *canopyv1.Layout
	SizeEpoch uint64
	Cuts      []*canopyv1.Cut
	// OldSizeBytes bounds where reported bytes can be.
	OldSizeBytes uint64
}

// maxCutsListed bounds what one call of Cuts gathers before it resolves places.
const maxCutsListed = 4096

// Cuts lists the files of a subtree with cuts, above ino after (PROTOCOLS J1), at
// most 4,096 in one call.
func (m *Machine) Cuts(r shard.Reader, subtree base.SubtreeID, after base.Ino, fn func(CutInfo) bool) error {
	var places []*canopyv1.Place
	lo, hi := above(m.cfg.Shard, subtree, schema.KindCut, schema.CutKey(m.cfg.Shard, subtree, after+1))
	err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		p, err := locatorPlace(key, value)
		places = append(places, p)
		return len(places) < maxCutsListed, err
	})
	if err != nil {
		return err
	}
	v, err := m.holderView(r, subtree)
	if err != nil {
		return err
	}
	for _, p := range places {
		o, err := v.resolve(p)
		if isElsewhere(err) {
			continue // carved out
		}
		if err != nil {
			return brokenState(err, p)
		}
		if o.isDir() {
			continue
		}
		a := v.inodeAttr(o.inode)
		if !fn(CutInfo{subtree, o.place(), o.inode.DataID, a.Layout, a.SizeEpoch, a.Cuts, o.inode.HighBytes}) {
			return nil
		}
	}
	return nil
}

// SessionInfo is one client's session at the shard.
type SessionInfo struct {
	Client   base.ClientID
	Host     string
	PID      uint32
	Mount    string
	OpenedNS int64
}

// Sessions lists the open sessions (PROTOCOLS C3).
func Sessions(r shard.Reader, id base.ShardID, fn func(SessionInfo) bool) error {
	lo, hi := schema.KindRange(id, base.ShardMeta, schema.KindSession)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		s, err := schema.DecodeSession(value)
		if err != nil {
			return false, err
		}
		client, _, _ := schema.InoOf(key)
		return fn(SessionInfo{base.ClientID(client), s.Host, s.PID, s.Mount, s.OpenedNS}), nil
	})
}

// Floor returns a client's floor: the highest of those in the shard's subtrees, 0
// for a client without results (PROTOCOLS C2). It reads the client's results.
func Floor(r shard.Reader, id base.ShardID, client base.ClientID) (base.Seq, error) {
	var subtrees []base.SubtreeID
	if err := eachSubtree(r, id, func(s base.SubtreeID, _ schema.Subtree) { subtrees = append(subtrees, s) }); err != nil {
		return 0, err
	}
	var floor base.Seq
	for _, subtree := range subtrees {
		lo, hi := schema.ResultsRange(id, subtree, client)
		err := r.Scan(lo, hi, func(_, value []byte) (bool, error) {
			x, err := schema.DecodeResults(value)
			if err != nil {
				return false, err
			}
			floor = max(floor, x.Floor)
			return true, nil
		})
		if err != nil {
			return 0, err
		}
	}
	return floor, nil
}

// Locate resolves a place in a subtree as operations do: along relocations,
// to orphans and de-inlined inodes. It returns the inode's present place, or an
// error of kind Stale or NotFound, or a MovedError.
func (m *Machine) Locate(r shard.Reader, subtree base.SubtreeID, place *canopyv1.Place) (*canopyv1.Place, error) {
	v, err := m.holderView(r, subtree)
	if err != nil {
		return nil, err
	}
	o, err := v.resolve(place)
	if err = movedError(err, place); err != nil {
		return nil, fserr.New(fserr.KindOf(err), "locate", err)
	}
	return o.place(), nil
}
