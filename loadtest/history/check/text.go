package check

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "operation\tdone\trefused\tunknown\tby mounts\tlongest\t")
	for _, k := range r.Kinds {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\t\n", k.Kind, k.Done, k.Refused, k.Unknown, k.Mount, k.Longest.Round(time.Millisecond))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d operations, %d of unknown outcome (%d of clients that had waited); longest time without an answer %v\n",
		r.Ops, r.Unknown, r.Unhurried, r.LongestGap.Round(time.Millisecond))
	fmt.Fprintf(w, "checked: %d groups of names and registers, %d listings with %d names that were made once, %d records of logs\n",
		r.Parts, r.Listings, r.Names, r.Records)
	for _, v := range r.Violations {
		fmt.Fprintln(w, v)
	}
	if r.OK() {
		fmt.Fprintln(w, "no violation: every answer is one that a linearizable file system can give")
	}
	return nil
}

// Err returns an error that says what was found; nil: nothing.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	return fmt.Errorf("the history breaks rules: %v", r.Rules)
}
