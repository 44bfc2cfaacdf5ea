package schema

import (
	"fmt"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// PolicyKey is the key of the Policy that was set on a directory.
func PolicyKey(shard base.ShardID, subtree base.SubtreeID, dir base.Ino) []byte {
	return key1(shard, subtree, KindPolicy, uint64(dir))
}

// Policy is what was set on a directory for the files that are made below it, and
// nothing that is inherited; see canopyv1.LayoutPolicy. It has a key of its own,
// not a place in the header: headers are read by every operation, policies are
// few, and Apply keeps them all in memory.
type Policy struct {
	Class     string
	Stripes   []Component
	Copies    uint32 // with Data and Parity: how data is kept; all 0: not set
	Data      uint32
	Parity    uint32
	Pool      uint64
	ClassPool uint64
	Sync      uint32 // canopyv1.LayoutSync
	Direct    *bool
	Spread    string // of new directories: children, none, or not set
	Pin       uint64 // the shard of new directories; 0: not set
}

const (
	policyHasDirect = 1 << iota
	policyIsDirect
	policyHasPlacement
)

// PolicyOf returns what p says.
func PolicyOf(p *canopyv1.LayoutPolicy) *Policy {
	return &Policy{Class: p.GetClass(), Stripes: LayoutOf(&canopyv1.Layout{Components: p.GetStripes()}).Components,
		Copies: p.GetData().GetCopies(), Data: p.GetData().GetData(), Parity: p.GetData().GetParity(),
		Pool: p.GetPool(), ClassPool: p.GetClassPool(), Sync: uint32(p.GetSync()), Direct: p.Direct,
		Spread: p.GetSpread(), Pin: p.GetPin()}
}

// Proto returns the policy as a message.
func (p *Policy) Proto() *canopyv1.LayoutPolicy {
	out := &canopyv1.LayoutPolicy{Class: p.Class, Pool: p.Pool, ClassPool: p.ClassPool, Sync: canopyv1.LayoutSync(p.Sync), Direct: p.Direct,
		Spread: p.Spread, Pin: p.Pin}
	if len(p.Stripes) > 0 {
		out.Stripes = Layout{Components: p.Stripes}.Proto().Components
	}
	if p.Copies != 0 || p.Data != 0 || p.Parity != 0 {
		out.Data = &canopyv1.Redundancy{Copies: p.Copies, Data: p.Data, Parity: p.Parity}
	}
	return out
}

// Append appends the encoding to dst.
func (p *Policy) Append(dst []byte) []byte {
	var flags byte
	if p.Direct != nil {
		flags |= policyHasDirect
		if *p.Direct {
			flags |= policyIsDirect
		}
	}
	if p.Spread != "" || p.Pin != 0 {
		flags |= policyHasPlacement
	}
	dst = putString(append(dst, valueVersion, flags), p.Class)
	for _, v := range [...]uint64{uint64(p.Copies), uint64(p.Data), uint64(p.Parity), p.Pool, p.ClassPool, uint64(p.Sync)} {
		dst = putU64(dst, v)
	}
	dst = Layout{Components: p.Stripes}.append(dst)
	if flags&policyHasPlacement != 0 {
		dst = putU64(putString(dst, p.Spread), p.Pin)
	}
	return dst
}

// DecodePolicy reads what Policy.Append wrote.
func DecodePolicy(b []byte) (*Policy, error) {
	d := decode(b)
	flags := d.byte()
	p := &Policy{Class: string(d.bytes()), Copies: d.u32(), Data: d.u32(), Parity: d.u32(), Pool: d.u64(), ClassPool: d.u64(), Sync: d.u32()}
	l := d.layout()
	p.Stripes = l.Components
	if l.Pool != 0 || l.Flags != 0 || flags >= policyHasPlacement<<1 || flags&policyIsDirect != 0 && flags&policyHasDirect == 0 {
		d.fail()
	}
	if flags&policyHasDirect != 0 {
		v := flags&policyIsDirect != 0
		p.Direct = &v
	}
	if flags&policyHasPlacement != 0 {
		p.Spread, p.Pin = string(d.bytes()), d.u64()
	}
	return p, d.done("policy")
}

// String returns what is set.
func (p *Policy) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "class=%q", p.Class)
	for _, c := range p.Stripes {
		fmt.Fprintf(&b, " %d:%dx%d", c.Offset, c.StripeCount, c.StripeBytes)
	}
	fmt.Fprintf(&b, " data=%d/%d+%d pool=%d class-pool=%d sync=%d", p.Copies, p.Data, p.Parity, p.Pool, p.ClassPool, p.Sync)
	if p.Direct != nil {
		fmt.Fprintf(&b, " direct=%v", *p.Direct)
	}
	if p.Spread != "" || p.Pin != 0 {
		fmt.Fprintf(&b, " spread=%q pin=%d", p.Spread, p.Pin)
	}
	return b.String()
}
