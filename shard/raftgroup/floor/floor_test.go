package floor

import (
	"os"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	for _, replicas := range []int{1, 3} {
		r, err := Run(t.Context(), Options{
			Dir: dir, Replicas: replicas, Callers: 64, RecordBytes: 200, Duration: 500 * time.Millisecond, Warmup: 200 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Ops == 0 || r.P50 == 0 || r.P999 < r.P50 {
			t.Errorf("%d replicas: %+v", replicas, r)
		}
		t.Logf("%d replicas: %+v", replicas, r)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
