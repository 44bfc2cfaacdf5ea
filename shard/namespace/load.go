package namespace

import (
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// Load builds the caches from r: after a start and after a snapshot. An error
// means that the replica is broken.
func (m *Machine) Load(r shard.Reader) error {
	m.reset()
	defer func() { m.still.note(m.subtrees) }()
	b, found, err := r.Get(schema.ShardKey(m.cfg.Shard))
	if err != nil || !found {
		return err
	}
	if m.state, err = schema.DecodeShardState(b); err != nil {
		return err
	}
	if err := m.loadSessions(r); err != nil {
		return err
	}
	return m.loadSubtrees(r)
}

func (m *Machine) loadSessions(r shard.Reader) error {
	lo, hi := schema.KindRange(m.cfg.Shard, base.ShardMeta, schema.KindSession)
	err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		s, err := schema.DecodeSession(value)
		client, _, _ := schema.InoOf(key)
		m.sessions[base.ClientID(client)] = s
		return true, err
	})
	if err != nil {
		return err
	}
	lo, hi = schema.KindRange(m.cfg.Shard, base.ShardMeta, schema.KindEnded)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		e, err := schema.DecodeEnded(value)
		client, _, _ := schema.InoOf(key)
		m.ended[base.ClientID(client)] = e
		return true, err
	})
}

func (m *Machine) loadSubtrees(r shard.Reader) error {
	if err := eachSubtree(r, m.cfg.Shard, func(id base.SubtreeID, s schema.Subtree) {
		m.subtrees[id] = newSubtree(id, s)
	}); err != nil {
		return err
	}
	for _, s := range m.subtrees {
		if s.State == schema.Importing {
			continue // nobody works on it
		}
		c, err := countersOf(r, m.cfg.Shard, s.id)
		if err != nil {
			return err
		}
		s.counters = c
		if err := m.loadSubtree(r, s); err != nil {
			return err
		}
	}
	return nil
}

// loadSubtree reads what Apply keeps in memory of a subtree, but for its counters.
func (m *Machine) loadSubtree(r shard.Reader, s *subtree) error {
	if err := s.loadWindows(r, m.cfg.Shard); err != nil {
		return err
	}
	if err := s.loadQuotas(r, m.cfg.Shard); err != nil {
		return err
	}
	lo, hi := schema.KindRange(m.cfg.Shard, s.id, schema.KindLockClient)
	err := r.Scan(lo, hi, func(key, _ []byte) (bool, error) {
		client, _, _ := schema.InoOf(key)
		s.locked[base.ClientID(client)]++
		return true, nil
	})
	if err != nil {
		return err
	}
	if err := s.policies.load(r, m.cfg.Shard, s.id); err != nil {
		return err
	}
	return s.loadMove(r, m.cfg.Shard)
}

func (s *subtree) loadWindows(r shard.Reader, id base.ShardID) error {
	lo, hi := schema.KindRange(id, s.id, schema.KindResults)
	err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		results, err := schema.DecodeResults(value)
		if err != nil {
			return false, err
		}
		client, first, _ := schema.InoOf(key)
		w := s.windows[base.ClientID(client)]
		if w == nil {
			w = &window{}
			s.windows[base.ClientID(client)] = w
		}
		w.load(base.Seq(first), results)
		return true, nil
	})
	for _, w := range s.windows {
		w.loaded()
	}
	return err
}

// loadMove reads the subtree's move and, before the hand-off of a carve, which
// directories go.
func (s *subtree) loadMove(r shard.Reader, id base.ShardID) error {
	value, found, err := r.Get(schema.MoveKey(id, s.id))
	if err != nil || !found {
		return err
	}
	if s.move, err = schema.DecodeMove(value); err != nil || !s.carves() || s.move.Phase > schema.MoveFrozen {
		return err
	}
	s.members = map[base.Ino]struct{}{}
	lo, hi := schema.KindRange(id, s.id, schema.KindForward)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		f, err := schema.DecodeForward(value)
		if err != nil {
			return false, err
		}
		if dir, _, _ := schema.InoOf(key); f.Into == s.move.Into {
			s.members[base.Ino(dir)] = struct{}{}
		}
		return true, nil
	})
}

func (s *subtree) loadQuotas(r shard.Reader, id base.ShardID) error {
	lo, hi := schema.KindRange(id, s.id, schema.KindQuota)
	return r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		q, err := schema.DecodeQuota(value)
		if err != nil {
			return false, err
		}
		dir, _, _ := schema.InoOf(key)
		s.quotas[base.Ino(dir)] = &quota{Quota: *q, dir: base.Ino(dir)}
		return true, nil
	})
}

// eachSubtree calls fn for the subtrees that the shard knows, by id.
func eachSubtree(r shard.Reader, id base.ShardID, fn func(base.SubtreeID, schema.Subtree)) error {
	next := base.ShardMeta + 1
	_, end := schema.ShardRange(id)
	for {
		// A subtree's state is its first key: jump from one subtree to the next.
		var found base.SubtreeID
		lo, _ := schema.SubtreeRange(id, next)
		err := r.Scan(lo, end, func(key, value []byte) (bool, error) {
			found, _ = schema.SubtreeOf(key)
			if !schema.IsSubtreeKey(key) {
				return false, nil
			}
			s, err := schema.DecodeSubtree(value)
			if err == nil {
				fn(found, *s)
			}
			return false, err
		})
		if err != nil || found == 0 {
			return err
		}
		next = found + 1
	}
}

func countersOf(r shard.Reader, id base.ShardID, subtree base.SubtreeID) (schema.Counters, error) {
	b, found, err := r.Get(schema.CountersKey(id, subtree))
	if err != nil || !found {
		return schema.Counters{}, err
	}
	c, err := schema.DecodeCounters(b)
	return *c, err
}
