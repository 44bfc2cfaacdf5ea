package mds

import (
	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/namespace"
)

// maxFindings bounds what one check reports in full.
const maxFindings = 10000

// Fsck checks one shard on its holder: all of it as of one moment.
func (a *adminService) Fsck(request *canopyv1.FsckRequest, stream grpc.ServerStreamingServer[canopyv1.FsckFinding]) error {
	h, err := a.hosted(request.Shard)
	if err != nil {
		return stream.Send(&canopyv1.FsckFinding{Summary: true, Error: uint32(fserr.KindOf(err)), Problem: err.Error()})
	}
	only := map[base.SubtreeID]bool{}
	for _, id := range request.Subtrees {
		only[base.SubtreeID(id)] = true
	}
	var findings []*canopyv1.FsckFinding
	var edges []edge.Edge
	var sum namespace.Summary
	err = h.group.Read(stream.Context(), func(r shard.Reader) (err error) {
		findings, edges = nil, nil
		found := func(f namespace.Finding) {
			if len(findings) < maxFindings {
				findings = append(findings, &canopyv1.FsckFinding{Invariant: f.Invariant, Object: f.Object, Problem: f.Problem})
			}
		}
		if request.Edges {
			edges, sum, err = h.machine.CheckEdges(r, only, found)
		} else {
			sum, err = h.machine.Check(r, found)
		}
		return err
	})
	for _, f := range findings {
		if err := stream.Send(f); err != nil {
			return err
		}
	}
	for _, e := range edges {
		if err := stream.Send(&canopyv1.FsckFinding{Edge: edgeMessage(e)}); err != nil {
			return err
		}
	}
	last := &canopyv1.FsckFinding{
		Summary: true, Files: sum.Files, Directories: sum.Directories, Orphans: sum.Orphans, Bytes: sum.Bytes, Problems: sum.Problems,
	}
	if err != nil {
		last.Error, last.Problem = uint32(fserr.KindOf(err)), err.Error()
	}
	return stream.Send(last)
}

func edgeMessage(e edge.Edge) *canopyv1.FsckEdge {
	out := &canopyv1.FsckEdge{
		Kind: uint32(e.Kind), Subtree: uint64(e.Subtree), Epoch: uint64(e.Epoch), Ino: uint64(e.Ino), Dir: uint64(e.Dir),
		To: uint64(e.To), Top: uint64(e.Top), Name: e.Name, Border: e.Border, Count: e.Count, Lists: e.Lists, Sum: e.Sum,
	}
	out.Fragments = e.Fragments.Proto()
	for _, dir := range e.Listed {
		out.Listed = append(out.Listed, uint64(dir))
	}
	return out
}
