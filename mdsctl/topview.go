package mdsctl

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/canopyfs/canopy/internal/base"
)

// topBy are the tables of `top`.
var topBy = map[string]func(*topReport, *table){
	"dir": (*topReport).dirTable, "client": (*topReport).clientTable, "op": (*topReport).opTable,
	"shard": (*topReport).shardTable, "node": (*topReport).nodeTable,
}

// write prints one look.
func (r *topReport) write(t *table, by string) {
	t.line(r.headline())
	topBy[by](r, t)
	if by == "dir" {
		r.detail(t)
	}
	if by != "shard" {
		for _, s := range r.Shards {
			if s.Error != "" {
				t.title(fmt.Sprintf("shard %d: %s", s.Shard, s.Error))
			}
		}
	}
	for _, s := range r.Shards {
		switch {
		case s.Off:
			t.title(fmt.Sprintf("shard %d: node %d does not count (--heat=off)", s.Shard, s.Node))
		case s.LostOps > 0:
			t.title(fmt.Sprintf("shard %d: %d operations were not counted, there were too many at once", s.Shard, s.LostOps))
		}
	}
}

// headline says over what and for how long was counted.
func (r *topReport) headline() string {
	ops, told, youngest := 0.0, 0, -1.0
	for _, s := range r.Shards {
		if s.Error == "" {
			ops, told = ops+s.OpsPerSecond, told+1
			if youngest < 0 || s.SinceSeconds < youngest {
				youngest = s.SinceSeconds
			}
		}
	}
	since := ""
	if told > 0 {
		since = fmt.Sprintf(", since %v", time.Duration(youngest*float64(time.Second)).Round(time.Second))
		if told > 1 {
			since += " or longer"
		}
	}
	return fmt.Sprintf("%s ops/s at %d of %d shards; counts halve in %v%s", rateText(ops), told, len(r.Shards), time.Duration(r.HalfLifeSeconds)*time.Second, since)
}

// opsText is a rate, with what may be missing in it if that matters.
func (r *topRates) opsText() string {
	if r.Over > 0.01*r.OpsPerSecond && r.Over >= 0.05 {
		return rateText(r.OpsPerSecond) + "+" + rateText(r.Over)
	}
	return rateText(r.OpsPerSecond)
}

// topClasses are the columns of operations.
var topClasses = []any{"OPS/S", "CREATE", "LOOKUP", "STAT", "READDIR", "UNLINK", "RENAME", "OTHER"}

func (r *topRates) classes() []any {
	cells := []any{r.opsText()}
	for _, x := range []float64{r.Create, r.Lookup, r.Stat, r.ReadDir, r.Unlink, r.Rename, r.Change + r.Other} {
		cells = append(cells, rateText(x))
	}
	return cells
}

// eachText is how long one operation takes on average.
func eachText(seconds, ops float64) string {
	if ops <= 0 || seconds <= 0 {
		return "0"
	}
	d := time.Duration(seconds / ops * float64(time.Second))
	switch {
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= 100*time.Microsecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.2fms", d.Seconds()*1000)
}

// coldest operations a second are the least that a table shows: what has gone cold
// fades for long.
const coldest = 0.01

// worthAWord is the share of a directory's operations from which on a client is named.
const worthAWord = 0.01

func percentOf(x float64) string { return fmt.Sprintf("%.0f%%", 100*x) }

// cells puts cells and lists of cells into one row.
func cells(parts ...any) (all []any) {
	for _, p := range parts {
		if list, ok := p.([]any); ok {
			all = append(all, list...)
		} else {
			all = append(all, p)
		}
	}
	return all
}

// pathText names what may have no path.
func pathText(path string, ino uint64) string {
	if path == "" {
		return "inode " + base.Ino(ino).String()
	}
	return printable(path)
}

// printable quotes what would not be one line on a terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return strconv.Quote(s)
	}
	return s
}

func (r *topReport) dirTable(t *table) {
	t.row(cells("DIR", topClasses, "TIME", "QUEUE", "CONFLICT", "CLIENTS", "SHARD", "NODE", "ENTRIES", "HINT")...)
	for i := range r.Dirs {
		d := &r.Dirs[i]
		if d.OpsPerSecond < coldest {
			continue
		}
		var shards, nodes []string
		for _, p := range d.Places {
			shards, nodes = once(shards, fmt.Sprint(p.Shard)), once(nodes, fmt.Sprint(p.Node))
		}
		entries := ""
		if len(d.Places) > 0 {
			entries = fmt.Sprint(d.Entries)
		}
		t.row(cells(pathText(d.Path, d.Ino), d.classes(), percentOf(d.TimeShare), eachText(d.Queue, d.OpsPerSecond), eachText(d.Conflict, d.OpsPerSecond),
			whoText(d.Clients, d.OpsPerSecond), strings.Join(shards, ","), strings.Join(nodes, ","), entries, d.Hint)...)
	}
}

// once adds what is not in the list.
func once(list []string, s string) []string {
	for _, x := range list {
		if x == s {
			return list
		}
	}
	return append(list, s)
}

// whoText names those that make most of the operations.
func whoText(all []topWho, ops float64) string {
	const most = 2
	var parts []string
	for _, w := range all {
		if portion(w.OpsPerSecond, ops) < worthAWord {
			continue
		}
		if len(parts) == most {
			parts = append(parts, "...")
			break
		}
		parts = append(parts, fmt.Sprintf("%s %s", clientName(w.Client, w.Host, w.Pid, w.Mount), percentOf(portion(w.OpsPerSecond, ops))))
	}
	return strings.Join(parts, ", ")
}

// clientName is what people call a client: its mount, or its id if it has no session.
func clientName(id, host string, pid uint32, mount string) string {
	if host == "" && mount == "" {
		return id
	}
	return printable(fmt.Sprintf("%s[%d]:%s", host, pid, mount))
}

// detail says more of the hottest directory.
func (r *topReport) detail(t *table) {
	if len(r.Dirs) == 0 || r.Dirs[0].Advice == nil {
		return
	}
	d := &r.Dirs[0]
	path := pathText(d.Path, d.Ino)
	t.title("")
	if len(d.Names) > 0 {
		t.line(fmt.Sprintf("%s: names such as %s", path, strings.Join(quoted(d.Names), ", ")))
	}
	for _, w := range d.Clients {
		if portion(w.OpsPerSecond, d.OpsPerSecond) < worthAWord {
			continue
		}
		t.line(fmt.Sprintf("%s: client %s, %s %s/s", path, w.Client, clientName("no session", w.Host, w.Pid, w.Mount), rateText(w.OpsPerSecond)))
	}
	if d.Advice.Split != nil {
		t.line(fmt.Sprintf("%s: %s", path, d.Advice.splitWords()))
	}
	if d.Advice.Move != nil {
		t.line(fmt.Sprintf("%s: %s", path, d.Advice.moveWords()))
	}
}

func quoted(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return out
}

func (r *topReport) clientTable(t *table) {
	t.row(cells("CLIENT", "WHO", topClasses, "TIME", "QUEUE", "CONFLICT", "SHARDS", "DIRS")...)
	for i := range r.Clients {
		c := &r.Clients[i]
		if c.OpsPerSecond < coldest {
			continue
		}
		var shards, dirs []string
		for _, s := range c.Shards {
			shards = append(shards, fmt.Sprint(s))
		}
		for _, d := range c.Dirs[:min(2, len(c.Dirs))] {
			dirs = append(dirs, fmt.Sprintf("%s %s", pathText(d.Path, d.Ino), percentOf(portion(d.OpsPerSecond, c.OpsPerSecond))))
		}
		who := ""
		if c.Host != "" || c.Mount != "" {
			who = clientName("", c.Host, c.Pid, c.Mount)
		}
		t.row(cells(c.Client, who, c.classes(), percentOf(c.TimeShare), eachText(c.Queue, c.OpsPerSecond), eachText(c.Conflict, c.OpsPerSecond),
			strings.Join(shards, ","), strings.Join(dirs, ", "))...)
	}
}

func (r *topReport) opTable(t *table) {
	t.row("OP", "OPS/S", "TIME", "LATENCY", "WORK", "QUEUE", "CONFLICT")
	for _, o := range r.Ops {
		t.row(o.Op, rateText(o.OpsPerSecond), percentOf(o.TimeShare), eachText(o.Latency, o.OpsPerSecond), eachText(o.Serve, o.OpsPerSecond),
			eachText(o.Queue, o.OpsPerSecond), eachText(o.Conflict, o.OpsPerSecond))
	}
}

func (r *topReport) shardTable(t *table) {
	t.row(cells("SHARD", "NODE", topClasses, "BUSY", "LATENCY", "QUEUE", "CONFLICT", "WAITING", "SINCE", "NOTE")...)
	for i := range r.Shards {
		s := &r.Shards[i]
		if s.Error != "" {
			t.row(s.Shard, nodeText(s.Node), "?", "", "", "", "", "", "", "", "", "", "", "", "", "", s.Error)
			continue
		}
		t.row(cells(s.Shard, nodeText(s.Node), s.classes(), percentOf(s.Serve), eachText(s.Latency, s.OpsPerSecond), eachText(s.Queue, s.OpsPerSecond),
			eachText(s.Conflict, s.OpsPerSecond), s.QueueCommands, time.Duration(s.SinceSeconds*float64(time.Second)).Round(time.Second), s.ReadOnly)...)
	}
}

func (r *topReport) nodeTable(t *table) {
	t.row(cells("NODE", "HOST", "SHARDS", topClasses, "BUSY", "QUEUE", "CONFLICT")...)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		t.row(cells(n.Node, n.Host, joinIDs(n.Shards), n.classes(), percentOf(n.Serve), eachText(n.Queue, n.OpsPerSecond), eachText(n.Conflict, n.OpsPerSecond))...)
	}
}
