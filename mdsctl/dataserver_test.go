package mdsctl

import (
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// TestPoolShowsRepairs: the progress that primaries tell, and what cannot be
// rebuilt, are in `pool ls` and `dataserver ls`.
func TestPoolShowsRepairs(t *testing.T) {
	f := newFake(t)
	f.pools.Servers[1].Alive = false
	f.pools.Pools[0].Pgs[0].Leaving = []uint64{2}
	f.pools.Servers[0].Draining = true
	f.repairs.Gone = []*canopyv1.GoneServer{{Server: 2, GoneMs: 61_000}}
	f.repairs.Stuck = []*canopyv1.StuckGroup{{Pool: 1, Pg: 1, Reason: "1 of 2 copies: no other data server has room for one"}}
	f.recovery = map[string][]*canopyv1.GroupRepair{data1: {
		{Pool: 1, Pg: 0, Member: 3, ColumnsTotal: 40, ColumnsDone: 10, ColumnsSent: 4, BytesTotal: 4 << 20, BytesDone: 1 << 20, BytesSent: 512 << 10, RunningMs: 3000},
		{Pool: 1, Pg: 1, Run: 2}, // a scrub is shown elsewhere
	}}
	code, out, stderr := f.run("pool", "ls")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"10 of 40", "1.0 MiB of 4.0 MiB", "512.0 KiB", "1 placement groups lack a copy", "rebuilt on others in 8m59s"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "1.1 ") {
		t.Errorf("a scrub among the recoveries:\n%s", out)
	}
	if code, out, _ = f.run("dataserver", "ls"); code != 0 || !strings.Contains(out, "gone for 1m1s") || !strings.Contains(out, "alive, draining") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// TestDataServerCommands reach the leader, and refuse what is no server.
func TestDataServerCommands(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{{"drain", "1"}, {"resume", "1"}, {"forget", "2"}} {
		if code, _, stderr := f.run(append([]string{"dataserver"}, args...)...); code != 0 {
			t.Errorf("%v: exit %d: %s", args, code, stderr)
		}
	}
	if len(f.servers) != 3 || !f.servers[0].Draining || f.servers[1].Draining || !f.servers[2].Forget {
		t.Errorf("asked for %v", f.servers)
	}
	for _, bad := range []string{"x", "0", "3"} {
		if code, _, stderr := f.run("dataserver", "drain", bad); code == 0 || stderr == "" {
			t.Errorf("%q: exit %d: %s", bad, code, stderr)
		}
	}
}

// TestScrubCommand starts, paces and shows; lost bytes are an exit code.
func TestScrubCommand(t *testing.T) {
	f := newFake(t)
	f.scrub = &canopyv1.ScrubStatusResponse{Pgs: 2}
	if code, out, _ := f.run("scrub"); code != 0 || !strings.Contains(out, "no scrub yet") {
		t.Errorf("exit %d: %s", code, out)
	}
	f.scrub = &canopyv1.ScrubStatusResponse{Pgs: 2, State: &canopyv1.ScrubState{Run: 3, RateBytes: 50 << 20, StartedNs: 1},
		Results: []*canopyv1.ScrubResult{{Pool: 1, Pg: 0, Run: 3, Columns: 7, Bytes: 1 << 20, Damaged: 2, Repaired: 2, Findings: []string{"block 5 is damaged"}}, {Pool: 1, Pg: 1, Run: 2, Unrepairable: 9}}}
	f.recovery = map[string][]*canopyv1.GroupRepair{data2: {{Pool: 1, Pg: 1, Run: 3, BytesDone: 1 << 20, BytesTotal: 4 << 20, RunningMs: 2000}}}
	code, out, stderr := f.run("scrub", "--start", "--rate", "50M")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if len(f.scrubs) != 1 || !f.scrubs[0].Start || f.scrubs[0].GetRateBytes() != 50<<20 {
		t.Errorf("asked for %v", f.scrubs)
	}
	for _, want := range []string{"running", "1 of 2 placement groups", "2 blocks damaged", "2 repaired", "block 5 is damaged", "group 1.1, 1.0 MiB of 4.0 MiB"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	f.scrub.Results[1].Run = 3
	if code, out, stderr := f.run("scrub", "--status"); code != 1 || !strings.Contains(out, "done") || !strings.Contains(stderr, "9 blocks are lost") {
		t.Errorf("exit %d: %s%s", code, out, stderr)
	}
	for _, bad := range [][]string{{"--start", "--stop"}, {"--status", "--stop"}, {"--rate", "fast"}, {"--rate", "-1"}} {
		if code, _, stderr := f.run(append([]string{"scrub"}, bad...)...); code == 0 || stderr == "" {
			t.Errorf("%v: exit %d: %s", bad, code, stderr)
		}
	}
}
