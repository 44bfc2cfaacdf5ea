package inspect

import (
	"context"
	"errors"
	"io"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
)

// looks is how often subtrees are looked at whose borders do not agree.
const looks = 4

// Fsck checks one shard at its holder. found is called for each message that is no
// summary; the summary is returned.
func (c *Cluster) Fsck(ctx context.Context, request *canopyv1.FsckRequest, found func(*canopyv1.FsckFinding)) (summary *canopyv1.FsckFinding, err error) {
	err = c.onHolder(ctx, base.ShardID(request.GetShard()), fsckTimeout, func(ctx context.Context, a canopyv1.AdminClient) error {
		s, err := a.Fsck(ctx, request)
		if err != nil {
			return err
		}
		for {
			f, err := s.Recv()
			switch {
			case errors.Is(err, io.EOF) && summary == nil:
				return errors.New("the node ended the check without a summary")
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case f.GetError() != 0:
				return kindError(f.GetError(), f.GetProblem())
			case f.GetSummary():
				summary = f
			default:
				found(f)
			}
		}
	})
	return summary, err
}

// Tree checks the whole namespace at all shards, each as of one moment. What a shard
// finds by itself is so; shard is called with that. What two shards say that does not
// agree may be a change between the moments: it is looked at again after settle, and
// counts if it is there twice. Memory grows with what lies at the borders of
// subtrees.
func (c *Cluster) Tree(ctx context.Context, settle time.Duration, shard func(base.ShardID, *canopyv1.FsckFinding, []*canopyv1.FsckFinding)) (edge.Result, error) {
	var edges []edge.Edge
	for _, s := range c.m.GetShards() {
		var findings []*canopyv1.FsckFinding
		summary, err := c.shardEdges(ctx, s.GetShard(), nil, &edges, func(f *canopyv1.FsckFinding) { findings = append(findings, f) })
		if err != nil {
			return edge.Result{}, err
		}
		shard(base.ShardID(s.GetShard()), summary, findings)
	}
	confirmed := edge.Result{}
	suspected := edge.Join(edges)
	confirmed.Hints = suspected.Hints
	for look := 1; look < looks && len(suspected.Findings) > 0; look++ {
		select {
		case <-ctx.Done():
			return edge.Result{}, ctx.Err()
		case <-time.After(settle):
		}
		again := map[base.SubtreeID]bool{}
		for _, f := range suspected.Findings {
			for _, id := range f.Subtrees {
				again[id] = true
			}
		}
		var err error
		if edges, err = c.lookAgain(ctx, edges, again); err != nil {
			return edge.Result{}, err
		}
		now := edge.Join(edges)
		var fresh []edge.Finding
		for _, f := range now.Findings {
			switch {
			case holds(confirmed.Findings, f):
			case holds(suspected.Findings, f):
				confirmed.Findings = append(confirmed.Findings, f)
			default:
				fresh = append(fresh, f)
			}
		}
		suspected.Findings, confirmed.Hints = fresh, now.Hints
	}
	return confirmed, nil
}

func holds(all []edge.Finding, f edge.Finding) bool {
	for _, x := range all {
		if x.Invariant == f.Invariant && x.Ino == f.Ino {
			return true
		}
	}
	return false
}

// lookAgain replaces the edges of some subtrees by what they are now.
func (c *Cluster) lookAgain(ctx context.Context, edges []edge.Edge, subtrees map[base.SubtreeID]bool) ([]edge.Edge, error) {
	var kept []edge.Edge
	for _, e := range edges {
		if !subtrees[e.Subtree] {
			kept = append(kept, e)
		}
	}
	for _, s := range c.m.GetShards() {
		if _, err := c.shardEdges(ctx, s.GetShard(), subtrees, &kept, func(*canopyv1.FsckFinding) {}); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// shardEdges checks one shard, or some subtrees of it, and adds its edges.
func (c *Cluster) shardEdges(ctx context.Context, shard uint64, only map[base.SubtreeID]bool, edges *[]edge.Edge, found func(*canopyv1.FsckFinding)) (*canopyv1.FsckFinding, error) {
	request := &canopyv1.FsckRequest{Shard: shard, Edges: true}
	for id := range only {
		request.Subtrees = append(request.Subtrees, uint64(id))
	}
	return c.Fsck(ctx, request, func(f *canopyv1.FsckFinding) {
		if e := f.GetEdge(); e != nil {
			*edges = append(*edges, edgeOf(shard, e))
		} else {
			found(f)
		}
	})
}

func edgeOf(at uint64, m *canopyv1.FsckEdge) edge.Edge {
	e := edge.Edge{
		Kind: edge.Kind(m.GetKind()), Shard: base.ShardID(at), Subtree: base.SubtreeID(m.GetSubtree()), Epoch: base.Epoch(m.GetEpoch()),
		Ino: base.Ino(m.GetIno()), Dir: base.Ino(m.GetDir()), To: base.SubtreeID(m.GetTo()), Top: base.Ino(m.GetTop()),
		Name: m.GetName(), Border: m.GetBorder(), Count: m.GetCount(), Lists: m.GetLists(), Sum: m.GetSum(),
	}
	for _, f := range m.GetFragments() { // whatever is wrong with it, Join says
		e.Fragments = append(e.Fragments, shard.Fragment{Lo: f.GetLo(), Subtree: base.SubtreeID(f.GetSubtree())})
	}
	for _, dir := range m.GetListed() {
		e.Listed = append(e.Listed, base.Ino(dir))
	}
	return e
}
