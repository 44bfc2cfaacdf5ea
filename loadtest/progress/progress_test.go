package progress

import (
	"os"
	"testing"
	"time"
)

func TestLine(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		want        string
	}{
		{0, 100, "create                       [..............................]   0%  0/s"},
		{50, 100, "create                       [###############...............]  50%  25/s"},
		{200, 100, "create                       [##############################] 100%  100/s"},
		{7, 0, "create                       7  4/s"},
	} {
		if got := line("create", c.done, c.total, 2*time.Second); got != c.want {
			t.Errorf("%d of %d:\n%q, want\n%q", c.done, c.total, got, c.want)
		}
	}
}

func TestNothingOnAFile(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := New(f)
	b.Begin("x", 10)
	b.Add(5)
	b.End()
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Fatalf("%v bytes were drawn on a file, %v", st.Size(), err)
	}
	var none *Bar
	none.Begin("x", 1)
	none.Add(1)
	none.End()
}
