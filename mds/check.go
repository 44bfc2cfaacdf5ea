package mds

import (
	"errors"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/namespace"
)

const (
	// maxFindings bounds what one check reports in full.
	maxFindings = 10000
	// progressEvery is how often a check tells how far it is.
	progressEvery = time.Second
	// maxRepairs bounds one request.
	maxRepairs = 1000
)

// check is one check that runs, and its stream.
type check struct {
	stream  grpc.ServerStreamingServer[canopyv1.FsckFinding]
	request *canopyv1.FsckRequest
	whole   func() error // whether what is read is still one state
	begun   time.Time
	told    time.Time
	rows    uint64
	sent    int
	failure error // of the stream
}

// Fsck checks one shard on its holder: all of it as of one moment. What it finds it
// sends as it goes, so that it keeps nothing.
func (a *adminService) Fsck(request *canopyv1.FsckRequest, stream grpc.ServerStreamingServer[canopyv1.FsckFinding]) error {
	h, err := a.hosted(request.Shard)
	if err != nil {
		return stream.Send(&canopyv1.FsckFinding{Summary: true, Error: uint32(fserr.KindOf(err)), Problem: err.Error()})
	}
	now := time.Now()
	c := &check{stream: stream, request: request, begun: now, told: now}
	sum, err := c.run(h)
	if c.failure != nil {
		return c.failure
	}
	last := &canopyv1.FsckFinding{
		Summary: true, Files: sum.Files, Directories: sum.Directories, Orphans: sum.Orphans, Bytes: sum.Bytes, Problems: sum.Problems, Rows: c.rows,
	}
	if err != nil {
		last.Error, last.Problem = uint32(fserr.KindOf(err)), err.Error()
	}
	return stream.Send(last)
}

// run checks a view, which stays what it is however the lease goes: findings are of
// a state that the shard had, whoever holds it at the end.
func (c *check) run(h *hosted) (sum namespace.Summary, err error) {
	view, err := h.group.TakeView(c.stream.Context())
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	c.whole = view.Whole
	if c.request.Edges {
		look := namespace.Look{Only: map[base.SubtreeID]bool{}, Found: c.found, Edge: c.edge, Progress: c.progress}
		for _, id := range c.request.Subtrees {
			look.Only[base.SubtreeID(id)] = true
		}
		return h.machine.CheckSubtrees(view, look)
	}
	return h.machine.Check(view, c.found)
}

func (c *check) send(m *canopyv1.FsckFinding) {
	if c.failure == nil {
		c.failure = c.stream.Send(m)
	}
}

func (c *check) found(f namespace.Finding) {
	if c.sent++; c.sent <= maxFindings {
		c.send(&canopyv1.FsckFinding{Invariant: f.Invariant, Object: f.Object, Problem: f.Problem, Repair: f.Repair})
	}
}

func (c *check) edge(e edge.Edge) error {
	c.send(&canopyv1.FsckFinding{Edge: edgeMessage(e)})
	return c.failure
}

// progress slows the check down to what was asked for, so that the shard's clients do
// not feel it, and ends it when nobody listens any more.
func (c *check) progress(rows uint64) error {
	c.rows += rows
	if err := c.whole(); err != nil {
		return err
	}
	now := time.Now()
	if c.request.Progress && now.Sub(c.told) >= progressEvery {
		c.told = now
		c.send(&canopyv1.FsckFinding{Rows: c.rows})
	}
	ctx := c.stream.Context()
	if rate := c.request.RowsPerSecond; rate > 0 {
		due := c.begun.Add(time.Duration(float64(c.rows) / float64(rate) * float64(time.Second)))
		if wait := due.Sub(now); wait > 0 && !pause(ctx, wait) {
			return ctx.Err()
		}
	}
	return errors.Join(c.failure, ctx.Err())
}

func edgeMessage(e edge.Edge) *canopyv1.FsckEdge {
	out := &canopyv1.FsckEdge{
		Kind: uint32(e.Kind), Subtree: uint64(e.Subtree), Epoch: uint64(e.Epoch), Ino: uint64(e.Ino), Dir: uint64(e.Dir),
		To: uint64(e.To), Top: uint64(e.Top), Name: e.Name, Border: e.Border, Count: e.Count, Lists: e.Lists, Sum: e.Sum,
		Peer: uint64(e.Peer), Version: e.Version, Links: e.Links,
	}
	out.Fragments = e.Fragments.Proto()
	for _, dir := range e.Listed {
		out.Listed = append(out.Listed, uint64(dir))
	}
	return out
}
