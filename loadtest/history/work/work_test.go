package work

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/canopyfs/canopy/loadtest/history"
	"github.com/canopyfs/canopy/loadtest/history/check"
)

// run makes a short history in a local directory, seen by two ways, and returns it.
func run(t *testing.T, spoil func(dir string, systems []System) []System) *check.Report {
	t.Helper()
	dir := t.TempDir()
	h, err := NewHeader(1, "/", "run", 3, 8)
	if err != nil {
		t.Fatal(err)
	}
	var systems []System
	for range 2 {
		s, err := OpenMount(dir, &h)
		if err != nil {
			t.Fatal(err)
		}
		systems = append(systems, s)
	}
	if err := Prepare(t.Context(), systems[0], &h); err != nil {
		t.Fatal(err)
	}
	rec, err := history.NewRecorder(h, "")
	if err != nil {
		t.Fatal(err)
	}
	used := systems
	if spoil != nil {
		used = spoil(filepath.Join(dir, "run"), systems)
	}
	Run(t.Context(), rec, &h, used, Config{For: time.Second, Clients: 8, OpTimeout: time.Minute})
	if err := Recount(t.Context(), systems[0], &h, rec.Ops(), rec.Now, rec.Add); err != nil {
		t.Fatal(err)
	}
	recorded, err := rec.End()
	if err != nil {
		t.Fatal(err)
	}
	r, err := check.Run(t.Context(), recorded, check.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range systems {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	return r
}

// TestLocalFileSystem: what the machine's own file system answers is linearizable, and
// the load does everything there is. Such a file system uses numbers of inodes again, and
// its listings promise no order.
func TestLocalFileSystem(t *testing.T) {
	r := run(t, nil)
	delete(r.Rules, check.RuleInode)
	delete(r.Rules, check.RuleOrder)
	if !r.OK() || r.Unknown > 0 {
		t.Errorf("%d unknown, %v", r.Unknown, r.Violations)
	}
	done := map[history.Kind]int{}
	for _, k := range r.Kinds {
		done[k.Kind] = k.Done
	}
	for _, k := range []history.Kind{history.Create, history.Mkdir, history.Stat, history.Links, history.Link, history.Unlink, history.Rmdir,
		history.Rename, history.NoReplace, history.Exchange, history.Enter, history.Leave, history.Set, history.Get, history.Append, history.List,
		history.Recount, history.Appended} {
		if done[k] == 0 {
			t.Errorf("%s was never done", k)
		}
	}
	if r.Parts < 5 || r.Listings < 10 || r.Names < 10 || r.Records < 10 {
		t.Errorf("little was checked: %+v", r)
	}
}

// forgetful is a system that does not do all that it says.
type forgetful struct {
	System
	n atomic.Int64
}

func (f *forgetful) Unlink(ctx context.Context, dir int, name string) error {
	if f.n.Add(1)%20 == 0 {
		return nil
	}
	return f.System.Unlink(ctx, dir, name)
}

// TestForgetful: a removal in twenty that was acknowledged and not done is found.
func TestForgetful(t *testing.T) {
	r := run(t, func(_ string, systems []System) []System { return []System{&forgetful{System: systems[0]}} })
	if r.Rules[check.RuleNames] == 0 || r.Rules[check.RuleSurplus] == 0 {
		t.Errorf("found %v", r.Rules)
	}
}

func TestLogsAreParsed(t *testing.T) {
	whole := record("3.1", 100)
	b := append(append(append([]byte{}, whole...), make([]byte, 7)...), record("4.1", 0)...)
	b = append(append(b, whole[:50]...), record("4.2", 10)...)
	got := parseLog(b)
	if len(got) != 4 || got[0].Name != "3.1" || got[1].Name[:1] != check.HolePrefix || got[2].Name != "4.1" || got[3].Name[:1] != check.TornPrefix {
		t.Errorf("%+v", got)
	}
}

func TestSettings(t *testing.T) {
	for _, c := range []Config{{}, {For: 1, OpTimeout: 1}, {For: 1, OpTimeout: 1, Clients: MaxClients + 1}} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if _, err := NewHeader(1, "/", "run", 1, 1); err == nil {
		t.Error("one directory is taken")
	}
	if _, err := OpenMount(filepath.Join(os.DevNull, "x"), &history.Header{Dirs: []string{"d0"}}); err == nil {
		t.Error("a root that is none is taken")
	}
}
