// Package simulate shows what a balancer does to a cluster that is a model: it runs the
// workloads of balancer/sim with each balancer, and writes tables and plots.
package simulate

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/canopyfs/canopy/balancer/policy"
	"github.com/canopyfs/canopy/balancer/sim"
	"github.com/canopyfs/canopy/loadtest"
)

// Config says what is simulated.
type Config struct {
	Workload string // a name, or All
	Nodes    int
	Seed     uint64
}

// All is every workload, one after the other.
const All = "all"

// Result is what one workload showed, with each balancer.
type Result struct {
	Workload string         `json:"workload"`
	About    string         `json:"about"`
	Outcomes []*sim.Outcome `json:"outcomes"`
}

// Run simulates; before each workload it calls begin.
func Run(cfg Config, begin func(workload string)) ([]Result, error) {
	names := []string{cfg.Workload}
	if cfg.Workload == All {
		names = sim.Workloads()
	}
	var all []Result
	for _, name := range names {
		begin(name)
		outcomes, err := sim.Compare(name, sim.Options{Nodes: cfg.Nodes, Seed: cfg.Seed, Settings: policy.Default()})
		if err != nil {
			return nil, err
		}
		all = append(all, Result{name, sim.About(name), outcomes})
	}
	return all, nil
}

// WriteText writes a table for each workload, and with steps what the policy did and why.
func WriteText(w io.Writer, all []Result, steps bool) error {
	for i, r := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		o := r.Outcomes[len(r.Outcomes)-1]
		fmt.Fprintf(w, "%s: %s\n%d nodes, %d directories, %d entries at the end, %d s\n", r.Workload, r.About, o.Nodes, o.Dirs, o.Entries, o.Seconds)
		if err := sim.WriteTable(w, r.Outcomes); err != nil {
			return err
		}
		if !steps {
			continue
		}
		for _, s := range o.Steps {
			fmt.Fprintf(w, "%4d s  %s\n        because %s\n", s.Second, s.What, s.Why)
		}
	}
	return nil
}

// PlotFile returns the file for a workload's plot: the name that was given, with the
// workload in it if there are several.
func PlotFile(file, workload string, several bool) string {
	if !several {
		return file
	}
	ext := filepath.Ext(file)
	return strings.TrimSuffix(file, ext) + "-" + workload + ext
}

// WritePlot draws operations per second, their mean latency, and moves so far, over time, a
// line for each balancer.
func (r *Result) WritePlot(file string) error {
	title := "loadtest simulate " + r.Workload + ": " + r.About
	panels := []struct {
		title, label string
		log          bool
		value        func(sim.Sample) float64
	}{
		{title, "operations/s", false, func(s sim.Sample) float64 { return s.Rate }},
		{"", "mean latency, ms", true, func(s sim.Sample) float64 { return s.MeanMS }},
		{"", "moves begun", false, func(s sim.Sample) float64 { return float64(s.Moves) }},
	}
	var plots []*plot.Plot
	for i, panel := range panels {
		p := plot.New()
		p.Title.Text, p.Y.Label.Text = panel.title, panel.label
		low, high := math.Inf(1), 0.0
		for j, o := range r.Outcomes {
			var points plotter.XYs
			for _, s := range o.Samples {
				y := panel.value(s)
				if panel.log && y <= 0 {
					continue
				}
				points = append(points, plotter.XY{X: float64(s.Second), Y: y})
				low, high = min(low, y), max(high, y)
			}
			if len(points) == 0 {
				continue
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return err
			}
			line.Color, line.Width = loadtest.PlotColor(j), vg.Points(1.5)
			p.Add(line)
			if i == 0 {
				p.Legend.Add(o.Balancer, line)
			}
		}
		p.X.Label.Text = "seconds"
		if panel.log {
			loadtest.LogAxis(p, low, high)
		} else {
			p.Y.Min, p.Y.Max = 0, max(high*1.25, 1)
		}
		p.Legend.Top, p.Legend.Left = true, true
		plots = append(plots, p)
	}
	return loadtest.WritePlots(file, plots)
}
