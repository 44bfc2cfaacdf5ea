package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// quotaRow is one quota, as JSON has it.
type quotaRow struct {
	Path      string `json:"path"`
	Ino       uint64 `json:"ino"`
	Bytes     uint64 `json:"bytes"`
	MaxBytes  uint64 `json:"max_bytes"` // 0: no bound
	Inodes    uint64 `json:"inodes"`
	MaxInodes uint64 `json:"max_inodes"` // 0: no bound
	Counting  bool   `json:"counting"`   // no bound holds yet
}

func newQuotaRow(path string, q *client.Quota) quotaRow {
	return quotaRow{Path: path, Ino: q.GetDir(), Bytes: q.GetBytes(), MaxBytes: q.GetMaxBytes(), Inodes: q.GetInodes(),
		MaxInodes: q.GetMaxInodes(), Counting: q.GetCounting()}
}

func (a *app) quotaCommand() *cobra.Command {
	var bytes, inodes string
	set := &cobra.Command{
		Use: "set PATH", Short: "Bound what lies below a directory", Args: oneArg("PATH"),
		Long: "Bound the bytes and the inodes below a directory, however deep. A bound that is not given\n" +
			"stays; \"none\" takes it away. Bytes are sizes of files, with K, M, G, T or P for powers of 1024;\n" +
			"inodes are files, directories, symbolic links and special files, with K or M for thousands.\n" +
			"What would pass a bound gets EDQUOT. A bound below what is there keeps it and refuses more.\n" +
			"A large directory is counted first, while it is in use; the command waits for that.",
		Example: "  mdsctl quota set /home/ann --bytes 10G --inodes 1M\n  mdsctl quota set ./mnt/scratch --bytes none",
		RunE:    func(c *cobra.Command, args []string) error { return a.setQuota(c.Context(), args[0], bytes, inodes) },
	}
	set.Flags().StringVar(&bytes, "bytes", "", "most bytes, such as 10G, or none")
	set.Flags().StringVar(&inodes, "inodes", "", "most inodes, such as 1M, or none")
	return group("quota", "Quotas by directory", set, &cobra.Command{
		Use: "get PATH", Short: "Show the quotas that hold for a path, the innermost first", Args: oneArg("PATH"),
		Example: "  mdsctl quota get ./mnt/scratch/run7\n  mdsctl quota get /home/ann -o json",
		RunE:    func(c *cobra.Command, args []string) error { return a.getQuota(c.Context(), args[0]) },
	}, &cobra.Command{
		Use: "ls", Short: "List all quotas", Args: noArgs,
		Example: "  mdsctl quota ls",
		RunE:    func(c *cobra.Command, _ []string) error { return a.listQuotas(c.Context()) },
	}, &cobra.Command{
		Use: "rm PATH", Short: "Take the quota of a directory away", Args: oneArg("PATH"),
		Example: "  mdsctl quota rm /home/ann",
		RunE:    func(c *cobra.Command, args []string) error { return a.removeQuota(c.Context(), args[0]) },
	}, &cobra.Command{
		Use: "check", Short: "Count anew what all quotas hold", Args: noArgs,
		Long:    "Compare what each quota holds with a count of what is there, and show what differs. It reads\nthe whole namespace, and is a part of \"mdsctl fsck\". Exit code 1 if anything differs.",
		Example: "  mdsctl quota check",
		RunE:    func(c *cobra.Command, _ []string) error { return a.checkQuotas(c.Context()) },
	})
}

// parseBound reads what --bytes and --inodes take: "none" is 0.
func parseBound(flag, s string, units string, unit uint64) (uint64, error) {
	if s == "none" {
		return 0, nil
	}
	text := strings.ToUpper(s)
	if flag == "--bytes" {
		text = strings.TrimSuffix(strings.TrimSuffix(text, "B"), "I")
	}
	factor := uint64(1)
	if text != "" {
		if i := strings.IndexByte(units, text[len(text)-1]); i >= 0 {
			text = text[:len(text)-1]
			for range i + 1 {
				factor *= unit
			}
		}
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%s %q: want a number such as 10%c, or none", flag, s, units[len(units)-1])
	}
	return n * factor, nil
}

// bounds returns the bounds that the flags ask for, in place of those of now.
func bounds(now *client.Quota, bytes, inodes string) (maxBytes, maxInodes uint64, err error) {
	maxBytes, maxInodes = now.GetMaxBytes(), now.GetMaxInodes()
	if bytes != "" {
		if maxBytes, err = parseBound("--bytes", bytes, "KMGTP", 1024); err != nil {
			return 0, 0, err
		}
	}
	if inodes != "" {
		maxInodes, err = parseBound("--inodes", inodes, "KM", 1000)
	}
	return maxBytes, maxInodes, err
}

// quotaOf returns the quota of directory n itself, nil if it has none.
func quotaOf(ctx context.Context, c *client.Client, n *client.Inode) (*client.Quota, error) {
	all, err := c.Quotas(ctx, n)
	if i := slices.IndexFunc(all, func(q *client.Quota) bool { return q.GetDir() == uint64(n.Ino()) }); i >= 0 {
		return all[i], err
	}
	return nil, err
}

func (a *app) setQuota(ctx context.Context, typed, bytes, inodes string) error {
	if bytes == "" && inodes == "" {
		return errors.New("quota set wants --bytes, --inodes or both")
	}
	if _, _, err := bounds(nil, bytes, inodes); err != nil {
		return err
	}
	var row quotaRow
	_, path, err := a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		if !n.IsDir() {
			return errors.New("a quota is of a directory, and this is none")
		}
		q, err := quotaOf(ctx, c, n)
		if err != nil {
			return err
		}
		maxBytes, maxInodes, err := bounds(q, bytes, inodes)
		if err != nil {
			return err
		}
		if maxBytes == 0 && maxInodes == 0 {
			return errors.New("no bound would be left: \"mdsctl quota rm\" takes the quota away")
		}
		if q, err = c.SetQuota(ctx, a.cred(), n, maxBytes, maxInodes); err != nil {
			return err
		}
		for err == nil && q.GetCounting() && pauseFor(ctx, countPoll) {
			var now *client.Quota
			if now, err = quotaOf(ctx, c, n); now != nil {
				q = now
			}
		}
		row = newQuotaRow("", q)
		if ctx.Err() != nil {
			return nil // it is set; the row says that it is being counted
		}
		return err
	})
	if err != nil {
		return err
	}
	row.Path = path
	return a.emit(row, func(t *table) { writeQuotas(t, []quotaRow{row}) })
}

// countPoll is how often a count is asked for.
const countPoll = 100 * time.Millisecond

func pauseFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *app) getQuota(ctx context.Context, typed string) error {
	rows := []quotaRow{}
	_, path, err := a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		all, err := c.Quotas(ctx, n)
		if err != nil {
			return err
		}
		rows, err = quotaRows(ctx, c, all)
		return err
	})
	if err != nil {
		return err
	}
	if len(rows) == 0 && a.output == "table" {
		return fmt.Errorf("no quota holds for %s", path)
	}
	return a.emit(rows, func(t *table) { writeQuotas(t, rows) })
}

func (a *app) listQuotas(ctx context.Context) error {
	var rows []quotaRow
	_, _, err := a.at(ctx, "/", true, func(ctx context.Context, c *client.Client, _ *client.Inode) error {
		all, err := c.AllQuotas(ctx)
		if err != nil {
			return err
		}
		rows, err = quotaRows(ctx, c, all)
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b quotaRow) int { return strings.Compare(a.Path, b.Path) })
	return a.emit(rows, func(t *table) { writeQuotas(t, rows) })
}

// quotaRows adds the paths; a directory that is gone meanwhile is left out.
func quotaRows(ctx context.Context, c *client.Client, all []*client.Quota) ([]quotaRow, error) {
	rows := []quotaRow{}
	for _, q := range all {
		path, err := c.DirPath(ctx, base.Ino(q.GetDir()))
		if errors.Is(err, fserr.Stale) {
			continue
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, newQuotaRow(path, q))
	}
	return rows, nil
}

func (a *app) removeQuota(ctx context.Context, typed string) error {
	_, path, err := a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		err := c.RemoveQuota(ctx, a.cred(), n)
		if errors.Is(err, fserr.NoData) {
			return errors.New("the directory has no quota of its own (see mdsctl quota get)")
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.emit(struct {
		Path string `json:"path"`
	}{path}, func(t *table) { t.line("the quota of " + path + " is gone") })
}

func (a *app) checkQuotas(ctx context.Context) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r, err := a.check(ctx, cl, fsckOptions{settle: time.Second})
		if err != nil {
			return err
		}
		found := []finding{}
		for _, f := range r.Findings {
			if strings.HasPrefix(f.Problem, "quota") {
				found = append(found, f)
			}
		}
		err = a.emit(found, func(t *table) {
			if len(found) == 0 {
				t.line("all quotas hold what there is")
			}
			for _, f := range found {
				t.line(f.Object + ": " + f.Problem)
			}
		})
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("quota check found %d problems", len(found))
		}
		return err
	})
}

func writeQuotas(t *table, rows []quotaRow) {
	t.row("PATH", "BYTES", "OF", "USED", "INODES", "OF", "USED", "STATE")
	for _, r := range rows {
		state := "exact"
		if r.Counting {
			state = "counting"
		}
		maxBytes, bytesUsed, maxInodes, inodesUsed := "no bound", "", "no bound", ""
		if r.MaxBytes > 0 {
			maxBytes, bytesUsed = bytesText(r.MaxBytes), percent(r.Bytes, r.MaxBytes)
		}
		if r.MaxInodes > 0 {
			maxInodes, inodesUsed = fmt.Sprint(r.MaxInodes), percent(r.Inodes, r.MaxInodes)
		}
		t.row(r.Path, bytesText(r.Bytes), maxBytes, bytesUsed, r.Inodes, maxInodes, inodesUsed, state)
	}
}

func percent(used, of uint64) string { return fmt.Sprintf("%.0f %%", 100*float64(used)/float64(of)) }
