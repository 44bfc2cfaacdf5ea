package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func options(dirs ...string) Options {
	return Options{Dirs: dirs, Ranks: 4, Bytes: 1<<20 + 13, BlockBytes: 1 << 18}
}

func TestRun(t *testing.T) {
	for _, one := range []bool{false, true} {
		dir := t.TempDir()
		var counted atomic.Int64
		o := options(dir, dir)
		o.OneFile = one
		o.Count = func(n int64) { counted.Add(n) }
		o.DropCaches = func() error {
			found, err := filepath.Glob(filepath.Join(dir, "*", "complete", "*"))
			if want := map[bool]int{false: 5, true: 2}[one]; err != nil || len(found) != want {
				t.Errorf("one file %v: published %v, %v", one, found, err)
			}
			return nil
		}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if want := 2 * o.Bytes * int64(o.Ranks); counted.Load() != want {
			t.Errorf("counted %d, want %d", counted.Load(), want)
		}
		if r.WriteMB <= 0 || r.ReadMB <= 0 || r.Write < r.FirstRank || r.FirstRank <= 0 || r.Publish <= 0 {
			t.Errorf("%+v", r)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestWrongBytesAreFound(t *testing.T) {
	dir := t.TempDir()
	o := options(dir)
	o.OneFile = true
	o.DropCaches = func() error {
		found, err := filepath.Glob(filepath.Join(dir, "*", "complete", oneFileName))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v", found, err)
		}
		f, err := os.OpenFile(found[0], os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte("x"), 2*o.Bytes+100)
		return err
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "(rank 2)") {
		t.Errorf("%v", err)
	}
}

func TestAnotherFileSystemIsRefused(t *testing.T) {
	if _, err := Run(t.Context(), options(t.TempDir(), t.TempDir())); err == nil || !strings.Contains(err.Error(), "does not show") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	for want, o := range map[string]Options{
		"--path":  {Ranks: 1, Bytes: 1, BlockBytes: 8},
		"--ranks": {Dirs: []string{"."}, Bytes: 1, BlockBytes: 8},
		"--size":  {Dirs: []string{"."}, Ranks: 1, BlockBytes: 8},
		"--block": {Dirs: []string{"."}, Ranks: 1, Bytes: 1},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
