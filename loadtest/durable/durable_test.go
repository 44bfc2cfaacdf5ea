package durable

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/canopyfs/canopy/loadtest/target"
)

func header() Header { return Header{Base: "durable", Dirs: 2, Workers: 3} }

func write(t *testing.T, tg target.Target, d time.Duration) (*Result, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "journal")
	j, err := CreateJournal(name, header())
	if err != nil {
		t.Fatal(err)
	}
	r, err := Write(t.Context(), tg, j, Options{Header: header(), Duration: d, OpTimeout: time.Second, Every: 20 * time.Millisecond, Tick: func(Tick) {}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return r, name
}

func verify(t *testing.T, tg target.Target, name string) *Verdict {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := Verify(t.Context(), tg, f, true)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newPath(t *testing.T) (target.Target, string) {
	t.Helper()
	dir := t.TempDir()
	tg, err := target.NewPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tg, dir
}

func TestWriteThenVerify(t *testing.T) {
	tg, _ := newPath(t)
	r, name := write(t, tg, 150*time.Millisecond)
	if r.Ops == 0 || r.Unknown != 0 || r.Refused != 0 || r.LongestGap <= 0 {
		t.Fatalf("%+v", r)
	}
	v := verify(t, tg, name)
	if !v.OK() || v.Acknowledged != r.Ops || v.Names == 0 {
		t.Fatalf("%+v", v)
	}
}

func TestVerifyFindsWhatIsWrong(t *testing.T) {
	tg, dir := newPath(t)
	_, name := write(t, tg, 100*time.Millisecond)
	p := func(d, name string) string { return filepath.Join(dir, "durable", d, name) }
	for _, err := range []error{
		os.Remove(p("dir.0", fileName(0, 0))),                    // acknowledged
		os.Remove(p("dir.1", renamedName(1, 1))),                 // acknowledged by the rename
		os.WriteFile(p("dir.0", fileName(2, 1)), nil, 0o600),     // the old name of a rename
		os.WriteFile(p("dir.0", fileName(2, 3)), nil, 0o600),     // unlinked
		os.WriteFile(p("dir.0", "stranger"), nil, 0o600),         // nobody's
		os.WriteFile(p("dir.1", fileName(1, 1<<20)), nil, 0o600), // may have been under way
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	v := verify(t, tg, name)
	if v.Problems[Missing] != 2 || v.Problems[Resurrected] != 2 || v.Problems[Surplus] != 1 || len(v.Problems) != 3 {
		t.Errorf("%+v", v)
	}
}

func TestVerdictByRecords(t *testing.T) {
	for _, c := range []struct {
		records string // behind the header
		names   []string
		want    map[string]int
	}{
		{"c 0 0 unknown timed out\n", nil, nil},
		{"c 0 0 unknown timed out\n", []string{fileName(0, 0)}, nil},
		{"c 0 1 ok\nr 0 1 unknown x\n", []string{fileName(0, 1)}, nil},
		{"c 0 1 ok\nr 0 1 unknown x\n", []string{renamedName(0, 1)}, nil},
		{"c 0 3 ok\nu 0 3 unknown x\n", nil, nil},
		{"c 0 0 refused file exists\n", []string{fileName(0, 0)}, map[string]int{DoneTwice: 1}},
		{"c 0 0 ok\n", nil, map[string]int{Missing: 1}},
		{"c 0 0 ok\nc 0 1 ok", []string{fileName(0, 0)}, nil}, // cut off
		{"m 0 7 ok\n", nil, map[string]int{Missing: 1}},
	} {
		tg, dir := newPath(t)
		for _, d := range []string{"dir.0", "dir.1"} {
			if err := os.MkdirAll(filepath.Join(dir, "durable", d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range c.names {
			if err := os.WriteFile(filepath.Join(dir, "durable/dir.0", name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		journal := `{"canopy_journal":1,"base":"durable","dirs":2,"workers":3}` + "\n" + c.records
		v, err := Verify(context.Background(), tg, strings.NewReader(journal), true)
		if err != nil {
			t.Fatal(err)
		}
		for problem, n := range c.want {
			if v.Problems[problem] != n {
				t.Errorf("%q with %v: %v, want %v", c.records, c.names, v.Problems, c.want)
			}
		}
		if len(v.Problems) != len(c.want) {
			t.Errorf("%q with %v: %v, want %v", c.records, c.names, v.Problems, c.want)
		}
	}
}

func TestBadJournals(t *testing.T) {
	tg, _ := newPath(t)
	head := `{"canopy_journal":1,"base":"durable","dirs":1,"workers":1}` + "\n"
	for text, want := range map[string]string{
		"":                            "journal: no header",
		"hello\n":                     "journal: this is no journal of loadtest",
		"{}\n":                        "journal: this is no journal of loadtest",
		`{"canopy_journal":9}` + "\n": "journal: format 9 is newer than this program (1)",
		`{"canopy_journal":1}` + "\n": "journal: the header is damaged",
		head + "x 1 2 ok\n":           `journal, line 2: "x 1 2 ok" is no record`,
		head + "c 1 -2 ok\n":          `journal, line 2: "c 1 -2 ok" is no record`,
	} {
		if _, err := Verify(t.Context(), tg, strings.NewReader(text), false); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	name := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateJournal(name, header()); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("an existing journal: %v", err)
	}
}

// flaky is a target whose server is away for a while.
type flaky struct {
	target.Target
	away atomic.Bool
}

type flakyDir struct {
	target.Dir
	f *flaky
}

func (f *flaky) Dir(ctx context.Context, rel string) (target.Dir, error) {
	d, err := f.Target.Dir(ctx, rel)
	return &flakyDir{d, f}, err
}

func (d *flakyDir) Create(ctx context.Context, name string) error {
	if d.f.away.Load() {
		// Every second one was done before its answer was lost.
		if strings.HasSuffix(name, "0") {
			_ = d.Dir.Create(ctx, name)
		}
		return syscall.EIO
	}
	return d.Dir.Create(ctx, name)
}

func TestGapAndUnknownOutcomes(t *testing.T) {
	tg, _ := newPath(t)
	f := &flaky{Target: tg}
	start := time.AfterFunc(100*time.Millisecond, func() { f.away.Store(true) })
	end := time.AfterFunc(800*time.Millisecond, func() { f.away.Store(false) })
	defer start.Stop()
	defer end.Stop()
	r, name := write(t, f, 1100*time.Millisecond)
	if r.LongestGap < 0.5 || r.LongestGap > 1 || len(r.Gaps) != 1 || r.Unknown == 0 || r.FirstError == "" {
		t.Errorf("%+v", r)
	}
	if v := verify(t, tg, name); !v.OK() || v.Unknown != r.Unknown {
		t.Errorf("%+v", v)
	}
}

func TestReadHeader(t *testing.T) {
	h, err := ReadHeader(strings.NewReader(`{"canopy_journal":1,"path":"/x","base":"b","dirs":1,"workers":2}` + "\nc 0 0 ok\n"))
	if err != nil || h.Path != "/x" || h.Workers != 2 {
		t.Errorf("%+v, %v", h, err)
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add([]byte(`{"canopy_journal":1,"base":"b","dirs":1,"workers":2}` + "\nc 0 0 ok\nr 1 2 unknown x y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = readJournal(bytes.NewReader(b), func(r record) error {
			again, err := parseRecord(r.String())
			if err != nil || again != r {
				t.Errorf("%v: %v, %v", r, again, err)
			}
			return nil
		})
	})
}
