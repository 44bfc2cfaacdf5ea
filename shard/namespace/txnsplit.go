package namespace

import (
	"maps"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// TxnForwards says where directories are that were carved out of the subtree which a
// name or a header tells (PROTOCOLS E7), and in which subtrees the names of split ones
// are.
type TxnForwards map[TxnDir]shard.FragmentMap

// TxnDir is a directory, and the subtree that it is believed to be in.
type TxnDir struct {
	Subtree base.SubtreeID
	Dir     base.Ino
}

// Learn takes in that from sent a question about a directory on. Whom it was sent to is
// asked itself, whatever was heard of it before: it may have got back what it once gave.
func (f TxnForwards) Learn(from base.SubtreeID, red *canopyv1.Redirect) {
	m := shard.FragmentsOf(red.Fragments)
	if m == nil {
		m = shard.Whole(base.SubtreeID(red.Subtree))
	}
	dir := base.Ino(red.Dir)
	delete(f, TxnDir{base.SubtreeID(red.Subtree), dir})
	f[TxnDir{from, dir}] = m
}

// follow returns where the forwards of a directory lead, each by next.
func (f TxnForwards) follow(subtree base.SubtreeID, dir base.Ino, next func(shard.FragmentMap) base.SubtreeID) base.SubtreeID {
	for range len(f) {
		m, ok := f[TxnDir{subtree, dir}]
		if !ok || next(m) == subtree {
			break
		}
		subtree = next(m)
	}
	return subtree
}

// home returns the subtree of a directory that is believed to be in one.
func (p *TxnPlan) home(subtree base.SubtreeID, dir base.Ino) base.SubtreeID {
	return p.forwards.follow(subtree, dir, shard.FragmentMap.Home)
}

// holder returns the subtree of a name, whose directory is believed to be in one.
func (p *TxnPlan) holder(subtree base.SubtreeID, dir base.Ino, name []byte) base.SubtreeID {
	h := p.hash(name)
	return p.forwards.follow(subtree, dir, func(m shard.FragmentMap) base.SubtreeID { return m.Find(h).Subtree })
}

// Addressed reports whether what a redirect of the operation's own subtree is about is
// what the operation is addressed by: then the client is told. Of a split directory the
// other name of a rename or a link can be the one that is elsewhere.
func (p *TxnPlan) Addressed(red *canopyv1.Redirect) bool {
	if red.Dir != p.op.Dir() {
		return false
	}
	at, name := base.SubtreeID(p.op.Subtree), p.op.Name()
	switch m := shard.FragmentsOf(red.Fragments); {
	case m == nil:
		return true
	case len(name) > 0:
		return !m.Has(at, p.hash(name))
	case p.op.GetLink() != nil: // of a directory: it is refused where any name of it is
		return len(m.In(at)) == 0
	}
	return true
}

// homeAsk asks for a directory's header, and locks it.
func (p *TxnPlan) homeAsk(subtree base.SubtreeID, w *canopyv1.TxnWant) (*directory, error) {
	w.Kind = canopyv1.TxnWantKind_TXN_WANT_HOME
	f := p.ask(0, subtree, w)
	if f == nil {
		return nil, errMissing
	}
	if f.Error != 0 {
		return nil, fserr.Kind(f.Error)
	}
	h, err := schema.DecodeHeader(f.Header)
	if err != nil {
		return nil, err
	}
	return &directory{Header: *h, subtree: subtree}, nil
}

// gather locks all fragments of a split directory whose home it has, and adds to the
// header what they count. Each tells which names it has: they are asked until all names
// are somebody's. None can give names away then (PROTOCOLS E4); if names were on their
// way when they were asked, all is tried again.
func (p *TxnPlan) gather(d *directory, closing bool) error {
	m, known := d.Fragments, map[base.SubtreeID]*directory{d.subtree: d}
	var order []base.SubtreeID
	for range 2 * (len(m) + len(p.forwards) + 1) {
		next := m
		for _, f := range m {
			at := known[f.Subtree]
			if forward, ok := p.forwards[TxnDir{f.Subtree, d.Ino}]; ok && at == nil {
				next = next.Refer(f.Subtree, forward)
				continue
			}
			if at == nil {
				var err error
				if at, err = p.homeAsk(f.Subtree, &canopyv1.TxnWant{Ino: uint64(d.Ino), Closing: closing, Fragment: true}); err == errMissing {
					continue // all are asked at once
				} else if err != nil {
					return err
				}
				known[f.Subtree] = at
				order = append(order, f.Subtree)
			}
			next = next.Refer(f.Subtree, at.Fragments)
		}
		switch {
		case len(p.missing) > 0:
			return errMissing
		case slices.Equal(next, m):
			p.gathered[d.Ino] = order
			for _, s := range order {
				d.add(&known[s].Header)
			}
			return nil
		}
		m = next
	}
	maps.DeleteFunc(p.forwards, func(at TxnDir, _ shard.FragmentMap) bool { return at.Dir == d.Ino })
	return fserr.Busy
}

// add adds what a fragment's header counts, as stat shows it (PROTOCOLS F1).
func (d *directory) add(f *schema.Header) {
	d.Entries, d.Subdirs, d.Version = d.Entries+f.Entries, d.Subdirs+f.Subdirs, d.Version+f.Version
	d.AtimeNS, d.MtimeNS, d.CtimeNS = max(d.AtimeNS, f.AtimeNS), max(d.MtimeNS, f.MtimeNS), max(d.CtimeNS, f.CtimeNS)
}

// change changes the attributes of a split directory. The decision carries the
// operation out at home, as if the directory were not split, and what it changed there
// is the others' share (PROTOCOLS F1).
func (p *TxnPlan) change() (*canopyv1.Result, error) {
	at, ino := base.SubtreeID(p.op.Subtree), p.op.GetSetPolicy().GetDir()
	if place := p.op.Place(); place != nil {
		if ino = place.Ino; ino == 0 {
			f := p.ask(0, at, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_PLACE, Place: place})
			switch {
			case f == nil:
				return nil, errMissing
			case f.Error != 0:
				return nil, fserr.Kind(f.Error)
			}
			ino = f.Place.Ino
		}
	}
	d, err := p.homeAsk(at, &canopyv1.TxnWant{Ino: ino})
	if err == nil && d.split() {
		err = p.gather(d, false)
	}
	if err != nil {
		return nil, err
	}
	p.decides = p.op.At(&canopyv1.Place{Ino: ino})
	return nil, nil
}
