package raftgroup

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// slowly takes 10 ms for each call.
type slowly struct{ rw io.ReadWriter }

func (s slowly) Read(p []byte) (int, error)  { time.Sleep(10 * time.Millisecond); return s.rw.Read(p) }
func (s slowly) Write(p []byte) (int, error) { time.Sleep(10 * time.Millisecond); return s.rw.Write(p) }

// A stream of a snapshot, at both ends, works half of the time, and ends at once when
// it is stopped.
func TestSnapshotsArePaced(t *testing.T) {
	const pieces = 8
	copied := func(stop chan struct{}, paced func(s slowly, p *pacer) error) time.Duration {
		s := slowly{&bytes.Buffer{}}
		s.rw.(*bytes.Buffer).Write(make([]byte, pieces*paceBytes))
		started := time.Now()
		if err := paced(s, newPacer(stop)); err != nil {
			t.Fatal(err)
		}
		return time.Since(started)
	}
	read := func(s slowly, p *pacer) error {
		b := make([]byte, paceBytes)
		for range pieces {
			if _, err := io.ReadFull(pacedReader{s, p}, b); err != nil {
				return err
			}
		}
		return nil
	}
	write := func(s slowly, p *pacer) error {
		for range pieces {
			if _, err := (pacedWriter{s, p}).Write(make([]byte, paceBytes)); err != nil {
				return err
			}
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		close(stopped)
		for name, work := range map[string]func(slowly, *pacer) error{"read": read, "write": write} {
			if d := copied(nil, work); d != 2*pieces*10*time.Millisecond {
				t.Errorf("%s: took %v for %v of work", name, d, pieces*10*time.Millisecond)
			}
			if d := copied(stopped, work); d > pieces*10*time.Millisecond {
				t.Errorf("%s: took %v though it was stopped", name, d)
			}
		}
	})
}
