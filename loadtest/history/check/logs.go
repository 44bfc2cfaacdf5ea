package check

import (
	"strings"

	"github.com/canopyfs/canopy/loadtest/history"
)

// TornPrefix begins the entries of a log that are no records: bytes that nobody wrote.
// HolePrefix begins those of zeros, which an append leaves that never ended.
const (
	TornPrefix = "!"
	HolePrefix = "~"
)

// checkLogs checks what logs have in the end: each acknowledged record once, no record
// twice or torn, and in the order in which they were appended.
func checkLogs(r *Report, h *history.History) {
	logs := map[string]map[string]*history.Op{}
	var ends []*history.Op
	for _, op := range h.Ops {
		switch {
		case op.Kind == history.Append:
			if logs[op.A] == nil {
				logs[op.A] = map[string]*history.Op{}
			}
			logs[op.A][op.Value] = op
			r.Records++
		case op.Kind == history.Appended && op.Outcome == history.Done:
			ends = append(ends, op)
		}
	}
	for _, end := range ends {
		checkLog(r, end, logs[end.A])
	}
}

func checkLog(r *Report, end *history.Op, appends map[string]*history.Op) {
	seen := map[string]bool{}
	unknown := false
	for _, op := range appends {
		unknown = unknown || op.Outcome == history.Unknown
	}
	// From the end: who returned first of those that are behind.
	first, by := int64(history.Never), ""
	for i := len(end.Entries) - 1; i >= 0; i-- {
		record := end.Entries[i].Name
		if strings.HasPrefix(record, HolePrefix) && unknown {
			continue
		}
		op := appends[record]
		switch {
		case op == nil:
			r.add(RuleTorn, end.A, "%s, behind %d records", record, i)
			continue
		case seen[record]:
			r.add(RuleRepeated, end.A, "%s: %s", record, describe(op))
		case op.Outcome != history.Done && op.Outcome != history.Unknown:
			r.add(RuleTorn, end.A, "%s is there, which was refused: %s", record, describe(op))
		case op.Call > first:
			r.add(RuleAppendSeen, end.A, "%s stands before %s, whose append had returned: %s", record, by, describe(op))
		}
		seen[record] = true
		if op.End() < first {
			first, by = op.End(), record
		}
	}
	for record, op := range appends {
		if op.Outcome == history.Done && op.Return < end.Call && !seen[record] {
			r.add(RuleLost, end.A, "%s: %s", record, describe(op))
		}
	}
}
