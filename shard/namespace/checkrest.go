package namespace

import (
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/edge"
	"github.com/canopyfs/canopy/shard/schema"
)

// overdue is after what time something that a holder ends within seconds is reported:
// what a transaction has locked, and decisions that not all have confirmed.
const overdue = 10 * time.Minute

// scanRelocations counts where relocations lead to, and checks that they name what is
// there, if nothing was ever moved. What was moved takes them along (H1), but not the
// orphans, which stay (A9): so where directories or names have come, or come back, a
// relocation can name what has been unlinked before, and is an orphan elsewhere.
func (c *checker) scanRelocations() error {
	alone, err := c.nothingMoved()
	if err != nil {
		return err
	}
	counts := map[base.SubtreeID]int64{}
	err = c.each(schema.KindRelocation, func(key, value []byte) error {
		to, err := schema.DecodeRelocation(value)
		if err != nil {
			return err
		}
		if to.Subtree != c.subtree {
			counts[to.Subtree]++
		}
		if !alone || to.Dir == 0 {
			return nil
		}
		number, _, _ := schema.InoOf(key)
		return c.relocation(base.Ino(number), to)
	})
	for into, n := range counts {
		if err == nil {
			err = c.edge(edge.Edge{Kind: edge.Relocation, To: into, Count: n})
		}
	}
	return err
}

func (c *checker) relocation(ino base.Ino, to *schema.Relocation) error {
	d, err := c.header(to.Dir)
	if err != nil || d == nil {
		return err
	}
	e, err := c.entryAt(to.Dir, to.Name)
	if isElsewhere(err) {
		return nil
	}
	if err != nil && err != fserr.Stale {
		return err
	}
	if e.Dentry != nil && e.Ino == ino {
		return nil
	}
	orphan, err := c.isOrphan(ino)
	if err != nil || orphan {
		return err
	}
	if _, err := c.record(ino); err != fserr.Stale {
		return err
	}
	c.problem("2", ino, "its relocation names %q in directory %d, where it is not", to.Name, to.Dir)
	return nil
}

// nothingMoved reports whether the subtree is that of "/", has not come from another
// shard, and no other one was ever made, or moved, at its shard.
func (c *checker) nothingMoved() (bool, error) {
	if c.subtree != base.RootSubtree {
		return false, nil
	}
	if _, came, err := c.r.Get(schema.ImportKey(c.id, c.subtree)); err != nil || came {
		return false, err
	}
	b, found, err := c.r.Get(schema.ShardKey(c.id))
	if err != nil || !found {
		return false, err
	}
	s, err := schema.DecodeShardState(b)
	return err == nil && s.NextSubtree == 1, err
}

// scanQueues checks that what workers must come back to can be found.
func (c *checker) scanQueues() error {
	for _, kind := range []schema.Kind{schema.KindCut, schema.KindAppend, schema.KindLocked} {
		if err := c.each(kind, func(key, value []byte) error { return c.queued(kind, key, value) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) queued(kind schema.Kind, key, value []byte) error {
	p, err := locatorPlace(key, value)
	if err != nil {
		return err
	}
	o, err := c.resolve(p)
	switch {
	case isElsewhere(err):
	case err == fserr.Stale || err == fserr.NotFound:
		c.problem("6", base.Ino(p.Ino), "it is queued for a worker, but cannot be found")
	case err != nil:
		return err
	case o.moved || o.isDir():
		c.problem("6", base.Ino(p.Ino), "it is queued for a worker at a place where it is not")
	case kind == schema.KindCut && len(o.inode.Cuts) == 0, kind == schema.KindAppend && len(o.inode.Reservations) == 0,
		kind == schema.KindLocked && !o.inode.Locked:
		c.problem("6", base.Ino(p.Ino), "it is queued for a worker that has nothing to do")
	}
	return nil
}

// lockListed holds that the clients' index has a lock that was found in a file.
func (c *checker) lockListed(client base.ClientID, ino base.Ino) error {
	if c.carve.Done || c.hides {
		return nil
	}
	_, found, err := c.r.Get(schema.LockClientKey(c.id, c.subtree, client, ino))
	if err == nil && !found {
		c.problem("6", ino, "locks of client %v are not listed: they would outlive its session", client)
	}
	return err
}

// checkLocks holds that there is a lock for each entry of the clients' index.
func (c *checker) checkLocks() error {
	return c.each(schema.KindLockClient, func(key, value []byte) error {
		number, file, _ := schema.InoOf(key)
		client, ino := base.ClientID(number), base.Ino(file)
		locked, err := c.hasLock(client, ino)
		if err == nil && !locked {
			c.repairable(c.dropRow(key, value), "6", ino, "listed as locked by client %v, which has no locks there", client)
		}
		return err
	})
}

// checkClients holds that results and locks are of clients with sessions: the end of
// one takes them away (PROTOCOLS C5, E5).
func (c *checker) checkClients() error {
	if c.state.State != schema.Active {
		return nil // what ends meanwhile is ended at the next holder
	}
	for _, kind := range []schema.Kind{schema.KindResults, schema.KindLockClient} {
		last := base.ClientID(0)
		err := c.each(kind, func(key, _ []byte) error {
			number, _, _ := schema.InoOf(key)
			client := base.ClientID(number)
			if client == last {
				return nil
			}
			last = client
			_, found, err := c.r.Get(schema.SessionKey(c.id, client))
			if err == nil && !found {
				what := "results"
				if kind == schema.KindLockClient {
					what = "locks"
				}
				c.repairable(c.endClients(), "6", c.root, "subtree %d keeps %s of client %v, which has no session", c.subtree, what, client)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPolicies holds that each policy is of a directory that is there.
func (c *checker) checkPolicies() error {
	return c.each(schema.KindPolicy, func(key, value []byte) error {
		number, _, _ := schema.InoOf(key)
		d, err := c.header(base.Ino(number))
		if err != nil {
			return err
		}
		if d == nil {
			c.repairable(c.dropRow(key, value), "2", base.Ino(number), "has a layout policy and is no directory")
		}
		_, err = schema.DecodePolicy(value)
		return err
	})
}

// checkIntents compares what transactions have prepared with the locks on names and
// headers (PROTOCOLS D2).
func (c *checker) checkIntents() error {
	prepared := uint64(0)
	err := c.each(schema.KindPrepared, func(key, value []byte) error {
		p, err := schema.DecodePrepared(value)
		if err != nil {
			return err
		}
		prepared++
		txn, _ := schema.TxnIn(key)
		for _, k := range p.Keys(c.id) {
			if owner, err := c.lockOwner(k); err != nil {
				return err
			} else if owner != txn {
				c.problem("1", c.root, "transaction %v has prepared %s, which is not locked for it", txn, schema.Format(k))
			}
		}
		if age := time.Duration(c.look.NowNS - p.SinceNS); age > overdue {
			c.problem("6", c.root, "subtree %d: transaction %v holds locks for %v, and nobody decides it", c.subtree, txn, age.Round(time.Second))
		}
		return nil
	})
	if err == nil && prepared != c.state.Intents {
		c.problem("3", c.root, "subtree %d says that %d transactions have prepared something in it, %d have", c.subtree, c.state.Intents, prepared)
	}
	for _, kind := range []schema.Kind{schema.KindIntent, schema.KindHomeLock, schema.KindNoMoves, schema.KindMoveLock} {
		if err != nil {
			break
		}
		err = c.each(kind, func(key, value []byte) error { return c.intent(key, value) })
	}
	return err
}

// lockOwner returns whose the lock at key is, nobody's if there is none.
func (c *checker) lockOwner(key []byte) (schema.TxnID, error) {
	b, found, err := c.r.Get(key)
	if err != nil || !found {
		return schema.TxnID{}, err
	}
	i, err := schema.DecodeIntent(b)
	if err != nil {
		return schema.TxnID{}, err
	}
	return i.Txn, nil
}

func (c *checker) intent(key, value []byte) error {
	i, err := schema.DecodeIntent(value)
	if err != nil {
		return err
	}
	_, found, err := c.r.Get(schema.PreparedKey(c.id, c.subtree, i.Txn))
	if err == nil && !found {
		c.problem("1", c.root, "%s is locked for transaction %v, which has prepared nothing: nobody would free it", schema.Format(key), i.Txn)
	}
	return err
}
