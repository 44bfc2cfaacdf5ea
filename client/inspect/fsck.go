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

// TreeOptions says how a check of the whole namespace goes.
type TreeOptions struct {
	Settle        time.Duration // after which what does not agree is looked at again
	RowsPerSecond uint64        // at each shard; 0: as fast as it goes
	// Shard is called with what each shard finds by itself, which is so.
	Shard func(base.ShardID, *canopyv1.FsckFinding, []*canopyv1.FsckFinding)
	// Progress is called while a shard is checked, with the rows read so far; nil: no.
	Progress func(shard base.ShardID, rows uint64)
}

// Fsck checks one shard at its holder. begin is called before the first message, and
// again if another holder begins anew; found for each message that is no summary; the
// summary is returned.
func (c *Cluster) Fsck(ctx context.Context, request *canopyv1.FsckRequest, begin func(), found func(*canopyv1.FsckFinding)) (summary *canopyv1.FsckFinding, err error) {
	err = c.onHolder(ctx, base.ShardID(request.GetShard()), fsckTimeout, func(ctx context.Context, a canopyv1.AdminClient) error {
		begin()
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

// Tree checks the whole namespace at all shards, each as of one moment. What two shards
// say that does not agree may be a change between the moments: it is looked at again
// after a time, and counts if it is there twice. Memory grows with what lies at the
// borders of subtrees.
func (c *Cluster) Tree(ctx context.Context, o TreeOptions) (edge.Result, error) {
	var edges []edge.Edge
	for _, s := range c.m.GetShards() {
		look := treeLook{TreeOptions: o, shard: s.GetShard()}
		summary, err := c.shardEdges(ctx, &look)
		if err != nil {
			return edge.Result{}, err
		}
		edges = append(edges, look.edges...)
		o.Shard(base.ShardID(s.GetShard()), summary, look.findings)
	}
	confirmed := edge.Result{}
	suspected := c.joined(edges)
	confirmed.Hints = suspected.Hints
	for look := 1; look < looks && len(suspected.Findings) > 0; look++ {
		select {
		case <-ctx.Done():
			return edge.Result{}, ctx.Err()
		case <-time.After(o.Settle):
		}
		again := map[base.SubtreeID]bool{}
		for _, f := range suspected.Findings {
			for _, id := range f.Subtrees {
				again[id] = true
			}
		}
		var err error
		if edges, err = c.lookAgain(ctx, o, edges, again); err != nil {
			return edge.Result{}, err
		}
		if err := c.Refresh(ctx); err != nil {
			return edge.Result{}, err
		}
		now := c.joined(edges)
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

// joined compares edges with each other, and with the placement map.
func (c *Cluster) joined(edges []edge.Edge) edge.Result {
	r := edge.Join(edges)
	routes := map[base.SubtreeID]edge.RouteOf{}
	for _, s := range c.m.GetSubtrees() {
		routes[base.SubtreeID(s.GetSubtree())] = edge.RouteOf{Shard: base.ShardID(s.GetShard()), Epoch: base.Epoch(s.GetEpoch())}
	}
	r.Findings = append(r.Findings, edge.JoinRoutes(edges, routes)...)
	return r
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
func (c *Cluster) lookAgain(ctx context.Context, o TreeOptions, edges []edge.Edge, subtrees map[base.SubtreeID]bool) ([]edge.Edge, error) {
	var kept []edge.Edge
	for _, e := range edges {
		if !subtrees[e.Subtree] {
			kept = append(kept, e)
		}
	}
	for _, s := range c.m.GetShards() {
		look := treeLook{TreeOptions: o, shard: s.GetShard(), only: subtrees}
		if _, err := c.shardEdges(ctx, &look); err != nil {
			return nil, err
		}
		kept = append(kept, look.edges...)
	}
	return kept, nil
}

// treeLook is one check of one shard, or of some subtrees of it.
type treeLook struct {
	TreeOptions
	shard    uint64
	only     map[base.SubtreeID]bool // none: all
	edges    []edge.Edge
	findings []*canopyv1.FsckFinding
}

func (c *Cluster) shardEdges(ctx context.Context, look *treeLook) (*canopyv1.FsckFinding, error) {
	request := &canopyv1.FsckRequest{Shard: look.shard, Edges: true, RowsPerSecond: look.RowsPerSecond, Progress: look.Progress != nil}
	for id := range look.only {
		request.Subtrees = append(request.Subtrees, uint64(id))
	}
	begin := func() { look.edges, look.findings = nil, nil }
	return c.Fsck(ctx, request, begin, func(f *canopyv1.FsckFinding) {
		switch e := f.GetEdge(); {
		case e != nil:
			look.edges = append(look.edges, edgeOf(look.shard, e))
		case f.GetRows() == 0:
			look.findings = append(look.findings, f)
		case look.Progress != nil:
			look.Progress(base.ShardID(look.shard), f.GetRows())
		}
	})
}

func edgeOf(at uint64, m *canopyv1.FsckEdge) edge.Edge {
	e := edge.Edge{
		Kind: edge.Kind(m.GetKind()), Shard: base.ShardID(at), Subtree: base.SubtreeID(m.GetSubtree()), Epoch: base.Epoch(m.GetEpoch()),
		Ino: base.Ino(m.GetIno()), Dir: base.Ino(m.GetDir()), To: base.SubtreeID(m.GetTo()), Top: base.Ino(m.GetTop()),
		Name: m.GetName(), Border: m.GetBorder(), Count: m.GetCount(), Lists: m.GetLists(), Sum: m.GetSum(),
		Peer: base.ShardID(m.GetPeer()), Version: m.GetVersion(), Links: m.GetLinks(),
	}
	for _, f := range m.GetFragments() { // whatever is wrong with it, Join says
		e.Fragments = append(e.Fragments, shard.Fragment{Lo: f.GetLo(), Subtree: base.SubtreeID(f.GetSubtree())})
	}
	for _, dir := range m.GetListed() {
		e.Listed = append(e.Listed, base.Ino(dir))
	}
	return e
}
