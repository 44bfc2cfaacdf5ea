package small

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func options(dir string) Options {
	return Options{Dir: dir, Files: 60, SizeBytes: 5000, Dirs: 3, Workers: 4, Sync: true}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	var counted atomic.Int64
	o := options(dir)
	o.Count = func(n int64) { counted.Add(n) }
	o.DropCaches = func() error {
		if found, err := filepath.Glob(filepath.Join(dir, "*", "d*", "f*")); err != nil || len(found) != o.Files {
			t.Errorf("%d files before reading, %v", len(found), err)
		}
		return nil
	}
	s, err := Run(t.Context(), o, "here")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*struct{ dirs, phase string }{{"3", Write}, {"3", Read}, {"1", Churn}} {
		if ph := s.Find(p.dirs, p.phase); ph == nil || ph.Ops != 60 || ph.OpsPerSec <= 0 || ph.Latency.P50US <= 0 {
			t.Errorf("%s: %+v", p.phase, ph)
		}
	}
	if counted.Load() != 180 {
		t.Errorf("counted %d", counted.Load())
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWrongBytesAreFound(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"another file's": func(file string) error {
			other, err := os.ReadFile(filepath.Join(filepath.Dir(file), "f0"))
			if err != nil {
				return err
			}
			return os.WriteFile(file, other, 0o644)
		},
		"too long":  func(file string) error { return os.Truncate(file, 5001) },
		"too short": func(file string) error { return os.Truncate(file, 4999) },
	} {
		dir := t.TempDir()
		o := options(dir)
		o.DropCaches = func() error {
			found, err := filepath.Glob(filepath.Join(dir, "*", "d0", "f3"))
			if err != nil || len(found) != 1 {
				t.Fatalf("%v, %v", found, err)
			}
			return damage(found[0])
		}
		if _, err := Run(t.Context(), o, "here"); err == nil || !strings.Contains(err.Error(), "f3: wrong bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for want, o := range map[string]Options{
		"--small-files": {Dirs: 1, Workers: 1},
		"--small-size":  {Files: 1, SizeBytes: -1, Dirs: 1, Workers: 1},
		"--small-dirs":  {Files: 1, Workers: 1},
		"--workers":     {Files: 1, Dirs: 1},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
