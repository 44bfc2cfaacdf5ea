package namespace

import (
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// A range of names that joins a fragment comes into a subtree that serves meanwhile.
// Its rows stand among the subtree's own and do not count: the directory's map says
// that they are elsewhere until the activation.

// joinBegin begins an attempt: whatever an earlier one left of the names is deleted,
// and nothing else.
func (b *batch) joinBegin(old *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	if old != nil && old.State == schema.ImportRunning {
		if err := b.joinEnd(old); err != nil {
			return nil, err
		}
		old.State = schema.ImportCancelled
		if _, err := b.saveImport(old, c); err != nil {
			return nil, err
		}
	}
	i := importFrom(c, schema.ImportRunning)
	s := b.m.subtrees[i.Into]
	if s == nil {
		return refuse(fserr.Moved, "the fragment that they join is not at this shard")
	}
	if s.State == schema.Active && s.move != nil {
		if s.move.Join && s.move.Phase <= schema.MoveFrozen && base.SubtreeID(c.FromSubtree) > s.id {
			// It may wait for the other, or for one that does. Those with a smaller number
			// wait, so that there is no circle.
			return refuse(fserr.Deadlock, "the subtree of the fragment that they join joins another one: try again when it has")
		}
		return refuse(fserr.Busy, "the subtree of the fragment that they join moves itself")
	}
	if s.State != schema.Active {
		return refuse(fserr.Moved, "the fragment that they join is not at this shard")
	}
	b.enter(s)
	d, err := b.copyOf(i.Root)
	switch {
	case err != nil:
		return nil, err
	case d == nil || d.Removed || len(d.Fragments.In(s.id)) == 0:
		return refuse(fserr.NotFound, "the subtree has no fragment of the directory")
	}
	for _, have := range d.Fragments.In(s.id) {
		if have.Lo < i.Names.Hi && i.Names.Lo < have.Hi {
			return refuse(fserr.Exist, "the names are there")
		}
	}
	s.Hidden++
	s.Joins++
	if err := b.saveSubtree(); err != nil {
		return nil, err
	}
	return b.saveImport(i, c)
}

// joinEnd deletes what came of the names.
func (b *batch) joinEnd(i *schema.Import) error {
	s := b.m.subtrees[i.Into]
	b.enter(s)
	if err := b.dropRows(func(p *canopyv1.Place) bool { return b.inNames(p, i.Root, i.Names) }); err != nil {
		return err
	}
	if err := b.deleteNames(i.Root, i.Names); err != nil {
		return err
	}
	s.Hidden--
	s.Joins--
	return b.saveSubtree()
}

// mayJoin reports whether a row may come to others of its subtree: nothing but what
// belongs to the names, and results.
func (b *batch) mayJoin(i *schema.Import, key []byte, row *canopyv1.ImportRow) bool {
	switch kind := schema.KindOf(key); kind {
	case schema.KindDentry:
		return isName(key, i.Root, i.Names) && len(row.End) == 0
	case schema.KindAppend, schema.KindCut, schema.KindLocked:
		p, err := locatorPlace(key, row.Value)
		return err == nil && b.inNames(p, i.Root, i.Names)
	case schema.KindRelocation: // to where it would look for the file, too, if it had no other
		to, err := schema.DecodeRelocation(row.Value)
		return err == nil && to.Subtree == i.Into && b.inNames(&canopyv1.Place{Dir: uint64(to.Dir), Name: to.Name}, i.Root, i.Names)
	case schema.KindLockClient, schema.KindResults:
		_, _, ok := schema.InoOf(key)
		return ok && !row.Gone
	}
	return false
}

// joinRow writes a row among those of a subtree that serves. What apply keeps in
// memory of it follows, so that it is what a replica that starts anew finds.
func (b *batch) joinRow(id base.SubtreeID, key []byte, row *canopyv1.ImportRow) error {
	s := b.m.subtrees[id]
	if row.Gone {
		return b.w.Delete(key)
	}
	kind := schema.KindOf(key)
	if kind != schema.KindLockClient && kind != schema.KindResults {
		return b.w.Set(key, row.Value)
	}
	_, found, err := b.r.GetNew(key)
	if err != nil || found { // a result that an earlier move took along, or the same attempt's
		return err
	}
	client, first, _ := schema.InoOf(key)
	if kind == schema.KindLockClient {
		s.locked[base.ClientID(client)]++
		return b.w.Set(key, row.Value)
	}
	results, err := schema.DecodeResults(row.Value)
	if err != nil {
		return err
	}
	w := s.windows[base.ClientID(client)]
	if w == nil {
		w = &window{}
		s.windows[base.ClientID(client)] = w
	}
	w.join(base.Seq(first), results)
	return b.w.Set(key, row.Value)
}

// joinActivate makes the fragment answer for the names that came.
func (b *batch) joinActivate(i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	switch {
	case i.State == schema.ImportActive && i.Batch == c.Batch:
		return importResult(i), nil
	case i.State != schema.ImportRunning || i.Batch != c.Batch:
		return refuse(fserr.OldEpoch, "not all of it is here")
	}
	s := b.m.subtrees[i.Into]
	b.enter(s)
	d, err := b.copyOf(i.Root)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return nil, fmt.Errorf("namespace: subtree %d has no copy of directory %d, whose names join it", s.id, i.Root)
	}
	if err := b.joinHeader(d, i); err != nil {
		return nil, err
	}
	n := b.counters()
	n.Files += i.Counts.Files
	n.Bytes += i.Counts.Bytes
	s.Hidden--
	s.Joins--
	if err := b.saveSubtree(); err != nil {
		return nil, err
	}
	if err := b.endStrangers(s); err != nil {
		return nil, err
	}
	i.State, i.Header = schema.ImportActive, nil
	b.m.moved.Add(1)
	return b.saveImport(i, c)
}

// joinHeader takes what came into the header of the fragment that it joins.
func (b *batch) joinHeader(d *directory, i *schema.Import) error {
	from, err := schema.DecodeHeader(i.Header)
	if err != nil {
		return err
	}
	source := ownerOf(from.Fragments, i.Names)
	d.Fragments = d.Fragments.Refer(source, from.Fragments).With(i.Names, i.Into)
	d.Entries += i.Dir.Entries
	d.Subdirs += i.Dir.Subdirs
	if i.Dir.Displaced > 0 {
		d.Displaced += i.Dir.Displaced
		d.MaxProbe = max(d.MaxProbe, from.MaxProbe)
	}
	d.Appeared = max(d.Appeared, from.Appeared) // marks of both go on to hold (PROTOCOLS F3)
	if givesAll(from.Fragments, i.Names) {
		d.Version += from.Version
	}
	d.AtimeNS, d.MtimeNS, d.CtimeNS = max(d.AtimeNS, from.AtimeNS), max(d.MtimeNS, from.MtimeNS), max(d.CtimeNS, from.CtimeNS)
	b.touch(d)
	return b.noteSplit(d)
}

// joinCancel throws away what came.
func (b *batch) joinCancel(i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	if i != nil && i.State == schema.ImportActive && uint64(i.Epoch) == c.Epoch && i.Attempt == c.Attempt {
		return refuse(fserr.Exist, "the names are there")
	}
	if i != nil && i.State == schema.ImportRunning {
		if err := b.joinEnd(i); err != nil {
			return nil, err
		}
		if err := b.dropCopies(b.m.subtrees[i.Into]); err != nil {
			return nil, err
		}
	}
	return b.saveImport(importFrom(c, schema.ImportCancelled), c)
}

// dropCopies deletes results that came for a client which has no session here: it has
// sent nothing here, and the results are where they came from.
func (b *batch) dropCopies(s *subtree) error {
	var clients []base.ClientID
	for client := range s.windows {
		if b.m.sessions[client] == nil {
			clients = append(clients, client)
		}
	}
	slices.Sort(clients)
	for _, client := range clients {
		if err := b.dropWindow(s, client, &schema.Ended{}); err != nil {
			return err
		}
	}
	return nil
}
