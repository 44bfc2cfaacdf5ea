package mdsctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/client/reshape"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
)

func (a *app) splitCommand() *cobra.Command {
	var fragments int
	var to string
	c := &cobra.Command{
		Use: "split PATH --fragments N", Short: "Split a directory into fragments on many shards", Args: oneArg("PATH"),
		Long: "Split the names of a directory, while it is in use, into N equal ranges of their hashes: a\n" +
			"power of two up to " + fmt.Sprint(shard.MaxFragments) + ". The first range stays, each other one becomes a subtree with a shard of its\n" +
			"own: those of --to, or all in turn, so that each has as many as the others. Subdirectories\n" +
			"stay where they are, with all below them; only their names move. A directory that is split\n" +
			"already can be split further.\n\n" +
			"One range moves after the other, as migrate moves a directory: operations on it (on all of the\n" +
			"subtree that it is cut from) wait for a moment at the end, which is printed. An interrupt ends\n" +
			"the command; the move that runs goes on (migrate --status shows it, migrate --cancel takes it\n" +
			"back), and the same command goes on with the rest.\n\n" +
			"Refused: a directory with a quota on it, above or below it.",
		Example: "  mdsctl split /data/set --fragments 8\n  mdsctl split / --fragments 4 --to 2,3\n  mdsctl fragments /data/set",
		RunE: func(c *cobra.Command, args []string) error {
			if n := fragments; n < 2 || n > shard.MaxFragments || n&(n-1) != 0 {
				return fmt.Errorf("--fragments %d: want a power of two from 2 to %d", n, shard.MaxFragments)
			}
			shards, err := shardList(to)
			if err != nil {
				return err
			}
			return a.split(c.Context(), args[0], fragments, shards)
		},
	}
	c.Flags().IntVar(&fragments, "fragments", 0, "how many, a power of two")
	c.Flags().StringVar(&to, "to", "", "shards for the new fragments, such as 2,3 (default: all)")
	return c
}

// shardList reads a list of shard ids, each once.
func shardList(s string) ([]base.ShardID, error) {
	var all []base.ShardID
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || id == 0 || slices.Contains(all, base.ShardID(id)) {
			return nil, fmt.Errorf("--to %s: want ids of shards, each once, such as 2,3: mdsctl shard ls lists them", s)
		}
		all = append(all, base.ShardID(id))
	}
	return all, nil
}

func (a *app) mergeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "merge PATH", Short: "Join the fragments of a split directory", Args: oneArg("PATH"),
		Long: "Bring all names of a split directory back to its first fragment, one fragment after the\n" +
			"other, while it is in use. Subdirectories that were made in a fragment stay in its subtree.\n\n" +
			"An interrupt ends the command; the move that runs goes on (migrate --status shows it, migrate\n" +
			"--cancel takes it back), and the same command goes on with the rest.",
		Example: "  mdsctl merge /data/set",
		RunE: func(c *cobra.Command, args []string) error {
			return a.withRanger(c.Context(), args[0], "merge", func(r *reshape.Ranger) error { return a.carryOut(c.Context(), r, reshape.Merge) })
		},
	}
}

// withRanger calls do with who moves ranges of a directory's names.
func (a *app) withRanger(ctx context.Context, typed, verb string, do func(*reshape.Ranger) error) error {
	can := "can be " + map[string]string{"split": "split", "merge": "merged"}[verb]
	return a.withDirectory(ctx, typed, can, func(c *client.Client, n *client.Inode, path string) error {
		return a.withCluster(ctx, func(cl *inspect.Cluster) error {
			shown := ""
			return do(&reshape.Ranger{Cluster: cl, Client: c, Dir: n, Path: path, Again: "mdsctl " + verb + " " + path, Ask: 4 * a.timeout,
				Show: func(what string, m *canopyv1.Move) {
					if text := what + ": " + newMoveRow(m).text(); text != shown && a.output == "table" {
						fmt.Fprintln(a.env.Stdout, text)
						shown = text
					}
				}})
		})
	})
}

// carryOut carries out a plan, and shows what is there then.
func (a *app) carryOut(ctx context.Context, r *reshape.Ranger, next reshape.Plan) error {
	now, err := r.Run(ctx, next)
	if err != nil {
		return err
	}
	out := fragmentsReport{Path: r.Path, Ino: uint64(r.Dir.Ino()), Fragments: fragmentRows(now)}
	for _, m := range r.Moves() {
		out.Moves = append(out.Moves, newMoveRow(m))
	}
	return a.emit(out, func(t *table) {
		if len(now) == 1 {
			t.line(fmt.Sprintf("%s has one fragment, at shard %v", r.Path, now[0].Shard))
			return
		}
		t.line(fmt.Sprintf("%s has %d fragments", r.Path, len(now)))
	})
}

func (a *app) split(ctx context.Context, typed string, n int, to []base.ShardID) error {
	return a.withRanger(ctx, typed, "split", func(r *reshape.Ranger) error {
		now, err := r.Fragments(ctx)
		if err != nil {
			return err
		}
		if err := reshape.CanSplit(r.Path, now, n); err != nil {
			return err
		}
		shards, preferred, err := r.Targets(ctx, now[0].Shard, to)
		if err != nil {
			return err
		}
		r.Again = fmt.Sprintf("mdsctl split %s --fragments %d", r.Path, n)
		return a.carryOut(ctx, r, reshape.Split(n, shards, preferred))
	})
}
