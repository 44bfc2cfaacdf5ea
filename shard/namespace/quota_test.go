package namespace

import (
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestNamesOfAnOlderFormat: a shard of format 2 has no lists of the names of
// de-inlined inodes. The first quota makes them, whatever happened since.
func TestNamesOfAnOlderFormat(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	for _, l := range []string{"mkdir /a", "mkdir /b", "create /a/f", "report /a/f size=7 changed", "link /a/f /a/g", "link /a/f /b/f"} {
		r.mustRun("%s", l)
	}
	r.drop(schema.NamesKey(testShard, 1, inoOf("/a/f", r)))
	old := *r.m.state
	old.Format = 2
	r.put(schema.ShardKey(testShard), &old)
	r.load()
	r.mustBeClean()
	r.mustRun("unlink /a/g")
	r.mustRun("link /b/f /b/g")
	r.mustRun("quota /b inodes=9")
	r.mustBeClean()
	if dirs, err := r.m.namesIn(r, "/b/g"); err != nil || len(dirs) != 3 {
		t.Errorf("names in %v, %v; want three", dirs, err)
	}
	r.mustRun("rename /a/f /b/h")
	r.load()
	r.mustBeClean()
}

func (m *Machine) namesIn(r *rig, path string) ([]base.Ino, error) {
	v := &view{r: r.kv, id: testShard, subtree: 1}
	return v.namesOf(inoOf(path, r))
}

// TestQuotasAboveAreBounded: what is remembered of directories has a bound, and an
// answer does not depend on what is remembered.
func TestQuotasAboveAreBounded(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	for _, l := range []string{"mkdir /q", "mkdir /q/d", "quota /q inodes=3", "create /q/d/1"} {
		r.mustRun("%s", l)
	}
	above := r.m.subtrees[1].above
	for i := range base.Ino(maxAbove) {
		above[1<<40+i] = nil
	}
	r.mustRun("mkdir /q/d/e")
	if out := r.run("create /q/d/e/f"); out != "quota exceeded" {
		t.Errorf("the fourth inode: %s", out)
	}
	if len(above) > maxAbove {
		t.Errorf("%d directories are remembered, want at most %d", len(above), maxAbove)
	}
}
