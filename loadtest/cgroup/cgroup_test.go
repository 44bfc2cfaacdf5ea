package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestShare: a process in a group uses about its share, and the group is gone
// afterwards.
func TestShare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	g, err := New(fmt.Sprint("canopy-test-", os.Getpid()), 0.1)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		u, err := g.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if u.Throttled >= 5 {
			if u.Less(Usage{Throttled: 2}).Throttled != u.Throttled-2 {
				t.Error("differences")
			}
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("it was never kept from more: %+v", u)
			break
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
}
