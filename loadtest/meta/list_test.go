package meta

import (
	"os"
	"testing"

	"github.com/canopyfs/canopy/loadtest"
	"github.com/canopyfs/canopy/loadtest/target"
)

func TestListing(t *testing.T) {
	dir := t.TempDir()
	tg, err := target.NewPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	drops := 0
	l := Listing{Base: "list", Entries: 500, Makers: 4, Rounds: 2, DropCaches: func() error { drops++; return nil }}
	s, err := RunListing(t.Context(), tg, l, Env{Name: loadtest.SeriesTarget})
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range []string{ReadDir, List} {
		p := s.Find(Shared, phase)
		if p == nil || p.Ops != 2 || p.Entries != 1000 || p.EntriesPerSec <= 0 {
			t.Errorf("%s: %+v", phase, p)
		}
	}
	if drops != 4 {
		t.Errorf("caches dropped %d times", drops)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	l.Entries = 0
	if _, err := RunListing(t.Context(), tg, l, Env{}); err == nil {
		t.Error("no entries were taken")
	}
}
