package namespace

import (
	"fmt"
	"math"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// runOwn applies one of the holder's own commands.
func (b *batch) runOwn(c *canopyv1.Command) (*canopyv1.Result, error) {
	if boot, ok := c.Own.(*canopyv1.Command_Bootstrap); ok {
		return b.bootstrap(boot.Bootstrap)
	}
	if b.m.state == nil {
		return nil, fserr.NotReady
	}
	switch own := c.Own.(type) {
	case *canopyv1.Command_EndSessions:
		return b.endLost(own.EndSessions)
	case *canopyv1.Command_Purge:
		return b.inSubtree(own.Purge.GetSubtree(), func() (*canopyv1.Result, error) { return b.purge(own.Purge) })
	case *canopyv1.Command_DeletionDone:
		return b.inSubtree(own.DeletionDone.GetSubtree(), func() (*canopyv1.Result, error) { return b.deletionDone(own.DeletionDone) })
	case *canopyv1.Command_CutDone:
		return b.inSubtree(own.CutDone.GetSubtree(), func() (*canopyv1.Result, error) { return b.cutDone(own.CutDone) })
	case *canopyv1.Command_QuotaCounted:
		return b.inSubtree(own.QuotaCounted.GetSubtree(), func() (*canopyv1.Result, error) { return b.quotaCounted(own.QuotaCounted) })
	case *canopyv1.Command_TallyDone:
		return b.inSubtree(own.TallyDone.GetSubtree(), func() (*canopyv1.Result, error) { return b.tallyDone(own.TallyDone) })
	case *canopyv1.Command_Move:
		return b.moveStep(own.Move)
	case *canopyv1.Command_Import:
		return b.takeIn(own.Import)
	case *canopyv1.Command_TxnPrepare:
		return b.prepare(own.TxnPrepare)
	case *canopyv1.Command_TxnDecide:
		return b.decide(own.TxnDecide)
	case *canopyv1.Command_TxnCommit:
		return b.commit(own.TxnCommit)
	case *canopyv1.Command_TxnAbort:
		return b.abort(own.TxnAbort)
	case *canopyv1.Command_TxnForget:
		return b.forget(own.TxnForget)
	case *canopyv1.Command_Repair:
		return b.mend(own.Repair)
	case *canopyv1.Command_Checksum:
		return &canopyv1.Result{}, nil // raftgroup makes it
	}
	return nil, fserr.Malformed
}

// inSubtree runs fn in a subtree that is active here.
func (b *batch) inSubtree(id uint64, fn func() (*canopyv1.Result, error)) (*canopyv1.Result, error) {
	s := b.m.subtrees[base.SubtreeID(id)]
	if s == nil || s.State != schema.Active {
		return nil, fserr.Moved
	}
	b.enter(s)
	return fn()
}

// bootstrap makes the shard's first state, and a subtree if one is named. What is
// there already stays.
func (b *batch) bootstrap(c *canopyv1.BootstrapCommand) (*canopyv1.Result, error) {
	if c == nil || base.ShardID(c.Shard) != b.id {
		return nil, fserr.Invalid
	}
	if b.m.state == nil {
		b.m.state = &schema.ShardState{
			Format: schema.FormatVersion, Cluster: c.Cluster, Shard: b.id, NextIno: 1, NextSubtree: 1, TimeNS: b.nowNS,
		}
		if b.id == 0 { // no shard has this id
			b.m.state = nil
			return nil, fserr.Invalid
		}
	}
	if b.m.state.Cluster != c.Cluster {
		return nil, fserr.WrongCluster
	}
	id := base.SubtreeID(c.Subtree)
	if id == base.ShardMeta || b.m.subtrees[id] != nil {
		return &canopyv1.Result{}, nil
	}
	if c.Epoch == 0 {
		return nil, fserr.Invalid
	}
	s := newSubtree(id, schema.Subtree{Epoch: base.Epoch(c.Epoch), State: schema.Active, Root: base.Ino(c.RootIno)})
	if s.Root == 0 {
		s.Root = b.newIno()
	}
	b.m.subtrees[id] = s
	b.enter(s)
	root := &directory{subtree: id, epoch: s.Epoch, Header: schema.Header{
		Ino: s.Root, Mode: schema.TypeDir | c.RootMode&modeBits, Version: 1,
		AtimeNS: b.nowNS, MtimeNS: b.nowNS, CtimeNS: b.nowNS, BtimeNS: b.nowNS,
		Parent: s.Root, ParentSubtree: id, Fragments: shard.Whole(id), Appeared: 1, Layout: schema.LayoutOf(c.Layout),
	}}
	b.dirs[dirID{id, s.Root}] = root
	b.touch(root)
	b.counters().Directories++
	return &canopyv1.Result{Attr: b.dirAttr(root)}, b.set(schema.SubtreeKey(b.id, id), &s.Subtree)
}

// purge removes orphans and relocations that the holder found due (PROTOCOLS H2).
// When is the holder's to decide; that an orphan still has no name, and that
// nothing happened to it since, is checked here.
func (b *batch) purge(c *canopyv1.PurgeCommand) (*canopyv1.Result, error) {
	before := c.BeforeNs
	if before == 0 {
		before = math.MaxInt64
	}
	for _, ino := range c.Orphans {
		if err := b.purgeOrphan(base.Ino(ino), before); err != nil {
			return nil, err
		}
	}
	for _, ino := range c.Relocations {
		key := schema.RelocationKey(b.id, b.subtree, base.Ino(ino))
		v, found, err := b.r.Get(key)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		r, err := schema.DecodeRelocation(v)
		if err != nil {
			return nil, err
		}
		if r.SinceNS >= before {
			continue
		}
		if err := b.w.Delete(key); err != nil {
			return nil, err
		}
	}
	return b.forgetEmpty(&canopyv1.Result{})
}

func (b *batch) purgeOrphan(ino base.Ino, before int64) error {
	key := schema.OrphanKey(b.id, b.subtree, ino)
	v, found, err := b.r.Get(key)
	if err != nil || !found {
		return err
	}
	o, err := schema.DecodeOrphan(v)
	if err != nil {
		return err
	}
	if o.SinceNS >= before {
		return nil
	}
	if o.Inode == nil {
		return b.purgeDirectory(ino)
	}
	if o.Inode.Nlink != 0 {
		return nil
	}
	gone := &object{home: inOrphan, inode: o.Inode}
	if err := b.unlockAll(gone); err != nil {
		return err
	}
	if _, err := b.takeParts(gone); err != nil {
		return err
	}
	keys := [][]byte{key, schema.RelocationKey(b.id, b.subtree, ino)}
	if len(o.Inode.Cuts) > 0 {
		keys = append(keys, schema.CutKey(b.id, b.subtree, ino))
	}
	if len(o.Inode.Reservations) > 0 {
		keys = append(keys, schema.AppendKey(b.id, b.subtree, ino))
	}
	for _, k := range keys {
		if err := b.w.Delete(k); err != nil {
			return err
		}
	}
	return b.queueDeletion(o.Inode)
}

// queueDeletion queues the data of a file that is gone (PROTOCOLS H3). A file of
// which no bytes were reported has some only if a client wrote and was lost before
// it reported; so a file that is younger than the last lost client has none.
func (b *batch) queueDeletion(n *schema.Inode) error {
	lost := n.BtimeNS <= b.m.state.LostClientNS
	if !n.IsFile() || n.DataID == 0 || !n.HasData && !lost {
		return nil
	}
	size := n.HighBytes
	if lost || n.SizeEpoch > 1 { // each column keeps the cuts, also where no bytes ever were
		size = schema.MaxFileSize
	}
	return b.set(schema.DeletionKey(b.id, b.subtree, n.DataID),
		&schema.Deletion{SinceNS: b.nowNS, SizeBytes: size, Layout: n.Layout})
}

// purgeDirectory removes what is left of a removed directory.
func (b *batch) purgeDirectory(ino base.Ino) error {
	d, err := b.directory(ino)
	if err == fserr.Stale || isElsewhere(err) {
		return b.w.Delete(schema.OrphanKey(b.id, b.subtree, ino))
	}
	if err != nil {
		return err
	}
	if !d.Removed {
		return nil
	}
	o := &object{home: inHeader, dir: d}
	if _, err := b.takeParts(o); err != nil {
		return err
	}
	d.gone = true
	delete(b.dirs, dirID{b.subtree, ino})
	if err := b.w.Delete(schema.OrphanKey(b.id, b.subtree, ino)); err != nil {
		return err
	}
	if err := b.putPolicy(ino, nil); err != nil {
		return err
	}
	return b.w.Delete(b.key(o))
}

// deletionDone clears queue entries whose data is gone everywhere.
func (b *batch) deletionDone(c *canopyv1.DeletionDoneCommand) (*canopyv1.Result, error) {
	for _, id := range c.DataIds {
		if err := b.w.Delete(schema.DeletionKey(b.id, b.subtree, base.DataID(id))); err != nil {
			return nil, err
		}
	}
	return b.forgetEmpty(&canopyv1.Result{})
}

// locatorPlace returns the place in a Locator.
func locatorPlace(key, value []byte) (*canopyv1.Place, error) {
	l, err := schema.DecodeLocator(value)
	ino, _, _ := schema.InoOf(key)
	return &canopyv1.Place{Ino: ino, Dir: uint64(l.Dir), Name: l.Name}, err
}

// brokenState turns a business failure, where the state must allow none, into an
// error.
func brokenState(err error, p *canopyv1.Place) error {
	return fmt.Errorf("namespace: inode %d, which the state names, cannot be found: %w", p.Ino, err)
}
