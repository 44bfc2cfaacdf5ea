package meta

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/target"
)

// The test binary is its own worker process.
const childEnv = "CANOPY_LOADTEST_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := Child(context.Background(), openPath, os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openPath(_ context.Context, cfg *Config) (target.Target, error) { return target.NewPath(cfg.Path) }

func spawnSelf(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	return cmd
}

func config(dir string) Config {
	return Config{
		Path: dir, Base: "run", Workers: 3, Items: 20, Warmup: 5, Rounds: 2,
		Dirs: []string{Own, Shared}, Phases: append(Phases(), List), Verify: true,
	}
}

func checkSeries(t *testing.T, cfg Config, s *loadtest.Series) {
	t.Helper()
	if len(s.Phases) != 2*9 {
		t.Fatalf("%d phases, want 18", len(s.Phases))
	}
	n := int64(cfg.Total())
	for _, p := range s.Phases {
		want := n * int64(cfg.Items)
		entries := int64(0)
		switch p.Phase {
		case Stat, Open:
			want *= int64(cfg.Rounds)
		case ReadDir, List:
			want = n * int64(cfg.Rounds)
			perList := int64(2 * cfg.Items) // files and directories
			if p.Dirs == Shared {
				perList *= n
			}
			entries = want * perList
		}
		if p.Ops != want || p.Errors != 0 || p.Entries != entries || p.OpsPerSec <= 0 || p.Latency.P50US <= 0 {
			t.Errorf("%s, %s: %+v; want %d operations, %d entries", p.Dirs, p.Phase, p, want, entries)
		}
	}
}

func TestThreads(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir)
	s, err := Run(t.Context(), cfg, Env{Open: openPath, Name: loadtest.SeriesTarget})
	if err != nil {
		t.Fatal(err)
	}
	checkSeries(t, cfg, s)
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir)
	cfg.Processes, cfg.Workers = 3, 2
	s, err := Run(t.Context(), cfg, Env{Open: openPath, Spawn: spawnSelf})
	if err != nil {
		t.Fatal(err)
	}
	checkSeries(t, cfg, s)
	for _, p := range s.Phases {
		if len(p.CPU) != 1 || p.CPU[0].Who != "load" {
			t.Errorf("CPU: %+v", p.CPU)
		}
	}
}

func TestProcessThatCannotStart(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Processes = 2
	_, err := Run(t.Context(), cfg, Env{Open: openPath, Spawn: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "/bin/true") }})
	if err == nil || !strings.Contains(err.Error(), "worker process") {
		t.Fatalf("error: %v", err)
	}
}

func TestCancelStopsTheRun(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir)
	cfg.Items, cfg.Warmup = 1_000_000, 0
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, cfg, Env{Open: openPath}); err == nil {
		t.Fatal("no error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLimitEndsCreateEarly(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Items, cfg.Warmup, cfg.Limit, cfg.Dirs = 1_000_000, 0, 30*time.Millisecond, []string{Own}
	cfg.Phases = []string{Create, Stat, Unlink}
	s, err := Run(t.Context(), cfg, Env{Open: openPath})
	if err != nil {
		t.Fatal(err)
	}
	made, removed := s.Find(Own, Create), s.Find(Own, Unlink)
	if made.Seconds > 5 || made.Ops == 0 || made.Ops != removed.Ops {
		t.Errorf("made %+v, removed %+v", made, removed)
	}
}

func TestKeepLeavesFiles(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir)
	cfg.Keep, cfg.Phases, cfg.Dirs = true, []string{Create}, []string{Shared}
	if _, err := Run(t.Context(), cfg, Env{Open: openPath}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(dir + "/run/shared/f.*"); len(left) != cfg.Total()*cfg.Items {
		t.Errorf("%d files kept", len(left))
	}
}

func TestBooksFindWrongNames(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir)
	cfg.Workers = 1
	tg, err := target.NewPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := newBooks(&cfg, Own)
	if err := tg.MkdirAll(t.Context(), cfg.dirName(Own, 0)); err != nil {
		t.Fatal(err)
	}
	d, err := tg.Dir(t.Context(), cfg.dirName(Own, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{itemName(letterFile, 0, 0), "stranger"} {
		if err := d.Create(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	err = b.check(t.Context(), tg, Create, &stepResult{Workers: []changes{{Done: []int{0, 1}, Unknown: []int{2}}}})
	want := "after create: run/own.0 is wrong: 1 missing (f.0000.0000001), 0 listed twice, 1 not expected (stranger)"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestCheckRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"either --path":        func(c *Config) { c.Cluster = "x:1" },
		"--workers 0":          func(c *Config) { c.Workers = 0 },
		"--processes -1":       func(c *Config) { c.Processes = -1 },
		"--items 0":            func(c *Config) { c.Items = 0 },
		"--warmup 21":          func(c *Config) { c.Warmup = 21 },
		"--rounds 0":           func(c *Config) { c.Rounds = 0 },
		"--dirs":               func(c *Config) { c.Dirs = []string{"other"} },
		`--phases "x"`:         func(c *Config) { c.Phases = []string{"x"} },
		"stat needs what":      func(c *Config) { c.Phases = []string{Stat} },
		"want at least 1, and": func(c *Config) { c.Workers = 5000 },
	} {
		c := config("/tmp")
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
