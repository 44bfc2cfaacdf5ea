package mds

import (
	"math/rand/v2"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/heat"
)

const (
	// countedReads is up to how many reads of a batch are counted one by one; of more,
	// one of each readStride stands for all, chosen at random.
	countedReads = 8
	readStride   = 8
	// namedShare: one of so many samples tells a name.
	namedShare = 16
)

// heatClasses says to which class an operation belongs.
var heatClasses = [opTypes]heat.Class{
	opUnknown: heat.Other, opLookup: heat.Lookup, opLocate: heat.Lookup,
	opGetAttr: heat.Stat, opReadlink: heat.Stat, opGetXattr: heat.Stat, opListXattr: heat.Stat, opStatFs: heat.Stat, opAccess: heat.Stat, opParent: heat.Stat,
	opReadDir: heat.ReadDir, opMarkNames: heat.ReadDir,
	opGetLock: heat.Other, opWaitLock: heat.Other, opCancelWait: heat.Other, opGetQuota: heat.Other, opListQuotas: heat.Other, opGetPolicy: heat.Other,
	opCreate: heat.Create, opMkdir: heat.Create, opMknod: heat.Create, opSymlink: heat.Create, opLink: heat.Create,
	opUnlink: heat.Unlink, opRmdir: heat.Unlink, opRename: heat.Rename,
	opSetAttr: heat.Change, opSetXattr: heat.Change, opRemoveXattr: heat.Change, opReportSize: heat.Change, opReserveAppend: heat.Change, opFillAppend: heat.Change,
	opSetLock: heat.Other, opDropLocks: heat.Other, opSetQuota: heat.Other, opSetPolicy: heat.Other, opOpenSession: heat.Other, opCloseSession: heat.Other,
}

// counting returns the counter of the present term, nil if there is none or the node
// does not count.
func (h *hosted) counting() *heatCounter {
	if t := h.tenure(); t != nil && h.server.heat.Load() {
		return t.heat
	}
	return nil
}

// heatSample describes a read. The directory is that in which what it is about has a
// name; that of a directory which is addressed by its number is the directory itself.
func heatSample(client base.ClientID, op *canopyv1.Op, kind opType) heat.Sample {
	return heat.Sample{Dir: base.Ino(op.Dir()), Subtree: base.SubtreeID(op.Subtree), Client: client, Op: uint8(kind), Class: heatClasses[kind], Count: 1}
}

// heatReads counts the reads of a batch that were answered: took is what the batch
// needed since it came, answers to those with intents in the way come later.
func (st *opStream) heatReads(b *readBatch, kinds []fserr.Kind, took time.Duration) {
	c := b.h.counting()
	if c == nil {
		return
	}
	queue := max(b.queried.Sub(b.started), 0)
	serve := max(took-queue, 0) / time.Duration(max(len(b.ops), 1))
	var buffer [countedReads]heat.Sample
	samples := buffer[:0]
	stride := 1
	if len(b.ops) > countedReads {
		stride = readStride
	}
	for first := 0; first < len(b.ops); first += stride {
		n := min(stride, len(b.ops)-first)
		i := first
		if n > 1 {
			i += rand.IntN(n)
		}
		if kinds[i].IsProtocol() {
			continue // sent elsewhere, or to be answered later
		}
		s := heatSample(st.client, b.ops[i], b.kinds[i])
		s.Count = uint32(n)
		s.LatencyNS, s.ServeNS, s.QueueNS = int64(took)*int64(n), int64(serve)*int64(n), int64(queue)*int64(n)
		if rand.Uint32()%namedShare == 0 {
			s.Name = string(b.ops[i].Name())
		}
		if samples = append(samples, s); len(samples) == cap(samples) {
			c.add(st.client, samples...)
			samples = samples[:0]
		}
	}
	if len(samples) > 0 {
		c.add(st.client, samples...)
	}
}

// heatConflict counts a read that met intents at met, and what it waited for them.
func (st *opStream) heatConflict(b *readBatch, op *canopyv1.Op, kind opType, met time.Time, result fserr.Kind) {
	if c := b.h.counting(); c != nil && !result.IsProtocol() {
		now := time.Now()
		s := heatSample(st.client, op, kind)
		s.LatencyNS, s.ConflictNS = int64(now.Sub(b.started)), int64(now.Sub(met))
		c.add(st.client, s)
	}
}

// heatWait counts a wait for a lock that ended.
func (l *lockTable) heatWait(w *lockWait, now time.Time) {
	c := l.t.h.counting()
	if c == nil {
		return
	}
	s := heat.Sample{Dir: base.Ino(w.place.Dir), Subtree: w.subtree, Client: w.id.client, Op: uint8(opWaitLock), Class: heat.Other, Count: 1}
	if s.Dir == 0 {
		s.Dir = base.Ino(w.place.Ino)
	}
	s.LatencyNS = int64(now.Sub(w.since))
	s.ConflictNS = s.LatencyNS
	c.add(w.id.client, s)
}

// writeHeat is what a write that is on its way remembers to be counted.
type writeHeat struct {
	seq      uint64
	dir, dst base.Ino // dst: another one, into which something is renamed
	subtree  base.SubtreeID
	bucket   int8 // of the name that it makes; -1: it makes none
	name     string
	queue    time.Duration
	apply    time.Duration
	conflict time.Duration // within the node
}

// note takes down what is to be counted of a write.
func (x *writeHeat) note(op *canopyv1.Op) {
	var name []byte // that the write is about
	var made []byte // that it makes
	x.seq, x.subtree, x.bucket = op.Seq, base.SubtreeID(op.Subtree), -1
	switch c := op.Call.(type) {
	case *canopyv1.Op_Create:
		x.dir, name, made = base.Ino(c.Create.Dir), c.Create.Name, c.Create.Name
	case *canopyv1.Op_Link:
		x.dir, name, made = base.Ino(c.Link.Dir), c.Link.Name, c.Link.Name
		if c.Link.DirSubtree != 0 {
			x.subtree = base.SubtreeID(c.Link.DirSubtree)
		}
	case *canopyv1.Op_Rename:
		x.dir, name, made = base.Ino(c.Rename.SrcDir), c.Rename.SrcName, c.Rename.DstName
		if c.Rename.DstDir != c.Rename.SrcDir && (c.Rename.DstSubtree == 0 || c.Rename.DstSubtree == op.Subtree) {
			x.dst = base.Ino(c.Rename.DstDir)
		}
	default:
		x.dir, name = base.Ino(op.Dir()), op.Name()
		if addsTo(op) != 0 {
			made = name
		}
	}
	if len(made) > 0 {
		x.bucket = int8(shard.NameHash(made).Border() >> (shard.BorderBits - 4))
	}
	if x.seq%namedShare == 0 {
		x.name = string(name)
	}
}

// heat counts a write that was answered after took.
func (w *pendingWrite) heat(kind fserr.Kind, took time.Duration) {
	c := w.h.counting()
	if c == nil {
		return
	}
	x := &w.about
	request := txnRequest{w.stream.client, x.seq}
	switch kind {
	case fserr.Busy, fserr.Locked, fserr.Frozen:
		c.refused.note(request, w.started)
	}
	if kind.IsProtocol() {
		return
	}
	before := c.refused.taken(request, w.started)
	s := heat.Sample{Dir: x.dir, Subtree: x.subtree, Client: w.stream.client, Op: uint8(w.kind), Class: heatClasses[w.kind], Count: 1,
		LatencyNS: int64(took + before), ServeNS: int64(x.apply), QueueNS: int64(x.queue), ConflictNS: int64(x.conflict + before), Name: x.name}
	made := kind == fserr.OK && x.bucket >= 0
	if made && x.dst == 0 {
		s.Created[x.bucket] = 1
	}
	c.add(w.stream.client, s)
	if x.dst != 0 {
		s.Dir, s.Again = x.dst, true
		if made {
			s.Created[x.bucket] = 1
		}
		c.add(w.stream.client, s)
	}
}
