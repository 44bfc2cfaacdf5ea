package mdsctl

import (
	"io"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// damaged is a cluster with a finding that can be repaired and one that cannot.
func damaged(t *testing.T) *fakeCluster {
	f := newFake(t)
	f.findings[2] = []*canopyv1.FsckFinding{
		{Invariant: "3", Object: "inode 17", Problem: "its count of names is 2 more than its names",
			Repair: &canopyv1.Repair{Kind: canopyv1.RepairKind_REPAIR_DIR_COUNTS, Subtree: 5, Ino: 17, Seen: []int64{7, 1, 0}, Want: []int64{5, 1, 0}}},
		{Invariant: "2", Object: "inode 18", Problem: "3 names refer to it, but it has no record"},
	}
	return f
}

// A plain check repairs nothing, but says that something could be.
func TestFsckSaysWhatCouldBeRepaired(t *testing.T) {
	f := damaged(t)
	code, out, _ := f.run("fsck")
	if code != 1 || !strings.Contains(out, "1 repairs need no guess") || len(f.mended) != 0 {
		t.Errorf("exit %d, %s; repaired %v", code, out, f.mended)
	}
}

func TestRepairIsShownAndAsked(t *testing.T) {
	const line = "directory 17: count names 5 instead of 7"
	for _, x := range []struct {
		what        string
		args        []string
		stdin       io.Reader
		out, errs   string
		repaired    int
		notInErrors string
	}{
		{"dry run", []string{"--dry-run"}, nil, line + "  would be made", "fsck found 2 problems", 0, ""},
		{"yes", []string{"--yes"}, nil, line + "  made", "fsck found 1 problems", 1, line},
		{"nobody to ask", nil, nil, "", "give --yes", 0, ""},
		{"no", nil, strings.NewReader("no\n"), "", "nothing was repaired", 0, ""},
		{"silence", nil, strings.NewReader(""), "", "nothing was repaired", 0, ""},
		{"y", nil, strings.NewReader("y\n"), line + "  made", "shard 2: " + line + "\nMake these 1 repairs? [y/N] ", 1, ""},
	} {
		f := damaged(t)
		code, out, errs := f.runWith(x.stdin, append([]string{"fsck", "--repair"}, x.args...)...)
		if code != 1 || !strings.Contains(out, x.out) || !strings.Contains(errs, x.errs) || len(f.mended) != x.repaired {
			t.Errorf("%s: exit %d\n%s%s\nrepaired %v", x.what, code, out, errs, f.mended)
		}
		if x.notInErrors != "" && strings.Contains(errs, x.notInErrors) {
			t.Errorf("%s: asked: %s", x.what, errs)
		}
	}
}

// What would be a guess is not planned: a directory that two names claim; and one that
// has a name needs none in /lost+found.
func TestAPlanHasNoGuess(t *testing.T) {
	parent := func(ino, dir uint64, name string) *canopyv1.Repair {
		return &canopyv1.Repair{Kind: canopyv1.RepairKind_REPAIR_PARENT, Ino: ino, To: &canopyv1.RepairPlace{Dir: dir, Name: []byte(name)}}
	}
	lost := func(ino uint64) *canopyv1.Repair {
		return &canopyv1.Repair{Kind: canopyv1.RepairKind_REPAIR_RECONNECT, Ino: ino}
	}
	r := &fsckReport{}
	for _, p := range []*canopyv1.Repair{parent(1, 7, "a"), parent(2, 7, "b"), parent(2, 8, "b"), lost(1), lost(3), parent(1, 7, "a"), nil} {
		r.plan(1, p)
	}
	r.settlePlan()
	if len(r.Repairs) != 2 || r.Repairs[0].order.Ino != 1 || r.Repairs[1].order.Ino != 3 {
		for _, p := range r.Repairs {
			t.Error(p.Repair)
		}
	}
}

func TestFlagsOfRepair(t *testing.T) {
	if code, _, errs := newFake(t).run("fsck", "--yes"); code != 1 || !strings.Contains(errs, "are of --repair") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
