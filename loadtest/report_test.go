package loadtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/proc"
)

var update = flag.Bool("update", false, "write the golden files anew")

func latency(p50 float64) hist.Latency {
	return hist.Latency{MeanUS: p50 * 1.1, P50US: p50, P95US: p50 * 2, P99US: p50 * 5, P999US: p50 * 20, MaxUS: p50 * 200}
}

func sample() *Report {
	phase := func(dirs, name string, ops int64, rate, p50 float64) Phase {
		return Phase{Phase: name, Dirs: dirs, Ops: ops, Seconds: float64(ops) / rate, OpsPerSec: rate, Latency: latency(p50),
			CPU: []CPU{NewCPU("load", 100*time.Millisecond, ops), NewCPU("mount", 200*time.Millisecond, ops), NewCPU("servers", time.Second, ops)}}
	}
	list := phase("own", "ls -l", 8, 4, 250_000)
	list.Entries, list.EntriesPerSec = 80_000, 40_000
	failing := phase("shared", "create", 5000, 900, 1100)
	failing.Errors, failing.FirstError = 3, "create /mnt/x: input/output error"
	memCreate := phase("own", "create", 10_000, 7000, 130)
	memCreate.CPU = memCreate.CPU[:2]
	append4k := latency(800)
	r := &Report{
		Format: ReportFormat, Command: "meta",
		Machine:  proc.Machine{Host: "box", CPUs: 2, Kernel: "6.18.0", Go: "go1.26", MemMiB: 8000, Started: "2026-01-02T03:04:05Z"},
		Settings: map[string]string{"workers": "8", "items": "1000"},
		Series: []Series{
			{Name: SeriesTarget, Target: "/mnt", Phases: []Phase{phase("own", "create", 10_000, 4200, 800), phase("own", "stat", 10_000, 90_000, 12), list, failing}},
			{Name: SeriesMemfs, Target: "/tmp/memfs", Phases: []Phase{memCreate, phase("own", "stat", 10_000, 100_000, 10), list, phase("shared", "create", 5000, 5000, 200)}},
		},
		Floors: []Floor{
			{Name: FloorAppend, Rate: 1100, Unit: "/s", Latency: &append4k},
			{Name: FloorRaft, Rate: 8000, Unit: "/s", Latency: &append4k, Settings: map[string]string{"replicas": "1"}},
			{Name: FloorStream, NotTaken: "no network"},
		},
		Notes: []string{"mount and servers are one process"},
	}
	r.CompareMount(&r.Series[0], &r.Series[1])
	r.CompareLibrary(&r.Series[0], 1)
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update writes it anew):\n%s", file, got)
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.Bytes())
}

func TestJSON(t *testing.T) {
	b, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", append(b, '\n'))
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || back.Failed() != 3 {
		t.Errorf("%v, %d failed", err, back.Failed())
	}
}

func TestRatios(t *testing.T) {
	r := sample()
	byName := map[string]Ratio{}
	for _, x := range r.Ratios {
		byName[x.What] = x
	}
	for what, want := range map[string]struct {
		value float64
		met   bool
	}{
		"own, create /s, of memory's":                   {0.6, true},
		"own, stat /s, of memory's":                     {0.9, true},
		"own, ls -l /s, of memory's":                    {1, true},
		"shared, create p50, of fdatasync's + memory's": {1.1, true},
		"shared, create /s, of the bare log's":          {0.1125, false},
	} {
		x, ok := byName[what]
		if !ok || x.Value < want.value*0.999 || x.Value > want.value*1.001 || x.Met() != want.met {
			t.Errorf("%s: %+v, want %+v", what, x, want)
		}
	}
	r.CompareData(100, 200)
	if n := len(r.Ratios); r.Ratios[n-1].What == "read MB/s, of the disk's" {
		t.Error("a ratio to a floor that was not taken")
	}
}

func TestPlots(t *testing.T) {
	dir := t.TempDir()
	r := sample()
	for _, name := range []string{"p.svg", "p.png"} {
		if err := r.WritePlot(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "p.svg"))
	if err != nil || !strings.Contains(string(svg), "</svg>") || !strings.Contains(string(svg), "create") {
		t.Errorf("svg: %v, %d bytes", err, len(svg))
	}
	f, err := os.Open(filepath.Join(dir, "p.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
	if keep := os.Getenv("CANOPY_KEEP_PLOT"); keep != "" {
		if err := r.WritePlot(keep); err != nil {
			t.Error(err)
		}
	}
	if err := r.WritePlot(dir + "/p.gif"); err == nil || !strings.Contains(err.Error(), ".svg or .png") {
		t.Errorf("gif: %v", err)
	}
	if err := (&Report{}).WritePlot(dir + "/q.svg"); err == nil {
		t.Error("a plot of nothing")
	}
}
