package mdsctl

import (
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/shard"
)

func TestSplitWantsAPowerOfTwo(t *testing.T) {
	f := newFake(t)
	for args, want := range map[string]string{
		"split /d":                        "power of two",
		"split /d --fragments 1":          "power of two from 2 to 256",
		"split /d --fragments 6":          "power of two",
		"split /d --fragments 512":        "power of two",
		"split /d --fragments -4":         "power of two",
		"split --fragments 4":             "one PATH",
		"split /d --fragments 4 --to x":   "ids of shards",
		"split /d --fragments 4 --to 1,1": "each once",
		"split /d --fragments 4 --to 0":   "ids of shards",
		"merge":                           "one PATH",
		"fragments":                       "one PATH",
		"migrate /d --subtree 1 --to 2":   "not both",
		"migrate --subtree 9 --to 2":      "there is no subtree 9",
		"migrate --subtree 1 --to 7":      "there is no shard 7",
		"migrate --cancel --subtree 1":    "no move of subtree 1 runs",
		"migrate --subtree 1":             "--to SHARD",
	} {
		code, _, stderr := f.run(strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", args, code, stderr)
		}
	}
}

func TestFragmentsOutput(t *testing.T) {
	rows := fragmentRows([]client.Fragment{
		{Range: shard.Range{Lo: 0, Hi: 1 << 26}, Subtree: 1, Shard: 1, Epoch: 1, Entries: 250, Subdirs: 3},
		{Range: shard.Range{Lo: 1 << 26, Hi: 1 << 27}, Subtree: 17592186044418, Shard: 2, Epoch: 4, Entries: 260},
		{Range: shard.Range{Lo: 1 << 27, Hi: 1 << 28}, Subtree: 1, Shard: 1, Epoch: 1, Entries: 250, Subdirs: 3},
	})
	for format, file := range map[string]string{"table": "fragments.txt", "json": "fragments.json"} {
		var out strings.Builder
		a := &app{env: Env{Stdout: &out}, output: format}
		if err := a.emit(fragmentsReport{Path: "/d", Ino: 9, Fragments: rows}, func(t *table) { writeFragments(t, rows) }); err != nil {
			t.Fatal(err)
		}
		golden(t, file, out.String())
	}
	status := &canopyv1.SubtreeStatus{Fragments: shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: 1 << 26, Subtree: 7}, {Lo: 1 << 27, Subtree: 1}}.Proto()}
	for id, want := range map[uint64]string{1: "[0000000, 4000000),[8000000, 10000000)", 7: "[4000000, 8000000)", 8: "merged"} {
		r := subtreeRow{Subtree: id}
		r.split(status.GetFragments())
		if got := r.part(); got != want {
			t.Errorf("subtree %d has %s, want %s", id, got, want)
		}
	}
	if r := (subtreeRow{Subtree: 1}); r.part() != "" {
		t.Errorf("a whole directory has the part %q", r.part())
	}
}
