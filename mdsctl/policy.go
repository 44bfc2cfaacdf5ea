package mdsctl

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/layoutsvc/policy"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// policyReport is the outcome of `policy show`, as JSON has it.
type policyReport struct {
	Path   string         `json:"path"`
	Set    string         `json:"set"` // what is set on the directory itself, as `policy set` takes it
	Values []policyRow    `json:"values"`
	Layout []componentRow `json:"layout"` // of a new file
	Pool   uint64         `json:"pool"`
	Auto   *autoReport    `json:"auto,omitempty"`
}

type policyRow struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`            // path of the directory that decides, "" if none does
	Class string `json:"class,omitempty"` // that was set there
}

type autoReport struct {
	Chosen    string `json:"chosen"`
	Files     uint64 `json:"files"`
	MeanBytes uint64 `json:"mean_bytes"`
}

func (r policyRow) source(of string) string {
	switch {
	case r.From == "":
		return "default"
	case r.From == of && r.Class == "":
		return "this directory"
	case r.From == of:
		return "class " + r.Class + " of this directory"
	case r.Class == "":
		return r.From
	}
	return "class " + r.Class + " of " + r.From
}

// newPolicyReport resolves the policies of a directory and of all above it, the
// root last, as the metadata service does when a file is made.
func newPolicyReport(up []*canopyv1.DirPolicy, pools *canopyv1.PoolMap) policyReport {
	here := up[0]
	e := policy.Effective{}
	paths := map[uint64]string{}
	for _, d := range slices.Backward(up) {
		e = e.Below(d.GetDir(), d.GetPolicy(), d.GetLevel())
		paths[d.GetDir()] = string(d.GetPath())
	}
	class := "unknown"
	for _, p := range pools.GetPools() {
		if p.GetPool() == here.GetLayout().GetPool() {
			class = stripe.ClassText(stripe.RedundancyOf(p))
		}
	}
	l := e.Layout(here.GetLayout())
	r := policyReport{Path: string(here.GetPath()), Set: policy.OwnText(here.GetPolicy()), Layout: componentRows(l), Pool: l.GetPool()}
	for k := range policy.Keys {
		from := e.From[k]
		r.Values = append(r.Values, policyRow{Key: k.String(), Value: e.Text(k, here.GetLayout(), class), From: paths[from.Dir], Class: from.Class})
	}
	if e.Auto {
		r.Auto = &autoReport{Chosen: policy.LevelText(e.Level), Files: here.GetFiles(), MeanBytes: here.GetBytes() / max(here.GetFiles(), 1)}
	}
	return r
}

func writePolicy(t *table, r policyReport) {
	t.row("KEY", "VALUE", "FROM")
	for _, v := range r.Values {
		t.row(v.Key, v.Value, v.source(r.Path))
	}
	t.title("")
	if a := r.Auto; a != nil {
		t.line(fmt.Sprintf("auto: chosen for %s; of this directory %d files are counted, %s on average", a.Chosen, a.Files, bytesText(a.MeanBytes)))
	}
	t.line(fmt.Sprintf("a new file: pool %d; %s", r.Pool, layoutText(r.Layout)))
}

func (a *app) policyCommand() *cobra.Command {
	return group("policy", "Layout of the files, and shard of the directories, that are made below a directory", a.policySet(), a.policyShow(), a.policyUnset(), a.policyList())
}

const policyKeys = `  stripes=COUNTxSIZE[,OFFSET:COUNTxSIZE...]  columns and stripe unit, by offset in the file: 16x8M, 1x1M,1M:4x4M
  stripe-count=N, stripe-size=SIZE           the same for the whole file; what is left out stays as it is
  data=replica:N                             copies, 1 to 5 (ec:K+M is refused so far)
  sync=data|none                             whether fsync waits for the disks
  direct=on|off                              past the page cache, so that its writers do not wait for each other
  spread=children|none                       each new directory in this one (not below) starts a subtree, on a shard of its own choice
  pin=SHARD                                  new directories, and what is made in them, go to this shard
`

func (a *app) policySet() *cobra.Command {
	return &cobra.Command{
		Use: "set PATH NAME|KEY=VALUE...", Short: "Set a policy on a directory", Args: cobra.MinimumNArgs(2),
		Long: "Set a class (" + strings.Join(policy.Classes(), ", ") + ") or single values on a directory.\n" +
			"They hold for the files that are made below it from now on; directories below inherit\n" +
			"what they do not set themselves. Single values go before the class that is set on the\n" +
			"same directory; setting a class replaces those that it sets. For the superuser.\n\n" + policyKeys,
		Example: "  mdsctl policy set /ckpt checkpoint\n  mdsctl policy set ./mnt/tmp scratch\n  mdsctl policy set /logs data=replica:3 stripe-count=4",
		RunE:    func(c *cobra.Command, args []string) error { return a.setPolicy(c.Context(), args[0], args[1:]) },
	}
}

func (a *app) policyShow() *cobra.Command {
	return &cobra.Command{
		Use: "show PATH", Short: "Show what new files in a directory get, and where each value comes from", Args: oneArg("PATH"),
		Long:    "Show what new files in a directory get, and which directory above, or which class that\nis set there, says so. Files that are there keep what they were made with (mdsctl stat).",
		Example: "  mdsctl policy show /ckpt/run7",
		RunE: func(c *cobra.Command, args []string) error {
			up, err := a.policies(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				pools, err := cl.Pools(c.Context())
				if err != nil {
					return err
				}
				r := newPolicyReport(up, pools)
				return a.emit(r, func(t *table) { writePolicy(t, r) })
			})
		},
	}
}

func (a *app) policyUnset() *cobra.Command {
	return &cobra.Command{
		Use: "unset PATH [KEY...]", Short: "Take back what was set on a directory", Args: cobra.MinimumNArgs(1),
		Long:    "Take back what was set on a directory, all of it or the keys named (class, stripes, data,\nsync, direct): it inherits again.",
		Example: "  mdsctl policy unset /ckpt\n  mdsctl policy unset /ckpt data class",
		RunE: func(c *cobra.Command, args []string) error {
			keys := args[1:]
			if len(keys) == 0 {
				keys = []string{"class"}
				for k := range policy.Keys {
					keys = append(keys, k.String())
				}
			}
			return a.changePolicy(c.Context(), args[0], nil, keys)
		},
	}
}

func (a *app) policyList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the directories that have a policy, and the classes", Args: noArgs,
		Example: "  mdsctl policy ls",
		RunE:    func(c *cobra.Command, _ []string) error { return a.listPolicies(c.Context()) },
	}
}

// policies returns what is set on a directory and above it.
func (a *app) policies(ctx context.Context, typed string) (up []*canopyv1.DirPolicy, err error) {
	_, _, err = a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		if !n.IsDir() {
			return fmt.Errorf("%s is no directory: policies are set on directories", typed)
		}
		up, err = c.Policies(ctx, n)
		return err
	})
	return up, err
}

// setPolicy sets what the words say; the pools are made first.
func (a *app) setPolicy(ctx context.Context, typed string, words []string) error {
	set := &canopyv1.LayoutPolicy{}
	part := map[string]string{} // stripe-count and stripe-size
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			key, value = "class", w
		case key == "stripe-count" || key == "stripe-size":
			part[key] = value
			continue
		}
		if err := policy.Set(set, key, value); err != nil {
			return err
		}
	}
	up, err := a.policies(ctx, typed)
	if err != nil {
		return err
	}
	if len(part) > 0 {
		if err := setStripes(set, part, up); err != nil {
			return err
		}
	}
	err = a.withCluster(ctx, func(cl *inspect.Cluster) error {
		if pin := base.ShardID(set.Pin); pin != 0 && cl.ShardInfo(pin) == nil {
			return cl.UnknownShard(pin)
		}
		ensure := func(class *canopyv1.Redundancy) (uint64, error) {
			if class == nil {
				return 0, nil
			}
			return cl.EnsurePool(ctx, class)
		}
		if set.Pool, err = ensure(set.Data); err != nil {
			return err
		}
		set.ClassPool, err = ensure(policy.Class(set.Class).GetData())
		return err
	})
	if err != nil {
		return err
	}
	return a.changePolicy(ctx, typed, set, nil)
}

// setStripes sets stripes from stripe-count and stripe-size; of the two, what is
// not given is that of the last component of the class that is set too, or of
// what holds in the directory.
func setStripes(set *canopyv1.LayoutPolicy, part map[string]string, up []*canopyv1.DirPolicy) error {
	if len(set.Stripes) > 0 {
		return fmt.Errorf("give either stripes, or stripe-count and stripe-size")
	}
	e := policy.Effective{}
	for _, d := range slices.Backward(up) {
		e = e.Below(d.GetDir(), d.GetPolicy(), d.GetLevel())
	}
	now := e.Below(0, &canopyv1.LayoutPolicy{Class: set.Class}, 0).Layout(up[0].GetLayout()).GetComponents()
	if len(now) == 0 {
		return fmt.Errorf("the directory has no layout: give stripes")
	}
	last := now[len(now)-1]
	count, size := part["stripe-count"], part["stripe-size"]
	if count == "" {
		count = fmt.Sprint(last.GetStripeCount())
	}
	if size == "" {
		size = policy.Bytes(last.GetStripeBytes())
	}
	return policy.Set(set, "stripes", count+"x"+size)
}

func (a *app) changePolicy(ctx context.Context, typed string, set *canopyv1.LayoutPolicy, clear []string) error {
	_, path, err := a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		if !n.IsDir() {
			return fmt.Errorf("%s is no directory: policies are set on directories", typed)
		}
		return c.SetPolicy(ctx, client.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, n, set, clear)
	})
	if err != nil {
		return err
	}
	up, err := a.policies(ctx, typed)
	if err != nil {
		return err
	}
	done := struct {
		Path string `json:"path"`
		Set  string `json:"set"`
	}{path, policy.OwnText(up[0].GetPolicy())}
	return a.emit(done, func(t *table) {
		if done.Set == "" {
			t.line(fmt.Sprintf("%s: nothing is set, all is inherited", done.Path))
			return
		}
		t.line(fmt.Sprintf("%s: %s", done.Path, done.Set))
	})
}

// policyListRow is a directory in `policy ls`, as JSON has it.
type policyListRow struct {
	Path string `json:"path"`
	Set  string `json:"set"`
}

func (a *app) listPolicies(ctx context.Context) error {
	rows := []policyListRow{}
	_, _, err := a.at(ctx, "/", true, func(ctx context.Context, c *client.Client, _ *client.Inode) error {
		all, err := c.AllPolicies(ctx)
		for _, d := range all {
			rows = append(rows, policyListRow{string(d.GetPath()), policy.OwnText(d.GetPolicy())})
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b policyListRow) int { return strings.Compare(a.Path, b.Path) })
	return a.emit(rows, func(t *table) {
		t.row("DIRECTORY", "SET")
		for _, r := range rows {
			t.row(r.Path, r.Set)
		}
		t.title("")
		t.row("CLASS", "SETS", "FOR")
		for _, name := range policy.Classes() {
			t.row(name, policy.OwnText(policy.Class(name)), policy.About(name))
		}
	})
}
