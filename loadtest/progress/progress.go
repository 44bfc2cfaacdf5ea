// Package progress draws one line on a terminal that says how far a run is.
// On anything that is no terminal it draws nothing.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	interval = 200 * time.Millisecond
	barWidth = 30
)

// Bar is one line. The zero Bar and nil draw nothing. Add may be called by any
// number of goroutines; Begin and End by one.
type Bar struct {
	w    io.Writer
	done atomic.Int64

	mu    sync.Mutex
	label string
	total int64
	start time.Time

	stop chan struct{}
	wait sync.WaitGroup
}

// New returns a bar that draws on f if that is a terminal.
func New(f *os.File) *Bar {
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return &Bar{}
	}
	return start(f)
}

func start(w io.Writer) *Bar {
	b := &Bar{w: w, stop: make(chan struct{})}
	b.wait.Go(b.run)
	return b
}

// Begin starts a new line for total steps under the label. total 0 means that
// it is not known.
func (b *Bar) Begin(label string, total int64) {
	if b == nil || b.w == nil {
		return
	}
	b.mu.Lock()
	b.label, b.total, b.start = label, total, time.Now()
	b.mu.Unlock()
	b.done.Store(0)
}

// Add counts n steps.
func (b *Bar) Add(n int64) {
	if b != nil && b.w != nil {
		b.done.Add(n)
	}
}

// End wipes the line and waits for the goroutine that draws. The bar draws
// nothing afterwards.
func (b *Bar) End() {
	if b == nil || b.w == nil {
		return
	}
	close(b.stop)
	b.wait.Wait()
	b.w = nil
}

func (b *Bar) run() {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-b.stop:
			fmt.Fprint(b.w, "\r\x1b[K")
			return
		case now := <-t.C:
			b.mu.Lock()
			label, total, since := b.label, b.total, b.start
			b.mu.Unlock()
			if label != "" {
				fmt.Fprint(b.w, "\r\x1b[K", line(label, b.done.Load(), total, now.Sub(since)))
			}
		}
	}
}

func line(label string, done, total int64, elapsed time.Duration) string {
	rate := 0.0
	if s := elapsed.Seconds(); s > 0 {
		rate = float64(done) / s
	}
	if total <= 0 {
		return fmt.Sprintf("%-28s %d  %.0f/s", label, done, rate)
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * barWidth)
	bar := strings.Repeat("#", full) + strings.Repeat(".", barWidth-full)
	return fmt.Sprintf("%-28s [%s] %3.0f%%  %.0f/s", label, bar, share*100, rate)
}
