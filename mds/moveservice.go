package mds

import (
	"context"
	"errors"
	"fmt"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// migrationService serves api's Migration service.
type migrationService struct {
	canopyv1.UnimplementedMigrationServer
	server *Server
}

// term returns this node's term as the holder of a shard, or the kind that says
// that it has none.
func (s *Server) holding(id base.ShardID) (*tenure, fserr.Kind) {
	h := s.lookup(id)
	if h == nil {
		return nil, fserr.UnknownShard
	}
	t := h.tenure()
	if t == nil {
		return nil, fserr.NotHolder
	}
	return t, fserr.OK
}

// serving tells whether this node answers as the holder of a shard.
func (s *Server) serving(ctx context.Context, id base.ShardID) fserr.Kind {
	h := s.lookup(id)
	if h == nil {
		return fserr.UnknownShard
	}
	// An idle shard may have no holder: the read makes one.
	return fserr.KindOf(h.group.Read(ctx, func(shard.Reader) error { return nil }))
}

// words returns what an error of a proposal says to people.
func words(r *canopyv1.Result, err error) string {
	if r.GetDetail() != "" {
		return r.Detail
	}
	return err.Error()
}

// StartMove begins a move.
func (m *migrationService) StartMove(ctx context.Context, request *canopyv1.StartMoveRequest) (*canopyv1.StartMoveResponse, error) {
	s := m.server
	refuse := func(kind fserr.Kind, detail string) (*canopyv1.StartMoveResponse, error) {
		return &canopyv1.StartMoveResponse{Error: uint32(kind), Detail: detail}, nil
	}
	t, kind := s.holding(base.ShardID(request.Shard))
	if t == nil {
		return refuse(kind, kind.Error())
	}
	to := base.ShardID(request.ToShard)
	if to == 0 && request.Into != 0 { // the fragment that the names join says where
		to = base.ShardID(s.place.Map().Route(base.SubtreeID(request.Into)).GetShard())
	}
	if to == t.h.shard && request.Hi == 0 {
		return refuse(fserr.Invalid, fmt.Sprintf("it is at shard %v already", to))
	}
	if s.place.Map().Shard(to) == nil {
		return refuse(fserr.Invalid, fmt.Sprintf("there is no shard %v", to))
	}
	target := &moveTarget{server: s, to: to}
	defer target.close()
	if err := target.serves(ctx); err != nil {
		return refuse(fserr.Invalid, fmt.Sprintf("shard %v cannot take it: %v", to, err))
	}
	r, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
		Step: canopyv1.MoveStep_MOVE_BEGIN, Subtree: request.Subtree, Dir: request.Dir, ToShard: uint64(to),
		Lo: request.Lo, Hi: request.Hi, Into: request.Into}}})
	if err != nil {
		answer, _ := refuse(fserr.KindOf(err), words(r, err))
		if fserr.KindOf(err) == fserr.Moved {
			if r.GetDetail() == "" {
				answer.Detail = "it was moved a moment ago: try again"
			}
			answer.Shard = s.place.Map().Route(base.SubtreeID(request.Subtree)).GetShard()
		}
		return answer, nil
	}
	t.moves.poke()
	return &canopyv1.StartMoveResponse{Move: r.Move}, nil
}

// CancelMove cancels a move before its hand-off.
func (m *migrationService) CancelMove(ctx context.Context, request *canopyv1.CancelMoveRequest) (*canopyv1.CancelMoveResponse, error) {
	refuse := func(kind fserr.Kind, detail string) (*canopyv1.CancelMoveResponse, error) {
		return &canopyv1.CancelMoveResponse{Error: uint32(kind), Detail: detail}, nil
	}
	t, kind := m.server.holding(base.ShardID(request.Shard))
	if t == nil {
		return refuse(kind, kind.Error())
	}
	for {
		var found *canopyv1.Move
		err := t.h.group.Read(ctx, func(r shard.Reader) error {
			found = nil
			return namespace.Moves(r, t.h.shard, func(x *canopyv1.Move) {
				if x.Subtree == request.Subtree {
					found = x
				}
			})
		})
		switch {
		case err != nil:
			return refuse(fserr.KindOf(err), err.Error())
		case found == nil:
			return refuse(fserr.NotFound, "no move of it runs")
		}
		r, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Move{Move: &canopyv1.MoveCommand{
			Step: canopyv1.MoveStep_MOVE_CANCEL, Subtree: found.Subtree, Attempt: found.Attempt}}})
		switch {
		case fserr.KindOf(err) == fserr.OldEpoch && pause(ctx, time.Millisecond):
			continue // a new attempt began
		case err != nil:
			return refuse(fserr.KindOf(err), words(r, err))
		}
		t.moves.poke()
		return &canopyv1.CancelMoveResponse{Move: r.Move}, nil
	}
}

// ListMoves lists moves of the shards that this node holds.
func (m *migrationService) ListMoves(ctx context.Context, request *canopyv1.ListMovesRequest) (*canopyv1.ListMovesResponse, error) {
	out := &canopyv1.ListMovesResponse{}
	if request.Shard != 0 {
		if kind := m.server.serving(ctx, base.ShardID(request.Shard)); kind != fserr.OK {
			out.Error = uint32(kind)
			return out, nil
		}
	}
	for _, h := range m.server.allHosted() {
		if t := h.tenure(); t != nil && (request.Shard == 0 || uint64(h.shard) == request.Shard) {
			out.Moves = append(out.Moves, t.moves.list()...)
		}
	}
	return out, nil
}

// Import applies a step of a move at its target.
func (m *migrationService) Import(ctx context.Context, request *canopyv1.ImportRequest) (*canopyv1.ImportResponse, error) {
	return m.server.takeIn(ctx, request), nil
}

var errFull = errors.New("the target's disks are full")

// takeIn is Import.
func (s *Server) takeIn(ctx context.Context, request *canopyv1.ImportRequest) *canopyv1.ImportResponse {
	refuse := func(kind fserr.Kind, detail string) *canopyv1.ImportResponse {
		return &canopyv1.ImportResponse{Error: uint32(kind), Detail: detail}
	}
	step := request.GetCommand()
	if step == nil {
		return refuse(fserr.Malformed, "")
	}
	if kind := s.serving(ctx, base.ShardID(request.Shard)); kind != fserr.OK {
		return refuse(kind, kind.Error())
	}
	t, kind := s.holding(base.ShardID(request.Shard))
	if t == nil {
		return refuse(kind, kind.Error())
	}
	grows := step.Step == canopyv1.ImportStep_IMPORT_BEGIN || step.Step == canopyv1.ImportStep_IMPORT_BATCH
	if grows && room(t.h.room.Load()) != roomForAll {
		return refuse(fserr.NoSpace, errFull.Error())
	}
	activates := step.Step == canopyv1.ImportStep_IMPORT_ACTIVATE
	if activates {
		t.awaitReports(base.SubtreeID(step.Subtree)) // before anybody can look at what it has
	}
	r, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_Import{Import: step}})
	if err != nil {
		return refuse(fserr.KindOf(err), words(r, err))
	}
	if activates {
		if err := t.arrived(ctx, step); err != nil {
			return refuse(fserr.KindOf(err), err.Error())
		}
	}
	return &canopyv1.ImportResponse{Batch: r.Move.GetBatches(), Counts: r.MoveCounts}
}

// awaitReports makes what comes with a subtree wait for reports of open files from
// all clients, and for the grace period (PROTOCOLS H2): those that came before did
// not know of it.
func (t *tenure) awaitReports(subtree base.SubtreeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.came[subtree] = time.Now()
	for _, c := range t.clients {
		c.opens.reported, c.opens.partial = false, false
	}
}

// settled tells whether the grace period has passed since this term began, and
// since the subtree came.
func (t *tenure) settled(subtree base.SubtreeID, grace time.Duration) bool {
	t.mu.Lock()
	came := t.came[subtree]
	t.mu.Unlock()
	return time.Since(t.since) >= grace && (came.IsZero() || time.Since(came) >= grace)
}

// arrived takes over a subtree that was activated: the sessions that came along are
// watched from now on, and its route is published. Names that have joined a fragment
// have its subtree's route.
func (t *tenure) arrived(ctx context.Context, step *canopyv1.ImportCommand) error {
	t.awaitReports(base.SubtreeID(step.Subtree))
	var clients []base.ClientID
	err := t.h.group.Read(ctx, func(r shard.Reader) error {
		clients = nil
		return namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
			clients = append(clients, s.Client)
			return true
		})
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	for _, id := range clients {
		t.clientLocked(id).known = true
	}
	t.mu.Unlock()
	if !step.Join {
		t.h.server.publishRoute(t.h, t.epoch, &canopyv1.SubtreeRoute{
			Subtree: step.Subtree, Shard: uint64(t.h.shard), Epoch: step.Epoch, RootIno: step.Root})
	}
	t.h.server.events.askReports(clients, t.h.shard)
	t.activity.Add(1)
	return nil
}
