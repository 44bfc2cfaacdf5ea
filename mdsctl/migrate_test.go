package mdsctl

import (
	"context"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// fakeMigration answers for the moves of the shards that a fake node holds.
type fakeMigration struct {
	canopyv1.UnimplementedMigrationServer
	s *fakeMDS
}

func (m *fakeMigration) ListMoves(_ context.Context, r *canopyv1.ListMovesRequest) (*canopyv1.ListMovesResponse, error) {
	st := m.s.shard(r.GetShard())
	if st == nil || !st.GetHolder() {
		return &canopyv1.ListMovesResponse{Error: uint32(fserr.NotHolder)}, nil
	}
	out := &canopyv1.ListMovesResponse{}
	for _, x := range m.s.f.moves {
		if x.GetFromShard() == r.GetShard() {
			out.Moves = append(out.Moves, x)
		}
	}
	return out, nil
}

func sampleMoves() []*canopyv1.Move {
	return []*canopyv1.Move{
		{Subtree: 1, Into: 17592186044417, Epoch: 1, Root: 17592186044420, FromShard: 1, ToShard: 2, Members: 12, Outcome: "moved",
			Entries: 100_000, Bytes: 20 << 20, EntriesPerSecond: 87_654, Rounds: 3, Changed: 17, ExpectedPauseMs: 4, PauseUs: 12_345},
		{Subtree: 17592186044418, Into: 17592186044418, Epoch: 3, Root: 17592186044500, FromShard: 1, ToShard: 3,
			Phase: canopyv1.MovePhase_MOVE_COPYING, Entries: 512, Bytes: 99_000, EntriesPerSecond: 50_000, Problem: "shard 3: no holder answers"},
		{Subtree: 1, Into: 17592186044419, Epoch: 1, Root: 17592186044501, FromShard: 1, ToShard: 2, Members: 3, Phase: canopyv1.MovePhase_MOVE_WALKING},
	}
}

func TestMoves(t *testing.T) {
	f := newFake(t)
	f.moves = sampleMoves()
	for format, file := range map[string]string{"table": "migrate-status.txt", "json": "migrate-status.json"} {
		_, out, _ := f.run("migrate", "--status", "-o", format)
		golden(t, file, out)
	}
}

func TestMigrateWantsOneThing(t *testing.T) {
	f := newFake(t)
	for args, want := range map[string]string{
		"migrate /d":                   "--to SHARD",
		"migrate --to 2":               "one PATH",
		"migrate /d --to 2 --cancel":   "one of",
		"migrate /d --to 2 --status":   "one of",
		"migrate /d --status --to=2":   "one of",
		"migrate /d --status --cancel": "one of",
	} {
		code, _, stderr := f.run(strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", args, code, stderr)
		}
	}
}
