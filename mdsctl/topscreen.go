package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// ANSI sequences (ECMA-48, and xterm's other screen).
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // the other screen, no cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K\r\n" // nothing is left of a longer line
	screenRest  = "\x1b[J"
)

// keyPause is how often keys and the size of the terminal are looked at.
const keyPause = 200 * time.Millisecond

// onScreen fills the terminal with one look after the other, until q or ctx's end.
func (t *top) onScreen(ctx context.Context, out *os.File) error {
	keys, restore, err := rawKeys()
	if err != nil {
		return err
	}
	defer restore()
	size := func() (int, int) {
		w, h, err := term.GetSize(int(out.Fd()))
		if err != nil || w < 1 || h < 2 {
			return 80, 24
		}
		return w, h
	}
	if _, err := io.WriteString(out, screenOpen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, screenClose) }() // the terminal may be gone
	return t.draw(ctx, out, size, keys)
}

// rawKeys opens the keyboard of the terminal, key by key. next waits up to keyPause and
// returns 0 if none was pressed.
func rawKeys() (next func() (byte, error), restore func(), err error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	raw, err := tty.SyscallConn() // Fd would make reads block for good
	if err != nil {
		return nil, nil, errors.Join(err, tty.Close())
	}
	var before *term.State
	if errControl := raw.Control(func(fd uintptr) { before, err = term.MakeRaw(int(fd)) }); err != nil || errControl != nil {
		return nil, nil, errors.Join(err, errControl, tty.Close())
	}
	next = func() (byte, error) {
		var key [1]byte
		if err := tty.SetReadDeadline(time.Now().Add(keyPause)); err != nil {
			return 0, err
		}
		_, err := tty.Read(key[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, nil
		}
		return key[0], err
	}
	restore = func() {
		_ = raw.Control(func(fd uintptr) { _ = term.Restore(int(fd), before) }) // the terminal may be gone
		_ = tty.Close()
	}
	return next, restore, nil
}

// draw shows looks on a screen, again after each topInterval, when its size changes and
// when a key changes what is shown.
func (t *top) draw(ctx context.Context, out io.Writer, size func() (w, h int), key func() (byte, error)) error {
	var r *topReport
	var failed error
	var due time.Time
	width, height, stale := 0, 0, false
	for ctx.Err() == nil {
		if now := time.Now(); !now.Before(due) {
			var err error
			if r, err = t.look(ctx); err != nil && due.IsZero() {
				return err
			}
			failed, due, stale = err, time.Now().Add(topInterval), true
		}
		if w, h := size(); w != width || h != height || stale {
			width, height, stale = w, h, false
			if _, err := io.WriteString(out, frame(t.screenText(r, failed), width, height)); err != nil {
				return err
			}
		}
		k, err := key()
		switch {
		case err != nil || k == 'q' || k == 3 || k == 4: // ctrl-C and ctrl-D
			return nil
		case k != 0:
			stale = true
			if t.pressed(k) {
				due = time.Now()
			}
		}
	}
	return nil
}

// pressed changes what is shown; true: it has to be asked for.
func (t *top) pressed(key byte) (ask bool) {
	switch key {
	case 'd':
		t.by = "dir"
	case 'c':
		t.by = "client"
	case 'o':
		t.by = "op"
	case 's':
		t.by = "shard"
	case 'n':
		t.by = "node"
	case 'w':
		t.window = topWindows[(slices.Index(topWindows, t.window)+1)%len(topWindows)]
		return true
	case ' ':
		return true
	}
	return false
}

func (t *top) screenText(r *topReport, failed error) string {
	keys := fmt.Sprintf("mdsctl top by %s  [d]ir [c]lient [o]p [s]hard [n]ode  [w]indow %v  [q]uit\n", t.by, t.window)
	if failed != nil {
		return keys + oneLine(failed) + "\n"
	}
	return keys + r.text(t.by)
}

// frame is what draws text onto a screen, cut to its size: control characters in names
// do nothing there.
func frame(text string, width, height int) string {
	var b strings.Builder
	b.WriteString(screenHome)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines[:min(len(lines), height-1)] {
		if i > 0 {
			b.WriteString(lineEnd)
		}
		n := 0
		for _, c := range line {
			if n == width {
				break
			}
			if !unicode.IsPrint(c) {
				c = utf8.RuneError
			}
			b.WriteRune(c)
			n++
		}
	}
	b.WriteString("\x1b[K" + screenRest)
	return b.String()
}
