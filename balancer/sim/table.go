package sim

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the outcomes of one workload side by side. "least in a minute" and
// "latest" compare a minute's operations and mean latency with those of the first outcome, in the
// minute in which that is worst.
func WriteTable(out io.Writer, all []*Outcome) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "balancer\toperations\tmean ms\tp99 ms\tlast minute /s\tits mean ms\tleast in a minute\tlatest\tmoves\tsplits\tmerges\tMiB\tmost of one\tback\tlast step\t")
	for _, o := range all {
		rate, latency := o.Worst(all[0], 60)
		last := "-"
		if o.LastStep >= 0 {
			last = fmt.Sprint(o.LastStep, " s")
		}
		fmt.Fprintln(t, strings.Join([]string{o.Balancer, big(o.Ops), fmt.Sprintf("%.2f", o.MeanMS), fmt.Sprintf("%.2f", o.P99MS), big(o.LastMin), fmt.Sprintf("%.2f", o.LastMS),
			fmt.Sprintf("%.2f", rate), fmt.Sprintf("%.2f", latency), fmt.Sprint(o.Moves), fmt.Sprint(o.Splits), fmt.Sprint(o.Merges), fmt.Sprintf("%.0f", o.MiB), fmt.Sprint(o.Most), fmt.Sprint(o.Returns), last}, "\t")+"\t")
	}
	return t.Flush()
}

// big prints a number with a unit.
func big(v float64) string {
	switch {
	case v < 1e4:
		return fmt.Sprintf("%.0f", v)
	case v < 1e6:
		return fmt.Sprintf("%.1f k", v/1e3)
	case v < 1e9:
		return fmt.Sprintf("%.2f M", v/1e6)
	}
	return fmt.Sprintf("%.2f G", v/1e9)
}
