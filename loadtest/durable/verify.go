package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"

	"github.com/canopyfs/canopy/loadtest/target"
)

// Finding is one way in which the namespace is not what was acknowledged.
type Finding struct {
	Problem string `json:"problem"` // one of the words below
	Path    string `json:"path"`
	Detail  string `json:"detail,omitempty"`
}

// The problems.
const (
	Missing     = "missing"      // acknowledged, and not there
	Resurrected = "resurrected"  // its removal was acknowledged, and it is there
	Twice       = "listed twice" // one listing shows it more than once
	DoneTwice   = "done twice"   // the server refused what can only fail when it is repeated
	Surplus     = "surplus"      // nobody asked for it
	NoStat      = "no attributes"
)

// Verdict is the outcome of a comparison.
type Verdict struct {
	Acknowledged int64          `json:"acknowledged"` // operations
	Unknown      int64          `json:"unknown"`
	Names        int            `json:"names"` // found in the namespace
	Problems     map[string]int `json:"problems"`
	Findings     []Finding      `json:"findings,omitempty"` // the first maxFindings
}

const maxFindings = 100

// OK reports whether nothing is wrong.
func (v *Verdict) OK() bool { return len(v.Problems) == 0 }

func (v *Verdict) add(f Finding) {
	v.Problems[f.Problem]++
	if len(v.Findings) < maxFindings {
		v.Findings = append(v.Findings, f)
	}
}

// ReadHeader returns a journal's header.
func ReadHeader(r io.Reader) (Header, error) {
	h, err := readJournal(r, func(record) error { return io.EOF })
	if errors.Is(err, io.EOF) {
		err = nil // the first record ended it
	}
	return h, err
}

type state byte

const (
	present state = iota + 1
	absent
	either
)

// ledger is what must be in the namespace.
type ledger struct {
	v    *Verdict
	want map[string]state // by name: names are unique over all directories
	last map[int]int      // highest number of each worker
}

// Verify reads the journal and compares the namespace below the target with
// it. stat = true also asks for the attributes of each name.
func Verify(ctx context.Context, tg target.Target, journal io.Reader, stat bool) (*Verdict, error) {
	l := &ledger{v: &Verdict{Problems: map[string]int{}}, want: map[string]state{}, last: map[int]int{}}
	h, err := readJournal(journal, l.apply)
	if err != nil {
		return nil, err
	}
	for i := range h.Dirs {
		if err := l.compare(ctx, tg, &h, i, stat); err != nil {
			return nil, err
		}
	}
	sort.Slice(l.v.Findings, func(i, k int) bool {
		a, b := l.v.Findings[i], l.v.Findings[k]
		return a.Problem < b.Problem || a.Problem == b.Problem && a.Path < b.Path
	})
	return l.v, nil
}

// apply takes one record into the ledger.
func (l *ledger) apply(r record) error {
	l.last[r.worker] = max(l.last[r.worker], r.number)
	first, second := fileName(r.worker, r.number), ""
	after := absent
	switch r.op {
	case opCreate:
		after = present
	case opRename:
		second = renamedName(r.worker, r.number)
	case opMkdir:
		first, after = dirName(r.worker, r.number), present
	}
	switch r.outcome {
	case done:
		l.v.Acknowledged++
		l.want[first] = after
		if second != "" {
			l.want[second] = present
		}
	case unknown:
		l.v.Unknown++
		l.want[first] = either
		if second != "" {
			l.want[second] = either
		}
	case refused:
		l.v.add(Finding{Problem: DoneTwice, Path: first, Detail: r.said})
		l.want[first] = either
		if second != "" {
			l.want[second] = either
		}
	}
	return nil
}

func (l *ledger) compare(ctx context.Context, tg target.Target, h *Header, dir int, stat bool) error {
	rel := h.dirOf(dir)
	d, err := tg.Dir(ctx, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there below %s: is this the file system of the journal?", rel, tg.Describe())
	}
	if err != nil {
		return err
	}
	defer d.Close()
	seen := map[string]int{}
	if _, err := d.List(ctx, func(name string, _ uint64) { seen[name]++ }); err != nil {
		return err
	}
	l.v.Names += len(seen)
	for name, n := range seen {
		path := rel + "/" + name
		if n > 1 {
			l.v.add(Finding{Problem: Twice, Path: path, Detail: fmt.Sprintf("%d times", n)})
		}
		switch l.want[name] {
		case absent:
			l.v.add(Finding{Problem: Resurrected, Path: path})
		case 0:
			l.surplus(name, path)
		}
		if stat {
			if err := d.Stat(ctx, name); err != nil {
				l.v.add(Finding{Problem: NoStat, Path: path, Detail: err.Error()})
			}
		}
	}
	for name, s := range l.want {
		_, worker, _, ok := parseName(name)
		if ok && worker%h.Dirs == dir && s == present && seen[name] == 0 {
			l.v.add(Finding{Problem: Missing, Path: rel + "/" + name})
		}
	}
	return nil
}

// surplus looks at a name that no record names. The operations that were under
// way when the writer was killed are those of each worker's next number, and of
// its last one.
func (l *ledger) surplus(name, path string) {
	_, worker, n, ok := parseName(name)
	last, known := l.last[worker]
	if ok && (n >= last || !known) {
		return
	}
	l.v.add(Finding{Problem: Surplus, Path: path})
}
