package client

import (
	"context"
	"slices"
	"sync"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// isPartial reports whether attributes are those of one fragment of a split directory:
// its own names, links and times. They are never kept nor shown (PROTOCOLS F1).
func isPartial(a *Attr) bool { return len(a.GetFragments()) > 1 }

// isSum reports whether attributes are those of several fragments together.
func isSum(a *Attr) bool { return len(a.GetFragments()) == 1 }

// newer reports whether attributes take the place of others of the inode, nil: none.
// The fragments of a split directory are not asked at one moment, so the sum of their
// versions orders nothing.
func newer(a, known *Attr) bool {
	return known == nil || a.Version >= known.Version || isSum(a) || isSum(known)
}

// learnResult takes from an answer of the subtree from what it says of how directories
// are split.
func (c *Client) learnResult(op *canopyv1.Op, r *canopyv1.Result, from base.SubtreeID) {
	if !isPartial(r.Attr) && !isPartial(r.DirAttr) && !c.inodes.dirs.split.Load() {
		return
	}
	// A link's directory is its second operand: another subtree may have said it.
	by := base.SubtreeID(0)
	if r.DirAttr.GetIno() == op.Dir() && op.GetLink() == nil {
		by = from
	}
	c.learnAttr(r.DirAttr, by)
	by = base.SubtreeID(r.Attr.GetSubtree())
	if p := op.Place(); p != nil && p.Ino == r.Attr.GetIno() {
		by = from
	}
	c.learnAttr(r.Attr, by)
}

// learnAttr takes from the attributes of a directory how it is split, as the copy in
// the subtree from says.
func (c *Client) learnAttr(a *Attr, from base.SubtreeID) {
	switch {
	case a == nil || a.Mode&modeType != modeDir || liesElsewhere(a):
	case isPartial(a):
		c.inodes.dirs.learn(base.Ino(a.Ino), from, shard.FragmentsOf(a.Fragments))
	case c.inodes.dirs.splitMap(base.Ino(a.Ino)) != nil: // it was merged
		home := base.SubtreeID(a.Subtree)
		c.inodes.dirs.learn(base.Ino(a.Ino), home, shard.Whole(home))
	}
}

// claims returns which names of a directory the subtree claims for itself with the
// attributes that it answered.
func claims(a *Attr, subtree base.SubtreeID) []shard.Range {
	if m := shard.FragmentsOf(a.GetFragments()); m != nil {
		return m.In(subtree)
	}
	return []shard.Range{shard.WholeRange}
}

// question is what all fragments of a directory are asked.
type question struct {
	dir  base.Ino
	kind opKind
	op   func() *canopyv1.Op                 // of the fragment that it will be addressed to
	attr func(r *canopyv1.Result) *Attr      // of the directory, in the answer
	have map[base.SubtreeID]*canopyv1.Result // answers, by who gave them
}

const (
	// freeRounds is how many times fragments are asked at once, while they come and go.
	freeRounds = 8
	// mostBack bounds how far a question backs off then: in a longer while more go.
	mostBack = 2
)

// askFragments asks the fragments of a directory, all at a time, until what those that
// answered claim for themselves is all names, each once. That they do at one moment is
// the caller's business. It returns the fragments; the answers are in q.have.
func (c *Client) askFragments(ctx context.Context, q *question) (shard.FragmentMap, error) {
	for round := 0; ; round++ {
		m := c.inodes.dirs.find(q.dir)
		if m == nil {
			return nil, fserr.New(fserr.Again, q.kind.String(), nil) // pushed out of the table
		}
		var missing []base.SubtreeID
		for _, f := range m {
			if a := q.have[f.Subtree]; !slices.Contains(missing, f.Subtree) &&
				(a == nil || !slices.Equal(claims(q.attr(a), f.Subtree), m.In(f.Subtree))) {
				missing = append(missing, f.Subtree)
			}
		}
		if len(missing) == 0 {
			return m, nil
		}
		if round >= freeRounds {
			if err := pause(ctx, backoff(min(round-freeRounds, mostBack))); err != nil {
				return nil, err
			}
		}
		if err := c.askEach(ctx, q, missing); err != nil {
			return nil, err
		}
	}
}

// askEach asks fragments and adds their answers to those that q has.
func (c *Client) askEach(ctx context.Context, q *question, fragments []base.SubtreeID) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for first := range min(completers, len(fragments)) {
		wg.Go(func() {
			for i := first; i < len(fragments); i += completers {
				op := q.op()
				op.Subtree = uint64(fragments[i])
				r, in, err := c.doIn(ctx, q.kind, op)
				if err == nil && (q.attr(r) == nil || liesElsewhere(q.attr(r))) {
					err = fserr.New(fserr.Malformed, q.kind.String(), nil)
				}
				mu.Lock()
				if err != nil {
					failed = err
				} else {
					c.answered(q, fragments[i], in.subtree, r)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// answered takes the answer of the subtree by, after asked was asked.
func (c *Client) answered(q *question, asked, by base.SubtreeID, r *canopyv1.Result) {
	q.have[by] = r
	if by == asked {
		return
	}
	delete(q.have, asked)
	if m := c.inodes.dirs.find(q.dir); len(m.In(asked)) > 0 {
		// It was found without a redirect: who has been asked knows nothing of it.
		c.inodes.dirs.learn(q.dir, asked, shard.Whole(by))
	}
}

// gather returns the attributes of a directory as all of its fragments together have
// them (PROTOCOLS F1). first, if not nil, is what the subtree from answered already.
func (c *Client) gather(ctx context.Context, dir base.Ino, first *canopyv1.Result, from base.SubtreeID) (*Attr, error) {
	m, parts, err := c.gatherParts(ctx, dir, first, from)
	if err != nil {
		return nil, err
	}
	sum := merge(m, parts)
	if n := c.inodes.find(dir); n != nil {
		n.sums.tellApart(sum)
		n.Release()
	}
	return sum, nil
}

// gatherParts returns the fragments of a directory, and what the subtree of each says of
// the directory's attributes: its own part of them.
func (c *Client) gatherParts(ctx context.Context, dir base.Ino, first *canopyv1.Result, from base.SubtreeID) (shard.FragmentMap, map[base.SubtreeID]*canopyv1.Result, error) {
	for try := 0; ; try++ {
		q := &question{dir: dir, kind: opGetAttr, have: map[base.SubtreeID]*canopyv1.Result{},
			attr: func(r *canopyv1.Result) *Attr { return r.Attr },
			op: func() *canopyv1.Op {
				return &canopyv1.Op{Cred: superuser, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: uint64(dir)}}}}
			}}
		if first != nil {
			q.have[from] = first
			c.learnAttr(first.Attr, from)
		}
		m, err := c.askFragments(ctx, q)
		if err == nil {
			return m, q.have, nil
		}
		if fserr.KindOf(err) != fserr.Again || first == nil || ctx.Err() != nil {
			return nil, nil, err
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return nil, nil, err
		}
	}
}

// merge returns what the answers of a directory's fragments say together: sums and
// maxima of what each counts for itself, and the rest as the first fragment has it.
func merge(m shard.FragmentMap, answers map[base.SubtreeID]*canopyv1.Result) *Attr {
	home := m.Home()
	sum := cloneAttr(answers[home].Attr)
	sum.Fragments = []*canopyv1.Fragment{{Subtree: uint64(home)}}
	done := []base.SubtreeID{home}
	for _, f := range m {
		if slices.Contains(done, f.Subtree) {
			continue
		}
		done = append(done, f.Subtree)
		a := answers[f.Subtree].Attr
		sum.Nlink += max(a.Nlink, 2) - 2
		sum.Size += a.Size
		sum.Version += a.Version
		sum.AtimeNs, sum.MtimeNs, sum.CtimeNs = max(sum.AtimeNs, a.AtimeNs), max(sum.MtimeNs, a.MtimeNs), max(sum.CtimeNs, a.CtimeNs)
	}
	return sum
}

// sums is what was shown last of a split directory.
type sums struct {
	mu           sync.Mutex
	version      uint64
	mtime, ctime int64 // as the fragments have them
	later        int64 // ns by which mtime was shown later
}

// tellApart makes mtime differ from what was shown before, if something has changed
// since: kernels keep a listing as long as mtime is the same. The latest time of all
// fragments stays what it is when a name comes or goes in one whose shard's clock is a
// little behind another's; then mtime is shown some nanoseconds later.
func (s *sums) tellApart(sum *Attr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case sum.MtimeNs != s.mtime || sum.CtimeNs != s.ctime:
		s.mtime, s.ctime, s.later = sum.MtimeNs, sum.CtimeNs, 0
	case sum.Version != s.version:
		s.later++
	}
	s.version = sum.Version
	sum.MtimeNs += s.later
}
