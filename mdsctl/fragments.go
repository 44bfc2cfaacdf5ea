package mdsctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/shard"
)

// fragmentRow is a range of a directory's names, as JSON has it.
type fragmentRow struct {
	Lo      uint32  `json:"lo"` // border hashes [lo, hi)
	Hi      uint32  `json:"hi"`
	Share   float64 `json:"share"` // of all hashes
	Subtree uint64  `json:"subtree"`
	Shard   uint64  `json:"shard"`
	Epoch   uint64  `json:"epoch"`
	// What the subtree has of the directory, in all ranges of it.
	Entries uint64 `json:"entries"`
	Subdirs uint64 `json:"subdirectories"`
}

// fragmentsReport is the outcome of `fragments`, `split` and `merge`, as JSON has it.
type fragmentsReport struct {
	Path      string        `json:"path"`
	Ino       uint64        `json:"ino"`
	Fragments []fragmentRow `json:"fragments"`
	Moves     []moveRow     `json:"moves,omitempty"` // that the command made
}

func fragmentRows(all []client.Fragment) []fragmentRow {
	rows := []fragmentRow{}
	for _, f := range all {
		rows = append(rows, fragmentRow{Lo: f.Lo, Hi: f.Hi, Share: float64(f.Hi-f.Lo) / float64(shard.BorderEnd), Subtree: uint64(f.Subtree),
			Shard: uint64(f.Shard), Epoch: uint64(f.Epoch), Entries: f.Entries, Subdirs: f.Subdirs})
	}
	return rows
}

func writeFragments(t *table, rows []fragmentRow) {
	t.row("FRAGMENT", "NAMES", "SHARE", "SUBTREE", "SHARD", "EPOCH", "ENTRIES", "SUBDIRECTORIES")
	seen := map[uint64]bool{}
	for i, r := range rows {
		entries, subdirs := fmt.Sprint(r.Entries), fmt.Sprint(r.Subdirs)
		if seen[r.Subtree] { // counted with its first range
			entries, subdirs = "", ""
		}
		seen[r.Subtree] = true
		t.row(i, shard.Range{Lo: r.Lo, Hi: r.Hi}, fmt.Sprintf("%.4g %%", 100*r.Share), r.Subtree, r.Shard, r.Epoch, entries, subdirs)
	}
}

func (a *app) fragmentsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "fragments PATH", Short: "Show the fragments of a directory: who owns which names", Args: oneArg("PATH"),
		Long: "Show the ranges of name hashes that a directory is split into, each with the subtree that\n" +
			"holds its names, that one's shard and epoch, and how many names and subdirectories it has.\n" +
			"A directory that is not split has one.",
		Example: "  mdsctl fragments /data/set\n  mdsctl fragments / -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDirectory(cmd.Context(), args[0], "has fragments", func(c *client.Client, n *client.Inode, path string) error {
				all, err := a.fragmentsOf(cmd.Context(), c, n)
				if err != nil {
					return err
				}
				r := fragmentsReport{Path: path, Ino: uint64(n.Ino()), Fragments: fragmentRows(all)}
				return a.emit(r, func(t *table) { writeFragments(t, r.Fragments) })
			})
		},
	}
}

// withDirectory calls do with the directory that a path leads to.
func (a *app) withDirectory(ctx context.Context, typed, can string, do func(c *client.Client, n *client.Inode, path string) error) error {
	return a.reach(ctx, typed, true, func(c *client.Client, n *client.Inode, attr *client.Attr, path string) error {
		if kind := typeText(attr.GetMode()); kind != "directory" {
			return fmt.Errorf("%s is a %s: only a directory %s", path, kind, can)
		}
		return do(c, n, path)
	})
}

// fragmentsOf asks for a directory's fragments, and gives up after a while.
func (a *app) fragmentsOf(ctx context.Context, c *client.Client, n *client.Inode) ([]client.Fragment, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*a.timeout)
	defer cancel()
	return c.Fragments(ctx, n)
}
