package chunkstore

import (
	"bytes"
	"errors"
	"fmt"
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
