package edge

import (
	"github.com/canopyfs/canopy/internal/base"
)

// checkMoves: what one shard gave away another one has, and what comes to one is given
// by another (invariant 1, E2).
func (j *joiner) checkMoves() {
	for _, e := range j.moves {
		about := []base.SubtreeID{e.Subtree}
		switch {
		case !j.complete():
		case e.Kind == Left && len(j.owners[e.Subtree]) == 0 && !j.gone[e.Subtree]:
			j.find("1", e, about, "no shard owns subtree %v: shard %v handed it to shard %v at epoch %v", e.Subtree, e.Shard, e.Peer, e.Epoch)
		case e.Kind == Coming && !j.given(e):
			if e.To != e.Subtree {
				about = append(about, e.To)
			}
			j.find("1", e, about, "shard %v takes in subtree %v from shard %v, which does not move it", e.Shard, e.To, e.Peer)
		}
	}
}

// given tells whether what comes is being moved by the shard that it comes from.
func (j *joiner) given(coming Edge) bool {
	for _, e := range j.moves {
		if e.Kind == Going && e.Shard == coming.Peer && e.To == coming.To {
			return true
		}
	}
	return false
}
