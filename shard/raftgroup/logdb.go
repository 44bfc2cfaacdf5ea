package raftgroup

import (
	"sync"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	pb "github.com/lni/dragonboat/v4/raftpb"
)

// logFactory opens tan for Dragonboat, keeps hold of it (checkLog reads it), and
// puts logDB in front.
type logFactory struct {
	config.LogDBFactory
	db      raftio.ILogDB
	arrived arrivedFunc
}

// arrivedFunc is told which entries of a replica are about to be saved.
type arrivedFunc = func(shardID, replicaID, first, last uint64)

func (f *logFactory) Create(c config.NodeHostConfig, cb config.LogDBCallback, dirs, wals []string) (raftio.ILogDB, error) {
	db, err := f.LogDBFactory.Create(c, cb, dirs, wals)
	if err != nil {
		return nil, err
	}
	f.db = &logDB{ILogDB: db, arrived: f.arrived, states: make(map[raftio.NodeInfo]pb.State)}
	return f.db, nil
}

// logDB spares tan a flush per entry. Dragonboat leaves the state of an update
// empty if it did not change. tan remembers what it was given last, also an empty
// one, and takes the step from that to the next commit index for a new term or
// vote, which must be flushed: so each entry costs a second flush, and on a
// follower so do messages alone. Given the state again tan sees what changed.
//
// It also tells when entries arrive (arrivals).
type logDB struct {
	raftio.ILogDB
	arrived arrivedFunc
	mu      sync.Mutex
	states  map[raftio.NodeInfo]pb.State // the last that was not empty
}

// SaveRaftState saves updates; the caller's are not changed.
func (l *logDB) SaveRaftState(updates []pb.Update, worker uint64) error {
	for _, u := range updates {
		if n := len(u.EntriesToSave); n > 0 {
			l.arrived(u.ShardID, u.ReplicaID, u.EntriesToSave[0].Index, u.EntriesToSave[n-1].Index)
		}
	}
	full := make([]pb.Update, len(updates))
	l.mu.Lock()
	for i, u := range updates {
		id := raftio.NodeInfo{ShardID: u.ShardID, ReplicaID: u.ReplicaID}
		if pb.IsEmptyState(u.State) {
			u.State = l.states[id]
		} else {
			l.states[id] = u.State
		}
		full[i] = u
	}
	l.mu.Unlock()
	return l.ILogDB.SaveRaftState(full, worker)
}

// RemoveNodeData forgets a replica.
func (l *logDB) RemoveNodeData(shardID, replicaID uint64) error {
	l.forget(shardID, replicaID)
	return l.ILogDB.RemoveNodeData(shardID, replicaID)
}

// ImportSnapshot replaces a replica's log.
func (l *logDB) ImportSnapshot(ss pb.Snapshot, replicaID uint64) error {
	l.forget(ss.ShardID, replicaID)
	return l.ILogDB.ImportSnapshot(ss, replicaID)
}

func (l *logDB) forget(shardID, replicaID uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.states, raftio.NodeInfo{ShardID: shardID, ReplicaID: replicaID})
}
