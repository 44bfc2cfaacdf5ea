package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/proc"
	"github.com/canopyfs/canopy/loadtest/progress"
)

// output is the flags that say how results are shown.
type output struct {
	format string
	plot   string
	quiet  bool
}

func (o *output) bind(c *cobra.Command, withPlot bool) {
	c.Flags().StringVarP(&o.format, "output", "o", "text", "text or json")
	c.Flags().BoolVar(&o.quiet, "quiet", false, "no progress bar")
	if withPlot {
		c.Flags().StringVar(&o.plot, "plot", "", "draw the report into this file, FILE.svg or FILE.png")
	}
}

func (o *output) check() error {
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("-o %s: want text or json", o.format)
	}
	if o.plot == "" {
		return nil
	}
	return loadtest.PlotFormat(o.plot)
}

// bar returns the progress bar of a run: the caller ends it.
func (o *output) bar() *progress.Bar {
	if o.quiet {
		return nil
	}
	return progress.New(os.Stderr)
}

// json writes v if that is the format.
func (o *output) json(w io.Writer, v any) (bool, error) {
	if o.format != "json" {
		return false, nil
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return true, e.Encode(v)
}

// report writes a report and returns an error if operations in it failed.
func (o *output) report(w io.Writer, r *loadtest.Report) error {
	if done, err := o.json(w, r); err != nil {
		return err
	} else if !done {
		if err := r.WriteText(w); err != nil {
			return err
		}
	}
	if o.plot != "" {
		if err := r.WritePlot(o.plot); err != nil {
			return err
		}
	}
	if n := r.Failed(); n > 0 {
		return fmt.Errorf("%d operations failed: the report has the first error of each phase", n)
	}
	return nil
}

func newReport(command string, settings map[string]string) *loadtest.Report {
	return &loadtest.Report{Format: loadtest.ReportFormat, Command: command, Machine: proc.ThisMachine(time.Now()), Settings: settings}
}
