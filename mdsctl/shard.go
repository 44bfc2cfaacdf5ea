package mdsctl

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// shardRow is one shard, as JSON has it.
type shardRow struct {
	Shard      uint64       `json:"shard"`
	HolderNode uint64       `json:"holder_node"` // 0: nobody holds the lease now
	LeaderNode uint64       `json:"leader_node"` // 0: no leader is known
	LeaseEpoch uint64       `json:"lease_epoch"`
	Sessions   uint64       `json:"sessions"`
	Orphans    uint64       `json:"orphans"`
	Deletions  uint64       `json:"deletions_queued"`
	Waiting    uint64       `json:"waiting_bytes"` // for deletion: df counts them as free
	QueueDepth uint64       `json:"queue_depth"`
	ReadOnly   string       `json:"read_only,omitempty"` // why it takes nothing new
	Replicas   []replicaRow `json:"replicas"`
}

type replicaRow struct {
	Replica uint64 `json:"replica"`
	Node    uint64 `json:"node"`
	Running bool   `json:"running"`
	Leader  bool   `json:"leader"`
	Holder  bool   `json:"holder"`
	Applied uint64 `json:"applied_index"`
	Flushed uint64 `json:"flushed_index"`
	Term    uint64 `json:"term"`
	Behind  uint64 `json:"behind"`            // entries behind the furthest replica
	Joining bool   `json:"joining,omitempty"` // it has no vote yet
	Leaving bool   `json:"leaving,omitempty"` // it goes when those that join have one
	Error   string `json:"error,omitempty"`
}

func shardRows(m *canopyv1.PlacementMap, reports []*inspect.NodeReport) []shardRow {
	rows := []shardRow{}
	for _, s := range m.GetShards() {
		row := shardRow{Shard: s.GetShard(), LeaseEpoch: s.GetLeaseEpoch(), Replicas: []replicaRow{}}
		row.HolderNode, row.LeaderNode = holderOf(reports, s.GetShard())
		var furthest uint64
		for _, r := range s.GetReplicas() {
			rr, st := replicaState(r, s.GetShard(), reports)
			furthest = max(furthest, rr.Applied)
			row.Replicas = append(row.Replicas, rr)
			row.LeaseEpoch = max(row.LeaseEpoch, st.GetLeaseEpoch())
			// What the holder says counts; of an idle shard, what its leader says.
			if rr.Holder || row.HolderNode == 0 && rr.Leader {
				row.Sessions, row.Orphans = st.GetSessions(), st.GetOrphans()
				row.Deletions, row.QueueDepth = st.GetDeletionsQueued(), st.GetQueueDepth()
				row.Waiting, row.ReadOnly = st.GetWaitingBytes(), st.GetReadOnly()
			}
		}
		for i := range row.Replicas {
			if r := &row.Replicas[i]; r.Running {
				r.Behind = furthest - r.Applied
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func replicaState(r *canopyv1.ReplicaInfo, shard uint64, reports []*inspect.NodeReport) (replicaRow, *canopyv1.ShardStatus) {
	row := replicaRow{Replica: r.GetReplica(), Node: r.GetNode(), Joining: r.GetJoining(), Leaving: r.GetLeaving(), Error: "the node of this replica is not in the map"}
	for _, n := range reports {
		if n.Info.GetNode() != r.GetNode() {
			continue
		}
		row.Error = "the node does not run this replica"
		if n.Err != nil {
			row.Error = "the node does not answer: " + errText(n.Err)
		}
		for _, s := range n.Shards {
			if s.GetShard() != shard || s.GetReplica() != r.GetReplica() {
				continue
			}
			row.Running, row.Error = s.GetError() == "", s.GetError()
			row.Leader, row.Holder, row.Term = s.GetLeader(), s.GetHolder(), s.GetTerm()
			row.Applied, row.Flushed = s.GetAppliedIndex(), s.GetFlushedIndex()
			return row, s
		}
	}
	return row, nil
}

func nodeText(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func writeShards(t *table, rows []shardRow) {
	t.row("SHARD", "HOLDER", "LEADER", "EPOCH", "SESSIONS", "ORPHANS", "DELETIONS", "REPLICA", "NODE", "RUNS", "APPLIED", "BEHIND", "ERROR")
	for _, s := range rows {
		head := []any{s.Shard, nodeText(s.HolderNode), nodeText(s.LeaderNode), s.LeaseEpoch, s.Sessions, s.Orphans, s.Deletions}
		for _, r := range s.Replicas {
			t.row(append(head, r.Replica, r.Node, yes(r.Running), r.Applied, r.Behind, r.Error)...)
			head = []any{" ", " ", " ", " ", " ", " ", " "}
		}
	}
}

func (a *app) shardCommand() *cobra.Command {
	return group("shard", "Shards: the Raft groups that own the namespace", a.shardCreateCommand(), a.shardReplicaCommand(), a.moveLeaseCommand(), &cobra.Command{
		Use: "ls", Short: "List shards with holders and replicas", Args: noArgs,
		Long: "List every shard with the node that holds its lease, the node whose replica leads,\nand each replica with the log index that it has applied.\n\n" +
			"An idle shard may have no holder: the next request makes one.",
		Example: "  mdsctl shard ls\n  mdsctl shard ls -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				rows := shardRows(cl.Map(), cl.Nodes(c.Context()))
				return a.emit(rows, func(t *table) { writeShards(t, rows) })
			})
		},
	})
}

// checksumReport is the outcome of `checksum`, as JSON has it.
type checksumReport struct {
	Shard    uint64   `json:"shard"`
	Index    uint64   `json:"index"` // of the log, at which all computed
	Equal    bool     `json:"equal"`
	Replicas []sumRow `json:"replicas"`
}

type sumRow struct {
	Replica  uint64 `json:"replica"`
	Node     uint64 `json:"node"`
	Index    uint64 `json:"index"`
	Checksum string `json:"checksum,omitempty"` // SHA-256, hexadecimal
	Keys     uint64 `json:"keys"`
	Bytes    uint64 `json:"bytes"`
	Error    string `json:"error,omitempty"`
}

func (a *app) checksumCommand() *cobra.Command {
	return &cobra.Command{
		Use: "checksum [SHARD]", Short: "Compare the replicas of a shard, or of all, byte by byte", Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneArg("SHARD")(c, args)
		},
		Long: "The shard's holder puts a checksum command into the log; every replica computes SHA-256\nover all keys and values of the shard at just that point. Says \"equal\" or \"DIFFERENT\".\n\n" +
			"Exit code 1 if they differ or if a replica gave none.",
		Example: "  mdsctl checksum\n  mdsctl checksum 1",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.checksumAll(c.Context())
			}
			return a.checksum(c.Context(), args[0])
		},
	}
}

func (a *app) checksum(ctx context.Context, arg string) error {
	shard, err := base.ParseShardID(arg)
	if err != nil {
		return err
	}
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r, verdict, err := checksumOf(ctx, cl, shard)
		if err != nil {
			return err
		}
		return errors.Join(a.emit(r, func(t *table) { writeSums(t, r) }), verdict)
	})
}

// checksumAll compares the replicas of every shard: one that cannot be compared
// does not keep the others from it.
func (a *app) checksumAll(ctx context.Context) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		rows := []checksumReport{}
		var failures []error
		for _, s := range cl.Map().GetShards() {
			r, verdict, err := checksumOf(ctx, cl, base.ShardID(s.GetShard()))
			if err == nil {
				rows = append(rows, r)
			}
			failures = append(failures, err, verdict)
		}
		err := a.emit(rows, func(t *table) {
			for _, r := range rows {
				writeSums(t, r)
			}
		})
		return errors.Join(append(failures, err)...)
	})
}

// checksumOf compares the replicas of a shard; verdict says in words what is wrong
// with them.
func checksumOf(ctx context.Context, cl *inspect.Cluster, shard base.ShardID) (r checksumReport, verdict, err error) {
	index, sums, err := cl.Checksum(ctx, shard)
	if err != nil {
		return r, nil, err
	}
	r, missing, different := compareSums(shard, index, sums)
	switch {
	case different:
		verdict = fmt.Errorf("the replicas of shard %v are DIFFERENT: keep their data directories, and rebuild the one that disagrees with the others", shard)
	case missing > 0:
		verdict = fmt.Errorf("%d of %d replicas of shard %v gave no checksum: see mdsctl shard ls", missing, len(sums), shard)
	}
	return r, verdict, nil
}

func compareSums(shard base.ShardID, index uint64, sums []*inspect.ReplicaSum) (r checksumReport, missing int, different bool) {
	r = checksumReport{Shard: uint64(shard), Index: index}
	first := ""
	for _, s := range sums {
		row := sumRow{Replica: uint64(s.Replica), Node: uint64(s.Node), Error: errText(s.Err)}
		if s.Err == nil {
			row.Index, row.Checksum = s.Answer.GetIndex(), hex.EncodeToString(s.Answer.GetChecksum())
			row.Keys, row.Bytes = s.Answer.GetKeys(), s.Answer.GetBytes()
			if first == "" {
				first = row.Checksum
			}
			different = different || row.Checksum != first
		} else {
			missing++
		}
		r.Replicas = append(r.Replicas, row)
	}
	r.Equal = !different && missing == 0
	return r, missing, different
}

func writeSums(t *table, r checksumReport) {
	t.row("REPLICA", "NODE", "INDEX", "KEYS", "BYTES", "SHA-256", "ERROR")
	for _, s := range r.Replicas {
		t.row(s.Replica, s.Node, s.Index, s.Keys, s.Bytes, s.Checksum, s.Error)
	}
	verdict := "DIFFERENT"
	if r.Equal {
		verdict = "equal"
	} else if !anyDifferent(r) {
		verdict = "equal as far as replicas answered"
	}
	t.title(fmt.Sprintf("shard %d at index %d: %s", r.Shard, r.Index, verdict))
}

func anyDifferent(r checksumReport) bool {
	first := ""
	for _, s := range r.Replicas {
		if s.Checksum != "" && first == "" {
			first = s.Checksum
		}
		if s.Checksum != "" && s.Checksum != first {
			return true
		}
	}
	return false
}
