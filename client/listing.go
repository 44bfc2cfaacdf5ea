package client

import (
	"context"
	"slices"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// Mark says which names a listing shows: those that were there when it began
// (PROTOCOLS F3). In a split directory each range of names has a mark of its own, and
// keeps it when the range goes to another subtree or is split further. A Mark does not
// change.
type Mark struct {
	parts []markedRange // in ascending order; together all names, in relaxed mode as far as they were read
	// Behind position from there is nothing up to to: what has come since is newer
	// than the mark.
	from, to base.Cookie
}

type markedRange struct {
	shard.Range
	mark uint64
}

// find returns the marked range of a position, or the gap between ranges in which it
// is, with mark 0.
func (m *Mark) find(position base.Cookie) markedRange {
	border := shard.HashOf(position).Border()
	gap := shard.WholeRange
	for _, p := range m.parts {
		switch {
		case p.Contains(border):
			return p
		case p.Hi <= border:
			gap.Lo = p.Hi
		default:
			gap.Hi = min(gap.Hi, p.Lo)
		}
	}
	return markedRange{Range: gap}
}

// with returns the mark with a further range.
func (m *Mark) with(p markedRange) *Mark {
	parts := append(slices.Clone(m.parts), p)
	slices.SortFunc(parts, func(a, b markedRange) int { return int(int64(a.Lo) - int64(b.Lo)) })
	return &Mark{parts: parts}
}

// skipping returns the mark of a listing that goes on at to when it goes on at from.
func (m *Mark) skipping(from, to base.Cookie) *Mark {
	return &Mark{parts: m.parts, from: from, to: to}
}

// ReadDir returns a page of dir's names in cookie order, without "." and "..". A name
// that is there from the beginning of a listing to its end is shown exactly once, also
// while the directory is split, merged or moved (DESIGN 10.5).
func (c *Client) ReadDir(ctx context.Context, cred Cred, dir *Inode, req ReadDirRequest) (ReadDirPage, error) {
	l := &lister{c: c, cred: cred, dir: dir, req: req, mark: req.Mark, at: base.Cookie(req.Cookie)}
	if l.at <= base.CookieDotDot {
		l.at = base.CookieStart
	}
	if l.at > shard.WholeRange.Last() {
		return ReadDirPage{}, fserr.New(fserr.Invalid, opReadDir.String(), nil)
	}
	if l.mark == nil {
		l.mark = &Mark{}
		if c.cache == nil && c.inodes.dirs.splitMap(dir.ino) != nil {
			if err := l.takeMarks(ctx); err != nil {
				return ReadDirPage{}, err
			}
		}
	}
	if l.mark.to > l.at && l.mark.from == l.at {
		l.at = l.mark.to
	}
	for l.at < shard.WholeRange.Last() {
		full, err := l.read(ctx)
		if err != nil {
			return ReadDirPage{}, err
		}
		if full {
			break
		}
	}
	page := ReadDirPage{Entries: l.entries, Mark: l.mark, EOF: l.at >= shard.WholeRange.Last()}
	if n := len(l.entries); n > 0 && !page.EOF && base.Cookie(l.entries[n-1].Cookie) < l.at {
		page.Mark = l.mark.skipping(base.Cookie(l.entries[n-1].Cookie), l.at)
	}
	return page, nil
}

// lister reads one page, of as many fragments as it takes.
type lister struct {
	c    *Client
	cred Cred
	dir  *Inode
	req  ReadDirRequest
	mark *Mark

	at      base.Cookie // the last position that was read
	entries []*DirEntry
}

// read reads on in the fragment that has the next position, and reports whether the
// page is full.
func (l *lister) read(ctx context.Context) (full bool, err error) {
	asked := time.Now()
	c := l.c
	part := l.mark.find(l.at + 1)
	call := &canopyv1.ReadDirCall{Dir: uint64(l.dir.ino), Cookie: uint64(l.at), Mark: part.mark,
		MaxEntries: uint32(max(l.req.MaxEntries-len(l.entries), 0)), MaxBytes: uint32(max(l.req.MaxBytes, 0)),
		Plus: l.req.Plus, ResolveLinks: l.req.Plus}
	if part.Hi < shard.BorderEnd {
		call.Last = uint64(part.Last())
	}
	op := &canopyv1.Op{Subtree: uint64(l.dir.subtreeAt(l.at + 1)), Cred: l.cred.wire(), Call: &canopyv1.Op_ReadDir{ReadDir: call}}
	res, err := c.do(ctx, opReadDir, op)
	if err != nil {
		return false, err
	}
	if part.mark == 0 {
		split := isPartial(res.DirAttr)
		if split && c.cache == nil {
			return false, l.takeMarks(ctx) // and reads it again
		}
		if m := shard.FragmentsOf(res.DirAttr.GetFragments()); split && m != nil {
			has := m.At(shard.HashOf(l.at + 1).Border())
			part.Range = shard.Range{Lo: max(part.Lo, has.Lo), Hi: min(part.Hi, has.Hi)}
		}
		part.mark = res.Mark
		l.mark = l.mark.with(part)
	}
	if l.req.Plus && c.routes.split.Load() {
		c.completePage(ctx, res.Entries)
	}
	if c.cache != nil && l.req.Plus {
		for _, e := range res.Entries {
			c.cache.putName(l.dir.ino, string(e.Name), e.Attr, asked)
		}
	}
	return l.took(res, part)
}

// took adds what was read in a range to the page.
func (l *lister) took(res *canopyv1.Result, part markedRange) (full bool, err error) {
	before := l.at
	l.entries = append(l.entries, res.Entries...)
	if n := len(res.Entries); n > 0 {
		l.at = base.Cookie(res.Entries[n-1].Cookie)
	}
	if res.Eof {
		l.at = max(l.at, base.Cookie(res.Through))
		if res.Through == 0 {
			l.at = part.Last() // of a directory in one piece
		}
	}
	if l.at <= before {
		return false, fserr.New(fserr.Malformed, opReadDir.String(), nil)
	}
	return !res.Eof || len(l.entries) > 0 && (l.req.MaxBytes > 0 || len(l.entries) >= l.req.MaxEntries), nil
}

// marksPatience bounds how long fragments are told that marks are not needed: they
// forget them by themselves after a second.
const marksPatience = time.Second

// takeMarks takes a mark of each fragment of a split directory (PROTOCOLS F3). While
// they are being taken no new name is acknowledged, so what any of them has seen
// began before the last was taken, and what ended before the first was taken is seen by
// all. If one did not stand until the last was taken all are taken again.
func (l *lister) takeMarks(ctx context.Context) error {
	for try := 0; ; try++ {
		mark, err := l.tryMarks(ctx)
		if err == nil {
			l.mark = mark
			return nil
		}
		if fserr.KindOf(err) != fserr.Again {
			return err
		}
		if err := pause(ctx, backoff(try)); err != nil {
			return fserr.New(fserr.KindOf(err), opMarkNames.String(), err)
		}
	}
}

// tryMarks takes marks once; kind Again: they do not belong together.
func (l *lister) tryMarks(ctx context.Context) (*Mark, error) {
	c := l.c
	token := c.lastToken.Add(1)
	ask := func(free bool) *canopyv1.Op {
		return &canopyv1.Op{Cred: l.cred.wire(), Call: &canopyv1.Op_MarkNames{
			MarkNames: &canopyv1.MarkNamesCall{Dir: uint64(l.dir.ino), Token: token, Free: free}}}
	}
	q := &question{dir: l.dir.ino, kind: opMarkNames, have: map[base.SubtreeID]*canopyv1.Result{},
		attr: func(r *canopyv1.Result) *Attr { return r.DirAttr }, op: func() *canopyv1.Op { return ask(false) }}
	m, err := c.askFragments(ctx, q)
	if err != nil {
		c.spawn(func() { // names that were made meanwhile wait for it
			ctx, cancel := context.WithTimeout(c.ctx, marksPatience)
			defer cancel()
			_ = c.freeMarks(ctx, q, func() *canopyv1.Op { return ask(true) })
		})
		return nil, err
	}
	if err := c.freeMarks(ctx, q, func() *canopyv1.Op { return ask(true) }); err != nil {
		return nil, err
	}
	mark := &Mark{}
	for i, f := range m {
		mark.parts = append(mark.parts, markedRange{m.Range(i), q.have[f.Subtree].Mark})
	}
	return mark, nil
}

// freeMarks gives marks back. It fails if one of them did not stand until now.
func (c *Client) freeMarks(ctx context.Context, q *question, free func() *canopyv1.Op) error {
	var wg sync.WaitGroup
	errs := make(chan error, len(q.have))
	for subtree := range q.have {
		wg.Go(func() {
			op := free()
			op.Subtree = uint64(subtree)
			_, in, err := c.doIn(ctx, opMarkNames, op)
			if err == nil && in.subtree != subtree {
				err = fserr.New(fserr.Again, opMarkNames.String(), nil)
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	var first error
	for err := range errs {
		if err != nil && (first == nil || fserr.KindOf(err) != fserr.Again) {
			first = err
		}
	}
	return first
}
