package bulk

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

func TestRun(t *testing.T) {
	for _, copies := range []int{1, 2} {
		dir := t.TempDir()
		var counted atomic.Int64
		o := Options{
			Dir: dir, Bytes: 3<<20 + 17, BlockBytes: 1 << 18, Files: 2, Copies: copies,
			Count: func(n int64) { counted.Add(n) },
			DropCaches: func() error {
				names, err := os.ReadDir(dir)
				if err != nil || len(names) != 1 {
					t.Errorf("%v, %v", names, err)
				}
				files, err := os.ReadDir(dir + "/" + names[0].Name())
				if err != nil || len(files) != 2*copies {
					t.Errorf("%d files for %d copies, %v", len(files), copies, err)
				}
				return nil
			},
		}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Bytes != 2*o.Bytes || r.WriteMB <= 0 || r.ReadMB <= 0 || counted.Load() != 2*r.Bytes {
			t.Errorf("%+v, counted %d", r, counted.Load())
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestWrongBytesAreFound(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, Bytes: 1 << 20, BlockBytes: 1 << 18, Files: 1, DropCaches: func() error {
		names, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(dir+"/"+names[0].Name()+"/file.0.0", os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte("x"), 1<<19)
		return err
	}}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "wrong bytes at offset 524288") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	for want, o := range map[string]Options{
		"--size":  {BlockBytes: 8, Files: 1},
		"--block": {Bytes: 1, Files: 1},
		"--files": {Bytes: 1, BlockBytes: 8},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
