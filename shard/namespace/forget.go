package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// A subtree whose root was removed, and of which nothing is left, is removed too:
// placement policies make subtrees as programs make directories. Its results stay for
// as long as their clients have sessions (PROTOCOLS C2), and that its id was taken
// stays for ever (A7).

// forgetEmpty removes the present subtree if nothing is left of it. It is called when
// the last row of one may have gone.
func (b *batch) forgetEmpty(r *canopyv1.Result) (*canopyv1.Result, error) {
	s := b.sub
	if s.Root == base.RootIno || s.State != schema.Active || s.move != nil || s.Intents > 0 || s.Hidden > 0 {
		return r, nil
	}
	left, err := b.anythingLeft()
	if err != nil || left {
		return r, err
	}
	s.State, s.counters = schema.Removed, schema.Counters{}
	if err := b.saveSubtree(); err != nil {
		return nil, err
	}
	b.m.moved.Add(1)
	r.Removed = true
	return r, b.forgetRemoved(s)
}

// anythingLeft reports whether the present subtree has rows beside its state, its
// counters and results.
func (b *batch) anythingLeft() (bool, error) {
	if _, found, err := b.r.Get(schema.HeaderKey(b.id, b.subtree, b.sub.Root)); found || err != nil {
		return found, err
	}
	first, _ := schema.KindRange(b.id, b.subtree, schema.KindHeader)
	results, after := schema.KindRange(b.id, b.subtree, schema.KindResults)
	_, end := schema.SubtreeRange(b.id, b.subtree)
	for _, part := range [][2][]byte{{first, results}, {after, end}} {
		left := false
		err := b.r.Scan(part[0], part[1], func(_, _ []byte) (bool, error) {
			left = true
			return false, nil
		})
		if left || err != nil {
			return left, err
		}
	}
	return false, nil
}

// forgetRemoved forgets a removed subtree when no client has results in it any more:
// only that there was one stays.
func (b *batch) forgetRemoved(s *subtree) error {
	if s.State != schema.Removed || len(s.windows) > 0 {
		return nil
	}
	delete(b.m.subtrees, s.id)
	lo, hi := schema.SubtreeRange(b.id, s.id)
	if err := b.w.DeleteRange(lo, hi); err != nil {
		return err
	}
	s.forgotten = true
	return b.set(schema.GoneKey(b.id, s.id), schema.Empty{})
}

// answers reports whether a removed subtree has the result of a client's request: it
// is the answer to a repeat, whatever became of the subtree since.
func (s *subtree) answers(client base.ClientID, seq base.Seq) bool {
	w := s.windows[client]
	return s.State == schema.Removed && w != nil && seq >= w.floor && seq-w.floor < maxOutstanding && w.has(seq)
}

// unknown is the answer of an operation on a subtree of which the shard has no state:
// it is gone, or elsewhere.
func unknown(r shard.Reader, id base.ShardID, op *canopyv1.Op) (*canopyv1.Result, error) {
	_, gone, err := r.Get(schema.GoneKey(id, base.SubtreeID(op.GetSubtree())))
	if err != nil {
		return nil, err
	}
	if gone {
		return &canopyv1.Result{Error: uint32(fserr.Stale)}, nil
	}
	return route(op, &schema.Subtree{}), nil
}

// GoneSubtrees returns those of subtrees that were removed at the shard.
func GoneSubtrees(r shard.Reader, id base.ShardID, subtrees []base.SubtreeID) (gone []base.SubtreeID, err error) {
	for _, subtree := range subtrees {
		_, found, err := r.Get(schema.GoneKey(id, subtree))
		if err != nil {
			return nil, err
		}
		if !found {
			if found, err = removedOf(r, id, subtree); err != nil {
				return nil, err
			}
		}
		if found {
			gone = append(gone, subtree)
		}
	}
	return gone, nil
}

// removedOf reports whether a subtree is removed that still has results.
func removedOf(r shard.Reader, id base.ShardID, subtree base.SubtreeID) (bool, error) {
	value, found, err := r.Get(schema.SubtreeKey(id, subtree))
	if err != nil || !found {
		return false, err
	}
	s, err := schema.DecodeSubtree(value)
	return err == nil && s.State == schema.Removed, err
}
