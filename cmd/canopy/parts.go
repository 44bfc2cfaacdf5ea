package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// parts are the running parts of the cluster. They are stopped in the reverse
// order of their start; one that ends by itself is a failure of the whole.
type parts struct {
	logger  *slog.Logger
	running []*part
	failed  chan error // capacity 1: the first failure
	once    sync.Once
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // after done
	failed bool  // after done: it ended by itself, and failed has the error
}

func newParts(logger *slog.Logger) *parts {
	return &parts{logger: logger, failed: make(chan error, 1)}
}

// start runs a part until it is stopped. run returns nil when its context was
// cancelled and it ended in order.
func (p *parts) start(name string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	q := &part{name: name, cancel: cancel, done: make(chan struct{})}
	p.running = append(p.running, q)
	go func() {
		defer close(q.done)
		q.err = run(ctx)
		if ctx.Err() == nil {
			err := q.err
			if err == nil {
				err = errors.New("it ended by itself")
			}
			q.failed = true
			p.once.Do(func() { p.failed <- fmt.Errorf("%s: %w", name, err) })
		}
	}()
}

// waitFor returns when ready is closed, a part failed, or ctx is done.
func (p *parts) waitFor(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case err := <-p.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop stops all parts, the last one started first, and returns their errors.
func (p *parts) stop() error {
	var errs []error
	for _, q := range slices.Backward(p.running) {
		p.logger.Debug("stopping", "part", q.name)
		q.cancel()
		<-q.done
		if q.err != nil && !q.failed && !errors.Is(q.err, context.Canceled) {
			errs = append(errs, fmt.Errorf("%s: %w", q.name, q.err))
		}
	}
	p.running = nil
	return errors.Join(errs...)
}
