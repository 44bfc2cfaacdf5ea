package work

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/canopyfs/canopy/loadtest/history"
	"github.com/canopyfs/canopy/loadtest/history/check"
)

// single is a name that is made once; it may be renamed, once, to another such name.
type single struct {
	place
	renamed bool
}

// maxSingles bounds the names that a client has at a time.
const maxSingles = 40

// onSingle makes, renames or removes a name of the client's own.
func (u *user) onSingle(ctx context.Context) {
	if n := u.rng.IntN(10); len(u.singles) > maxSingles || n < 3 && len(u.singles) > maxSingles/2 {
		u.removeSingle(ctx)
		return
	} else if n < 5 && len(u.singles) > 0 {
		u.renameSingle(ctx, u.rng.IntN(len(u.singles)))
		return
	}
	u.made++
	s := single{place: place{u.rng.IntN(len(u.h.Dirs)), fmt.Sprintf("%s%d.%d", check.SinglePrefix, u.id, u.made)}}
	op := &history.Op{Kind: history.Create, A: s.path(u.h)}
	u.do(ctx, op, func(ctx context.Context) (err error) { op.Ino, err = u.sys.Create(ctx, s.dir, s.name); return err })
	if op.Outcome == history.Done {
		u.singles = append(u.singles, s) // whatever became of it else, the name is not used again
	}
}

func (u *user) removeSingle(ctx context.Context) {
	s := u.singles[0]
	u.singles = u.singles[1:]
	u.do(ctx, &history.Op{Kind: history.Unlink, A: s.path(u.h)}, func(ctx context.Context) error { return u.sys.Unlink(ctx, s.dir, s.name) })
}

func (u *user) renameSingle(ctx context.Context, i int) {
	s := u.singles[i]
	if s.renamed {
		return
	}
	to := single{place{u.rng.IntN(len(u.h.Dirs)), s.name + "r"}, true}
	op := &history.Op{Kind: history.Rename, A: s.path(u.h), B: to.path(u.h)}
	u.do(ctx, op, func(ctx context.Context) error { return u.sys.Rename(ctx, s.dir, s.name, to.dir, to.name, 0) })
	if op.Outcome == history.Done {
		u.singles[i] = to
	} else {
		u.singles = append(u.singles[:i], u.singles[i+1:]...)
	}
}

// list lists a directory, in pages of different sizes.
func (u *user) list(ctx context.Context) {
	dir, page := u.rng.IntN(len(u.h.Dirs)), [...]int{0, 10, 60}[u.rng.IntN(3)]
	op := &history.Op{Kind: history.List, A: u.h.Dirs[dir]}
	u.do(ctx, op, func(ctx context.Context) (err error) { op.Entries, err = u.sys.List(ctx, dir, page); return err })
}

// onRegister sets, reads or removes an extended attribute.
func (u *user) onRegister(ctx context.Context, r *activeRegister) {
	op := &history.Op{Kind: history.Get, A: r.key(u.h)}
	switch n := u.rng.IntN(20); {
	case n < 9:
		u.do(ctx, op, func(ctx context.Context) (err error) {
			op.Value, err = u.sys.GetXattr(ctx, r.dir, r.name, r.attr)
			return err
		})
	case n < 18:
		u.values++
		op.Kind, op.Value = history.Set, fmt.Sprintf("%d.%d", u.id, u.values)
		u.do(ctx, op, func(ctx context.Context) error { return u.sys.SetXattr(ctx, r.dir, r.name, r.attr, op.Value) })
	default:
		op.Kind = history.Remove
		u.do(ctx, op, func(ctx context.Context) error { return u.sys.RemoveXattr(ctx, r.dir, r.name, r.attr) })
	}
	u.board.ended(op, &r.unknown)
}

// append adds a record to a log.
func (u *user) append(ctx context.Context) {
	u.appended++
	size := [...]int{10, 100, 3000, 20_000}[u.rng.IntN(4)]
	id := fmt.Sprintf("%d.%d", u.id, u.appended)
	dir := u.rng.IntN(len(u.h.Dirs))
	op := &history.Op{Kind: history.Append, A: u.h.Dirs[dir] + "/" + logName, Value: id}
	u.do(ctx, op, func(ctx context.Context) error { return u.sys.Append(ctx, dir, logName, record(id, size)) })
}

// record returns the bytes of a record: its id, its size, so many bytes that only it
// has, and an end.
func record(id string, size int) []byte {
	pattern := id + ","
	return fmt.Appendf(nil, "%s %d %s\n", id, size, strings.Repeat(pattern, size/len(pattern)+1)[:size])
}

// parseLog returns what a log has: ids of whole records; zeros, which begin with
// check.HolePrefix; and what is neither, which begins with check.TornPrefix.
func parseLog(b []byte) []history.Entry {
	var entries []history.Entry
	add := func(format string, args ...any) {
		entries = append(entries, history.Entry{Name: fmt.Sprintf(format, args...)})
	}
	for at := 0; at < len(b); {
		if zeros := len(b[at:]) - len(bytes.TrimLeft(b[at:], "\x00")); zeros > 0 {
			add("%s: %d zeros at %d", check.HolePrefix, zeros, at)
			at += zeros
			continue
		}
		line := b[at:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		var id string
		var size int
		if n, _ := fmt.Sscanf(string(line[:min(len(line), 64)]), "%s %d", &id, &size); n == 2 && size >= 0 && size < len(line) && bytes.Equal(line, record(id, size)) {
			add("%s", id)
		} else {
			add("%s%d bytes at %d: %.40q", check.TornPrefix, len(line), at, line)
		}
		at += len(line)
	}
	return entries
}
