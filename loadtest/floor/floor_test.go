package floor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

const childEnv = "CANOPY_FLOOR_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := ServeStream(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestStream(t *testing.T) {
	r, err := Stream(t.Context(), StreamOptions{
		Callers: 16, Warmup: 50 * time.Millisecond, Duration: 300 * time.Millisecond,
		Spawn: func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"=1")
			return cmd
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Rate() < 100 || r.Hist.Count() == 0 || r.OpsPerMessage < 1 || r.OpsPerMessage > 16 || r.Hist.Quantile(0.5) <= 0 {
		t.Errorf("%+v, rate %.0f", r, r.Rate())
	}
}

func TestStreamServerThatFails(t *testing.T) {
	_, err := Stream(t.Context(), StreamOptions{Callers: 1, Duration: time.Second, Spawn: func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", "echo no luck >&2; exit 3")
	}})
	if err == nil || err.Error() != "echo server: no luck" {
		t.Errorf("%v", err)
	}
}

func TestFdatasync(t *testing.T) {
	dir := t.TempDir()
	for _, overwrite := range []bool{false, true} {
		r, err := Fdatasync(t.Context(), dir, overwrite, 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if r.Ops < 1 || r.Hist.Count() != r.Ops {
			t.Errorf("overwrite %v: %+v", overwrite, r)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Fdatasync(t.Context(), dir+"/none", false, time.Second); err == nil {
		t.Error("no error for a directory that is not there")
	}
}

func TestRecordBytesIsPlausible(t *testing.T) {
	if n := RecordBytes(); n < 40 || n > 200 {
		t.Errorf("a create's record has %d bytes", n)
	}
	if n := len(typicalResult()); n < 100 || n > 400 {
		t.Errorf("a lookup's result has %d bytes", n)
	}
}
