package client

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = 5 * time.Millisecond
	backoffMost  = 250 * time.Millisecond
)

// backoff returns how long to wait before try number attempt (from 0): it
// doubles, is bounded, and has jitter of half its length, so that clients that
// failed together do not return together.
func backoff(attempt int) time.Duration {
	d := backoffMost
	if attempt < 6 {
		d = min(backoffFirst<<attempt, backoffMost)
	}
	return d/2 + rand.N(d/2)
}

// pause waits for d or until ctx ends, whose error it then returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
