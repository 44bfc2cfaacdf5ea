package raftgroup

import (
	"context"
	"log/slog"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// Machine is the state machine of one shard replica. Load and Apply are never
// called concurrently, and Apply only after Load.
type Machine interface {
	// Load (re)builds caches from the state. It is called at the start and after
	// a snapshot was installed. The reader is valid during the call.
	Load(r shard.Reader) error
	// Apply runs commands in order at the entry's time and returns one result
	// per command. Commands are valid during the call only; the results belong to
	// the caller from then on. An error means that this replica is broken: it
	// stops the process. Changes go through w, which sees them at once.
	Apply(w shard.Writer, timeNS int64, commands [][]byte) (results [][]byte, err error)
}

// LeaseFollower is a Machine that is to know in which lease epoch an entry is
// (PROTOCOLS D1): InEpoch is called before each Apply.
type LeaseFollower interface {
	InEpoch(epoch base.LeaseEpoch)
}

// Store is what a Host needs of the node's store. *store.Store fulfils it and
// says what the methods do.
type Store interface {
	NewSnapshot() shard.Snapshot
	NewScan() shard.Snapshot
	NewBatch() shard.Batch
	Flush(seq uint64) error
	GetDurable(key []byte) (value []byte, found bool, err error)
	Install(lo, hi []byte, fill func(set func(key, value []byte) error) error) error
	Wipe(lo, hi []byte) error
	Checksum(ctx context.Context, r shard.Reader, lo, hi []byte) (sum [32]byte, keys, bytes int64, err error)
}

// Clock tells time. SystemClock is the real one.
type Clock interface {
	// Boot is the time since the machine's boot, suspension included: the clock
	// of leases (PROTOCOLS B2).
	Boot() time.Duration
	// Wall is the wall clock.
	Wall() time.Time
}

// Config configures a Host. Zero durations and sizes take the defaults.
type Config struct {
	Dir         string // of the Raft log; one process at a time
	RaftAddress string // host:port that other nodes reach; it must not change
	// ListenAddress is where to listen if not at RaftAddress.
	ListenAddress string
	Node          base.NodeID
	Cluster       string // nodes of different clusters do not talk
	Store         Store
	Logger        *slog.Logger          // nil: none
	Registerer    prometheus.Registerer // nil: none
	Clock         Clock                 // nil: SystemClock

	LeaseDuration  time.Duration // default 1.2 s
	CommandTimeout time.Duration // default 10 s: then a command's outcome is TimedOut
	// QueueCommands and QueueBytes bound what waits per group: more is Busy.
	QueueCommands int // default 16384
	QueueBytes    int // default 64 MiB
	// SnapshotEntries and SnapshotBytes: a Raft snapshot is due after that many
	// entries or bytes of log (PROTOCOLS A5).
	SnapshotEntries uint64 // default 100,000
	SnapshotBytes   uint64 // default 256 MiB
	// CompactionOverhead is how many entries stay in the log behind a snapshot,
	// so that a replica that was away for a short time catches up by log.
	CompactionOverhead uint64 // default 20,000

	// OnHolderChange is called when this replica learns of a new holder, of its
	// release, or gains or loses the lease itself. It must not block, nor call
	// the Group.
	OnHolderChange func(shard base.ShardID, holder base.NodeID, epoch base.LeaseEpoch, self bool)
	// OnReplicaFailed is called when apply failed: the replica is broken, and the
	// process is about to stop.
	OnReplicaFailed func(shard base.ShardID, err error)

	// OnDiskFailed is called when the Raft log cannot be written, as on a disk
	// without space. Dragonboat panics when it returns; nil: at once.
	OnDiskFailed func(err error)

	plainLog bool // without logFS, to measure what it gains
	// interfere lets a test lose, delay and repeat proposals.
	interfere func(toRaft proposeFunc) proposeFunc
}

type proposeFunc = func(data []byte) (*dragonboat.RequestState, error)

// ReplicaConfig says which replica to start.
type ReplicaConfig struct {
	Shard   base.ShardID
	Replica base.ReplicaID // never re-used within the shard (PROTOCOLS A6)
	// Members are the shard's replicas, this one too. A new shard starts with
	// just these, the same on each of their nodes. With Join and on a restart they
	// only say which node a replica is on.
	Members map[base.ReplicaID]Member
	Join    bool // the replica was added to a running shard, by AddReplica or AddLearner
	// Learner: by AddLearner. It is said at every start: whether the replica has a
	// vote by now the log knows.
	Learner bool
	Machine Machine
}

// Member is one replica of a shard.
type Member struct {
	Node        base.NodeID
	RaftAddress string
}

// Status is what a replica knows of itself and of its shard.
type Status struct {
	Shard        base.ShardID
	Replica      base.ReplicaID
	Members      map[base.ReplicaID]string // Raft addresses of those with a vote
	LeaderID     base.ReplicaID            // Raft's leader, 0: none known
	Term         uint64
	Applied      uint64 // index of the last applied entry
	Holder       base.NodeID
	HolderID     base.ReplicaID
	LeaseEpoch   base.LeaseEpoch
	LeaseRenewal uint64
	Released     bool
	Self         bool          // this replica serves under the lease's epoch
	LeaseLeft    time.Duration // if Self: until the lease must be renewed, <= 0: lapsed
	Queue        int           // commands that wait
	InFlight     int           // entries proposed and not applied
	LastTimeNS   int64         // of the last entry
}

// Checksum is the checksum of a replica at one log index.
type Checksum struct {
	Sum         [32]byte
	Keys, Bytes int64
	Index       uint64
}
