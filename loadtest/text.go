package loadtest

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
)

// WriteText writes the report as tables.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{w: w}
	p.f("loadtest %s on %s: %d CPUs, %d MiB, Linux %s, %s, %s\n", r.Command, r.Machine.Host,
		r.Machine.CPUs, r.Machine.MemMiB, r.Machine.Kernel, r.Machine.Go, r.Machine.Started)
	p.f("settings: %s\n", settingsText(r.Settings))
	for i := range r.Series {
		p.series(&r.Series[i])
	}
	p.floors(r.Floors)
	p.ratios(r.Ratios)
	for _, n := range r.Notes {
		p.f("note: %s\n", n)
	}
	return p.err
}

func settingsText(m map[string]string) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = k + "=" + m[k]
	}
	return strings.Join(keys, " ")
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// table writes lines of cells ended by tabs, aligned to the right.
func (p *printer) table(lines []string) {
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, l := range lines {
		if p.err == nil {
			_, p.err = fmt.Fprintln(t, l+"\t")
		}
	}
	if p.err == nil {
		p.err = t.Flush()
	}
}

func (p *printer) series(s *Series) {
	p.f("\n%s: %s\n", s.Name, s.Target)
	head := []string{"dirs", "phase", "ops/s", "p50", "p95", "p99", "p99.9", "max", "errors"}
	groups := map[string]bool{}
	var who []string
	for _, ph := range s.Phases {
		for _, c := range ph.CPU {
			if !groups[c.Who] {
				groups[c.Who] = true
				who = append(who, c.Who)
			}
		}
	}
	for _, g := range who {
		head = append(head, "CPU s/1000 "+g)
	}
	lines := []string{strings.Join(append(head, "entries/s"), "\t")}
	for _, ph := range s.Phases {
		l := ph.Latency
		cells := []string{ph.Dirs, ph.Phase, rate(ph.OpsPerSec), us(l.P50US), us(l.P95US), us(l.P99US), us(l.P999US), us(l.MaxUS), fmt.Sprint(ph.Errors)}
		for _, g := range who {
			cell := "-"
			for _, c := range ph.CPU {
				if c.Who == g {
					cell = fmt.Sprintf("%.3f", c.PerKiloOps)
				}
			}
			cells = append(cells, cell)
		}
		entries := ""
		if ph.Entries > 0 {
			entries = rate(ph.EntriesPerSec)
		}
		lines = append(lines, strings.Join(append(cells, entries), "\t"))
	}
	p.table(lines)
	for _, ph := range s.Phases {
		if ph.FirstError != "" {
			p.f("%s, %s: %d failed, first: %s\n", ph.Dirs, ph.Phase, ph.Errors, ph.FirstError)
		}
	}
}

func (p *printer) floors(floors []Floor) {
	if len(floors) == 0 {
		return
	}
	p.f("\nfloors: what the parts do by themselves here\n")
	lines := []string{"floor\trate\tp50\tp95\tp99\tp99.9\tCPU s/1000\tsettings"}
	for _, f := range floors {
		if f.NotTaken != "" {
			lines = append(lines, f.Name+"\t-\t\t\t\t\t\tnot taken: "+f.NotTaken)
			continue
		}
		cells := []string{f.Name, rate(f.Rate) + " " + f.Unit, "", "", "", ""}
		if l := f.Latency; l != nil {
			copy(cells[2:], []string{us(l.P50US), us(l.P95US), us(l.P99US), us(l.P999US)})
		}
		var cpu []string
		for _, c := range f.CPU {
			cpu = append(cpu, fmt.Sprintf("%s %.3f", c.Who, c.PerKiloOps))
		}
		lines = append(lines, strings.Join(append(cells, strings.Join(cpu, " + "), settingsText(f.Settings)), "\t"))
	}
	p.table(lines)
}

func (p *printer) ratios(ratios []Ratio) {
	if len(ratios) == 0 {
		return
	}
	p.f("\nratios of this run\n")
	lines := []string{"\tratio\taim"}
	for _, r := range ratios {
		aim := ""
		if r.Target != 0 {
			sign, met := ">=", "met"
			if r.AtMost {
				sign = "<="
			}
			if !r.Met() {
				met = "MISSED"
			}
			aim = fmt.Sprintf("%s %.2f %s", sign, r.Target, met)
		}
		lines = append(lines, fmt.Sprintf("%s\t%.2f\t%s", r.What, r.Value, aim))
	}
	p.table(lines)
}

func rate(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// us prints microseconds with the unit that fits.
func us(v float64) string {
	switch {
	case v < 1000:
		return fmt.Sprintf("%.0fus", v)
	case v < 100_000:
		return fmt.Sprintf("%.2fms", v/1e3)
	}
	return fmt.Sprintf("%.2fs", v/1e6)
}
