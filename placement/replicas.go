package placement

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// MaxReplicas is how many replicas a shard has at most, but for those that leave.
const MaxReplicas = 5

// ReplicaChange is what is asked for of a shard's replicas.
//
// A shard's record says what is to be: a replica that joins has no vote yet, one
// that leaves goes when all that join have one. The shard's holder makes the
// membership so, in steps that each begin with a look at what is: whoever drives can
// crash at any point, and to ask for the same again changes nothing.
type ReplicaChange struct {
	Add    []base.NodeID // nodes that get a replica
	Count  int           // as many more, on nodes that are chosen
	Remove []base.NodeID // nodes whose replica goes
	// Replace adds one for each that begins to leave by this change.
	Replace bool
	// Cancel takes back what was asked for and is not done: what joins goes, what
	// leaves stays.
	Cancel bool
}

// PlanReplicas returns the shard's record as the change makes it; changed is false
// if it is so already. An error says in one line why it cannot be.
func (m *Map) PlanReplicas(info *canopyv1.ShardInfo, c ReplicaChange) (next *canopyv1.ShardInfo, changed bool, err error) {
	p := &replicaPlan{m: m, info: proto.CloneOf(info)}
	if c.Cancel {
		p.cancel()
		return p.info, p.changed, nil
	}
	if !p.majority(Voting(p.info)) {
		return nil, false, p.refuse("shard %d has no majority of running replicas: nothing can be changed until it has", info.Shard)
	}
	count := c.Count
	for _, id := range c.Remove {
		left, err := p.leave(id, c)
		if err != nil {
			return nil, false, err
		}
		if left && c.Replace {
			count++
		}
	}
	for _, id := range c.Add {
		if err := p.join(id); err != nil {
			return nil, false, err
		}
	}
	chosen, err := m.Choose(count, p.staying(), p.nodes())
	if err != nil {
		return nil, false, p.refuse("shard %d: %w", info.Shard, err)
	}
	for _, id := range chosen {
		p.add(id)
	}
	return p.info, p.changed, p.check()
}

// replicaPlan is a record being changed.
type replicaPlan struct {
	m       *Map
	info    *canopyv1.ShardInfo
	changed bool
}

func (p *replicaPlan) refuse(format string, args ...any) error {
	return fserr.New(fserr.Invalid, "", fmt.Errorf(format, args...))
}

func (p *replicaPlan) on(id base.NodeID) *canopyv1.ReplicaInfo {
	for _, r := range p.info.Replicas {
		if base.NodeID(r.Node) == id {
			return r
		}
	}
	return nil
}

func (p *replicaPlan) nodes() (all []base.NodeID) {
	for _, r := range p.info.Replicas {
		all = append(all, base.NodeID(r.Node))
	}
	return all
}

// staying are the nodes of the replicas that do not leave.
func (p *replicaPlan) staying() (all []base.NodeID) {
	for _, r := range p.info.Replicas {
		if !r.Leaving {
			all = append(all, base.NodeID(r.Node))
		}
	}
	return all
}

func (p *replicaPlan) cancel() {
	kept := p.info.Replicas[:0]
	for _, r := range p.info.Replicas {
		p.changed = p.changed || r.Joining || r.Leaving
		if r.Leaving = false; !r.Joining {
			kept = append(kept, r)
		}
	}
	p.info.Replicas = kept
}

// leave marks a node's replica; left is false if it leaves already.
func (p *replicaPlan) leave(id base.NodeID, c ReplicaChange) (left bool, err error) {
	switch r := p.on(id); {
	case r == nil && p.m.Node(id) == nil:
		return false, fserr.New(fserr.NotFound, "", fmt.Errorf("there is no node %v (the cluster has %d)", id, len(p.m.Nodes())))
	case r == nil:
		for _, to := range c.Add {
			if p.on(to) != nil {
				return false, nil // the move was made before
			}
		}
		return false, p.refuse("node %v has no replica of shard %d", id, p.info.Shard)
	case r.Leaving:
		return false, nil
	case r.Joining: // it counts for nothing yet: it just goes
		p.info.Replicas = slices.DeleteFunc(p.info.Replicas, func(x *canopyv1.ReplicaInfo) bool { return x == r })
	default:
		r.Leaving = true
	}
	p.changed = true
	return true, nil
}

func (p *replicaPlan) join(id base.NodeID) error {
	if r := p.on(id); r != nil && r.Leaving {
		return p.refuse("replica %d of shard %d on node %v is leaving: wait until it is gone, or cancel that", r.Replica, p.info.Shard, id)
	} else if r != nil {
		return nil
	}
	if err := p.m.CheckNode(id, nil); err != nil {
		return err
	}
	p.add(id)
	return nil
}

func (p *replicaPlan) add(id base.NodeID) {
	p.info.Replicas = append(p.info.Replicas, &canopyv1.ReplicaInfo{
		Replica: p.info.NextReplica, Node: uint64(id), Learner: true, Joining: true,
	})
	p.info.NextReplica++ // replica ids are never used again (PROTOCOLS A6)
	p.changed = true
}

// check tells what is wrong with what would be.
func (p *replicaPlan) check() error {
	var staying []*canopyv1.ReplicaInfo
	for _, r := range p.info.Replicas {
		if !r.Leaving {
			staying = append(staying, r)
		}
	}
	switch {
	case !p.changed:
	case len(staying) == 0:
		return p.refuse("shard %d would have no replica: add one first, or move it", p.info.Shard)
	case len(staying) > MaxReplicas:
		return p.refuse("shard %d would have %d replicas: at most %d", p.info.Shard, len(staying), MaxReplicas)
	case !p.majority(staying):
		return p.refuse("shard %d would lose its majority: of the %d replicas that stay only %d are on nodes that are alive", p.info.Shard, len(staying), p.alive(staying))
	}
	return nil
}

func (p *replicaPlan) alive(replicas []*canopyv1.ReplicaInfo) (n int) {
	for _, r := range replicas {
		if p.m.Node(base.NodeID(r.Node)).GetAlive() {
			n++
		}
	}
	return n
}

// majority tells whether more than half of the replicas are on nodes that are alive.
func (p *replicaPlan) majority(replicas []*canopyv1.ReplicaInfo) bool {
	return p.alive(replicas)*2 > len(replicas)
}

// Voting returns the replicas that have a vote, those that leave too.
func Voting(info *canopyv1.ShardInfo) (all []*canopyv1.ReplicaInfo) {
	for _, r := range info.GetReplicas() {
		if !r.Joining {
			all = append(all, r)
		}
	}
	return all
}

// NextToGo returns the shard's record without one replica that leaves, nil if none
// can go now: while others join, or when too few of the rest are on live nodes.
func (m *Map) NextToGo(info *canopyv1.ShardInfo) *canopyv1.ShardInfo {
	p := &replicaPlan{m: m, info: proto.CloneOf(info)}
	leaving := -1
	var staying []*canopyv1.ReplicaInfo
	for i, r := range p.info.Replicas {
		switch {
		case r.Joining:
			return nil
		case r.Leaving && leaving < 0:
			leaving = i
		default:
			staying = append(staying, r)
		}
	}
	if leaving < 0 || !p.majority(staying) {
		return nil
	}
	p.info.Replicas = staying
	return p.info
}
