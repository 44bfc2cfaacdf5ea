package check

import (
	"path"
	"strings"
	"time"

	"github.com/canopyfs/canopy/loadtest/history"
)

// life is when a name that was made once was there: not before bornCall, surely from
// bornEnd on until goneCall, and not after goneEnd.
type life struct {
	ino                                  uint64
	bornCall, bornEnd, goneCall, goneEnd int64
}

// lives are names by directory.
type lives map[string]map[string]*life

// checkSingles checks what was done with names that are made once, and all listings.
func checkSingles(r *Report, ops []*history.Op) {
	all, makers := lives{}, map[uint64]*history.Op{}
	var listings []*history.Op
	for _, op := range inOrder(ops) {
		switch {
		case op.Kind == history.List || op.Kind == history.Recount:
			if op.Outcome == history.Done {
				listings = append(listings, op)
			}
			continue
		case op.Kind == history.Create || op.Kind == history.Mkdir:
			if first := makers[op.Ino]; first != nil && op.Outcome == history.Done && op.Ino != 0 {
				r.add(RuleInode, op.A, "made as inode %d, as before by: %s", op.Ino, describe(first))
			}
			makers[op.Ino] = op
		}
		if op.Group == 0 {
			all.take(r, op)
		}
	}
	for _, names := range all {
		r.Names += len(names)
	}
	r.Listings = len(listings)
	for _, l := range listings {
		checkListing(r, l, all[l.A])
	}
}

// take follows a name through an operation.
func (all lives) take(r *Report, op *history.Op) {
	born, gone := "", ""
	switch op.Kind {
	case history.Create:
		born = op.A
	case history.Rename:
		born, gone = op.B, op.A
	case history.Unlink:
		gone = op.A
	default:
		return
	}
	if op.Outcome != history.Done && op.Outcome != history.Unknown {
		r.add(RuleOnce, op.A, "what cannot fail when it is done once was refused: %s", describe(op))
	}
	end := op.End()
	if op.Outcome != history.Done {
		end = history.Never // what was refused may have been done before
	}
	ino := op.Ino
	if l := all[path.Dir(gone)][path.Base(gone)]; gone != "" && l != nil {
		l.goneCall, l.goneEnd = op.Call, end
		ino = l.ino
	}
	if born == "" {
		return
	}
	dir := all[path.Dir(born)]
	if dir == nil {
		dir = map[string]*life{}
		all[path.Dir(born)] = dir
	}
	dir[path.Base(born)] = &life{ino: ino, bornCall: op.Call, bornEnd: end, goneCall: history.Never, goneEnd: history.Never}
}

// checkListing holds a listing to what a directory promises (PROTOCOLS F3).
func checkListing(r *Report, l *history.Op, names map[string]*life) {
	shown := make(map[string]uint64, len(l.Entries))
	latest, by := l.Call, "the listing began"
	for _, e := range l.Entries {
		if _, twice := shown[e.Name]; twice {
			r.add(RuleTwice, l.A, "%s is shown twice by: %s", e.Name, describe(l))
		}
		shown[e.Name] = e.Ino
		n := names[e.Name]
		switch {
		case n == nil:
			if isSingle(e.Name) {
				r.add(RuleSurplus, l.A, "%s, which nobody made, is shown by: %s", e.Name, describe(l))
			}
			continue
		case n.bornCall > l.Return || n.goneEnd < l.Call:
			r.add(RuleSurplus, l.A, "%s (there from %s to %s) is shown by: %s", e.Name, seconds(n.bornEnd), seconds(n.goneEnd), describe(l))
		case n.ino != 0 && n.ino != e.Ino:
			r.add(RuleSurplus, l.A, "%s is inode %d, shown as %d by: %s", e.Name, n.ino, e.Ino, describe(l))
		}
		if n.bornCall > latest {
			latest, by = n.bornCall, e.Name+", which is shown, was asked for"
		}
	}
	for name, n := range names {
		if _, is := shown[name]; is || n.goneCall <= l.Return {
			continue
		}
		switch {
		case n.bornEnd < l.Call:
			r.add(RuleMissing, l.A, "%s, there since %s, is not shown by: %s", name, seconds(n.bornEnd), describe(l))
		case n.bornEnd < latest:
			r.add(RuleOrder, l.A, "%s, there since %s, before (%s) %s, is not shown by: %s", name, seconds(n.bornEnd), seconds(latest), by, describe(l))
		}
	}
}

// SinglePrefix begins the names that are made once.
const SinglePrefix = "s."

func isSingle(name string) bool { return strings.HasPrefix(name, SinglePrefix) }

func seconds(ns int64) string {
	if ns == history.Never {
		return "any time"
	}
	return time.Duration(ns).String()
}
