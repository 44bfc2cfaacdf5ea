package mds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// adminService serves api's Admin service.
type adminService struct {
	canopyv1.UnimplementedAdminServer
	server *Server
}

// errDrained ends a node that was drained by request.
var errDrained = errors.New("the node was drained and stopped by request")

// group returns the hosted shard of a request, or a gRPC error that says where
// else to ask.
func (a *adminService) hosted(id uint64) (*hosted, error) {
	if h := a.server.lookup(base.ShardID(id)); h != nil {
		return h, nil
	}
	return nil, a.server.notHosted(base.ShardID(id))
}

// ShardStatus reports what this node knows of the shards that it hosts.
func (a *adminService) ShardStatus(ctx context.Context, request *canopyv1.ShardStatusRequest) (*canopyv1.ShardStatusResponse, error) {
	shards := a.server.allHosted()
	if request.Shard != 0 {
		h, err := a.hosted(request.Shard)
		if err != nil {
			return nil, err
		}
		shards = []*hosted{h}
	}
	slices.SortFunc(shards, func(a, b *hosted) int { return cmp.Compare(a.shard, b.shard) })
	out := &canopyv1.ShardStatusResponse{}
	for _, h := range shards {
		out.Shards = append(out.Shards, h.status(ctx))
	}
	return out, nil
}

// status reports one shard; its contents only on the holder.
func (h *hosted) status(ctx context.Context) *canopyv1.ShardStatus {
	raft := h.group.Status()
	out := &canopyv1.ShardStatus{
		Shard:           uint64(h.shard),
		Replica:         uint64(raft.Replica),
		Node:            h.server.info.Node,
		Holder:          raft.Self,
		Leader:          raft.LeaderID != 0 && raft.LeaderID == raft.Replica,
		LeaderReplica:   uint64(raft.LeaderID),
		LeaseEpoch:      uint64(raft.LeaseEpoch),
		LeaseHolderNode: uint64(raft.Holder),
		AppliedIndex:    raft.Applied,
		Term:            raft.Term,
		QueueDepth:      uint64(raft.Queue),
	}
	for id := range raft.Members {
		out.Members = append(out.Members, uint64(id))
	}
	slices.Sort(out.Members)
	h.mu.Lock()
	failure := h.failure
	h.mu.Unlock()
	flushed, err := h.group.Flushed()
	out.FlushedIndex = flushed
	if failure == nil {
		failure = err
	}
	if failure != nil {
		out.Error = failure.Error()
	}
	if !raft.Self {
		return out
	}
	out.ReadOnly = h.readOnly()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err = h.group.Read(ctx, func(r shard.Reader) error { return h.count(r, out) })
	if err != nil && ctx.Err() == nil && !errors.Is(err, fserr.NotHolder) {
		out.Error = err.Error()
	}
	return out
}

// count fills in what the shard holds.
func (h *hosted) count(r shard.Reader, out *canopyv1.ShardStatus) error {
	out.Subtrees, out.Sessions, out.Orphans, out.DeletionsQueued = nil, 0, 0, 0
	if t := h.tenure(); t != nil {
		var err error
		if out.WaitingBytes, err = t.waitingBytes(r); err != nil {
			return err
		}
	}
	err := namespace.Sessions(r, h.shard, func(namespace.SessionInfo) bool { out.Sessions++; return true })
	if err != nil {
		return err
	}
	err = namespace.Subtrees(r, h.shard, func(s namespace.SubtreeInfo) bool {
		out.Subtrees = append(out.Subtrees, &canopyv1.SubtreeStatus{
			Subtree: uint64(s.Subtree), Epoch: uint64(s.Epoch), RootIno: uint64(s.Root),
			State: s.State, Files: s.Files, Directories: s.Directories, Bytes: s.Bytes,
		})
		return true
	})
	for _, s := range out.Subtrees {
		id := base.SubtreeID(s.Subtree)
		if err == nil {
			var fragments shard.FragmentMap
			fragments, err = namespace.RootFragments(r, h.shard, id, base.Ino(s.RootIno))
			s.Fragments = fragments.Proto()
		}
		if err == nil {
			err = namespace.Orphans(r, h.shard, id, 0, func(namespace.OrphanInfo) bool { out.Orphans++; return true })
		}
		if err == nil {
			err = namespace.Deletions(r, h.shard, id, 0, func(namespace.DeletionInfo) bool { out.DeletionsQueued++; return true })
		}
	}
	return err
}

// Checksum proposes a checksum entry.
func (a *adminService) Checksum(ctx context.Context, request *canopyv1.ChecksumRequest) (*canopyv1.ChecksumResponse, error) {
	h, err := a.hosted(request.Shard)
	if err == nil {
		var token, index uint64
		if token, index, err = h.group.ProposeChecksum(ctx); err == nil {
			return &canopyv1.ChecksumResponse{Token: token, Index: index}, nil
		}
	}
	return &canopyv1.ChecksumResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
}

// ReplicaChecksum waits for this replica's checksum.
func (a *adminService) ReplicaChecksum(ctx context.Context, request *canopyv1.ReplicaChecksumRequest) (*canopyv1.ReplicaChecksumResponse, error) {
	h, err := a.hosted(request.Shard)
	if err != nil {
		return &canopyv1.ReplicaChecksumResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	sum, err := h.group.ReplicaChecksum(ctx, request.Token)
	out := &canopyv1.ReplicaChecksumResponse{
		Replica: uint64(h.group.Replica()), Index: sum.Index, Checksum: sum.Sum[:],
		Keys: uint64(sum.Keys), Bytes: uint64(sum.Bytes),
	}
	if err != nil {
		out.Error, out.Detail = uint32(fserr.KindOf(err)), err.Error()
	}
	return out, nil
}

// ListSessions lists the sessions of one shard, or of all that this node holds.
func (a *adminService) ListSessions(ctx context.Context, request *canopyv1.ListSessionsRequest) (*canopyv1.ListSessionsResponse, error) {
	out := &canopyv1.ListSessionsResponse{}
	shards := a.server.allHosted()
	if request.Shard != 0 {
		h, err := a.hosted(request.Shard)
		if err != nil {
			return nil, err
		}
		if h.tenure() == nil {
			return nil, fserr.New(fserr.NotHolder, "list sessions", nil)
		}
		shards = []*hosted{h}
	}
	slices.SortFunc(shards, func(a, b *hosted) int { return cmp.Compare(a.shard, b.shard) })
	for _, h := range shards {
		t := h.tenure()
		if t == nil {
			continue
		}
		list, err := t.listSessions(ctx)
		if err != nil {
			return nil, err
		}
		out.Sessions = append(out.Sessions, list...)
	}
	return out, nil
}

func (t *tenure) listSessions(ctx context.Context) ([]*canopyv1.SessionInfo, error) {
	var out []*canopyv1.SessionInfo
	err := t.h.group.Read(ctx, func(r shard.Reader) error {
		out = nil
		err := namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			out = append(out, &canopyv1.SessionInfo{
				Client: uint64(s.Client), Shard: uint64(t.h.shard), Host: s.Host, Pid: s.PID, Mount: s.Mount, OpenedNs: s.OpenedNS,
			})
			return true
		})
		for _, s := range out {
			if err != nil {
				break
			}
			var floor base.Seq
			floor, err = namespace.Floor(r, t.h.shard, base.ClientID(s.Client))
			s.Floor = uint64(floor)
		}
		return err
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	now := int64(time.Since(t.since))
	for _, s := range out {
		if c := t.clients[base.ClientID(s.Client)]; c != nil {
			s.LastHeardMs = uint64(max(now-c.heard.Load(), 0) / int64(time.Millisecond))
			s.OpenFiles = uint64(len(c.opens.inos))
		}
	}
	return out, err
}

// Drain releases all leases of the node; with stop the node ends.
func (a *adminService) Drain(ctx context.Context, request *canopyv1.DrainRequest) (*canopyv1.DrainResponse, error) {
	s := a.server
	s.drained.Store(true)
	s.tellNode()
	s.front.SetServing(false)
	s.releaseAll(ctx)
	if request.Stop {
		s.fail(errDrained)
	}
	return &canopyv1.DrainResponse{}, nil
}

// Resume lets a drained node hold shards again. It takes none from others: it is
// elected again when one of them goes, or when a shard has no leader.
func (a *adminService) Resume(context.Context, *canopyv1.ResumeRequest) (*canopyv1.ResumeResponse, error) {
	s := a.server
	select {
	case <-s.front.Draining():
		return nil, fserr.Status(fserr.New(fserr.NotReady, "resume", errStopping))
	default:
	}
	s.drained.Store(false)
	s.tellNode()
	for _, h := range s.allHosted() {
		if !h.leaving.Load() {
			h.group.Resume()
		}
	}
	s.front.SetServing(true)
	return &canopyv1.ResumeResponse{}, nil
}

const (
	handOverTries = 5
	handOverPause = 200 * time.Millisecond // at most, between two
)

// MoveLease hands a shard that this node holds to the replica on another one.
func (a *adminService) MoveLease(ctx context.Context, request *canopyv1.MoveLeaseRequest) (*canopyv1.MoveLeaseResponse, error) {
	const op = "move lease"
	h, err := a.hosted(request.Shard)
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) (*canopyv1.MoveLeaseResponse, error) {
		return nil, fserr.Status(fserr.New(fserr.Invalid, op, fmt.Errorf(format, args...)))
	}
	// Whoever asks may not have heard who holds it: an idle shard has no holder.
	if err := h.group.Read(ctx, func(shard.Reader) error { return nil }); err != nil {
		return nil, fserr.Status(err)
	}
	node := base.NodeID(request.Node)
	if node == a.server.Node() {
		return &canopyv1.MoveLeaseResponse{}, nil
	}
	m := a.server.place.Map()
	info := m.Shard(h.shard)
	if info == nil {
		return refuse("the placement map does not have shard %v", h.shard)
	}
	r := replicaOn(info, node)
	switch n := m.Node(node); {
	case n == nil:
		return refuse("there is no node %v", node)
	case r == nil:
		return refuse("shard %v has no replica on node %v", h.shard, node)
	case r.Joining:
		return refuse("the replica of shard %v on node %v has no vote yet", h.shard, node)
	case r.Leaving:
		return refuse("the replica of shard %v on node %v is to leave", h.shard, node)
	case !n.Alive:
		return refuse("node %v does not run", node)
	case n.Drained:
		return refuse("node %v is drained", node)
	}
	// A replica on a busy machine may miss its turn; then nothing has changed.
	for try := 1; ; try++ {
		err := h.group.HandOver(ctx, base.ReplicaID(r.Replica))
		if err == nil {
			break
		}
		if try == handOverTries || !errors.Is(err, fserr.TimedOut) || !pause(ctx, rand.N(handOverPause)) {
			return nil, fserr.Status(err)
		}
	}
	a.server.log.Info("a lease was handed over by request", "shard", h.shard, "node", node)
	return &canopyv1.MoveLeaseResponse{}, nil
}
