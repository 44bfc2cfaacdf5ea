package mds

import (
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/namespace"
)

// tallyAge is how long the tally of a directory is kept that nobody moved: who
// moves it asks again within a second.
const tallyAge = time.Minute

// quotaLoop counts what was below directories before their quotas began, and drops
// old tallies. A holder that goes leaves the accounts as they are: the next one
// counts again.
func (t *tenure) quotaLoop() { t.workLoop(t.quotaPass) }

// quotaPass goes once over the accounts; done: none needs a further pass.
func (t *tenure) quotaPass() (done bool, err error) {
	var accounts []namespace.QuotaInfo
	var in []base.SubtreeID
	err = t.h.group.Read(t.ctx, func(r shard.Reader) error {
		accounts, in = nil, nil
		subtrees, err := t.subtrees(r)
		if err != nil {
			return err
		}
		for _, subtree := range subtrees {
			err := namespace.Quotas(r, t.h.shard, subtree, func(q namespace.QuotaInfo) bool {
				if q.ToCount || q.Tally {
					accounts, in = append(accounts, q), append(in, subtree)
				}
				return true
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for i, q := range accounts {
		if q.ToCount {
			err = t.countQuota(in[i], q.Dir)
		} else {
			err = t.dropTally(in[i], q)
		}
		if err != nil {
			return false, err
		}
	}
	return len(accounts) == 0, nil
}

// countQuota counts on one snapshot, beside all that goes on.
func (t *tenure) countQuota(subtree base.SubtreeID, dir base.Ino) error {
	var command *canopyv1.QuotaCountedCommand
	err := t.h.group.Read(t.ctx, func(r shard.Reader) (err error) {
		command, err = t.h.machine.CountQuota(r, subtree, dir)
		return err
	})
	if err != nil || command == nil {
		return err
	}
	_, err = t.propose(&canopyv1.Command{Own: &canopyv1.Command_QuotaCounted{QuotaCounted: command}})
	return err
}

func (t *tenure) dropTally(subtree base.SubtreeID, q namespace.QuotaInfo) error {
	t.mu.Lock()
	now := t.clock.now(t.h.group.Status().LastTimeNS, time.Now())
	t.mu.Unlock()
	if now-q.SinceNS < int64(tallyAge) {
		return nil
	}
	_, err := t.propose(&canopyv1.Command{Own: &canopyv1.Command_TallyDone{TallyDone: &canopyv1.TallyDoneCommand{
		Subtree: uint64(subtree), Dir: uint64(q.Dir), Id: q.ID}}})
	return err
}
