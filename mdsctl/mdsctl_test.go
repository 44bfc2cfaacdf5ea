package mdsctl

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// Every listing, as a table and as JSON, on a healthy cluster.
func TestGoldenOutput(t *testing.T) {
	f := newFake(t)
	for name, args := range map[string][]string{
		"status":     {"status"},
		"node-ls":    {"node", "ls"},
		"shard-ls":   {"shard", "ls"},
		"subtree-ls": {"subtree", "ls"},
		"session-ls": {"session", "ls"},
		"pool-ls":    {"pool", "ls"},
		"checksum":   {"checksum", "1"},
		"fsck":       {"fsck"},
	} {
		for _, format := range []string{"table", "json"} {
			if name == "session-ls" {
				// Only two of the three nodes hold a shard.
				f.status[node3].sessions = nil
			}
			code, out, errs := f.run(append(args, "-o", format)...)
			if code != 0 || errs != "" {
				t.Errorf("%v: exit %d, %s", args, code, errs)
			}
			if format == "json" && !json.Valid([]byte(out)) {
				t.Errorf("%v: no JSON:\n%s", args, out)
			}
			golden(t, name+"."+strings.Replace(format, "table", "txt", 1), out)
		}
	}
}

func TestStatusFindsProblems(t *testing.T) {
	f := newFake(t)
	f.kill(node3)
	f.m.Nodes[2].Alive = false
	f.status[node2].noEtcd = true
	f.status[node1].shards[1].AppliedIndex = 5
	f.status[node2].shards[1].AppliedIndex = 50_000
	f.m.Services[0].Leader = false
	f.pools.Servers[0].Alive = false
	f.pools.Servers[1].FreeBytes = 1 << 30
	f.pools.Pools[0].Pgs[0].InSync = []uint64{2}
	f.pools.Pools[0].Pgs[1].InSync = nil
	code, out, errs := f.run("status")
	if code != 1 || !strings.Contains(errs, "12 problems, the first: node 2 cannot reach etcd") {
		t.Errorf("exit %d, %s", code, errs)
	}
	golden(t, "status-problems.txt", out)
}

func TestStatusOfACrippledCluster(t *testing.T) {
	f := newFake(t)
	f.kill(node2)
	f.kill(node3)
	f.kill(layoutAddr)
	f.m.Subtrees = nil
	code, out, _ := f.run("status", "-o", "json")
	var r statusReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 {
		t.Fatalf("exit %d, %v", code, err)
	}
	all := strings.Join(r.Problems, "\n")
	for _, want := range []string{
		"node 2 (127.0.0.1:7002) does not answer, though its lease in etcd stands",
		"shard 1 is down: 1 of 3 replicas run", "nobody owns /", "layout service 1 at " + layoutAddr,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

// An idle shard's lease has lapsed: no problem as long as it has a leader.
func TestIdleShardIsNoProblem(t *testing.T) {
	f := newFake(t)
	f.status[node2].shards[1].Holder = false
	if code, out, errs := f.run("status"); code != 0 {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	f.status[node2].shards[1].Leader = false
	if code, _, errs := f.run("status"); code != 1 || !strings.Contains(errs, "shard 2 has no leader") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

func TestChecksumDifferentAndMissing(t *testing.T) {
	f := newFake(t)
	f.status[node3].sums[1] = bytes.Repeat([]byte{9}, 32)
	code, out, errs := f.run("checksum", "1")
	if code != 1 || !strings.Contains(out, "shard 1 at index 1234: DIFFERENT") || !strings.Contains(errs, "DIFFERENT") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	f.kill(node3)
	code, out, errs = f.run("checksum", "1", "-o", "json")
	var r checksumReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || r.Equal || r.Replicas[2].Error == "" || !strings.Contains(errs, "1 of 3 replicas of shard 1 gave no checksum") {
		t.Errorf("exit %d, %s%s, %v", code, out, errs, err)
	}
}

// TestChecksumOfAll: one shard whose replicas differ does not hide the others.
func TestChecksumOfAll(t *testing.T) {
	f := newFake(t)
	f.status[node3].sums[1] = bytes.Repeat([]byte{9}, 32)
	code, out, errs := f.run("checksum")
	if code != 1 || !strings.Contains(out, "shard 1 at index 1234: DIFFERENT") || !strings.Contains(out, "shard 2 at index 1234: equal") || !strings.Contains(errs, "replicas of shard 1 are DIFFERENT") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	f = newFake(t)
	code, out, errs = f.run("checksum", "-o", "json")
	var r []checksumReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r) != 2 || !r[0].Equal || !r[1].Equal {
		t.Errorf("exit %d, %s%s, %v", code, out, errs, err)
	}
}

func TestFsckFindings(t *testing.T) {
	f := newFake(t)
	f.findings[2] = []*canopyv1.FsckFinding{{Invariant: "3", Object: "directory 17", Problem: "nlink is 4, 3 were counted"}}
	code, out, errs := f.run("fsck")
	if code != 1 || !strings.Contains(errs, "fsck found 1 problems") {
		t.Errorf("exit %d, %s", code, errs)
	}
	golden(t, "fsck-findings.txt", out)
}

func TestDrain(t *testing.T) {
	f := newFake(t)
	code, out, errs := f.run("node", "drain", "2")
	if code != 0 || len(f.drained) != 1 || f.drained[0] != node2 || !strings.Contains(out, "node 2 has handed over") {
		t.Errorf("exit %d, %v, %s%s", code, f.drained, out, errs)
	}
}

func TestResume(t *testing.T) {
	f := newFake(t)
	for i, verb := range []string{"resume", "uncordon"} {
		code, out, errs := f.run("node", verb, "2")
		if code != 0 || len(f.resumed) != i+1 || f.resumed[i] != node2 || !strings.Contains(out, "node 2 may hold shards again") {
			t.Errorf("%s: exit %d, %v, %s%s", verb, code, f.resumed, out, errs)
		}
	}
}

// Any address of the list will do.
func TestSecondAddressAnswers(t *testing.T) {
	f := newFake(t)
	f.kill(node1)
	if code, _, errs := f.run("subtree", "ls"); code != 0 {
		t.Errorf("exit %d, %s", code, errs)
	}
}

func TestBadInputIsOneLine(t *testing.T) {
	f := newFake(t)
	for want, args := range map[string][]string{
		`unknown command "frob"`:                       {"frob"},
		`unknown command "frob": see mdsctl node`:      {"node", "frob"},
		"-o xml: want table or json":                   {"status", "-o", "xml"},
		"mdsctl status takes no arguments":             {"status", "x"},
		`"0" is not a valid shard id`:                  {"checksum", "0"},
		"there is no shard 9: the cluster has 2":       {"checksum", "9"},
		"mdsctl checksum wants one SHARD":              {"checksum", "1", "2"},
		`"x" is not a valid node id`:                   {"node", "drain", "x"},
		"there is no node 9: the cluster has 3":        {"node", "drain", "9"},
		"mdsctl stat wants one PATH":                   {"stat"},
		"unknown flag: --nope (see mdsctl status --he": {"status", "--nope"},
		"--rows 0: want 1 to":                          {"layout", "/x", "--rows", "0"},
		"--timeout 0s: want a positive time":           {"status", "--timeout", "0s"},
		"is not below a Canopy mount":                  {"stat", "relative/path"},
		`cluster address "nohost": want host:port`:     {"status", "--cluster", "nohost"},
		"no metadata node answers (is the cluster up":  {"status", "--cluster", "127.0.0.1:1"},
	} {
		code, _, errs := f.run(args...)
		if code != 1 || !strings.Contains(errs, want) || strings.Count(strings.TrimSpace(errs), "\n") != 0 || !strings.HasPrefix(errs, "mdsctl: ") {
			t.Errorf("%v: exit %d, %q; want %q in one line", args, code, errs, want)
		}
	}
}

func attr() *canopyv1.Attr {
	const t0 = 1_700_000_000_123_456_789
	return &canopyv1.Attr{
		Ino: 1<<44 + 5, Mode: 0o100640, Nlink: 1, Uid: 1000, Gid: 100, Size: 3 << 20, Blocks: 6144, AtimeNs: t0, MtimeNs: t0, CtimeNs: t0, BtimeNs: t0,
		Version: 12, DataVersion: 3, SizeEpoch: 2, Cuts: []*canopyv1.Cut{{SizeEpoch: 2, Size: 100}}, DataId: 1<<44 + 5, Subtree: 1, Epoch: 1,
		Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{{StripeBytes: 1 << 20, StripeCount: 1}, {Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3}}},
	}
}

func TestStatOutput(t *testing.T) {
	f := newFake(t)
	for _, format := range []string{"table", "json"} {
		var out bytes.Buffer
		a := &app{env: Env{Stdout: &out}, output: format}
		r := newStat("/data/x", attr(), f.m)
		if err := a.emit(r, func(t *table) { writeStat(t, r) }); err != nil {
			t.Fatal(err)
		}
		golden(t, "stat."+strings.Replace(format, "table", "txt", 1), out.String())
	}
	for mode, want := range map[uint32]string{0o40755: "directory", 0o120777: "symlink", 0o10644: "fifo", 0o20644: "character device", 0o60644: "block device", 0o140644: "socket"} {
		a := attr()
		a.Mode = mode
		if r := newStat("/x", a, f.m); r.Type != want {
			t.Errorf("%o: %s, want %s", mode, r.Type, want)
		}
	}
}

func TestPidOnlyOfThisMachine(t *testing.T) {
	f := newFake(t)
	here, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	f.m.Nodes[0].Host = here
	_, out, _ := f.run("node", "ls", "-o", "json")
	var rows []nodeRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil || rows[0].Pid != 100 || rows[1].Pid != 0 {
		t.Errorf("%v: %+v", err, rows)
	}
}

func TestHelpAndCompletion(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{{"--help"}, {"status", "--help"}, {"completion", "bash"}, {}} {
		if code, out, errs := f.run(args...); code != 0 || out == "" {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
}

func TestLocks(t *testing.T) {
	rows := []lockRow{
		newLockRow(&canopyv1.Lock{Client: 0xa1, Owner: 0xbeef, Kind: canopyv1.LockKind_LOCK_POSIX, Exclusive: true, Start: 100, Last: 199, Pid: 4711, Handle: 1}),
		newLockRow(&canopyv1.Lock{Client: 0xb2, Owner: 2, Kind: canopyv1.LockKind_LOCK_FLOCK, Last: 1<<63 - 1, Handle: 1}),
	}
	nameClients(rows, []*canopyv1.SessionInfo{{Client: 0xa1, Host: "worker-7", Mount: "/mnt"}, {Client: 0xc3, Host: "other"}})
	for _, format := range []string{"table", "json"} {
		var out bytes.Buffer
		a := &app{env: Env{Stdout: &out}, output: format}
		if err := a.emit(rows, func(t *table) { writeLocks(t, rows) }); err != nil {
			t.Fatal(err)
		}
		golden(t, "lock-ls."+strings.Replace(format, "table", "txt", 1), out.String())
	}
}
