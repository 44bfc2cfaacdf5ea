package mds_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
)

// traveller is a client that goes where a subtree is, as answers tell, and counts what it
// is answered.
type traveller struct {
	*caller
	subtree, epoch uint64
	shard          base.ShardID
	at             map[base.ShardID]int // nodes
	kinds          map[fserr.Kind]int
}

// run sends an operation until it is answered otherwise than by a redirect.
func (v *traveller) run(op *canopyv1.Op) *canopyv1.Result {
	for range 100 {
		op.Subtree, op.Epoch = v.subtree, v.epoch
		r := v.try(v.c.nodes[v.at[v.shard]], v.shard, op)
		kind := fserr.Kind(r.Error)
		v.kinds[kind]++
		if kind != fserr.Moved {
			return r
		}
		v.shard, v.epoch = base.ShardID(r.Redirect.Shard), max(v.epoch, r.Redirect.Epoch)
	}
	v.c.t.Error("it is nowhere")
	return &canopyv1.Result{}
}

// PROTOCOLS E4, DESIGN 6: while a subtree is handed off operations wait at its holder, and
// then at the next one; they do not fail. A client meets one redirect for each move, and
// nobody has to come again later.
func TestOperationsWaitForAHandOff(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 2, Shards: 2, Replicas: 1}, nil)
	k := c.caller(0xa1).open(1)
	k.open(2)
	dir := k.must(1, k.write(mkdir(1, "d"))).Attr.Ino
	for i := range 100 {
		k.must(1, k.write(create(dir, fmt.Sprint("f", i))))
	}
	first := c.startMove(1, 2, 1, dir)
	if first.Error != 0 {
		t.Fatal(fserr.Kind(first.Error), first.Detail)
	}
	into := c.moved(1, first.Move).Into

	at := map[base.ShardID]int{1: c.holding(1), 2: c.holding(2)}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var travellers []*traveller
	for i := range 6 {
		v := &traveller{c.caller(base.ClientID(0xb0 + i)).open(1).open(2), into, 1, 2, at, map[fserr.Kind]int{}}
		travellers = append(travellers, v)
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				var r *canopyv1.Result
				if i < 3 {
					r = v.run(v.write(create(dir, fmt.Sprintf("w%d-%d", i, n))))
				} else {
					r = v.run(lookup(dir, "f7"))
				}
				if r.Error != 0 {
					t.Errorf("client %d: %v %s", i, fserr.Kind(r.Error), r.Detail)
					return
				}
			}
		})
	}
	const moves = 12
	from, to := base.ShardID(2), base.ShardID(1)
	for range moves {
		r := c.startMove(from, to, into, dir)
		if r.Error != 0 {
			t.Fatal(fserr.Kind(r.Error), r.Detail)
		}
		c.moved(from, r.Move)
		from, to = to, from
	}
	stop.Store(true)
	wg.Wait()
	for i, v := range travellers {
		if v.kinds[fserr.Frozen] > 0 || v.kinds[fserr.Moved] > moves {
			t.Errorf("client %d was answered %v", i, v.kinds)
		}
	}
}
