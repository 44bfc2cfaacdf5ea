package history

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "h")
	r, err := NewRecorder(Header{Seed: 7, Base: "run", Dirs: []string{"d0"}}, name)
	if err != nil {
		t.Fatal(err)
	}
	op := &Op{Client: 3, Via: ByMount, Kind: Create, Group: 2, A: "d0/g2.1"}
	r.Do(op, func() string { op.Ino = 99; return Unknown })
	r.Do(&Op{Kind: List, A: "d0", Entries: []Entry{{"g2.1", 99}}}, func() string { return Done })
	if op.Return < op.Call || op.End() != Never || r.Ops()[1].End() == Never {
		t.Errorf("times: %+v", op)
	}
	want, err := r.End()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewRecorder(Header{}, name); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a file that is there: %v", err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(strings.NewReader(string(b) + `{"c":1,"k":"cre`)) // cut off by a kill
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	last := got.Ops[1].Return
	err = got.Recount(func(now func() int64, add func(*Op)) error {
		add(&Op{Kind: Recount, Call: now(), Return: now()})
		return nil
	})
	if err != nil || len(got.Ops) != 3 || got.Ops[2].Call <= last {
		t.Errorf("a recount goes on from the last time: %+v, %v", got.Ops, err)
	}
}

func TestReadRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "no history",
		"{}\n":                        "no history",
		"{\"canopy_history\":9}\n":    "newer",
		"{\"canopy_history\":1}\nx\n": "line 2",
		"{\"canopy_history\":1}\n{\"t\":2,\"r\":1}\n": "no operation",
	} {
		if _, err := Read(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
}
