package dataserver

import (
	"fmt"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// TestResolve: what becomes of changes that are open when a primary begins.
func TestResolve(t *testing.T) {
	record := func(seq, row uint64, applied, cut bool) *canopyv1.ShardUndo {
		return &canopyv1.ShardUndo{Term: 5, Seq: seq, Column: &canopyv1.Column{DataId: 1}, FirstRow: row, States: []byte{2, 2}, Applied: applied, Cut: cut}
	}
	log := func(id base.NodeID, term, floor uint64, records ...*canopyv1.ShardUndo) shardLog {
		l := shardLog{id: id, term: term, floor: floor, open: map[uint64]*canopyv1.ShardUndo{}}
		for _, r := range records {
			l.open[r.Seq] = r
		}
		return l
	}
	done := func(seq, row uint64) *canopyv1.ShardUndo { return record(seq, row, true, false) }
	for name, c := range map[string]struct {
		logs []shardLog
		want string
	}{
		"all have it":              {[]shardLog{log(1, 5, 0, done(9, 0)), log(2, 5, 0, done(9, 0))}, ""},
		"one lacks it":             {[]shardLog{log(1, 5, 0, done(9, 0)), log(2, 5, 0)}, "9 [1] "},
		"one has half of it":       {[]shardLog{log(1, 5, 0, done(9, 0)), log(2, 5, 0, record(9, 0, false, false))}, "9 [1 2] "},
		"one forgot that all have": {[]shardLog{log(1, 5, 0, done(9, 0)), log(2, 5, 10)}, ""},
		"a later one of its rows":  {[]shardLog{log(1, 5, 0, done(9, 0), done(10, 1)), log(2, 5, 0)}, "10 [1] "},
		"a later one elsewhere":    {[]shardLog{log(1, 5, 0, done(9, 0), done(10, 2)), log(2, 5, 0)}, "10 [1] 9 [1] "},
		"an older term":            {[]shardLog{log(1, 5, 0, done(9, 0)), log(2, 6, 0)}, ""},
		"a cut is completed":       {[]shardLog{log(1, 5, 0, record(9, 0, true, true)), log(2, 5, 0)}, "9 [1 2] "},
		"a cut before a write":     {[]shardLog{log(1, 5, 0, record(9, 0, true, true), done(10, 7)), log(2, 5, 0)}, "10 [1] "},
	} {
		got := ""
		for _, r := range resolve(c.logs) {
			got += fmt.Sprintf("%d %v ", r.record.Seq, r.members)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
