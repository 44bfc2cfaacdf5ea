package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/policy"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// PolicyFor returns the encoded layout policy that says, set on a directory that
// becomes the root of a subtree, what holds there now; nil if there is none.
func (m *Machine) PolicyFor(r shard.Reader, subtree base.SubtreeID, dir base.Ino) ([]byte, error) {
	v, err := m.viewIn(r, subtree)
	if err != nil {
		return nil, err
	}
	d, err := v.directory(dir)
	if err != nil {
		return nil, err
	}
	path, err := v.pathUp(d)
	if err != nil {
		return nil, err
	}
	var e policy.Effective
	some := false
	for i := len(path) - 1; i >= 0; i-- {
		own, err := v.policyOf(path[i].Ino)
		if err != nil {
			return nil, err
		}
		some = some || own != nil
		e = e.Below(uint64(path[i].Ino), own, 0)
	}
	if !some {
		return nil, nil
	}
	return schema.PolicyOf(policyOf(e)).Append(nil), nil
}

// policyOf returns what has to be set on a directory so that e holds there.
func policyOf(e policy.Effective) *canopyv1.LayoutPolicy {
	p := &canopyv1.LayoutPolicy{Stripes: e.Stripes, Data: e.Data, Pool: e.Pool, Pin: e.Pin}
	if e.Spread {
		p.Spread = policy.SpreadChildren
	}
	if e.Auto {
		p.Class, p.Stripes = policy.Auto, nil
	}
	if e.NoSync {
		p.Sync = canopyv1.LayoutSync_LAYOUT_SYNC_NONE
	}
	if e.Direct {
		p.Direct = &e.Direct
	}
	return p
}

// viewIn returns a view of a subtree as the shard has it: what it does not own is
// for who asks about its rows alone.
func (m *Machine) viewIn(r shard.Reader, subtree base.SubtreeID) (*view, error) {
	value, found, err := r.Get(schema.SubtreeKey(m.cfg.Shard, subtree))
	if err != nil {
		return nil, err
	}
	s := &schema.Subtree{}
	if found {
		if s, err = schema.DecodeSubtree(value); err != nil {
			return nil, err
		}
	}
	v := &view{r: r, id: m.cfg.Shard, hash: m.cfg.Hash, locks: locks{bypassed: true}}
	v.in(subtree, s)
	return v, nil
}

// leadsElsewhere reports whether a part of the subtree's tree lies in another one, or
// is about to: something was carved out, or a directory is split.
func (v *view) leadsElsewhere() (some bool, err error) {
	lo, hi := schema.KindRange(v.id, v.subtree, schema.KindForward)
	err = v.r.Scan(lo, hi, func(_, _ []byte) (bool, error) {
		some = true
		return false, nil
	})
	if some || err != nil {
		return some, err
	}
	var split []base.Ino
	lo, hi = schema.KindRange(v.id, v.subtree, schema.KindSplit)
	err = v.r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		dir, _, _ := schema.InoOf(key)
		split = append(split, base.Ino(dir))
		return true, nil
	})
	for _, dir := range split {
		switch d, readErr := v.headerIn(v.subtree, dir); {
		case readErr == nil && d.split():
			return true, nil
		case readErr != nil && readErr != fserr.Stale && !isElsewhere(readErr):
			return false, readErr
		}
	}
	return false, err
}
