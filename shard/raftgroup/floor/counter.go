package floor

import (
	"errors"
	"io"

	sm "github.com/lni/dragonboat/v4/statemachine"
)

// counter is an on-disk state machine that keeps nothing: what is measured is
// Dragonboat.
type counter struct{ n uint64 }

func (c *counter) Open(<-chan struct{}) (uint64, error) { return 0, nil }

func (c *counter) Update(entries []sm.Entry) ([]sm.Entry, error) {
	for i := range entries {
		c.n++
		entries[i].Result = sm.Result{Value: c.n}
	}
	return entries, nil
}

func (c *counter) Lookup(any) (any, error)       { return nil, errors.ErrUnsupported }
func (c *counter) Sync() error                   { return nil }
func (c *counter) PrepareSnapshot() (any, error) { return nil, nil }

func (c *counter) SaveSnapshot(any, io.Writer, <-chan struct{}) error { return nil }

func (c *counter) RecoverFromSnapshot(io.Reader, <-chan struct{}) error { return nil }

func (c *counter) Close() error { return nil }
