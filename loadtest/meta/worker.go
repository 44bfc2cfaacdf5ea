package meta

import (
	"context"
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/target"
)

// maxConsecutiveErrors ends a worker's phase: what fails that often is broken.
const maxConsecutiveErrors = 100

// countEvery is how many operations are counted at once for the progress bar.
const countEvery = 16

// names are what one worker has in one kind of directory.
type names struct {
	dir     target.Dir
	files   []int
	renamed map[int]bool
	dirs    []int
}

// worker does one operation at a time. Its methods are called by one goroutine.
type worker struct {
	id   int
	cfg  *Config
	sets map[string]*names // by kind of directory
}

func (w *worker) open(ctx context.Context, tg target.Target, dirs string) error {
	if w.sets[dirs] != nil {
		return nil
	}
	d, err := tg.Dir(ctx, w.cfg.dirName(dirs, w.id))
	if err != nil {
		return err
	}
	w.sets[dirs] = &names{dir: d, renamed: map[int]bool{}}
	return nil
}

// call does operation i of a phase on item and returns the names listed.
type call func(item int) (entries int, err error)

func (w *worker) run(ctx context.Context, s step, count func(int64)) *stepResult {
	items, do := w.plan(ctx, s)
	limit := time.Duration(0)
	if s.Phase == Mkdir || s.Phase == Create {
		limit = w.cfg.Limit
	}
	r := &stepResult{Hist: hist.New()}
	ch := changes{Worker: w.id}
	sleepUntil(ctx, time.Unix(0, s.StartNS))
	start := time.Now()
	now, inRow, counted := start, 0, int64(0)
	for i := range len(items) * w.rounds(s.Phase) {
		if ctx.Err() != nil || inRow >= maxConsecutiveErrors || (limit > 0 && now.Sub(start) >= limit) {
			break
		}
		item := items[i%len(items)]
		began := time.Now()
		entries, err := do(item)
		now = time.Now()
		r.Entries += int64(entries)
		if err != nil {
			inRow++
			r.fail(err)
			if target.Unknown(err) {
				ch.Unknown = append(ch.Unknown, item)
			}
			continue
		}
		inRow = 0
		r.Ops++
		r.Hist.Record(now.Sub(began))
		w.done(s, item)
		if w.cfg.Verify {
			ch.Done = append(ch.Done, item)
		}
		if counted++; counted == countEvery {
			count(counted)
			counted = 0
		}
	}
	count(counted)
	r.StartNS, r.EndNS = start.UnixNano(), now.UnixNano()
	if w.cfg.Verify {
		r.Workers = []changes{ch}
	}
	return r
}

func sleepUntil(ctx context.Context, t time.Time) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (r *stepResult) fail(err error) {
	r.Errors++
	if r.FirstError == "" {
		r.FirstError = err.Error()
	}
}

// rounds returns how often a phase goes over its items: what changes nothing
// can be repeated.
func (w *worker) rounds(phase string) int {
	switch phase {
	case Stat, Open, ReadDir, List:
		return w.cfg.Rounds
	}
	return 1
}

// plan returns the items of the phase and what is done with each.
func (w *worker) plan(ctx context.Context, s step) ([]int, call) {
	n := w.sets[s.Dirs]
	d := n.dir
	file := func(item int) string {
		if n.renamed[item] {
			return itemName(letterRenamed, w.id, item)
		}
		return itemName(letterFile, w.id, item)
	}
	dir := func(item int) string { return itemName(letterDir, w.id, item) }
	switch s.Phase {
	case Mkdir:
		return w.all(s.Dirs), func(i int) (int, error) { return 0, d.Mkdir(ctx, dir(i)) }
	case Create:
		return w.all(s.Dirs), func(i int) (int, error) { return 0, d.Create(ctx, file(i)) }
	case Stat:
		return n.files, func(i int) (int, error) { return 0, d.Stat(ctx, file(i)) }
	case Open:
		return n.files, func(i int) (int, error) { return 0, d.Open(ctx, file(i)) }
	case ReadDir:
		return []int{0}, func(int) (int, error) { return d.List(ctx, nil) }
	case List:
		return []int{0}, func(int) (int, error) { return d.ListAttrs(ctx) }
	case Rename:
		return n.files, func(i int) (int, error) {
			return 0, d.Rename(ctx, file(i), itemName(letterRenamed, w.id, i))
		}
	case Unlink:
		return n.files, func(i int) (int, error) { return 0, d.Unlink(ctx, file(i)) }
	case Rmdir:
		return n.dirs, func(i int) (int, error) { return 0, d.Rmdir(ctx, dir(i)) }
	}
	return nil, nil
}

// done keeps the books after an operation that succeeded.
func (w *worker) done(s step, item int) {
	n := w.sets[s.Dirs]
	switch s.Phase {
	case Mkdir:
		n.dirs = append(n.dirs, item)
	case Create:
		n.files = append(n.files, item)
	case Rename:
		n.renamed[item] = true
	case Unlink:
		delete(n.renamed, item)
	}
}

func (w *worker) itemsOf(dirs string) int {
	if dirs == warmUp {
		return w.cfg.Warmup
	}
	return w.cfg.Items
}

func (w *worker) all(dirs string) []int {
	items := make([]int, w.itemsOf(dirs))
	for i := range items {
		items[i] = i
	}
	return items
}
