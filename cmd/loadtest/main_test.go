package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/durable"
	"github.com/canopyfs/canopy/loadtest/simulate"
)

// The test binary is the program itself for the processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(cli.Main(newRoot()))
	}
	os.Exit(m.Run())
}

// loadtestRun runs a command line and returns exit code and what was printed.
func loadtestRun(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	code = cli.Main(root)
	return code, out.String(), errs.String()
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := loadtestRun(args...)
	if code != 0 {
		t.Fatalf("loadtest %s: exit %d: %s\n%s", strings.Join(args, " "), code, errs, out)
	}
	return out
}

func TestMetaOnADirectory(t *testing.T) {
	dir := t.TempDir()
	plot := filepath.Join(t.TempDir(), "p.svg")
	out := mustRun(t, "meta", "--path", dir, "--processes", "2", "--items", "20", "--warmup", "2", "--verify", "-o", "json", "--plot", plot)
	var r loadtest.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Series) != 1 || len(r.Series[0].Phases) != 16 || r.Failed() != 0 || r.Settings["processes"] != "2" || r.Settings["workers"] != "1" {
		t.Errorf("%+v", r)
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("</svg>")) {
		t.Errorf("plot: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMetaWithFloor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root here")
	}
	dir := t.TempDir()
	out := mustRun(t, "meta", "--path", dir, "--workers", "2", "--items", "20", "--warmup", "2", "--with-floor", "--floor-dir", dir,
		"--floor-duration", "100ms", "--phases", "create,stat,unlink", "--mount-options", "consistency=relaxed=1s")
	for _, want := range []string{"floor: file system in memory", "fdatasync of a 4 KiB append", "own, create /s, of memory's", "shared, create p50", "CPU s/1000 mount", "relaxed=1s"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestListAndData(t *testing.T) {
	dir := t.TempDir()
	out := mustRun(t, "list", "--path", dir, "--entries", "300", "--rounds", "1", "--with-floor=no", "-o", "json")
	var r loadtest.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Series) != 1 || r.Series[0].Find("shared", "ls -l").Entries != 300 {
		t.Errorf("%v: %s", err, out)
	}
	out = mustRun(t, "data", "--path", dir, "--size", "2M", "--block", "256K", "--files", "2", "--small-files", "40", "--small-size", "9K", "--with-floor", "--floor-dir", dir)
	for _, want := range []string{"target: write + fsync", "local disk, every byte written twice", "read MB/s, of the disk's",
		"floor: go-fuse loopback over the local disk", "create+delete of small files /s, of the loopback's"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	dir := t.TempDir()
	out := mustRun(t, "checkpoint", "--path", dir+","+dir, "--ranks", "3", "--size", "300K", "--block", "64K")
	for _, want := range []string{"a file for each rank: write + fsync", "one file for all ranks: read back", "publish=", "into one file, of a file for each rank"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestDurableThenVerify(t *testing.T) {
	dir, journal := t.TempDir(), filepath.Join(t.TempDir(), "j")
	out := mustRun(t, "meta", "--path", dir, "--durable-check", "--journal", journal, "--for", "300ms", "--every", "100ms", "--workers", "3")
	if !strings.Contains(out, "longest gap in service") || !strings.Contains(out, "ops/s  longest gap") {
		t.Errorf("%s", out)
	}
	out = mustRun(t, "verify", "--journal", journal, "-o", "json")
	var v durable.Verdict
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Acknowledged == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	names, err := filepath.Glob(dir + "/loadtest.durable.*/dir.0/f.*0")
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	saved := names[0]
	if err := os.Remove(saved); err != nil {
		t.Fatal(err)
	}
	code, out, errs := loadtestRun("verify", "--journal", journal)
	if code != 1 || !strings.Contains(out, "missing: ") || !strings.Contains(errs, "map[missing:1]") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	if err := os.WriteFile(saved, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "verify", "--journal", journal, "--remove")
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSimulate(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "p.svg")
	out := mustRun(t, "simulate", "--workload", "hot", "--steps", "--plot", plot)
	for _, want := range []string{"hot: one directory that 64 workers create into", "static hash", "by hand", "split dir=", "because node 2 has been at"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("</svg>")) || !bytes.Contains(b, []byte("policy")) {
		t.Errorf("plot: %v", err)
	}
	out = mustRun(t, "simulate", "--workload", "alternate", "-o", "json")
	var r []simulate.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r) != 1 || len(r[0].Outcomes) != 4 || r[0].Outcomes[3].Balancer != "policy" || len(r[0].Outcomes[3].Samples) != 120 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestBadInputIsOneLine(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CANOPY_CLUSTER", "")
	for want, args := range map[string][]string{
		`unknown command "frob"`:          {"frob"},
		"say what to measure":             {"meta"},
		"exclude each other":              {"meta", "--path", dir, "--library"},
		"no such file or directory":       {"meta", "--path", dir + "/none"},
		"--workers 0":                     {"meta", "--path", dir, "--workers", "0"},
		"--dirs \"x\"":                    {"meta", "--path", dir, "--dirs", "x"},
		"want a name that ends":           {"meta", "--path", dir, "--plot", "x.gif"},
		"-o xml":                          {"meta", "--path", dir, "-o", "xml"},
		"--with-floor=maybe":              {"meta", "--path", dir, "--with-floor=maybe"},
		"unknown mount option":            {"meta", "--path", dir, "--mount-options", "zz"},
		"unknown flag: --nope":            {"meta", "--nope"},
		"--durable-check needs --journal": {"meta", "--path", dir, "--durable-check"},
		"--journal: open":                 {"verify", "--journal", dir + "/none"},
		"say which: --journal":            {"verify"},
		"say where: --path":               {"data"},
		`--size "x"`:                      {"data", "--path", dir, "--size", "x"},
		`--loads "tiny"`:                  {"data", "--path", dir, "--loads", "tiny"},
		"--small-files 0":                 {"data", "--path", dir, "--small-files", "0"},
		"say where: --path DIR":           {"checkpoint"},
		"--ranks 0":                       {"checkpoint", "--path", dir, "--ranks", "0"},
		"--into x":                        {"checkpoint", "--path", dir, "--into", "x"},
		"--replicas 2":                    {"floor", "--replicas", "2"},
		"--callers 0":                     {"floor", "--callers", "0"},
		"--entries 0":                     {"list", "--path", dir, "--entries", "0"},
		"--workload \"x\": want all, or one of hot": {"simulate", "--workload", "x"},
		"--nodes 5: want 20 to 10000":               {"simulate", "--nodes", "5"},
		"--share 2":                                 {"scale", "--share", "2"},
		"--nodes 3":                                 {"scale", "--nodes", "1,3"},
		"a worker process is started by a run":      {"child", "worker"},
	} {
		code, _, errs := loadtestRun(args...)
		if code != 1 || !strings.Contains(errs, want) || strings.Count(strings.TrimSpace(errs), "\n") != 0 {
			t.Errorf("%v: exit %d, %q; want %q in one line", args, code, errs, want)
		}
	}
}

// TestHistoryAndCheck: what was acknowledged and is gone later is found by who has the
// record. (A local file system uses inode numbers again, and its listings promise no order.)
func TestHistoryAndCheck(t *testing.T) {
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "h")
	_, out, errs := loadtestRun("history", "--path", dir, "--for", "300ms", "--clients", "6", "--seed", "5", "--record", record, "--keep", "--name", "run")
	for _, want := range []string{"create", "exchange", "checked: ", "operations, 0 of unknown outcome"} {
		if !strings.Contains(out, want) {
			t.Fatalf("the report lacks %q:\n%s%s", want, out, errs)
		}
	}
	if strings.Contains(out, "names of group") || !strings.Contains(errs, "seed 5") {
		t.Errorf("%s%s", out, errs)
	}
	if _, out, _ := loadtestRun("check", record, "--path", dir); strings.Contains(out, "names of group") || !strings.Contains(out, "checked: ") {
		t.Errorf("%s", out)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "run", "*", "log"))
	if err != nil || len(logs) != 5 {
		t.Fatalf("%v, %v", logs, err)
	}
	for _, log := range logs {
		if err := os.Truncate(log, 0); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, _ := loadtestRun("check", record, "--path", dir); code != 1 || !strings.Contains(out, "lost of d") {
		t.Errorf("exit %d\n%s", code, out)
	}
	for _, args := range [][]string{{"history"}, {"history", "--path", dir, "--clients", "0"}, {"check", filepath.Join(dir, "none")}} {
		if code, _, errs := loadtestRun(args...); code != 1 || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
}
