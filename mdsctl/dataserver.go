package mdsctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
)

// repairRow is one recovery of a placement group's member, as JSON has it. Its
// numbers are the primary's own counts.
type repairRow struct {
	Pool         uint64 `json:"pool"`
	PG           uint32 `json:"pg"`
	From         uint64 `json:"from_server"`
	Member       uint64 `json:"server"`
	State        string `json:"state"` // waiting, running, failed
	ColumnsTotal uint64 `json:"columns_total"`
	ColumnsDone  uint64 `json:"columns_done"` // compared, and equal now
	ColumnsSent  uint64 `json:"columns_sent"` // of those, with differences
	BytesTotal   uint64 `json:"bytes_total"`
	BytesDone    uint64 `json:"bytes_done"`
	BytesSent    uint64 `json:"bytes_sent"`
	RunningMS    uint64 `json:"running_ms"`
	Error        string `json:"error,omitempty"`
}

// stuckRow is a reason why placement groups are not rebuilt.
type stuckRow struct {
	Reason string `json:"reason"`
	PGs    int    `json:"pgs"`
}

// addRepairs asks the servers what they repair, and the layout services' leader
// what it waits for. Who does not answer is named in the report: it is shown
// without.
func (r *poolReport) addRepairs(ctx context.Context, cl *inspect.Cluster) {
	repairs, err := cl.Repairs(ctx)
	if err != nil {
		r.Notes = append(r.Notes, "what is rebuilt is not known: "+err.Error())
	}
	gone := map[uint64]uint64{}
	for _, g := range repairs.GetGone() {
		gone[g.GetServer()] = g.GetGoneMs()
	}
	r.RebuildAfterMS = repairs.GetRebuildAfterMs()
	reasons := map[string]int{}
	for _, s := range repairs.GetStuck() {
		reasons[s.GetReason()]++
	}
	for reason, n := range reasons {
		r.Stuck = append(r.Stuck, stuckRow{reason, n})
	}
	slices.SortFunc(r.Stuck, func(a, b stuckRow) int { return b.PGs - a.PGs })
	for i := range r.Servers {
		s := &r.Servers[i]
		s.GoneMS = gone[s.Server]
		if !s.Alive {
			continue
		}
		status, err := cl.RepairStatus(ctx, s.Address)
		if err != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("data server %d does not tell what it repairs: %v", s.Server, err))
			continue
		}
		for _, g := range status.GetGroups() {
			if g.GetMember() != 0 {
				r.Repairs = append(r.Repairs, repairOf(s.Server, g))
			}
		}
	}
}

func repairOf(from uint64, g *canopyv1.GroupRepair) repairRow {
	state := "running"
	switch {
	case g.GetWaiting():
		state = "waiting"
	case g.GetRunningMs() == 0 && g.GetError() != "":
		state = "failed"
	}
	return repairRow{
		Pool: g.GetPool(), PG: g.GetPg(), From: from, Member: g.GetMember(), State: state,
		ColumnsTotal: g.GetColumnsTotal(), ColumnsDone: g.GetColumnsDone(), ColumnsSent: g.GetColumnsSent(),
		BytesTotal: g.GetBytesTotal(), BytesDone: g.GetBytesDone(), BytesSent: g.GetBytesSent(),
		RunningMS: g.GetRunningMs(), Error: g.GetError(),
	}
}

func writeRepairs(t *table, r poolReport) {
	if len(r.Repairs) > 0 {
		t.title("recovered now")
		t.row("PG", "SERVER", "FROM", "STATE", "COLUMNS", "BYTES", "SENT", "FOR", "ERROR")
		for _, x := range r.Repairs {
			t.row(fmt.Sprintf("%d.%d", x.Pool, x.PG), x.Member, x.From, x.State, fmt.Sprintf("%d of %d", x.ColumnsDone, x.ColumnsTotal),
				fmt.Sprintf("%s of %s", bytesText(x.BytesDone), bytesText(x.BytesTotal)), bytesText(x.BytesSent),
				(time.Duration(x.RunningMS) * time.Millisecond).Round(time.Second).String(), x.Error)
		}
	}
	for _, s := range r.Stuck {
		t.line(fmt.Sprintf("%d placement groups lack a copy: %s", s.PGs, s.Reason))
	}
	for _, s := range r.Servers {
		if s.GoneMS > 0 && s.GoneMS < r.RebuildAfterMS && s.PGs > 0 {
			t.line(fmt.Sprintf("server %d is gone: its placement groups are rebuilt on others in %v", s.Server,
				(time.Duration(r.RebuildAfterMS-s.GoneMS) * time.Millisecond).Round(time.Second)))
		}
	}
	for _, n := range r.Notes {
		t.line(n)
	}
}

// stateText says how a data server is.
func (s serverRow) stateText() string {
	state := "alive"
	if !s.Alive {
		state = "gone"
		if s.GoneMS > 0 {
			state += " for " + (time.Duration(s.GoneMS) * time.Millisecond).Round(time.Second).String()
		}
	}
	if s.Draining {
		state += ", draining"
		if s.PGs == 0 {
			state += ": empty"
		}
	}
	return state
}

func (a *app) dataServerCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List data servers: state, space, placement groups", Args: noArgs,
		Long:    "List the data servers with what the layout services know of each: whether it is\nalive, gone or draining, its space, and of how many placement groups it is a member.",
		Example: "  mdsctl dataserver ls",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withPools(c.Context(), func(r poolReport) error {
				return a.emit(r.Servers, func(t *table) {
					t.row("SERVER", "ADDRESS", "HOST", "STATE", "SIZE", "FREE", "PGS", "PRIMARY", "LABELS")
					for _, s := range r.Servers {
						t.row(s.Server, s.Address, s.Host, s.stateText(), bytesText(s.TotalBytes), bytesText(s.FreeBytes), s.PGs, s.Primary, strings.Join(s.Labels, ","))
					}
				})
			})
		},
	}
	drain := &cobra.Command{
		Use: "drain SERVER", Short: "Move all placement groups off a data server", Args: oneArg("SERVER"),
		Long: "Have others take over all that a data server holds. No copy is given up before\nanother is complete. \"mdsctl pool ls\" shows the progress; the server is empty when it\n" +
			"is in no placement group. Then it can be stopped and forgotten.",
		Example: "  mdsctl dataserver drain 3",
		RunE: func(c *cobra.Command, args []string) error {
			return a.setServer(c.Context(), args[0], &canopyv1.SetServerRequest{Draining: true}, "its placement groups move to others (mdsctl pool ls)")
		},
	}
	resume := &cobra.Command{
		Use: "resume SERVER", Short: "End the draining of a data server", Args: oneArg("SERVER"),
		Long:    "End what drain began. What has moved stays where it is; the server may get\nplacement groups again.",
		Example: "  mdsctl dataserver resume 3",
		RunE: func(c *cobra.Command, args []string) error {
			return a.setServer(c.Context(), args[0], &canopyv1.SetServerRequest{}, "may hold placement groups again")
		},
	}
	forget := &cobra.Command{
		Use: "forget SERVER", Short: "Remove the record of a data server that is gone", Args: oneArg("SERVER"),
		Long:    "Remove a data server from the list. It must be stopped and in no placement group.\nIts id is not given to another.",
		Example: "  mdsctl dataserver forget 3",
		RunE: func(c *cobra.Command, args []string) error {
			return a.setServer(c.Context(), args[0], &canopyv1.SetServerRequest{Forget: true}, "is forgotten")
		},
	}
	return group("dataserver", "Data servers", ls, drain, resume, forget)
}

func (a *app) setServer(ctx context.Context, arg string, r *canopyv1.SetServerRequest, done string) error {
	id, err := strconv.ParseUint(arg, 10, 64)
	if err != nil || id == 0 {
		return fmt.Errorf("data server %q: want its number (mdsctl dataserver ls)", arg)
	}
	r.Server = id
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		if err := cl.SetServer(ctx, r); err != nil {
			return err
		}
		return a.emit(map[string]uint64{"server": id}, func(t *table) { t.line(fmt.Sprintf("data server %d: %s", id, done)) })
	})
}
