package await

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// ends runs f as a test and returns how it failed, "" if it did not, and after
// which time.
func ends(f func(t testing.TB)) (failure string, took time.Duration) {
	r := &recorder{}
	begun, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure, time.Since(begun)
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		failure, took := ends(func(t testing.TB) {
			Until(t, time.Minute, "a second", func() bool { return time.Since(begun) > time.Second })
		})
		if failure != "" || took > time.Second+longPause {
			t.Errorf("%q after %v", failure, took)
		}
		failure, took = ends(func(t testing.TB) { Until(t, time.Second, "never", func() bool { return false }) })
		if !strings.Contains(failure, "never") || took > time.Second+2*longPause {
			t.Errorf("%q after %v", failure, took)
		}
	})
}

func TestNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure, took := ends(func(t testing.TB) { Nil(t, time.Second, "now", func() error { return nil }) })
		if failure != "" || took != 0 {
			t.Errorf("%q after %v", failure, took)
		}
		failure, _ = ends(func(t testing.TB) { Nil(t, time.Second, "never", func() error { return errors.New("the reason") }) })
		if !strings.Contains(failure, "never: the reason") {
			t.Errorf("%q", failure)
		}
	})
}

func TestThroughout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure, took := ends(func(t testing.TB) { Throughout(t, time.Second, "true", func() bool { return true }) })
		if failure != "" || took < time.Second {
			t.Errorf("%q after %v", failure, took)
		}
		begun := time.Now()
		failure, took = ends(func(t testing.TB) {
			Throughout(t, time.Minute, "for a second", func() bool { return time.Since(begun) < time.Second })
		})
		if !strings.Contains(failure, "for a second") || took > time.Second+longPause {
			t.Errorf("%q after %v", failure, took)
		}
	})
}

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if l := Limit(t, time.Second); l != time.Second {
			t.Errorf("%v on a machine that has nothing else to do", l)
		}
	})
}
