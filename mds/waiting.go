package mds

import (
	"sync"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// waitingShare bounds the time that counting takes: a count that took long is
// repeated so many times later at the soonest.
const waitingShare = 20

// waitingFew is how many entries are counted anew each time, however long that took
// on a busy machine: with few the answer is exact at once.
const waitingFew = 1000

// maxPurged bounds what is remembered of purged files while data servers are away.
const maxPurged = 1 << 18

// waiting counts the bytes of deleted files that are still on the data servers, so
// that statfs has them as free at once (FUSE K17): of files without a name that
// nobody has open, and of those queued for deletion. It is counted from the
// replicated state, so another holder comes to the same.
type waiting struct {
	mu      sync.Mutex
	counted bool
	at      uint64    // the term's activity as of the count
	ended   time.Time // of the count
	took    time.Duration
	bytes   uint64
	entries int // that were looked at
	// purged is what files had that were purged in this term and whose entry in
	// the queue does not say it: it bounds where bytes may lie, which is not known
	// of a file that was truncated. At most maxPurged: of more, df shows what the queue
	// says.
	purged map[base.DataID]uint64
}

// waitingBytes counts as of the reader's snapshot, or returns a count that nothing
// has changed since.
func (t *tenure) waitingBytes(r shard.Reader) (uint64, error) {
	w := &t.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	active, began := t.activity.Load(), time.Now()
	if w.counted && (active == w.at || w.entries > waitingFew && began.Sub(w.ended) < waitingShare*w.took) {
		return w.bytes, nil
	}
	sum, entries, err := t.countWaiting(r, w.purged)
	if err != nil {
		return 0, err
	}
	w.counted, w.at, w.ended, w.took, w.bytes, w.entries = true, active, time.Now(), time.Since(began), sum, entries
	return sum, nil
}

func (t *tenure) countWaiting(r shard.Reader, purged map[base.DataID]uint64) (sum uint64, entries int, err error) {
	var live []base.ClientID
	if err := namespace.Sessions(r, t.h.shard, func(s namespace.SessionInfo) bool {
		live = append(live, s.Client)
		return true
	}); err != nil {
		return 0, 0, err
	}
	silent, held := t.openFiles(live)
	subtrees, err := t.subtrees(r)
	if err != nil {
		return 0, 0, err
	}
	for _, subtree := range subtrees {
		if len(silent) == 0 { // else any of them may be open
			err = namespace.Orphans(r, t.h.shard, subtree, 0, func(o namespace.OrphanInfo) bool {
				entries++
				if o.Bytes > 0 && !held(o.Ino) {
					sum += o.Bytes
				}
				return true
			})
			if err != nil {
				return 0, 0, err
			}
		}
		err = namespace.Deletions(r, t.h.shard, subtree, 0, func(d namespace.DeletionInfo) bool {
			entries++
			switch bytes, known := purged[d.DataID]; {
			case known:
				sum += bytes
			case d.SizeBytes < unknownSize:
				sum += d.SizeBytes
			}
			return true
		})
		if err != nil {
			return 0, 0, err
		}
	}
	return sum, entries, nil
}

// purges notes what a file has that is about to be purged; gone that its data are
// deleted.
func (w *waiting) purges(id base.DataID, bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.purged == nil {
		w.purged = map[base.DataID]uint64{}
	}
	if len(w.purged) < maxPurged {
		w.purged[id] = bytes
	}
}

func (w *waiting) gone(ids map[base.DataID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counted = false
	for id := range ids {
		delete(w.purged, id)
	}
}
