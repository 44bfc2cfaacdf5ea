package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// fsckReport is the outcome of `fsck`, as JSON has it.
type fsckReport struct {
	Shards     []fsckShard `json:"shards"`
	Data       *fsckData   `json:"data,omitempty"`
	Findings   []finding   `json:"findings"`             // the first maxFindings
	Problems   uint64      `json:"problems"`             // all of them
	Repairable int         `json:"repairable,omitempty"` // repairs that --repair would make
	// Repairs are what mends findings without a guess, and what became of it.
	Repairs []*planned `json:"repairs,omitempty"`
	// Hints are names and headers that say a subtree of before: a forward or a fragment leads on
	// from there, and clients are redirected.
	Hints int `json:"hints"`
}

type fsckShard struct {
	Shard       uint64 `json:"shard"`
	Files       uint64 `json:"files"`
	Directories uint64 `json:"directories"`
	Orphans     uint64 `json:"orphans"`
	Bytes       uint64 `json:"bytes"`
	Problems    uint64 `json:"problems"`
}

// finding is one thing that is wrong. Shard 0 stands for the data servers.
type finding struct {
	Shard     uint64 `json:"shard"`
	Invariant string `json:"invariant"` // number in DESIGN section 10
	Object    string `json:"object"`
	Problem   string `json:"problem"`
}

// Findings that are kept, and that a table shows.
const (
	maxFindings = 10_000
	maxShown    = 100
)

func (r *fsckReport) add(f finding) {
	r.Problems++
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, f)
	}
}

// fsckOptions are the command's flags.
type fsckOptions struct {
	data, repair, dryRun, yes bool
	settle                    time.Duration
	rate                      uint64
}

func (a *app) fsckCommand() *cobra.Command {
	var o fsckOptions
	c := &cobra.Command{
		Use: "fsck", Short: "Check that metadata, and with --data stored bytes, agree; with --repair mend it", Args: noArgs,
		Long: "Check every shard at its holder: each directory has one name and its parent agrees, link\n" +
			"counts and counters equal a recount, nothing is unreachable but orphans, locks and results are of\n" +
			"clients with sessions, transactions end; and over all shards: each subtree has one owner, which the\n" +
			"placement map names, names and directories in different subtrees agree, and so do\n" +
			"link counts with names in several, every directory is below /; the fragments of a split\n" +
			"directory agree in attributes and own each name once. It runs on a cluster that is in use, and\n" +
			"changes nothing. What two shards say that does not agree is looked at again after\n" +
			"--settle. A shard's check keeps some 25 MB in its node's memory, however much there is, and\n" +
			"200 bytes here for each directory whose name lies in another subtree.\n\n" +
			"With --data it also walks the namespace and lists what the data servers hold: replicas of\n" +
			"a placement group hold the same columns, files with stored blocks have columns, and no\n" +
			"data is without a file. What differs is looked at again after --settle, since files change\n" +
			"meanwhile. It keeps some 100 bytes per file in memory.\n\n" +
			"--repair mends what can be mended without a guess, after it has shown what; --dry-run only shows\n" +
			"it. Each repair looks again whether what was seen is still so, so that it is safe while the\n" +
			"namespace is in use. No data are ever deleted: what nothing leads to gets a name in /lost+found.\n\n" +
			"Exit code 1 if anything was found that is not repaired.",
		Example: "  mdsctl fsck\n  mdsctl fsck --data -o json\n  mdsctl fsck --repair --dry-run\n  mdsctl fsck --repair --yes",
		RunE: func(c *cobra.Command, _ []string) error {
			if (o.dryRun || o.yes) && !o.repair {
				return errors.New("--dry-run and --yes are of --repair")
			}
			return a.fsck(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&o.data, "data", false, "compare data servers' contents with the files too")
	c.Flags().DurationVar(&o.settle, "settle", 3*time.Second, "look at differences again after this time")
	c.Flags().Uint64Var(&o.rate, "rate", 250_000, "read at most so many rows a second at a shard; 0: as many as it can")
	c.Flags().BoolVar(&o.repair, "repair", false, "mend what can be mended without a guess")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what --repair would do")
	c.Flags().BoolVar(&o.yes, "yes", false, "repair without asking")
	return c
}

func (a *app) fsck(ctx context.Context, o fsckOptions) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r, err := a.check(ctx, cl, o)
		if err != nil {
			return err
		}
		if r.Repairable = len(r.Repairs); !o.repair {
			r.Repairs = nil
		} else if r, err = a.repair(ctx, cl, o, r); err != nil {
			return err
		}
		if o.data {
			if err := a.checkData(ctx, cl, r, o.settle); err != nil {
				return err
			}
		}
		if err := a.emit(r, func(t *table) { writeFsck(t, r) }); err != nil {
			return err
		}
		if r.Problems > 0 {
			return fmt.Errorf("fsck found %d problems", r.Problems)
		}
		return nil
	})
}

// check checks every shard, and what lies between them.
func (a *app) check(ctx context.Context, cl *inspect.Cluster, o fsckOptions) (*fsckReport, error) {
	r := &fsckReport{Shards: []fsckShard{}, Findings: []finding{}}
	progress := a.progressOf(ctx, cl)
	between, err := cl.Tree(ctx, inspect.TreeOptions{Settle: o.settle, RowsPerSecond: o.rate, Progress: progress.show, Shard: r.shard})
	progress.end()
	if err != nil {
		return nil, fmt.Errorf("fsck: %w", err)
	}
	for _, f := range between.Findings {
		r.add(finding{Shard: uint64(f.Shard), Invariant: f.Invariant, Object: "inode " + f.Ino.String(), Problem: f.Problem})
		for i := range r.Shards {
			if r.Shards[i].Shard == uint64(f.Shard) {
				r.Shards[i].Problems++
			}
		}
		if f.Mend != nil {
			r.plan(f.Mend.Shard, f.Mend.Repair())
		}
	}
	r.Hints = len(between.Hints)
	r.settlePlan()
	return r, nil
}

// shard adds what a shard found by itself.
func (r *fsckReport) shard(shard base.ShardID, sum *canopyv1.FsckFinding, findings []*canopyv1.FsckFinding) {
	before := r.Problems
	for _, f := range findings {
		r.add(finding{Shard: uint64(shard), Invariant: f.GetInvariant(), Object: f.GetObject(), Problem: f.GetProblem()})
		r.plan(shard, f.GetRepair())
	}
	// The holder counts all, also those that it did not send.
	if sent := r.Problems - before; sum.GetProblems() > sent {
		r.Problems += sum.GetProblems() - sent
	}
	r.Shards = append(r.Shards, fsckShard{Shard: uint64(shard), Files: sum.GetFiles(), Directories: sum.GetDirectories(),
		Orphans: sum.GetOrphans(), Bytes: sum.GetBytes(), Problems: r.Problems - before})
}

func writeFsck(t *table, r *fsckReport) {
	t.row("SHARD", "FILES", "DIRECTORIES", "ORPHANS", "BYTES", "PROBLEMS")
	for _, s := range r.Shards {
		t.row(s.Shard, s.Files, s.Directories, s.Orphans, bytesText(s.Bytes), s.Problems)
	}
	if d := r.Data; d != nil {
		t.title("")
		t.row("DATA-SERVERS", "COLUMNS", "ALLOCATED", "FILES-WITH-DATA", "WAITING-FOR-DELETION", "PROBLEMS")
		t.row(d.Servers, d.Columns, bytesText(d.AllocatedBytes), d.Files, d.Pending, d.Problems)
	}
	if r.Hints > 0 {
		t.title(fmt.Sprintf("%d names or headers say a subtree that the directory, or the name, has left: a forward or a fragment leads on", r.Hints))
	}
	writePlan(t, r.Repairs)
	if len(r.Findings) > 0 {
		t.title("")
		t.row("SHARD", "INVARIANT", "OBJECT", "PROBLEM")
		shown := r.Findings[:min(len(r.Findings), maxShown)]
		for _, f := range shown {
			t.row(nodeText(f.Shard), f.Invariant, f.Object, f.Problem)
		}
		if n := r.Problems - uint64(len(shown)); n > 0 {
			t.line(fmt.Sprintf("... and %d more (-o json lists up to %d)", n, maxFindings))
		}
		if r.Repairable > 0 {
			t.title(fmt.Sprintf("%d repairs need no guess: mdsctl fsck --repair --dry-run shows them", r.Repairable))
		}
		return
	}
	t.title("no problems found")
}
