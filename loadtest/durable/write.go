package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/target"
)

// Options of a run of the writer.
type Options struct {
	Header   Header
	Duration time.Duration
	// OpTimeout bounds one operation; its outcome is unknown then.
	OpTimeout time.Duration
	// Every is how often Tick is called.
	Every time.Duration
	Tick  func(Tick) // may be nil
}

// Tick is what happened since the last one.
type Tick struct {
	At         time.Duration // since the start
	Ops        int64         // acknowledged since the last tick
	Unknown    int64         // in all
	LongestGap time.Duration // between two acknowledgements, so far
	Gap        time.Duration // since the last acknowledgement
}

// Gap is a time without acknowledgements.
type Gap struct {
	Start   float64 `json:"start_s"` // since the run's start
	Seconds float64 `json:"seconds"`
}

// Result is what the writer saw.
type Result struct {
	Seconds    float64      `json:"seconds"`
	Ops        int64        `json:"acknowledged"`
	Unknown    int64        `json:"unknown"`
	Refused    int64        `json:"refused"`
	FirstError string       `json:"first_error,omitempty"`
	LongestGap float64      `json:"longest_gap_s"`
	Gaps       []Gap        `json:"gaps,omitempty"` // longer than reportedGap
	Latency    hist.Latency `json:"latency"`
}

const (
	reportedGap   = 500 * time.Millisecond
	maxGaps       = 100
	flushInterval = 50 * time.Millisecond
	// pauseAfterError keeps a worker from spinning while a server is away.
	pauseAfterError = 50 * time.Millisecond
)

// event is a record with the time at which its caller had the answer.
type event struct {
	record
	at      time.Time
	latency time.Duration
}

// Write runs workers on the target until the time is over or ctx is done, and
// writes the journal. The directories that it makes stay, for Verify.
func Write(ctx context.Context, tg target.Target, j *Journal, o Options) (*Result, error) {
	dirs := make([]target.Dir, o.Header.Dirs)
	for i := range dirs {
		rel := o.Header.dirOf(i)
		if err := tg.MkdirAll(ctx, rel); err != nil {
			return nil, err
		}
		d, err := tg.Dir(ctx, rel)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		dirs[i] = d
	}
	running, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	events := make(chan event, 4*o.Header.Workers)
	var workers sync.WaitGroup
	for w := range o.Header.Workers {
		workers.Go(func() {
			(&writer{id: w, dir: dirs[w%len(dirs)], timeout: o.OpTimeout, events: events}).run(running)
		})
	}
	go func() { workers.Wait(); close(events) }() // ends when the workers have
	return collect(j, o, events)
}

// writer does one operation after the other.
type writer struct {
	id      int
	dir     target.Dir
	timeout time.Duration
	events  chan<- event
}

// run makes names until ctx is done. An operation under way is waited for: its
// outcome counts.
func (w *writer) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		file := fileName(w.id, n)
		if !w.do(ctx, opCreate, n, func(c context.Context) error { return w.dir.Create(c, file) }) {
			continue // whatever became of it, the name is not used again
		}
		switch n % 8 {
		case 1, 5:
			w.do(ctx, opRename, n, func(c context.Context) error { return w.dir.Rename(c, file, renamedName(w.id, n)) })
		case 3:
			w.do(ctx, opUnlink, n, func(c context.Context) error { return w.dir.Unlink(c, file) })
		case 7:
			w.do(ctx, opMkdir, n, func(c context.Context) error { return w.dir.Mkdir(c, dirName(w.id, n)) })
		}
	}
}

// do does one operation, tells of it and reports whether it was acknowledged.
func (w *writer) do(ctx context.Context, o op, n int, call func(context.Context) error) bool {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.timeout)
	defer cancel()
	start := time.Now()
	err := call(bounded)
	e := event{record: record{op: o, worker: w.id, number: n, outcome: done}, at: time.Now()}
	e.latency = e.at.Sub(start)
	if err != nil {
		e.outcome, e.said = refused, err.Error()
		if target.Unknown(err) {
			e.outcome = unknown
		}
	}
	w.events <- e
	if err == nil {
		return true
	}
	pause := time.NewTimer(pauseAfterError + rand.N(pauseAfterError))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return false
}

// collect writes the journal and keeps the account until the events end.
func collect(j *Journal, o Options, events <-chan event) (*Result, error) {
	r := &Result{}
	h := hist.New()
	start := time.Now()
	last, lastTick, opsAtTick := start, start, int64(0)
	var longest time.Duration
	var failed error
	ticker := time.NewTicker(flushInterval)
	defer ticker.Stop()
	gap := func(now time.Time) {
		d := now.Sub(last)
		longest = max(longest, d)
		if d >= reportedGap && len(r.Gaps) < maxGaps {
			r.Gaps = append(r.Gaps, Gap{Start: last.Sub(start).Seconds(), Seconds: d.Seconds()})
		}
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				gap(time.Now())
				r.Seconds, r.LongestGap, r.Latency = time.Since(start).Seconds(), longest.Seconds(), h.Latency()
				return r, errors.Join(failed, j.flush())
			}
			failed = errors.Join(failed, j.add(e.record))
			r.count(e)
			if e.outcome == done {
				h.Record(e.latency)
				if e.at.After(last) {
					gap(e.at)
					last = e.at
				}
			}
		case now := <-ticker.C:
			failed = errors.Join(failed, j.flush())
			if o.Tick != nil && now.Sub(lastTick) >= o.Every {
				o.Tick(Tick{At: now.Sub(start), Ops: r.Ops - opsAtTick, Unknown: r.Unknown, LongestGap: max(longest, now.Sub(last)), Gap: now.Sub(last)})
				lastTick, opsAtTick = now, r.Ops
			}
		}
	}
}

func (r *Result) count(e event) {
	switch e.outcome {
	case done:
		r.Ops++
	case unknown:
		r.Unknown++
	case refused:
		r.Refused++
	}
	if e.outcome != done && r.FirstError == "" {
		r.FirstError = fmt.Sprintf("%c %s: %s", e.op, fileName(e.worker, e.number), e.said)
	}
}
