package namespace

import (
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard/schema"
)

// checkQuotas counts anew what each account holds.
func (c *checker) checkQuotas() error {
	accounts := map[base.Ino]*schema.Quota{}
	err := c.each(schema.KindQuota, func(key, value []byte) error {
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
		d, err := c.header(dir)
		if err != nil {
			return err
		}
		if d == nil || d.Removed {
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
			c.repairable(c.recharged(dir, q, have), "3", dir, "quota says %+v, a recount %+v", q.Usage, have)
		}
	}
	return nil
}
