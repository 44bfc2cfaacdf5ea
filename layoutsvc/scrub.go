package layoutsvc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// DefaultScrubRate is what a data server reads per second for a scrub, of all
// members, unless the operator says otherwise.
const DefaultScrubRate = 32 << 20

// SetScrub implements the service.
func (s *instance) SetScrub(ctx context.Context, r *canopyv1.SetScrubRequest) (*canopyv1.SetScrubResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.SetScrubResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	state, err := t.setScrub(ctx, r)
	if err != nil {
		return &canopyv1.SetScrubResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	return &canopyv1.SetScrubResponse{State: state}, nil
}

// setScrub changes the record that primaries follow; it is durable when it
// returns.
func (t *term) setScrub(ctx context.Context, r *canopyv1.SetScrubRequest) (*canopyv1.ScrubState, error) {
	const op = "scrub"
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	known := data.Scrub
	next := &canopyv1.ScrubState{RateBytes: DefaultScrubRate}
	if known.Value != nil {
		next = proto.CloneOf(known.Value)
	}
	under := next.Run != 0 && !scrubDone(data, next.Run)
	switch {
	case r.Start && r.Stop:
		return nil, fserr.New(fserr.Invalid, op, errors.New("start and stop at once"))
	case r.Start && under && !next.Stopped:
		return nil, fserr.New(fserr.Busy, op, fmt.Errorf("run %d is under way", next.Run))
	case r.Start && under:
		next.Stopped = false // it goes on with the groups that it has not finished
	case r.Start:
		next.Run, next.Stopped, next.StartedNs = next.Run+1, false, time.Now().UnixNano()
	case r.Stop && (!under || next.Stopped):
		return nil, fserr.New(fserr.Invalid, op, errors.New("none is under way"))
	case r.Stop:
		next.Stopped = true
	}
	if r.RateBytes != nil {
		next.RateBytes = *r.RateBytes
	}
	if _, err := t.s.store.PutScrub(ctx, t.lead, next, known.Revision); err != nil {
		return nil, fserr.New(fserr.NotReady, op, errors.Join(err, t.s.store.Sync(ctx)))
	}
	t.s.logger.Info("scrub", "run", next.Run, "stopped", next.Stopped, "bytes_per_second", next.RateBytes)
	return next, nil
}

// scrubDone reports whether the run has a result of every group.
func scrubDone(data *placement.DataMap, run uint64) bool {
	for key := range data.PGs {
		if data.Scrubs[key].GetRun() < run {
			return false
		}
	}
	return true
}

// ReportScrub implements the service.
func (s *instance) ReportScrub(ctx context.Context, r *canopyv1.ReportScrubRequest) (*canopyv1.ReportScrubResponse, error) {
	t := s.leading()
	if t == nil {
		kind, detail, leader := s.notLeader(ctx)
		return &canopyv1.ReportScrubResponse{Error: kind, Detail: detail, LeaderAddress: leader}, nil
	}
	if err := t.noteScrub(ctx, r); err != nil {
		return &canopyv1.ReportScrubResponse{Error: uint32(fserr.KindOf(err)), Detail: err.Error()}, nil
	}
	return &canopyv1.ReportScrubResponse{}, nil
}

// noteScrub keeps a result of the group's primary, of the present run.
func (t *term) noteScrub(ctx context.Context, r *canopyv1.ReportScrubRequest) error {
	const op = "scrub result"
	if r.Result == nil {
		return fserr.New(fserr.Malformed, op, nil)
	}
	t.changes.Lock()
	defer t.changes.Unlock()
	data := t.s.store.Data()
	pg := data.PGs[placement.PGKey{Pool: base.PoolID(r.Result.Pool), PG: base.PGID(r.Result.Pg)}].Value
	switch {
	case pg == nil:
		return fserr.New(fserr.NotFound, op, fmt.Errorf("there is no pg %d.%d", r.Result.Pool, r.Result.Pg))
	case pg.Epoch != r.Epoch || len(pg.InSync) == 0 || pg.InSync[0] != r.Reporter:
		return fserr.New(fserr.OldEpoch, op, fmt.Errorf("server %d is not the primary of epoch %d", r.Reporter, pg.Epoch))
	case data.Scrub.Value.GetRun() != r.Result.Run:
		return fserr.New(fserr.Invalid, op, fmt.Errorf("run %d is over", r.Result.Run))
	}
	result := proto.CloneOf(r.Result)
	result.FinishedNs = time.Now().UnixNano()
	if err := t.s.store.PutScrubResult(ctx, t.lead, result); err != nil {
		return fserr.New(fserr.NotReady, op, err)
	}
	if n := result.Damaged + result.Differing; n > 0 {
		t.s.logger.Warn("a scrub found damage", "pool", result.Pool, "pg", result.Pg, "damaged_blocks", result.Damaged,
			"differing_columns", result.Differing, "repaired", result.Repaired, "lost_blocks", result.Unrepairable)
	}
	return nil
}

// ScrubStatus implements the service.
func (s *instance) ScrubStatus(context.Context, *canopyv1.ScrubStatusRequest) (*canopyv1.ScrubStatusResponse, error) {
	data := s.store.Data()
	out := &canopyv1.ScrubStatusResponse{State: data.Scrub.Value, Pgs: uint32(len(data.PGs))}
	for key := range data.PGs {
		if r := data.Scrubs[key]; r != nil {
			out.Results = append(out.Results, r)
		}
	}
	slices.SortFunc(out.Results, func(a, b *canopyv1.ScrubResult) int {
		return int(a.Pool)<<32 + int(a.Pg) - int(b.Pool)<<32 - int(b.Pg)
	})
	return out, nil
}
