package migrate

import (
	"context"
	"errors"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// copying is one attempt to copy.
type copying struct {
	attempt uint64
	begun   bool // the target knows of the attempt
	batch   uint64
	pending *canopyv1.ImportCommand // sent, but not acknowledged: it goes again as it is
	at      cursor
	scanned bool
	paged   bool // the scan has got on since the last round, if that was before its end
	round   uint64
	inRound bool
	keys    []string // of the round, that were not sent yet
	counts  *canopyv1.MoveCounts
	border  border
	results map[string]struct{} // keys of what was sent, where names join others

	frozenAt time.Duration // 0: not frozen
	tail     []*canopyv1.ImportRow
	tailed   bool // tail was read
	tailing  bool // the first batch of the tail is the pending one, or was sent
	last     bool // the last batch is the pending one, or was sent
}

func newCopying(attempt uint64) *copying {
	return &copying{attempt: attempt, border: newBorder(), results: map[string]struct{}{}}
}

// stepCopy sends the next part of the copy: first everything, then rounds of what
// changed meanwhile; a round that is small enough is followed by the freeze.
func (d *Driver) stepCopy(ctx context.Context) error {
	c := d.copy
	if c == nil || c.attempt != d.move.Attempt {
		return d.attempt(ctx) // this driver has not made the copy: it knows not how far it is
	}
	c.frozenAt, c.tailed, c.tailing, c.tail = 0, false, false, nil
	switch {
	case !c.begun:
		return d.beginImport(ctx)
	case c.pending != nil:
		return d.flush(ctx)
	case len(c.keys) > 0:
		return d.sendKeys(ctx)
	case c.paged && !c.scanned && d.src.Recorded(d.subtree, c.attempt) >= d.Limits.RotateKeys:
		c.paged = false
		return d.beginRound(ctx) // before they are too many to be remembered
	case !c.scanned:
		return d.scan(ctx)
	case !c.inRound:
		return d.beginRound(ctx)
	case len(c.border) > d.Limits.Border:
		return d.giveUp(ctx, errBorder)
	}
	if d.calm() {
		at := d.now()
		if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_FREEZE}); err != nil {
			return err
		}
		c.frozenAt = max(at, 1)
	}
	c.inRound = false
	return nil
}

// beginImport has the target begin. A fragment that is to take in names can be gone,
// or its subtree moves by itself: then the move is cancelled, after a while, or at once if
// that move could wait for this one.
func (d *Driver) beginImport(ctx context.Context) error {
	_, err := d.send(ctx, &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_BEGIN})
	d.copy.begun = err == nil
	if err == nil || !d.move.Join {
		return d.refused(err)
	}
	if d.waits == 0 {
		d.waits = max(d.now(), 1)
	}
	switch kind := fserr.KindOf(err); {
	case kind == fserr.NotFound, kind == fserr.Moved, kind == fserr.Exist, kind == fserr.Deadlock, kind == fserr.Busy && d.now()-d.waits > JoinLimit:
		return d.giveUp(ctx, err)
	}
	return d.refused(err)
}

// errBorder is why a carve is given up whose hand-off would be too large an entry.
var errBorder = errors.New("too many directories were moved into what is carved out, or out of it, meanwhile: try again")

// giveUp cancels the move.
func (d *Driver) giveUp(ctx context.Context, why error) error {
	d.note(func(p *Progress) { p.Refused = why.Error() })
	return d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_CANCEL})
}

// calm says that another round would be no smaller than this one.
func (d *Driver) calm() bool {
	p := d.Progress()
	return p.Changed <= d.Limits.CalmKeys || p.Rounds >= maxRounds
}

// refused makes a new attempt if the target knows of a later one.
func (d *Driver) refused(err error) error {
	switch fserr.KindOf(err) {
	case fserr.OldEpoch, fserr.Again:
		d.copy = nil
	}
	return err
}

// flush sends the pending batch. When its outcome is not known it goes again: the
// target takes a batch once.
func (d *Driver) flush(ctx context.Context) error {
	c := d.copy
	began := d.now()
	response, err := d.send(ctx, c.pending)
	if err != nil {
		return d.refused(err)
	}
	c.batch, c.counts = c.pending.Batch, response.Counts
	var bytes uint64
	for _, row := range c.pending.Rows {
		bytes += uint64(len(row.Key) + len(row.Value))
	}
	n := uint64(len(c.pending.Rows))
	d.note(func(p *Progress) {
		p.Entries += n
		p.Bytes += bytes
		p.Copying += d.now() - began
	})
	c.pending = nil
	return nil
}

// give makes rows the pending batch, and sends it.
func (d *Driver) give(ctx context.Context, rows []*canopyv1.ImportRow) error {
	if len(rows) == 0 {
		return nil
	}
	d.copy.pending = &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_BATCH, Batch: d.copy.batch + 1, Rows: rows}
	return d.flush(ctx)
}

// scan sends the next page of everything.
func (d *Driver) scan(ctx context.Context) error {
	c := d.copy
	began := d.now()
	var p *page
	err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		p = &page{d: d, r: r, at: c.at}
		return p.fill()
	})
	if err != nil {
		return err
	}
	c.at, c.scanned, c.paged = p.at, p.done, true
	c.border.take(p.border)
	d.note(func(p *Progress) { p.Copying += d.now() - began })
	return d.give(ctx, p.rows)
}

// beginRound ends the recording of a round by an entry, so that all of its keys
// are committed when they are read.
func (d *Driver) beginRound(ctx context.Context) error {
	c := d.copy
	if err := d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_ROTATE, Batches: c.round + 1}); err != nil {
		return err
	}
	keys, ok := d.src.Changed(d.subtree, c.attempt, c.round+1)
	if !ok {
		d.copy = nil // they are lost
		return nil
	}
	c.round++
	c.keys, c.inRound = keys, c.scanned
	d.note(func(p *Progress) {
		if c.scanned {
			p.Rounds++
		}
		p.Changed = uint64(len(keys))
	})
	return nil
}

// sendKeys sends what the next keys of the round are now.
func (d *Driver) sendKeys(ctx context.Context) error {
	c := d.copy
	var p *page
	used := 0
	err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		p = &page{d: d, r: r}
		used, err = p.keys(c.keys)
		return err
	})
	if err != nil {
		return err
	}
	c.keys = c.keys[used:]
	c.border.take(p.border)
	return d.give(ctx, p.rows)
}

// stepFrozen sends the rest, and hands off when the target's log has all of it.
func (d *Driver) stepFrozen(ctx context.Context) error {
	c := d.copy
	if c == nil || c.attempt != d.move.Attempt || c.frozenAt == 0 {
		return d.attempt(ctx) // which thaws it
	}
	if d.now()-c.frozenAt > FreezeLimit {
		c.last = false // and what is left of the round is sent
		if (d.carves() || d.move.OfNames()) && c.tailed {
			d.copy = nil // what the tail had may not be so any more
		}
		return d.do(ctx, &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_THAW})
	}
	switch {
	case c.pending != nil:
		return d.flush(ctx)
	case c.last:
		return d.handOff(ctx)
	case !c.inRound:
		if err := d.awaitEnds(ctx); err != nil {
			return err
		}
		return d.beginRound(ctx)
	case len(c.keys) > 0:
		return d.sendKeys(ctx)
	case !c.tailed:
		return d.readTail(ctx)
	}
	return d.sendTail(ctx)
}

// awaitEnds returns ErrWaits while something must end before the hand-off.
func (d *Driver) awaitEnds(ctx context.Context) error {
	waits := false
	err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		waits, err = d.src.Waits(r, d.subtree)
		return err
	})
	if err == nil && waits {
		return ErrWaits
	}
	return err
}

func (d *Driver) readTail(ctx context.Context) error {
	c := d.copy
	err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		c.tail, err = d.tailRows(r)
		return err
	})
	c.tailed = err == nil
	return err
}

// sendTail sends the last batches: the last one has the sessions. Where names join
// others the results come here, and the sessions with the first of them.
func (d *Driver) sendTail(ctx context.Context) error {
	c := d.copy
	n := d.fitting(c.tail)
	c.pending = &canopyv1.ImportCommand{Step: canopyv1.ImportStep_IMPORT_BATCH, Batch: c.batch + 1, Rows: c.tail[:n]}
	last := len(c.tail) == n
	err := d.src.Read(ctx, func(r shard.Reader) (err error) {
		if d.move.Join && !c.tailing || !d.move.Join && last {
			if c.pending.Sessions, err = d.sessions(r); err != nil {
				return err
			}
		}
		if !last {
			return nil
		}
		if c.pending.Header, err = d.header(r); err != nil {
			return err
		}
		c.pending.TimeNs, c.pending.LostClientNs, err = d.times(r)
		return err
	})
	if err != nil {
		c.pending, c.tailed, c.tailing = nil, false, false
		return err
	}
	c.tail, c.tailing, c.last = c.tail[n:], true, last
	return d.flush(ctx)
}

// handOff is the commit point: it names the last batch, which the target's log has.
func (d *Driver) handOff(ctx context.Context) error {
	c := d.copy
	if len(c.border) > d.Limits.Border {
		return d.giveUp(ctx, errBorder)
	}
	command := &canopyv1.MoveCommand{Step: canopyv1.MoveStep_MOVE_HAND_OFF, Batches: c.batch}
	if d.move.OfNames() {
		command.Counts = c.counts
	}
	if d.carves() {
		command.Counts = c.counts
		command.Names, command.Children = c.border.messages()
	}
	return d.do(ctx, command)
}

// times returns the source's time, which the target's must not be before (A3), and
// when it ended the last session of a client that was lost.
func (d *Driver) times(r shard.Reader) (now, lost int64, err error) {
	value, found, err := r.Get(schema.ShardKey(d.id))
	if err != nil || !found {
		return 0, 0, err
	}
	s, err := schema.DecodeShardState(value)
	if err != nil {
		return 0, 0, err
	}
	return s.TimeNS, s.LostClientNS, nil
}
