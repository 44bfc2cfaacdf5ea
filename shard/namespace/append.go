package namespace

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxReservations bounds the unfilled appends of one file.
const maxReservations = 256

// reservedEnd returns where the next reservation starts.
func reservedEnd(n *schema.Inode) uint64 {
	end := n.SizeBytes
	if k := len(n.Reservations); k > 0 {
		last := n.Reservations[k-1]
		end = max(end, last.Offset+last.Length)
	}
	return end
}

// visibleSize returns what a reported size makes visible while reservations are
// unfilled: bytes within them wait for the lowest one (PROTOCOLS J2); a write
// behind all of them made a hole on purpose and shows at once.
func visibleSize(n *schema.Inode, size uint64) uint64 {
	if len(n.Reservations) == 0 || size > reservedEnd(n) {
		return size
	}
	return min(size, n.Reservations[0].Offset)
}

// reserveAppend reserves a range at the end (PROTOCOLS J2).
func reserveAppend(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetReserveAppend()
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	n, err := o.file()
	if err != nil {
		return nil, err
	}
	offset := reservedEnd(n)
	switch {
	case c.Length == 0:
		return nil, fserr.Invalid
	case c.Length > schema.MaxFileSize-min(offset, schema.MaxFileSize):
		return nil, fserr.FileTooBig
	case len(n.Reservations) >= maxReservations:
		return nil, fserr.Busy
	}
	if err := b.mayGrow(o, offset+c.Length); err != nil {
		return nil, err
	}
	n.Reservations = append(n.Reservations, schema.Reservation{Offset: offset, Length: c.Length, Client: b.client})
	n.HighBytes = max(n.HighBytes, offset+c.Length)
	n.HasData = true
	if len(n.Reservations) == 1 {
		if err := b.locateObject(o); err != nil {
			return nil, err
		}
	}
	r := b.answer(o)
	r.Offset = offset
	return r, b.save(o)
}

// fillAppend says that a reservation's bytes are durable.
func fillAppend(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetFillAppend()
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	n, err := o.file()
	if err != nil {
		return nil, err
	}
	if err := checkSizeEpoch(n, c.SizeEpoch); err != nil {
		return b.answer(o), err
	}
	r := findReservation(n, c.Offset, c.Length, b.client)
	if r == nil {
		// It was given back because the client's session had ended.
		return &canopyv1.Result{Attr: b.attr(o), Detail: "no such reservation"}, fserr.IO
	}
	r.Filled = true
	n.AllocatedBytes = addBytes(n.AllocatedBytes, c.AllocatedBytes)
	b.wrote(n)
	if !identityOf(op.Cred).isRoot() {
		if err := b.killPrivileges(o); err != nil {
			return nil, err
		}
	}
	if err := b.drain(n); err != nil {
		return nil, err
	}
	return b.finish(o)
}

func findReservation(n *schema.Inode, offset, length uint64, client base.ClientID) *schema.Reservation {
	for i := range n.Reservations {
		r := &n.Reservations[i]
		if r.Offset == offset && r.Length == length && r.Client == client && !r.Filled {
			return r
		}
	}
	return nil
}

// drain makes the filled reservations at the front visible.
func (b *batch) drain(n *schema.Inode) error {
	if len(n.Reservations) == 0 {
		return nil
	}
	for len(n.Reservations) > 0 && n.Reservations[0].Filled {
		first := n.Reservations[0]
		n.SizeBytes = max(n.SizeBytes, first.Offset+first.Length)
		n.Reservations = n.Reservations[1:]
	}
	if len(n.Reservations) > 0 {
		return nil
	}
	return b.w.Delete(schema.AppendKey(b.id, b.subtree, n.Ino))
}

// dropReservations forgets all reservations: their bytes end with their epoch.
func (b *batch) dropReservations(n *schema.Inode) error {
	if len(n.Reservations) == 0 {
		return nil
	}
	n.Reservations = nil
	return b.w.Delete(schema.AppendKey(b.id, b.subtree, n.Ino))
}

// giveBack ends the unfilled reservations of clients whose sessions end: those at
// the tail are given back, under a new size epoch so that a late write cannot
// touch what is written there next; one in the middle becomes zeros (PROTOCOLS
// J2). It returns what was made zeros, for the log.
func (b *batch) giveBack(o *object, dead map[base.ClientID]bool) (zeros []string, err error) {
	n := o.inode
	lost := func(r schema.Reservation) bool { return dead[r.Client] && !r.Filled }
	before := len(n.Reservations)
	for k := len(n.Reservations); k > 0 && lost(n.Reservations[k-1]); k-- {
		n.Reservations = n.Reservations[:k-1]
	}
	changed := len(n.Reservations) < before
	if changed {
		b.cut(n, reservedEnd(n))
	}
	for i, r := range n.Reservations {
		if lost(r) {
			n.Reservations[i].Filled, changed = true, true
			zeros = append(zeros, fmt.Sprintf("inode %v: %d bytes at %d", n.Ino, r.Length, r.Offset))
		}
	}
	if !changed {
		return nil, nil
	}
	b.wrote(n)
	if len(n.Reservations) == 0 {
		err = b.w.Delete(schema.AppendKey(b.id, b.subtree, n.Ino))
	} else {
		err = b.drain(n)
	}
	if err != nil {
		return nil, err
	}
	if err := b.locateObject(o); err != nil {
		return nil, err
	}
	return zeros, b.changed(o)
}
