package namespace

import (
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// takeIn applies a step of a move at its target (PROTOCOLS E1).
func (b *batch) takeIn(c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	id := base.SubtreeID(c.GetSubtree())
	ofNames := c.GetHi() > 0
	b.restated = b.restated || c.GetStep() != canopyv1.ImportStep_IMPORT_BATCH
	switch {
	case id == base.ShardMeta || c.GetEpoch() == 0 || c.GetAttempt() == 0 || base.ShardID(c.FromShard) == b.id && !ofNames:
		return nil, fserr.Malformed
	case ofNames && (c.Lo == 0 || c.Lo >= c.Hi || c.Hi > shard.BorderEnd), c.Join && (!ofNames || c.FromSubtree == c.Subtree):
		return nil, fserr.Malformed
	}
	i, err := b.importOf(c)
	if err != nil {
		return nil, err
	}
	// A3: times do not run backwards across shards.
	b.nowNS = max(b.nowNS, c.TimeNs)
	b.m.state.TimeNS = b.nowNS
	if c.Step == canopyv1.ImportStep_IMPORT_BEGIN {
		return b.importBegin(i, c)
	}
	switch {
	case i == nil || uint64(i.Epoch) != c.Epoch || i.Attempt != c.Attempt:
		if c.Step == canopyv1.ImportStep_IMPORT_CANCEL && (i == nil || uint64(i.Epoch) < c.Epoch || uint64(i.Epoch) == c.Epoch && i.Attempt < c.Attempt) {
			return b.importCancel(i, c)
		}
		return refuse(fserr.OldEpoch, "a step of another attempt")
	}
	switch c.Step {
	case canopyv1.ImportStep_IMPORT_BATCH:
		return b.importBatch(i, c)
	case canopyv1.ImportStep_IMPORT_ACTIVATE:
		if i.Join {
			return b.joinActivate(i, c)
		}
		return b.importActivate(id, i, c)
	case canopyv1.ImportStep_IMPORT_CANCEL:
		return b.importCancel(i, c)
	}
	return nil, fserr.Malformed
}

// importKey is the key of the import that a step is of.
func (b *batch) importKey(c *canopyv1.ImportCommand) []byte {
	if c.Join {
		return schema.JoinKey(b.id, base.SubtreeID(c.FromSubtree))
	}
	return schema.ImportKey(b.id, base.SubtreeID(c.Subtree))
}

func (b *batch) importOf(c *canopyv1.ImportCommand) (*schema.Import, error) {
	value, found, err := b.r.Get(b.importKey(c))
	if err != nil || !found {
		return nil, err
	}
	return schema.DecodeImport(value)
}

func (b *batch) saveImport(i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	r := importResult(i)
	return r, b.set(b.importKey(c), i)
}

func importResult(i *schema.Import) *canopyv1.Result {
	return &canopyv1.Result{
		Move: &canopyv1.Move{Attempt: i.Attempt, Epoch: uint64(i.Epoch), Batches: i.Batch},
		MoveCounts: &canopyv1.MoveCounts{Files: i.Counts.Files, Directories: i.Counts.Directories, Bytes: i.Counts.Bytes,
			Entries: i.Dir.Entries, Subdirs: i.Dir.Subdirs, Displaced: i.Dir.Displaced},
	}
}

// importFrom returns the state of an import that a step is of, as it begins or ends.
func importFrom(c *canopyv1.ImportCommand, state schema.ImportState) *schema.Import {
	i := &schema.Import{State: state, Epoch: base.Epoch(c.Epoch), Attempt: c.Attempt, From: base.ShardID(c.FromShard), Root: base.Ino(c.Root),
		Carve: c.Carve, Names: shard.Range{Lo: c.Lo, Hi: c.Hi}, Join: c.Join}
	if i.OfNames() {
		i.Into = base.SubtreeID(c.Subtree)
	}
	return i
}

// importBegin begins an attempt: whatever an earlier one left is deleted.
func (b *batch) importBegin(old *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	id := base.SubtreeID(c.Subtree)
	if old != nil {
		switch later := uint64(old.Epoch) < c.Epoch || uint64(old.Epoch) == c.Epoch && old.Attempt < c.Attempt; {
		case old.State == schema.ImportRunning && uint64(old.Epoch) == c.Epoch && old.Attempt == c.Attempt:
			return importResult(old), nil // a repeat
		case !later:
			return refuse(fserr.OldEpoch, "a step of another attempt")
		}
	}
	if c.Join {
		return b.joinBegin(old, c)
	}
	if s := b.m.subtrees[id]; s != nil {
		switch {
		case s.move != nil: // E3: what it was is not cleaned yet
			return refuse(fserr.Busy, "what the shard had of the subtree is not cleaned yet")
		case s.State == schema.Active || s.State == schema.Frozen:
			return refuse(fserr.Exist, "the subtree is at this shard")
		}
	}
	lo, hi := schema.SubtreeRange(b.id, id)
	if err := b.w.DeleteRange(lo, hi); err != nil {
		return nil, err
	}
	s := newSubtree(id, schema.Subtree{Epoch: base.Epoch(c.Epoch), State: schema.Importing, Root: base.Ino(c.Root)})
	b.m.subtrees[id] = s
	if err := b.set(schema.SubtreeKey(b.id, id), &s.Subtree); err != nil {
		return nil, err
	}
	return b.saveImport(importFrom(c, schema.ImportRunning), c)
}

// importBatch takes the next batch, and no other.
func (b *batch) importBatch(i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	switch {
	case i.State != schema.ImportRunning:
		return refuse(fserr.OldEpoch, "nothing is imported")
	case c.Batch <= i.Batch:
		return importResult(i), nil // a repeat
	case c.Batch != i.Batch+1:
		return refuse(fserr.Again, "a batch is missing")
	}
	id := base.SubtreeID(c.Subtree)
	for _, row := range c.Rows {
		if !b.mayCome(i, schema.KeyOf(b.id, id, row.Key), row) {
			return nil, fserr.Malformed
		}
	}
	for _, s := range c.Sessions { // before results of theirs
		if err := b.importSession(s); err != nil {
			return nil, err
		}
	}
	for _, row := range c.Rows {
		if err := b.importRow(id, i, row); err != nil {
			return nil, err
		}
	}
	if len(c.Header) > 0 {
		i.Header = c.Header
	}
	// A file that is older may have bytes that nobody reported.
	b.m.state.LostClientNS = max(b.m.state.LostClientNS, c.LostClientNs)
	i.Batch = c.Batch
	return b.saveImport(i, c)
}

// mayCome reports whether a row may be in a batch.
func (b *batch) mayCome(i *schema.Import, key []byte, row *canopyv1.ImportRow) bool {
	if i.Join {
		return b.mayJoin(i, key, row)
	}
	return schema.Travels(schema.KindOf(key))
}

func (b *batch) importRow(id base.SubtreeID, i *schema.Import, row *canopyv1.ImportRow) error {
	key := schema.KeyOf(b.id, id, row.Key)
	if i.Carve || i.OfNames() {
		if err := b.countRow(i, key, row.Value); err != nil {
			return err
		}
	}
	switch {
	case i.Join:
		return b.joinRow(id, key, row)
	case len(row.End) > 0:
		return b.w.DeleteRange(key, schema.KeyOf(b.id, id, row.End))
	case row.Gone:
		return b.w.Delete(key)
	}
	return b.w.Set(key, row.Value)
}

// countRow counts what a row takes the place of, and what it brings, so that the
// counters of what comes are known when it is complete. What is deleted by range
// begins with its header.
func (b *batch) countRow(i *schema.Import, key, value []byte) error {
	kind := schema.KindOf(key)
	if kind != schema.KindHeader && kind != schema.KindDentry || !schema.IsSelf(key) {
		return nil
	}
	old, found, err := b.r.GetNew(key)
	if err != nil {
		return err
	}
	if found {
		n, dir, err := b.countOfRow(i, key, old)
		if err != nil {
			return err
		}
		i.Counts = schema.Counters{Files: i.Counts.Files - n.Files, Directories: i.Counts.Directories - n.Directories, Bytes: i.Counts.Bytes - n.Bytes}
		i.Dir = schema.DirCounts{Entries: i.Dir.Entries - dir.Entries, Subdirs: i.Dir.Subdirs - dir.Subdirs, Displaced: i.Dir.Displaced - dir.Displaced}
	}
	if len(value) == 0 {
		return nil
	}
	n, dir, err := b.countOfRow(i, key, value)
	i.Counts = schema.Counters{Files: i.Counts.Files + n.Files, Directories: i.Counts.Directories + n.Directories, Bytes: i.Counts.Bytes + n.Bytes}
	i.Dir = schema.DirCounts{Entries: i.Dir.Entries + dir.Entries, Subdirs: i.Dir.Subdirs + dir.Subdirs, Displaced: i.Dir.Displaced + dir.Displaced}
	return err
}

// countOfRow returns what a row adds to the counters of its subtree and, of a range
// of names, to what the directory's header counts.
func (b *batch) countOfRow(i *schema.Import, key, value []byte) (n schema.Counters, dir schema.DirCounts, err error) {
	n, err = countOf(schema.KindOf(key), value)
	if err != nil || !i.OfNames() {
		return n, dir, err
	}
	dir.Entries = 1
	if schema.DentryKindOf(value) == schema.Directory {
		dir.Subdirs = 1
	}
	if _, at, _ := schema.InoOf(key); b.displaced(schema.DentryName(value), base.Cookie(at)) {
		dir.Displaced = 1
	}
	return n, dir, nil
}

// countOf returns what a header or dentry adds to the counters of its subtree.
func countOf(kind schema.Kind, value []byte) (n schema.Counters, err error) {
	if kind == schema.KindHeader {
		n.Directories = 1
		return n, nil
	}
	if schema.DentryKindOf(value) != schema.Embedded {
		return n, nil
	}
	e, err := schema.DecodeDentry(value)
	if err != nil {
		return n, err
	}
	n.Files = 1
	if e.Inode.IsFile() {
		n.Bytes = e.Inode.SizeBytes
	}
	return n, nil
}

// importSession makes the session of a client that this shard does not know, and
// remembers of one that ended what it had used up (PROTOCOLS C3, C5).
func (b *batch) importSession(m *canopyv1.ImportSession) error {
	client := base.ClientID(m.Client)
	ended := b.m.ended[client]
	if len(m.Ended) > 0 {
		e, err := schema.DecodeEnded(m.Ended)
		if err != nil {
			return err
		}
		if b.m.sessions[client] != nil || ended != nil && ended.MaxSeq >= e.MaxSeq {
			return nil
		}
		b.m.ended[client] = e
		return b.set(schema.EndedKey(b.id, client), e)
	}
	if b.m.sessions[client] != nil {
		return nil
	}
	s, err := schema.DecodeSession(m.Session)
	if err != nil {
		return err
	}
	if ended != nil {
		s.Base = max(s.Base, ended.MaxSeq+1)
		delete(b.m.ended, client)
		if err := b.w.Delete(schema.EndedKey(b.id, client)); err != nil {
			return err
		}
	}
	b.m.sessions[client] = s
	return b.set(schema.SessionKey(b.id, client), s)
}

// importActivate makes the subtree answer, after its hand-off.
func (b *batch) importActivate(id base.SubtreeID, i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	switch {
	case i.State == schema.ImportActive && i.Batch == c.Batch:
		return importResult(i), nil
	case i.State != schema.ImportRunning || i.Batch != c.Batch:
		return refuse(fserr.OldEpoch, "not all of it is here")
	}
	s := newSubtree(id, schema.Subtree{Epoch: i.Epoch, State: schema.Active, Root: i.Root})
	if i.Carve || i.OfNames() {
		if err := b.set(schema.CountersKey(b.id, id), &i.Counts); err != nil {
			return nil, err
		}
	}
	if i.OfNames() {
		if err := b.splitHeader(id, i); err != nil {
			return nil, err
		}
	}
	var err error
	if s.counters, err = countersOf(b.r, b.id, id); err != nil {
		return nil, err
	}
	if err := b.m.loadSubtree(b.r, s); err != nil {
		return nil, err
	}
	s.Quotas = uint64(len(s.quotas))
	b.m.subtrees[id] = s
	if err := b.set(schema.SubtreeKey(b.id, id), &s.Subtree); err != nil {
		return nil, err
	}
	if err := b.endStrangers(s); err != nil {
		return nil, err
	}
	i.State, i.Header = schema.ImportActive, nil
	b.m.moved.Add(1)
	return b.saveImport(i, c)
}

// importCancel throws away what was imported. That it was cancelled stays, so that
// a step that comes late begins nothing.
func (b *batch) importCancel(i *schema.Import, c *canopyv1.ImportCommand) (*canopyv1.Result, error) {
	id := base.SubtreeID(c.Subtree)
	switch {
	case c.Join:
		return b.joinCancel(i, c)
	case i != nil && i.State == schema.ImportActive && uint64(i.Epoch) >= c.Epoch:
		return refuse(fserr.Exist, "the subtree is at this shard")
	}
	if i != nil && i.State == schema.ImportRunning {
		lo, hi := schema.SubtreeRange(b.id, id)
		if err := b.w.DeleteRange(lo, hi); err != nil {
			return nil, err
		}
		delete(b.m.subtrees, id)
		if i.Epoch > 1 { // who asks here is sent to its owner
			s := newSubtree(id, schema.Subtree{Epoch: i.Epoch - 1, State: schema.HandedOff, Root: i.Root, ToShard: i.From})
			b.m.subtrees[id] = s
			if err := b.set(schema.SubtreeKey(b.id, id), &s.Subtree); err != nil {
				return nil, err
			}
		}
	}
	return b.saveImport(importFrom(c, schema.ImportCancelled), c)
}

// frozenSubtree reports whether a subtree is about to be handed off: its sessions
// must not end under it.
func (b *batch) frozenSubtree() bool {
	return slices.ContainsFunc(b.sortedSubtrees(), func(s *subtree) bool { return s.State == schema.Frozen })
}
