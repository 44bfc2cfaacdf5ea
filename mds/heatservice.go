package mds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/heat"
	"github.com/canopyfs/canopy/shard/namespace"
)

const (
	defaultHeatWindow = time.Minute
	defaultHeatLimit  = 20
	maxHeatLimit      = 1000
)

// Heat answers what keeps the shards busy that this node holds.
func (a *adminService) Heat(ctx context.Context, request *canopyv1.HeatRequest) (*canopyv1.HeatResponse, error) {
	half := cmp.Or(time.Duration(request.HalfLifeSeconds)*time.Second, defaultHeatWindow)
	window := slices.Index(heat.HalfLives[:], half)
	if window < 0 {
		return nil, fserr.New(fserr.Malformed, "heat", fmt.Errorf("there is no half-life of %v: want one of %v", half, heat.HalfLives))
	}
	limit := min(cmp.Or(int(request.Limit), defaultHeatLimit), maxHeatLimit)
	shards := a.server.allHosted()
	if request.Shard != 0 {
		h, err := a.hosted(request.Shard)
		if err != nil {
			return nil, err
		}
		if h.tenure() == nil {
			return nil, fserr.New(fserr.NotHolder, "heat", nil)
		}
		shards = []*hosted{h}
	}
	slices.SortFunc(shards, func(a, b *hosted) int { return cmp.Compare(a.shard, b.shard) })
	out := &canopyv1.HeatResponse{}
	for _, h := range shards {
		t := h.tenure()
		if t == nil {
			continue
		}
		s, err := t.topHeat(ctx, window, limit)
		switch {
		case err == nil:
			out.Shards = append(out.Shards, s)
		case request.Shard != 0 || !fserr.KindOf(err).IsProtocol():
			return nil, err
		}
	}
	return out, nil
}

// topHeat tells what the term has counted, and what the shard has of it now.
func (t *tenure) topHeat(ctx context.Context, window, limit int) (*canopyv1.ShardHeat, error) {
	var top *heat.Top
	t.heat.read(func(s *heat.Sketch, now time.Duration) { top = s.Top(now, window, limit) })
	out := &canopyv1.ShardHeat{
		Shard: uint64(t.h.shard), Node: uint64(t.h.server.Node()), LeaseEpoch: uint64(t.epoch), Off: !t.h.server.heat.Load(),
		SinceSeconds: top.Since.Seconds(), HalfLifeSeconds: uint32(heat.HalfLives[window] / time.Second), Total: heatRates(&top.Total),
		OtherDirOpsPerSecond: top.OverDirs, OtherClientOpsPerSecond: top.OverClients, OtherPairOpsPerSecond: top.OverPairs,
		LostOps: t.heat.lost.Load(), QueueCommands: uint64(t.h.group.Status().Queue), ReadOnly: t.h.readOnly(),
	}
	for _, o := range top.Ops {
		out.Ops = append(out.Ops, &canopyv1.OpHeat{Op: opType(o.Op).String(), OpsPerSecond: o.Ops, LatencySecondsPerSecond: o.Latency,
			ServeSecondsPerSecond: o.Serve, QueueSecondsPerSecond: o.Queue, ConflictSecondsPerSecond: o.Conflict})
	}
	for i := range top.Dirs {
		d := &top.Dirs[i]
		x := &canopyv1.DirHeat{Ino: uint64(d.Ino), Subtree: uint64(d.Subtree), Rates: heatRates(&d.Rates), Names: d.Names, Clients: heatPairs(d.Clients)}
		if d.Rates.Ops[heat.Create]+d.Rates.Ops[heat.Rename] > 0 {
			x.CreateOpsPerSecondByHash = d.Created[:]
		}
		out.Dirs = append(out.Dirs, x)
	}
	for i := range top.Clients {
		c := &top.Clients[i]
		out.Clients = append(out.Clients, &canopyv1.ClientHeat{Client: uint64(c.Client), Rates: heatRates(&c.Rates), Dirs: heatPairs(c.Dirs)})
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return out, t.h.group.Read(ctx, func(r shard.Reader) error { return t.describeHeat(r, out) })
}

// describeHeat adds what the shard knows of directories and clients.
func (t *tenure) describeHeat(r shard.Reader, out *canopyv1.ShardHeat) error {
	for _, x := range out.Dirs {
		d, found, err := namespace.Directory(r, t.h.shard, base.SubtreeID(x.Subtree), base.Ino(x.Ino))
		if err != nil {
			return err
		}
		x.Found = found
		x.Entries, x.Subdirectories, x.Fragments = d.Entries, d.Subdirs, d.Fragments.Proto()
		x.Parent, x.Name = uint64(d.Parent), d.Name
	}
	for _, x := range out.Clients {
		s, _, err := namespace.Session(r, t.h.shard, base.ClientID(x.Client))
		if err != nil {
			return err
		}
		x.Host, x.Pid, x.Mount = s.Host, s.PID, s.Mount
	}
	return nil
}

func heatRates(r *heat.Rates) *canopyv1.HeatRates {
	return &canopyv1.HeatRates{
		CreateOpsPerSecond: r.Ops[heat.Create], LookupOpsPerSecond: r.Ops[heat.Lookup], StatOpsPerSecond: r.Ops[heat.Stat],
		ReaddirOpsPerSecond: r.Ops[heat.ReadDir], UnlinkOpsPerSecond: r.Ops[heat.Unlink], RenameOpsPerSecond: r.Ops[heat.Rename],
		ChangeOpsPerSecond: r.Ops[heat.Change], OtherOpsPerSecond: r.Ops[heat.Other], OverOpsPerSecond: r.Over,
		LatencySecondsPerSecond: r.Latency, ServeSecondsPerSecond: r.Serve, QueueSecondsPerSecond: r.Queue, ConflictSecondsPerSecond: r.Conflict,
	}
}

func heatPairs(all []heat.PairRates) (out []*canopyv1.PairHeat) {
	for i := range all {
		out = append(out, &canopyv1.PairHeat{Dir: uint64(all[i].Dir), Client: uint64(all[i].Client), Rates: heatRates(&all[i].Rates)})
	}
	return out
}
