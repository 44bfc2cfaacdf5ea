// Package await is where tests wait: for a condition, never for a length of time.
// It is the one poll loop of the tests, and only they use it.
package await

import (
	"testing"
	"time"
)

const (
	firstPause = time.Millisecond
	longPause  = 20 * time.Millisecond
)

// Until returns as soon as ok does, and ends the test if that takes longer than
// within. ok runs in the caller's goroutine. Choose within generously: a test that
// passes never waits for it, and on an overloaded machine all takes its time.
func Until(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := firstPause; !ok(); pause = min(2*pause, longPause) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", within, what)
		}
		time.Sleep(pause)
	}
}

// Nil is Until for a check that says what is missing.
func Nil(t testing.TB, within time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s: %v", within, what, err)
		}
		time.Sleep(pause)
	}
}

// Throughout fails the test if ok does not hold for the whole time: for what must
// not happen, however long one waits.
func Throughout(t testing.TB, length time.Duration, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(longPause) {
		if !ok() {
			t.Fatalf("not any more after %v: %s", time.Since(begun), what)
		}
		if time.Since(begun) >= length {
			return
		}
	}
}

// Limit returns what a test may take for what is promised within a time: that, and
// more on a machine that is too busy to keep time, by how late short naps end.
func Limit(t testing.TB, promised time.Duration) time.Duration {
	t.Helper()
	const naps = 20
	begun := time.Now()
	for range naps {
		time.Sleep(time.Millisecond)
	}
	late := time.Since(begun) - naps*time.Millisecond
	t.Logf("%d naps of 1 ms ended %v late", naps, late)
	return promised + 100*late
}
