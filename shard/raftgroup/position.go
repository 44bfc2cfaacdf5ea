package raftgroup

import (
	"errors"
	"fmt"

	"github.com/lni/dragonboat/v4/raftio"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// readPosition reads where a shard's state stands in the log.
func readPosition(r shard.Reader, id base.ShardID) (rec schema.Lease, applied uint64, err error) {
	raw, found, err := r.Get(schema.AppliedKey(id))
	if err == nil && found {
		applied, err = schema.DecodeUint64(raw)
	}
	if err != nil {
		return rec, 0, fmt.Errorf("applied index of shard %s: %w", id, err)
	}
	raw, found, err = r.Get(schema.LeaseKey(id))
	if err == nil && found {
		rec, err = schema.DecodeLease(raw)
	}
	if err != nil {
		return rec, 0, fmt.Errorf("lease record of shard %s: %w", id, err)
	}
	return rec, applied, nil
}

// claimRange makes the shard's range this replica's (PROTOCOLS A6): what another
// replica left is wiped before this one starts on it.
func (h *Host) claimRange(rc ReplicaConfig) (applied uint64, err error) {
	lo, hi := schema.ShardRange(rc.Shard)
	key := schema.NodeReplicaKey(rc.Shard)
	snap := h.cfg.Store.NewSnapshot()
	owner, empty := uint64(0), true
	raw, found, err := snap.Get(key)
	if err == nil && found {
		owner, err = schema.DecodeUint64(raw)
	}
	if err == nil {
		_, applied, err = readPosition(snap, rc.Shard)
	}
	if err == nil {
		err = snap.Scan(lo, hi, func([]byte, []byte) (bool, error) { empty = false; return false, nil })
	}
	if err = errors.Join(err, snap.Close()); err != nil {
		return 0, err
	}
	switch {
	case owner == uint64(rc.Replica):
		return applied, nil
	case owner > uint64(rc.Replica):
		return 0, fserr.New(fserr.Invalid, "start replica", fmt.Errorf(
			"replica %s of shard %s was followed by replica %d on this node: replica ids are never re-used", rc.Replica, rc.Shard, owner))
	case !empty:
		h.log.Warn("wiping what another replica left", "shard", uint64(rc.Shard), "replica", owner, "for", uint64(rc.Replica))
		if err := h.cfg.Store.Wipe(lo, hi); err != nil {
			return 0, err
		}
	}
	return 0, h.setOwner(rc.Shard, func(b shard.Batch) error { return b.Set(key, schema.EncodeUint64(uint64(rc.Replica))) })
}

// setOwner changes the node-local record of a shard, durably.
func (h *Host) setOwner(id base.ShardID, change func(b shard.Batch) error) error {
	b := h.cfg.Store.NewBatch()
	if err := change(b); err != nil {
		return errors.Join(err, b.Close())
	}
	seq, err := b.Commit()
	if err = errors.Join(err, b.Close()); err != nil {
		return fmt.Errorf("owner of shard %s: %w", id, err)
	}
	return h.cfg.Store.Flush(seq)
}

// shrunkBytes is more than Dragonboat leaves of a snapshot file that was
// installed, and less than the header of a stream in it.
const shrunkBytes = 1024 + snapshotHeaderBytes

// checkLog compares the state with the replica's log before Dragonboat sees
// them: it would panic the process over a state that is older than the log's
// snapshot, and over one that is newer than the log (PROTOCOLS A6). It returns the
// log's snapshot's and last index.
func (h *Host) checkLog(rc ReplicaConfig, applied uint64) (snapshot, last uint64, err error) {
	s, r := uint64(rc.Shard), uint64(rc.Replica)
	lost := func(what string) (uint64, uint64, error) {
		return 0, 0, fserr.New(fserr.IO, "start replica", fmt.Errorf(
			"replica %s of shard %s: %s: one of the two was lost or put back from an older copy; "+
				"remove this replica from the shard and add a new one", rc.Replica, rc.Shard, what))
	}
	if !h.nh.HasNodeInfo(s, r) {
		if applied > 0 {
			return lost(fmt.Sprintf("the state stands at index %d, but there is no Raft log", applied))
		}
		return 0, 0, nil
	}
	db := h.logs.db
	ss, err := db.GetSnapshot(s, r)
	if err != nil {
		return 0, 0, fmt.Errorf("shard %s: read the log's snapshot: %w", rc.Shard, err)
	}
	last = ss.Index
	st, err := db.ReadRaftState(s, r, ss.Index)
	if err != nil && !errors.Is(err, raftio.ErrNoSavedLog) {
		return 0, 0, fmt.Errorf("shard %s: read the log's state: %w", rc.Shard, err)
	}
	if err == nil && st.EntryCount > 0 {
		last = st.FirstIndex + st.EntryCount - 1
	}
	if applied > last {
		return lost(fmt.Sprintf("the state stands at index %d, but the Raft log ends at %d", applied, last))
	}
	if applied >= ss.OnDiskIndex {
		return ss.Index, last, nil
	}
	if !ss.Dummy && !ss.Witness {
		// A snapshot that was received and not yet installed brings the state.
		if fi, err := h.fs.Stat(ss.Filepath); err == nil && fi.Size() > shrunkBytes {
			return ss.Index, last, nil
		}
	}
	return lost(fmt.Sprintf("the state stands at index %d, but the Raft log begins behind its snapshot at %d", applied, ss.OnDiskIndex))
}
