package rangelock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func acquire(t *testing.T, l *Lock, lo, hi uint64, exclusive bool) *Hold {
	t.Helper()
	h, err := l.Acquire(context.Background(), lo, hi, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestOrder: overlapping ranges are served in the order of arrival, others at
// once, and readers share.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lock
		var mu sync.Mutex
		var got []string
		first := acquire(t, &l, 0, 10, true)
		other := acquire(t, &l, 10, 20, true) // does not overlap
		enter := func(name string, lo, hi uint64, exclusive bool) {
			go func() {
				h := acquire(t, &l, lo, hi, exclusive)
				mu.Lock()
				got = append(got, name)
				mu.Unlock()
				if exclusive {
					h.Release()
				}
			}()
			synctest.Wait()
		}
		enter("writer", 5, 15, true)
		enter("reader", 0, 1, false)      // waits for first only
		enter("late reader", 5, 6, false) // must not overtake the writer
		first.Release()
		synctest.Wait()
		other.Release()
		synctest.Wait()
		want := []string{"reader", "writer", "late reader"}
		if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Fatalf("served %v, want %v", got, want)
		}
		acquire(t, &l, 0, 8, false).Release() // shares with both readers
	})
}

// TestCancel: one that gives up lets those behind it pass.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lock
		reader := acquire(t, &l, 0, 10, false)
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, 0, All, true)
			failed <- err
		}()
		synctest.Wait()
		passed := make(chan *Hold, 1)
		go func() { passed <- acquire(t, &l, 0, 10, false) }()
		synctest.Wait()
		if len(passed) != 0 {
			t.Fatal("a reader overtook a waiting writer")
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		(<-passed).Release()
		reader.Release()
		acquire(t, &l, 0, All, true).Release()
	})
}
