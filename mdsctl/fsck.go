package mdsctl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// fsckReport is the outcome of `fsck`, as JSON has it.
type fsckReport struct {
	Shards   []fsckShard `json:"shards"`
	Data     *fsckData   `json:"data,omitempty"`
	Findings []finding   `json:"findings"` // the first maxFindings
	Problems uint64      `json:"problems"` // all of them
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

func (a *app) fsckCommand() *cobra.Command {
	var data bool
	var settle time.Duration
	c := &cobra.Command{
		Use: "fsck", Short: "Check that metadata, and with --data stored bytes, agree", Args: noArgs,
		Long: "Check every shard at its holder: each directory has one name and its parent agrees, link\n" +
			"counts and counters equal a recount, nothing is unreachable but orphans; and over all\n" +
			"shards: each subtree has one owner, names and directories in different subtrees agree, and so do\n" +
			"link counts with names in several, every directory is below /; the fragments of a split\n" +
			"directory agree in attributes and own each name once. It runs on a cluster that is in use, and\n" +
			"changes nothing. What two shards say that does not agree is looked at again after\n" +
			"--settle. A shard's check keeps some 150 bytes per directory in its node's memory, and 200 bytes\n" +
			"here and there for each whose name lies in another subtree.\n\n" +
			"With --data it also walks the namespace and lists what the data servers hold: replicas of\n" +
			"a placement group hold the same columns, files with stored blocks have columns, and no\n" +
			"data is without a file. What differs is looked at again after --settle, since files change\n" +
			"meanwhile. It keeps some 100 bytes per file in memory.\n\nExit code 1 if anything was found.",
		Example: "  mdsctl fsck\n  mdsctl fsck --data -o json",
		RunE:    func(c *cobra.Command, _ []string) error { return a.fsck(c.Context(), data, settle) },
	}
	c.Flags().BoolVar(&data, "data", false, "compare data servers' contents with the files too")
	c.Flags().DurationVar(&settle, "settle", 3*time.Second, "look at differences again after this time")
	return c
}

func (a *app) fsck(ctx context.Context, data bool, settle time.Duration) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r := &fsckReport{Shards: []fsckShard{}, Findings: []finding{}}
		if err := r.checkTree(ctx, cl, settle); err != nil {
			return err
		}
		if data {
			if err := a.checkData(ctx, cl, r, settle); err != nil {
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

// checkTree checks every shard, and what lies between them.
func (r *fsckReport) checkTree(ctx context.Context, cl *inspect.Cluster, settle time.Duration) error {
	between, err := cl.Tree(ctx, settle, func(shard base.ShardID, sum *canopyv1.FsckFinding, findings []*canopyv1.FsckFinding) {
		before := r.Problems
		for _, f := range findings {
			r.add(finding{Shard: uint64(shard), Invariant: f.GetInvariant(), Object: f.GetObject(), Problem: f.GetProblem()})
		}
		// The holder counts all, also those that it did not send.
		if sent := r.Problems - before; sum.GetProblems() > sent {
			r.Problems += sum.GetProblems() - sent
		}
		r.Shards = append(r.Shards, fsckShard{Shard: uint64(shard), Files: sum.GetFiles(), Directories: sum.GetDirectories(),
			Orphans: sum.GetOrphans(), Bytes: sum.GetBytes(), Problems: r.Problems - before})
	})
	if err != nil {
		return fmt.Errorf("fsck: %w", err)
	}
	for _, f := range between.Findings {
		r.add(finding{Shard: uint64(f.Shard), Invariant: f.Invariant, Object: "inode " + f.Ino.String(), Problem: f.Problem})
		for i := range r.Shards {
			if r.Shards[i].Shard == uint64(f.Shard) {
				r.Shards[i].Problems++
			}
		}
	}
	r.Hints = len(between.Hints)
	return nil
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
		return
	}
	t.title("no problems found")
}
