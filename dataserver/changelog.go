package dataserver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// maxInFlight bounds the changes of one placement group under way at a time.
const maxInFlight = 256

// changeLog is the bounded log of the chunks in flight of one placement group
// (PROTOCOLS J3): changes that this server made or may have made without that it
// is known that all in-sync members have them. At a primary those are its running
// changes and the failed ones; at a replica what came from the primary at or
// above its floor.
type changeLog struct {
	mu      sync.Mutex
	next    uint64
	open    map[uint64]chunkstore.Key // running here as primary
	left    map[chunkstore.Key]bool   // not known to be equal everywhere
	taken   map[uint64]chunkstore.Key // from the primary
	results map[uint64]*taking
	primary base.NodeID // whose numbers taken and floor are
	floor   uint64
	changed chan struct{} // closed when an entry goes
	// visits counts requests of recovery being executed here.
	visits int
}

// errOverrun says that the epoch changed between a request's admission and its
// execution.
var errOverrun = fserr.New(fserr.NotReady, "data", errors.New("the pg epoch changed"))

// visit counts a request of recovery in; call leave when it is done. still is
// asked under the log's lock: a drain that comes after the epoch's change sees
// the request, or the request sees the change.
func (l *changeLog) visit(still func() bool) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !still() {
		return nil, errOverrun
	}
	l.visits++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.visits--
		l.wakeLocked()
	}, nil
}

// taking is one forwarded change being executed, or done.
type taking struct {
	finished chan struct{}
	bytes    uint64 // allocated, or by a punch freed
	err      error
}

func newChangeLog(incarnation uint64) *changeLog {
	return &changeLog{
		// Numbers grow over restarts, so that a replica tells new from old.
		next:    incarnation << 40,
		open:    map[uint64]chunkstore.Key{},
		left:    map[chunkstore.Key]bool{},
		taken:   map[uint64]chunkstore.Key{},
		results: map[uint64]*taking{},
		changed: make(chan struct{}),
	}
}

func (l *changeLog) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// begin numbers a change of this primary; it waits while too many are running.
// targets, called with the number taken, says who must get it.
func (l *changeLog) begin(ctx context.Context, key chunkstore.Key, targets func()) (uint64, error) {
	for {
		l.mu.Lock()
		if len(l.open) < maxInFlight {
			l.next++
			seq := l.next
			l.open[seq] = key
			targets()
			l.mu.Unlock()
			return seq, nil
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// end closes a change. If it is not on all members its column stays listed.
func (l *changeLog) end(seq uint64, equal bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := l.open[seq]
	delete(l.open, seq)
	if !equal {
		l.left[key] = true
	}
	l.wakeLocked()
}

// low returns the lowest running number: all below are done.
func (l *changeLog) low() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	low := l.next + 1
	for seq := range l.open {
		low = min(low, seq)
	}
	return low
}

// drain waits until all changes that run now have ended. What comes after the
// adoption of an epoch is of that epoch.
func (l *changeLog) drain(ctx context.Context) error {
	l.mu.Lock()
	upTo := l.next
	l.mu.Unlock()
	for {
		l.mu.Lock()
		busy := l.visits > 0
		for seq := range l.open {
			busy = busy || seq <= upTo
		}
		for _, t := range l.results {
			select {
			case <-t.finished:
			default:
				busy = true
			}
		}
		changed := l.changed
		l.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take begins a forwarded change at a replica. A repetition of one that runs or
// ran returns that one. ok is false for one that the primary has done with, or
// whose epoch is over (still, as for visit). A new primary forwards only after it
// made what was in flight equal everywhere.
func (l *changeLog) take(primary base.NodeID, seq, floor uint64, key chunkstore.Key, still func() bool) (t *taking, mine, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !still() {
		return nil, false, false
	}
	if primary != l.primary {
		l.primary, l.floor = primary, 0
		clear(l.taken)
		clear(l.results)
		clear(l.left)
	}
	if floor > l.floor {
		l.floor = floor
		for s := range l.taken {
			if s < floor {
				delete(l.taken, s)
				delete(l.results, s)
			}
		}
	}
	if seq < l.floor {
		return nil, false, false
	}
	if t := l.results[seq]; t != nil {
		return t, false, true
	}
	t = &taking{finished: make(chan struct{})}
	l.results[seq], l.taken[seq] = t, key
	return t, true, true
}

// took ends a forwarded change. A failed one may be tried again.
func (l *changeLog) took(seq uint64, t *taking, bytes uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.bytes, t.err = bytes, err
	close(t.finished)
	if err != nil && l.results[seq] == t {
		delete(l.results, seq)
	}
	l.wakeLocked()
}

// columns returns the columns that may differ between members.
func (l *changeLog) columns() []chunkstore.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.left)
	for _, key := range l.open {
		all[key] = true
	}
	for _, key := range l.taken {
		all[key] = true
	}
	return slices.Collect(maps.Keys(all))
}

// unsettled reports whether a column may have a change that is not on all
// members.
func (l *changeLog) unsettled(key chunkstore.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left[key] {
		return true
	}
	for _, k := range l.open {
		if k == key {
			return true
		}
	}
	for _, k := range l.taken {
		if k == key {
			return true
		}
	}
	return false
}

// settled forgets columns that were made equal on all members.
func (l *changeLog) settled(keys []chunkstore.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		delete(l.left, key)
	}
}

// lead forgets what came from primaries before: this server leads now, and what
// was in flight is equal everywhere.
func (l *changeLog) lead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.primary, l.floor = 0, 0
	clear(l.taken)
	clear(l.results)
}
