package proc

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestParseStatWithOddCommandName(t *testing.T) {
	line := "42 (a) b (c) S 1 42 42 0 -1 4194560 10 0 0 0 250 150 7 7 20 0 1 0 100 1000 10 1844 1 1 0 0 0 0 0"
	got, err := parseStat([]byte(line))
	if err != nil || got != 4*time.Second {
		t.Fatalf("%v, %v; want 4s", got, err)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1", "1 (x) S 1 2 3 4 5 6 7 8 9 10 a b c"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestCPUOfThisProcess(t *testing.T) {
	if _, err := CPU("/proc", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if _, err := CPU(filepath.Join(t.TempDir(), "none"), 1); err == nil {
		t.Fatal("a missing process has CPU time")
	}
	if Self() <= 0 {
		t.Error("this process has used no CPU time")
	}
	if m := ThisMachine(time.Unix(0, 0)); m.CPUs < 1 || m.Started != "1970-01-01T00:00:00Z" {
		t.Errorf("machine: %+v", m)
	}
}
