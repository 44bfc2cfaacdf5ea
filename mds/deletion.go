package mds

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

const (
	dataPage        = 256                    // queue entries that are read, and cleared, at once
	dataConcurrency = 16                     // calls to data servers at once, per shard
	dataPoll        = 500 * time.Millisecond // how soon new work is seen
	dataAttempt     = 30 * time.Second       // bound on one call
	// unknownSize and above: a size bound that says nothing about used space.
	unknownSize = 1 << 60
)

// workLoop calls pass whenever the shard changed or a pass left something, with
// a back-off while passes fail.
func (t *tenure) workLoop(pass func() (done bool, err error)) {
	wait := retry{next: dataPoll, limit: 30 * time.Second}
	looked, again := uint64(0), true
	for wait.sleep(t.ctx) {
		active := t.activity.Load()
		if !again && active == looked {
			wait.next = dataPoll
			continue
		}
		done, err := pass()
		again, looked = !done || err != nil, active
		if err == nil {
			wait.next = dataPoll
		} else if t.ctx.Err() == nil {
			t.h.metrics.dataErrors.Inc()
			t.h.server.log.Debug("work on the data servers failed; it stays queued", "shard", t.h.shard, "error", err)
		}
	}
}

// deletionLoop deletes the data of purged files, and then clears the queue
// entries (PROTOCOLS H3).
func (t *tenure) deletionLoop() { t.workLoop(t.deletePass) }

// deletePass goes once over the deletion queues.
func (t *tenure) deletePass() (done bool, err error) {
	var subtrees []base.SubtreeID
	if err := t.h.group.Read(t.ctx, func(r shard.Reader) (err error) {
		subtrees, err = t.subtrees(r)
		return err
	}); err != nil {
		return false, err
	}
	var entries uint64
	var failed error
	for _, subtree := range subtrees {
		for after := base.DataID(0); ; {
			var page []namespace.DeletionInfo
			err := t.h.group.Read(t.ctx, func(r shard.Reader) error {
				page = nil
				return namespace.Deletions(r, t.h.shard, subtree, after, func(d namespace.DeletionInfo) bool {
					page = append(page, d)
					return len(page) < dataPage
				})
			})
			if err != nil {
				return false, err
			}
			gone, err := t.deleteData(subtree, page)
			if err != nil {
				failed = err
			}
			for _, d := range page {
				if !gone[d.DataID] {
					entries++
				}
			}
			if len(page) < dataPage {
				break
			}
			after = page[len(page)-1].DataID
		}
	}
	t.h.metrics.deletions.Set(float64(entries))
	return failed == nil, failed
}

// deleteData deletes one page's data and clears the entries of what is gone.
func (t *tenure) deleteData(subtree base.SubtreeID, page []namespace.DeletionInfo) (gone map[base.DataID]bool, err error) {
	gone = map[base.DataID]bool{}
	var mu sync.Mutex
	var calls errgroup.Group
	calls.SetLimit(dataConcurrency)
	for _, d := range page {
		calls.Go(func() error {
			ctx, cancel := context.WithTimeout(t.ctx, dataAttempt)
			defer cancel()
			if err := t.h.server.config.Data.Delete(ctx, d.DataID, d.Layout, d.SizeBytes); err != nil {
				return err
			}
			mu.Lock()
			gone[d.DataID] = true
			mu.Unlock()
			return nil
		})
	}
	err = calls.Wait()
	if len(gone) == 0 {
		return gone, err
	}
	command := &canopyv1.DeletionDoneCommand{Subtree: uint64(subtree)}
	for id := range gone {
		command.DataIds = append(command.DataIds, uint64(id))
	}
	r, doneErr := t.propose(&canopyv1.Command{Own: &canopyv1.Command_DeletionDone{DeletionDone: command}})
	if doneErr != nil {
		return map[base.DataID]bool{}, doneErr // they are deleted once more
	}
	t.removed(subtree, r)
	t.h.metrics.deleted.Add(float64(len(gone)))
	t.waiting.gone(gone)
	return gone, err
}

// cutLoop tells the data servers of truncations, so that requests need not carry
// the cuts any more (PROTOCOLS J1).
func (t *tenure) cutLoop() { t.workLoop(t.cutPass) }

// cutPass goes once over the files with cuts.
func (t *tenure) cutPass() (done bool, err error) {
	var subtrees []base.SubtreeID
	var failed error
	if err := t.h.group.Read(t.ctx, func(r shard.Reader) (err error) {
		subtrees, err = t.subtrees(r)
		return err
	}); err != nil {
		return false, err
	}
	for _, subtree := range subtrees {
		for after := base.Ino(0); ; {
			var page []namespace.CutInfo
			err := t.h.group.Read(t.ctx, func(r shard.Reader) error {
				page = nil
				return t.h.machine.Cuts(r, subtree, after, func(c namespace.CutInfo) bool {
					page = append(page, c)
					return len(page) < dataPage
				})
			})
			if err != nil {
				return false, err
			}
			if err := t.cutData(subtree, page); err != nil {
				failed = err
			}
			if len(page) < dataPage {
				break
			}
			after = base.Ino(page[len(page)-1].Place.GetIno())
		}
	}
	return failed == nil, failed
}

// cutData makes the data servers know one page's cuts and drops them.
func (t *tenure) cutData(subtree base.SubtreeID, page []namespace.CutInfo) error {
	var calls errgroup.Group
	calls.SetLimit(dataConcurrency)
	for _, c := range page {
		calls.Go(func() error {
			ctx, cancel := context.WithTimeout(t.ctx, dataAttempt)
			defer cancel()
			if err := t.h.server.config.Data.Cut(ctx, c.DataID, c.Layout, c.SizeEpoch, c.Cuts); err != nil {
				return err
			}
			_, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_CutDone{CutDone: &canopyv1.CutDoneCommand{
				Subtree: uint64(subtree), DataId: uint64(c.DataID), Place: c.Place, SizeEpoch: c.SizeEpoch,
			}}})
			return err
		})
	}
	return calls.Wait()
}
