package chunkstore

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// TestCutStopsAnywhere (PROTOCOLS J1): the machine crashes at any step of a cut.
// Then the column has the old epoch and all its bytes, or the new one and none
// beyond the cut; never the old epoch with bytes missing.
func TestCutStopsAnywhere(t *testing.T) {
	const blocks, size = 280, 261*BlockBytes + 100
	key := Key{1, 2, 77, 1, 0}
	p := bytes.Repeat([]byte{7}, blocks*BlockBytes)
	cut := append(append([]byte(nil), p[:size]...), make([]byte, len(p)-size)...)
	errCrash := errors.New("the machine crashes here")
	for stop := 1; ; stop++ {
		finished := false
		for seed := range uint64(8) {
			what := fmt.Sprintf("crash at step %d, seed %d", stop, seed)
			dir, fs := memoryDir(t), newUnsafeFS()
			s := open(t, dir, Options{FS: fs, Boot: "a"})
			if _, err := s.Write(key, write(0, append([]byte(nil), p...), 1)); err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(key); err != nil {
				t.Fatal(err)
			}
			steps := 0
			fs.fail = func(string) error {
				if steps++; steps >= stop {
					return errCrash
				}
				return nil
			}
			err := s.Cut(key, 2, []*canopyv1.Cut{{SizeEpoch: 2, Size: size}})
			finished = err == nil
			fs.fail = nil
			abandon(t, s)
			fs.crash(t, seed)
			s = open(t, dir, Options{FS: fs, Boot: "b"})
			got, epoch := readBack(t, s, key, 0, uint64(len(p))), s.columnEpoch(t, key)
			switch {
			case finished && epoch != 2:
				t.Fatalf("%s: a cut that was acknowledged is gone", what)
			case epoch == 1 && !bytes.Equal(got, p):
				t.Fatalf("%s: bytes are lost, and the column does not know of the cut", what)
			case epoch == 2 && !bytes.Equal(got, cut):
				t.Fatalf("%s: the column knows of the cut, and has other bytes", what)
			case epoch != 1 && epoch != 2:
				t.Fatalf("%s: epoch %d", what, epoch)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if finished {
			if stop < 5 {
				t.Errorf("a cut of %d steps: the test does not see them", stop-1)
			}
			return
		}
	}
}

// TestCutFailsAnywhere (PROTOCOLS J1): a step of a cut fails, as on a full disk, and
// the disk is well again later. No old bytes are behind the cut once the column
// takes writes of the new epoch, and what these wrote stays when the column is
// opened anew.
func TestCutFailsAnywhere(t *testing.T) {
	const blocks, size = 280, 261*BlockBytes + 100
	key := Key{1, 2, 77, 1, 0}
	cuts := []*canopyv1.Cut{{SizeEpoch: 2, Size: size}}
	p := bytes.Repeat([]byte{7}, blocks*BlockBytes)
	q := bytes.Repeat([]byte{9}, BlockBytes)
	want := append(append([]byte(nil), p[:size]...), make([]byte, len(p)-size)...)
	copy(want[270*BlockBytes:], q)
	for _, once := range []bool{true, false} {
		for step := 1; ; step++ {
			fs := newUnsafeFS()
			dir := memoryDir(t)
			s := open(t, dir, Options{FS: fs})
			if _, err := s.Write(key, write(0, append([]byte(nil), p...), 1)); err != nil {
				t.Fatal(err)
			}
			n := 0
			fs.fail = func(string) error {
				if n++; n == step || n > step && !once {
					return syscall.ENOSPC
				}
				return nil
			}
			failed := s.Cut(key, 2, cuts) != nil
			fs.fail = nil
			if _, err := s.Write(key, write(270*BlockBytes, append([]byte(nil), q...), 2, cuts...)); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			for range 2 {
				if got := readBack(t, s, key, 0, uint64(len(p))); !bytes.Equal(got, want) {
					t.Fatalf("step %d of a cut failed: other bytes than those below the cut and those written since", step)
				}
				if err := s.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) { // a failed sync is final
					t.Fatal(err)
				}
				s = open(t, dir, Options{FS: fs})
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if !failed {
				if step < 7 {
					t.Errorf("a cut of %d steps: the test does not see them", step-1)
				}
				break
			}
		}
	}
}

// TestShape: a column that is made as the primary's keeps all bytes below that size,
// whatever its epoch was.
func TestShape(t *testing.T) {
	const size = 261*BlockBytes + 100
	key := Key{1, 2, 77, 1, 0}
	p := bytes.Repeat([]byte{7}, 280*BlockBytes)
	s := open(t, memoryDir(t), Options{})
	defer s.Close()
	if _, err := s.Write(key, write(0, append([]byte(nil), p...), 5)); err != nil {
		t.Fatal(err)
	}
	want := append(append([]byte(nil), p[:size]...), make([]byte, len(p)-size)...)
	for _, epoch := range []uint64{5, 3, 9} {
		if err := s.Shape(key, epoch, size); err != nil {
			t.Fatal(err)
		}
		if got := s.columnEpoch(t, key); got != epoch {
			t.Errorf("epoch %d, not %d", got, epoch)
		}
		if !bytes.Equal(readBack(t, s, key, 0, uint64(len(p))), want) {
			t.Errorf("epoch %d: other bytes", epoch)
		}
	}
}
