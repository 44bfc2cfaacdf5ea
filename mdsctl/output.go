package mdsctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/canopyfs/canopy/client/inspect"
)

// emit prints v as JSON, or what draw writes as a table.
func (a *app) emit(v any, draw func(t *table)) error {
	if a.output == "json" {
		e := json.NewEncoder(a.env.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := &table{w: tabwriter.NewWriter(a.env.Stdout, 0, 0, 2, ' ', 0)}
	draw(t)
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

// table writes aligned columns and keeps the first error.
type table struct {
	w   *tabwriter.Writer
	err error
}

func (t *table) row(cells ...any) {
	parts := make([]string, len(cells))
	for i, c := range cells {
		parts[i] = fmt.Sprint(c)
		if parts[i] == "" {
			parts[i] = "-"
		}
	}
	t.line(strings.Join(parts, "\t"))
}

func (t *table) line(s string) {
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.w, strings.TrimRight(s, " "))
	}
}

// title begins a new table.
func (t *table) title(s string) {
	if t.err == nil {
		t.err = t.w.Flush()
	}
	t.line(s)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// bytesText prints a size with a binary unit.
func bytesText(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

func joinIDs(ids []uint64) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = fmt.Sprint(id)
	}
	return strings.Join(parts, ",")
}

func timeText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// pidHere returns the process id if the process runs on this machine, else 0.
func pidHere(host string, pid uint32, here string) uint32 {
	if host == here && here != "" {
		return pid
	}
	return 0
}

func pidText(pid uint32) string {
	if pid == 0 {
		return "-"
	}
	return fmt.Sprint(pid)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err)
}

// holderOf returns the node that says that it holds the shard, else 0, and the
// one whose replica leads.
func holderOf(reports []*inspect.NodeReport, shard uint64) (holder, leader uint64) {
	for _, r := range reports {
		for _, s := range r.Shards {
			if s.GetShard() != shard {
				continue
			}
			if s.GetHolder() {
				holder = r.Info.GetNode()
			}
			if s.GetLeader() {
				leader = r.Info.GetNode()
			}
		}
	}
	return holder, leader
}
