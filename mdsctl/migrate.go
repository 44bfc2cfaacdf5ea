package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/client/reshape"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

// moveRow is one move, as JSON has it.
type moveRow struct {
	Root     uint64  `json:"root"` // inode number of the directory
	Subtree  uint64  `json:"subtree"`
	Into     uint64  `json:"into"` // the subtree's id at the target
	From     uint64  `json:"from_shard"`
	To       uint64  `json:"to_shard"`
	Phase    string  `json:"phase"`
	Members  uint64  `json:"directories"` // that were found, of a carve
	Entries  uint64  `json:"entries"`     // keys that were sent
	Bytes    uint64  `json:"bytes"`
	Rate     uint64  `json:"entries_per_second"`
	Rounds   uint32  `json:"rounds"`
	Changed  uint64  `json:"changed"` // keys in the last round
	Expected uint64  `json:"expected_pause_ms"`
	PauseMS  float64 `json:"pause_ms"`
	Problem  string  `json:"problem,omitempty"`
	// With hi: the border hashes of root's names that move, and whether they join a
	// fragment that is there.
	Lo   uint32 `json:"lo,omitempty"`
	Hi   uint32 `json:"hi,omitempty"`
	Join bool   `json:"join,omitempty"`
}

func phaseText(m *canopyv1.Move) string {
	if m.GetOutcome() != "" {
		return m.GetOutcome()
	}
	switch m.GetPhase() {
	case canopyv1.MovePhase_MOVE_WALKING:
		return "walking"
	case canopyv1.MovePhase_MOVE_COPYING:
		if m.GetRounds() > 0 {
			return "catching up"
		}
		return "copying"
	case canopyv1.MovePhase_MOVE_FROZEN:
		return "frozen"
	case canopyv1.MovePhase_MOVE_HANDED_OFF:
		return "handed off"
	case canopyv1.MovePhase_MOVE_CLEANING:
		return "cleaning"
	case canopyv1.MovePhase_MOVE_CANCELLING:
		return "cancelling"
	}
	return "unknown"
}

func newMoveRow(m *canopyv1.Move) moveRow {
	return moveRow{Root: m.GetRoot(), Subtree: m.GetSubtree(), Into: m.GetInto(), From: m.GetFromShard(), To: m.GetToShard(),
		Phase: phaseText(m), Members: m.GetMembers(), Entries: m.GetEntries(), Bytes: m.GetBytes(), Rate: m.GetEntriesPerSecond(),
		Rounds: m.GetRounds(), Changed: m.GetChanged(), Expected: m.GetExpectedPauseMs(), PauseMS: float64(m.GetPauseUs()) / 1000, Problem: m.GetProblem(),
		Lo: m.GetLo(), Hi: m.GetHi(), Join: m.GetJoin()}
}

// text is a move's progress in one line.
func (r moveRow) text() string {
	s := r.Phase
	if r.Members > 0 {
		s += fmt.Sprintf(", %d directories", r.Members)
	}
	s += fmt.Sprintf(", %d entries (%s)", r.Entries, bytesText(r.Bytes))
	if r.Rate > 0 {
		s += fmt.Sprintf(", %d/s", r.Rate)
	}
	if r.Rounds > 0 {
		s += fmt.Sprintf(", round %d with %d changes", r.Rounds, r.Changed)
	}
	switch {
	case r.PauseMS > 0:
		s += fmt.Sprintf(", pause %.1f ms", r.PauseMS)
	case r.Rate > 0:
		s += fmt.Sprintf(", expected pause %d ms", r.Expected)
	}
	if r.Problem != "" {
		s += "; " + r.Problem
	}
	return s
}

func (a *app) migrateCommand() *cobra.Command {
	var to, subtree uint64
	var cancel, status bool
	c := &cobra.Command{
		Use: "migrate PATH", Short: "Move a directory with all below it to another shard", Args: func(c *cobra.Command, args []string) error {
			switch {
			case c.Flags().Changed("subtree") && len(args) > 0:
				return errors.New("migrate wants PATH or --subtree ID, not both")
			case status && len(args) == 0, subtree != 0:
				return nil
			}
			return oneArg("PATH")(c, args)
		},
		Long: "Move the metadata of a directory, with all below it, to another shard, while it is in use.\n" +
			"The root of a subtree moves as that subtree; any other directory is made the root of a new one\n" +
			"on the way. Operations on what moves (of the whole subtree that it is in, if it is made a new one)\n" +
			"wait for a moment at the end; nothing fails, and inode numbers, open files and locks stay.\n\n" +
			"The command shows the progress until the move has ended. An interrupt ends the showing, not the\n" +
			"move: --status shows it again, --cancel takes it back, as long as it is not handed off.\n\n" +
			"Not moved with a directory: files with several links that got their second link in a subtree that\n" +
			"stays, deleted files that are open. Refused: a directory with a quota on it, above or below it;\n" +
			"and one that is split, which is no subtree's root: merge it, or move its fragments. --subtree ID moves\n" +
			"a whole subtree, so also one fragment of a split directory (mdsctl fragments PATH).\n\n" +
			"--status and --cancel show and take back moves of fragments, too, that split and merge began.",
		Example: "  mdsctl migrate /data/set --to 2\n  mdsctl migrate --subtree 17592186044418 --to 3\n  mdsctl migrate --status\n  mdsctl migrate --cancel /data/set",
		RunE: func(c *cobra.Command, args []string) error {
			asked := c.Flags().Changed("to")
			switch {
			case cancel && (status || asked), status && asked:
				return errors.New("migrate wants one of --to, --cancel and --status")
			case !status && !cancel && (!asked || to == 0):
				return errors.New("migrate wants --to SHARD: mdsctl shard ls lists them")
			case status && len(args) == 0 && subtree == 0:
				return a.withCluster(c.Context(), func(cl *inspect.Cluster) error { return a.showMoves(c.Context(), cl, nil) })
			}
			return a.withMovable(c.Context(), args, subtree, func(cl *inspect.Cluster, at movable) error {
				switch {
				case status:
					return a.showMoves(c.Context(), cl, &at)
				case cancel:
					return a.cancelMove(c.Context(), cl, at)
				}
				return a.migrate(c.Context(), cl, at, to)
			})
		},
	}
	c.Flags().Uint64Var(&to, "to", 0, "the shard to move it to")
	c.Flags().Uint64Var(&subtree, "subtree", 0, "in place of PATH: the subtree of this id (mdsctl subtree ls)")
	c.Flags().BoolVar(&cancel, "cancel", false, "cancel the move of PATH, before its hand-off")
	c.Flags().BoolVar(&status, "status", false, "show the moves, or that of PATH")
	return c
}

// movable is a directory that is to be moved, and where it is.
type movable struct {
	typed        string // as the user called it
	dir, subtree uint64
	shard        base.ShardID
	whole        bool // the subtree was asked for, by its id
}

// has tells whether a move is one of what was asked for.
func (m *movable) has(x *canopyv1.Move) bool {
	if m.whole {
		return x.GetSubtree() == m.subtree || x.GetInto() == m.subtree
	}
	return x.GetRoot() == m.dir
}

// withMovable finds a directory, or a subtree by its id, and runs do with it.
func (a *app) withMovable(ctx context.Context, args []string, subtree uint64, do func(*inspect.Cluster, movable) error) error {
	if subtree != 0 {
		return a.withCluster(ctx, func(cl *inspect.Cluster) error {
			typed := fmt.Sprint("subtree ", subtree)
			for _, s := range cl.Map().GetSubtrees() {
				if s.GetSubtree() == subtree {
					return do(cl, movable{typed, s.GetRootIno(), subtree, base.ShardID(s.GetShard()), true})
				}
			}
			return fmt.Errorf("there is no %s: mdsctl subtree ls lists them", typed)
		})
	}
	attr, path, err := a.walk(ctx, args[0], true)
	if err != nil {
		return err
	}
	if kind := typeText(attr.GetMode()); kind != "directory" {
		return fmt.Errorf("%s is a %s: only a directory can be moved, with all below it", path, kind)
	}
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		for _, s := range cl.Map().GetSubtrees() {
			if s.GetSubtree() == attr.GetSubtree() {
				return do(cl, movable{args[0], attr.GetIno(), attr.GetSubtree(), base.ShardID(s.GetShard()), false})
			}
		}
		return fmt.Errorf("%s is in subtree %d, whose shard is not known yet: try again", path, attr.GetSubtree())
	})
}

func (a *app) migrate(ctx context.Context, cl *inspect.Cluster, at movable, to uint64) error {
	if cl.ShardInfo(base.ShardID(to)) == nil {
		return cl.UnknownShard(base.ShardID(to))
	}
	move, err := cl.StartMove(ctx, &canopyv1.StartMoveRequest{Shard: uint64(at.shard), Subtree: at.subtree, Dir: at.dir, ToShard: to})
	if err != nil {
		return fmt.Errorf("%s cannot be moved: %w", at.typed, err)
	}
	return a.watchMove(ctx, cl, at.typed, move)
}

// watchMove shows the progress of a move until it has ended.
func (a *app) watchMove(ctx context.Context, cl *inspect.Cluster, typed string, move *canopyv1.Move) error {
	shown, silent := "", 0
	for {
		all, err := cl.Moves(ctx, base.ShardID(move.GetFromShard()))
		now := reshape.Find(all, move)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no longer watching: the move of %s goes on (mdsctl migrate --status; --cancel takes it back before its hand-off)", typed)
		case err == nil && now == nil:
			// Another holder took over after it had ended.
			if silent++; silent > 20 {
				return fmt.Errorf("what became of the move of %s is not known: see mdsctl subtree ls", typed)
			}
		case now != nil:
			silent = 0
			row := newMoveRow(now)
			if text := row.text(); text != shown && a.output == "table" {
				fmt.Fprintln(a.env.Stdout, text)
				shown = text
			}
			if now.GetOutcome() != "" {
				return a.endOfMove(typed, now, row)
			}
		}
		pauseFor(ctx, reshape.Poll)
	}
}

func (a *app) endOfMove(typed string, m *canopyv1.Move, row moveRow) error {
	if a.output == "json" {
		if err := a.emit(row, nil); err != nil {
			return err
		}
	}
	if m.GetOutcome() != "moved" {
		return fmt.Errorf("the move of %s was cancelled: it is where it was", typed)
	}
	if a.output == "table" {
		fmt.Fprintf(a.env.Stdout, "%s is at shard %d, as subtree %d\n", typed, m.GetToShard(), m.GetInto())
	}
	return nil
}

func (a *app) cancelMove(ctx context.Context, cl *inspect.Cluster, at movable) error {
	running, err := a.movesOf(ctx, cl, &at)
	for _, m := range slices.Backward(running) {
		if m.GetOutcome() != "" {
			continue
		}
		if _, err := cl.CancelMove(ctx, base.ShardID(m.GetFromShard()), base.SubtreeID(m.GetSubtree())); err != nil {
			return fmt.Errorf("the move of %s cannot be cancelled: %w", at.typed, err)
		}
		what := at.typed + " stays"
		if m.GetHi() > 0 {
			what = fmt.Sprintf("the names %v of %s stay", shard.Range{Lo: m.GetLo(), Hi: m.GetHi()}, at.typed)
		}
		fmt.Fprintf(a.env.Stdout, "cancelled: %s at shard %d\n", what, m.GetFromShard())
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("no move of %s runs", at.typed)
}

// movesOf returns the moves of what was asked for, of all with nil, as the shards'
// holders know them; the error is of those that do not answer.
func (a *app) movesOf(ctx context.Context, cl *inspect.Cluster, at *movable) (found []*canopyv1.Move, err error) {
	var silent []error
	for _, s := range cl.Map().GetShards() {
		all, err := cl.Moves(ctx, base.ShardID(s.GetShard()))
		if err != nil {
			silent = append(silent, err)
		}
		for _, m := range all {
			if at == nil || at.has(m) {
				found = append(found, m)
			}
		}
	}
	return found, errors.Join(silent...)
}

// showMoves shows the moves of what was asked for, or all.
func (a *app) showMoves(ctx context.Context, cl *inspect.Cluster, at *movable) error {
	rows := []moveRow{}
	all, silent := a.movesOf(ctx, cl, at)
	for _, m := range all {
		rows = append(rows, newMoveRow(m))
	}
	if err := a.emit(rows, func(t *table) { writeMoves(t, rows) }); err != nil {
		return err
	}
	return silent
}

func writeMoves(t *table, rows []moveRow) {
	t.row("ROOT", "FROM", "TO", "SUBTREE", "INTO", "NAMES", "PROGRESS")
	for _, r := range rows {
		names := ""
		if r.Hi > 0 {
			names = shard.Range{Lo: r.Lo, Hi: r.Hi}.String()
		}
		t.row(r.Root, r.From, r.To, r.Subtree, r.Into, names, r.text())
	}
}
