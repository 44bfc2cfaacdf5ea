package namespace

import (
	"slices"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// checkNames compares the lists of names of de-inlined inodes with the names.
func (c *checker) checkNames() error {
	b, found, err := c.r.Get(schema.ShardKey(c.id))
	if err != nil || !found {
		return err
	}
	state, err := schema.DecodeShardState(b)
	if err != nil || state.Format < namesFormat {
		return err // the first quota makes them
	}
	c.lists = true
	err = c.scanKind(schema.KindNames, func(key, value []byte) error {
		n, err := schema.DecodeNames(value)
		number, _, _ := schema.InoOf(key)
		ino := base.Ino(number)
		have, rest := c.named[ino], slices.Clone(n.Dirs)
		for _, dir := range have {
			if !slices.Contains(rest, dir) {
				c.problem("3", ino, "its names are listed in directories %v, there is one in %v", n.Dirs, dir)
			}
			rest = without(rest, dir)
		}
		if len(rest) > 0 {
			c.listed[ino] = rest
		}
		delete(c.named, ino)
		return err
	})
	for ino, dirs := range c.named {
		c.problem("3", ino, "its names in directories %v are not listed", dirs)
	}
	return err
}

// checkQuotas counts anew what each account holds.
func (c *checker) checkQuotas() error {
	accounts := map[base.Ino]*schema.Quota{}
	err := c.scanKind(schema.KindQuota, func(key, value []byte) error {
		q, err := schema.DecodeQuota(value)
		dir, _, _ := schema.InoOf(key)
		accounts[base.Ino(dir)] = q
		return err
	})
	if err != nil {
		return err
	}
	if c.quotas != (len(accounts) > 0) {
		c.problem("3", c.root, "quotas: subtree %d says that it has some: %v, it has %d", c.subtree, c.quotas, len(accounts))
	}
	for dir, q := range accounts {
		if d := c.dirs[dir]; d == nil || d.removed {
			c.problem("3", dir, "quota of a directory that is gone")
			continue
		}
		if !q.Counted {
			continue
		}
		t, err := c.countTree(dir, 0)
		if err != nil {
			return err
		}
		have, err := c.usageOf(t)
		if err != nil {
			return err
		}
		if have != q.Usage {
			c.problem("3", dir, "quota says %+v, a recount %+v", q.Usage, have)
		}
	}
	return nil
}
