package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
)

// scrubReport is what the present scrub, or the last one, found, as JSON has it.
type scrubReport struct {
	Run         uint64   `json:"run"`   // 0: there never was one
	State       string   `json:"state"` // none, running, stopped, done
	RateBytes   uint64   `json:"rate_bytes"`
	Started     string   `json:"started,omitempty"`
	PGs         uint32   `json:"pgs"`
	PGsDone     int      `json:"pgs_done"`
	Columns     uint64   `json:"columns"`
	Bytes       uint64   `json:"bytes"` // read, of all copies
	Damaged     uint64   `json:"blocks_damaged"`
	Differing   uint64   `json:"columns_differing"`
	Repaired    uint64   `json:"repaired"`
	Lost        uint64   `json:"blocks_lost"`
	Findings    []string `json:"findings"`
	Progressing []string `json:"under_way,omitempty"`
}

func scrubOf(s *canopyv1.ScrubStatusResponse) scrubReport {
	state := s.GetState()
	r := scrubReport{Run: state.GetRun(), RateBytes: state.GetRateBytes(), PGs: s.GetPgs(), State: "none", Findings: []string{}}
	if r.Run == 0 {
		return r
	}
	r.Started = timeText(state.GetStartedNs())
	for _, x := range s.GetResults() {
		if x.GetRun() == r.Run {
			r.PGsDone++
			r.add(x)
			r.Findings = append(r.Findings, x.GetFindings()...)
		}
	}
	switch {
	case uint32(r.PGsDone) >= r.PGs:
		r.State = "done"
	case state.GetStopped():
		r.State = "stopped"
	default:
		r.State = "running"
	}
	return r
}

func (r *scrubReport) add(x *canopyv1.ScrubResult) {
	r.Columns += x.GetColumns()
	r.Bytes += x.GetBytes()
	r.Damaged += x.GetDamaged()
	r.Differing += x.GetDiffering()
	r.Repaired += x.GetRepaired()
	r.Lost += x.GetUnrepairable()
}

func (a *app) scrubCommand() *cobra.Command {
	var start, stop, status bool
	var rate string
	c := &cobra.Command{
		Use: "scrub", Short: "Read all data of all copies in the background, and repair", Args: noArgs,
		Long: "Have the data servers read everything that they hold, compare the copies with their\nchecksums and with each other, and put right what is wrong. It runs in the background,\nat --rate bytes per second and data server, and goes on over restarts of any process.\n" +
			"Without flags: what the present scrub, or the last one, found so far. The exit code is\n1 if bytes are lost: a block that no copy has any more.",
		Example: "  mdsctl scrub --start --rate 50M\n  mdsctl scrub\n  mdsctl scrub --stop",
		RunE: func(c *cobra.Command, _ []string) error {
			if status && (start || stop || rate != "") || start && stop {
				return errors.New("--start, --stop and --status exclude each other")
			}
			r := &canopyv1.SetScrubRequest{Start: start, Stop: stop}
			if rate != "" {
				n, err := parseRate(rate)
				if err != nil {
					return err
				}
				r.RateBytes = &n
			}
			return a.scrub(c.Context(), r)
		},
	}
	f := c.Flags()
	f.BoolVar(&start, "start", false, "begin a scrub, or go on with a stopped one")
	f.BoolVar(&stop, "stop", false, "stop it; --start goes on with what is left")
	f.BoolVar(&status, "status", false, "show what it found (the default)")
	f.StringVar(&rate, "rate", "", "bytes per second and data server, such as 50M; 0: no bound (default 32M)")
	return c
}

// parseRate reads a number of bytes with an optional K, M or G.
func parseRate(s string) (uint64, error) {
	text := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	shift := 0
	for i, unit := range []string{"K", "M", "G"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = rest, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(text, 10, 33)
	if err != nil {
		return 0, fmt.Errorf("--rate %q: want bytes per second, such as 50M", s)
	}
	return n << shift, nil
}

func (a *app) scrub(ctx context.Context, r *canopyv1.SetScrubRequest) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		if r.Start || r.Stop || r.RateBytes != nil {
			if _, err := cl.SetScrub(ctx, r); err != nil {
				return err
			}
		}
		status, err := cl.ScrubStatus(ctx)
		if err != nil {
			return err
		}
		report := scrubOf(status)
		if report.State == "running" {
			report.addProgress(ctx, cl)
		}
		if err := a.emit(report, func(t *table) { writeScrub(t, report) }); err != nil {
			return err
		}
		if report.Lost > 0 {
			return fmt.Errorf("%d blocks are lost: no copy of them is whole", report.Lost)
		}
		return nil
	})
}

// addProgress asks the servers how far they are with the groups under way.
func (r *scrubReport) addProgress(ctx context.Context, cl *inspect.Cluster) {
	m, err := cl.Pools(ctx)
	if err != nil {
		return // the results are there
	}
	for _, s := range m.GetServers() {
		if !s.GetAlive() {
			continue
		}
		status, err := cl.RepairStatus(ctx, s.GetAddress())
		if err != nil {
			r.Progressing = append(r.Progressing, fmt.Sprintf("data server %d does not answer: %v", s.GetServer(), err))
			continue
		}
		for _, g := range status.GetGroups() {
			if g.GetRun() == r.Run && !g.GetWaiting() && g.GetRunningMs() > 0 {
				r.Progressing = append(r.Progressing, fmt.Sprintf("data server %d: group %d.%d, %s of %s for %v", s.GetServer(), g.GetPool(), g.GetPg(),
					bytesText(g.GetBytesDone()), bytesText(g.GetBytesTotal()), (time.Duration(g.GetRunningMs())*time.Millisecond).Round(time.Second)))
			}
			if g.GetRun() == r.Run && g.GetError() != "" {
				r.Progressing = append(r.Progressing, fmt.Sprintf("data server %d: group %d.%d is tried again: %s", s.GetServer(), g.GetPool(), g.GetPg(), g.GetError()))
			}
		}
	}
}

func writeScrub(t *table, r scrubReport) {
	if r.Run == 0 {
		t.line("there was no scrub yet (mdsctl scrub --start)")
		return
	}
	rate := "no bound"
	if r.RateBytes > 0 {
		rate = bytesText(r.RateBytes) + "/s per data server"
	}
	t.line(fmt.Sprintf("scrub %d, begun %s: %s; %s", r.Run, r.Started, r.State, rate))
	t.line(fmt.Sprintf("%d of %d placement groups, %d columns, %s read", r.PGsDone, r.PGs, r.Columns, bytesText(r.Bytes)))
	t.line(fmt.Sprintf("%d blocks damaged, %d columns with copies that differed, %d repaired, %d blocks lost", r.Damaged, r.Differing, r.Repaired, r.Lost))
	for _, p := range r.Progressing {
		t.line(p)
	}
	for _, f := range r.Findings {
		t.line("  " + f)
	}
}
