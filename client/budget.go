package client

import (
	"context"
	"sync"
)

// budget bounds the bytes in memory that are written but not reported.
type budget struct {
	limit int64

	mu      sync.Mutex
	used    int64
	waiting int
	freed   chan struct{} // closed when bytes came back, if somebody waits
}

// acquire takes n bytes, and waits while they are not there. pressed is called
// before it waits. A request above the limit passes when all is free.
func (b *budget) acquire(ctx context.Context, n int64, pressed func()) error {
	b.mu.Lock()
	for b.used > 0 && b.used+n > b.limit {
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.waiting++
		b.mu.Unlock()
		pressed()
		var err error
		select {
		case <-freed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		b.mu.Lock()
		b.waiting--
		if err != nil {
			b.mu.Unlock()
			return err
		}
	}
	b.used += n
	b.mu.Unlock()
	return nil
}

// release gives n bytes back.
func (b *budget) release(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	b.used -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	b.mu.Unlock()
}

// pressed reports whether write-back should hurry.
func (b *budget) pressed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting > 0 || b.used > b.limit/2
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
