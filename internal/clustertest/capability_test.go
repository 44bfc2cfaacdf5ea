package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// TestKeysRotateUnderMounts: J4: keys are rotated twice and then revoked, and
// capabilities end every second or two, while files are written and read on two
// mounts, some of them open all the time: nobody notices. Who has no capability gets
// nothing meanwhile.
func TestKeysRotateUnderMounts(t *testing.T) {
	t.Parallel()
	c := newDataCluster(t, 3, []string{"--capability-period", "1s"}, nil)
	a, b := c.secondMount(t), c.secondMount(t)
	content := func(name string, round int) []byte {
		return bytes.Repeat(fmt.Appendf(nil, "%s in round %d\n", name, round), 20_000)
	}
	kept := filepath.Join(a, "kept")
	if err := os.WriteFile(kept, content("kept", 0), 0o644); err != nil {
		t.Fatal(err)
	}
	idle, err := os.Open(filepath.Join(b, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()

	stop := make(chan struct{})
	var rounds [3]atomic.Int64
	var load errgroup.Group
	each := func(i int, do func(round int) error) {
		load.Go(func() error {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := do(round); err != nil {
					return err
				}
				rounds[i].Add(1)
			}
		})
	}
	each(0, func(round int) error { // small files, written here and read there
		name := fmt.Sprint("small", round%50)
		want := content(name, round)
		if err := os.WriteFile(filepath.Join(a, name), want, 0o644); err != nil {
			return err
		}
		got, err := os.ReadFile(filepath.Join(b, name))
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%s: read %d other bytes", name, len(got))
		}
		return err
	})
	long, err := os.Create(filepath.Join(b, "long"))
	if err != nil {
		t.Fatal(err)
	}
	each(1, func(round int) error { // one long write, into buffers, synced now and then
		if _, err := long.Write(content("long", round)); err != nil || round%8 != 7 {
			return err
		}
		return long.Sync()
	})
	each(2, func(round int) error { // a user that may read alone
		return asUser(1000, func() error {
			f, err := os.Open(kept)
			if err != nil {
				return err
			}
			defer f.Close()
			got := make([]byte, len(content("kept", 0)))
			if _, err := f.ReadAt(got, 0); err != nil {
				return err
			}
			if f, err := os.OpenFile(kept, os.O_WRONLY, 0); err == nil {
				f.Close()
				return errors.New("a user that may only read opened the file for writing")
			}
			return nil
		})
	})
	goOn := func(after string) {
		t.Helper()
		var before [3]int64
		for i := range rounds {
			before[i] = rounds[i].Load()
		}
		eventually(t, "all go on after "+after, func() error {
			for i := range rounds {
				if n := rounds[i].Load() - before[i]; n < 4 {
					return fmt.Errorf("load %d did %d rounds", i, n)
				}
			}
			return nil
		})
	}
	goOn("the start")
	first := c.keyIDs(t)
	for i := range 2 {
		c.mdsctl(t, "key", "rotate")
		goOn(fmt.Sprint("rotation ", i+1))
	}
	if ids := c.keyIDs(t); len(ids) != len(first)+2 {
		t.Errorf("after two rotations the keys %v are accepted", ids)
	}
	c.mdsctl(t, "key", "rotate", "--revoke")
	goOn("the old keys were revoked")
	if ids := c.keyIDs(t); len(ids) != 1 || ids[0] != first[0]+3 {
		t.Errorf("after the old keys were revoked %v are accepted", ids)
	}
	c.nothingForStrangers(t, kept)
	got := make([]byte, len(content("kept", 0)))
	if _, err := idle.ReadAt(got, 0); err != nil || !bytes.Equal(got, content("kept", 0)) {
		t.Errorf("a file that was open and not used meanwhile: %v", err)
	}
	close(stop)
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(long.Sync(), long.Close()); err != nil {
		t.Fatal(err)
	}
	var want []byte
	for round := range int(rounds[1].Load()) {
		want = append(want, content("long", round)...)
	}
	if got, err := os.ReadFile(filepath.Join(a, "long")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the long write: %d of %d bytes, %v", len(got), len(want), err)
	}
	c.mdsctl(t, "fsck", "--data")
}

// keyIDs returns the keys that are accepted.
func (c *dataCluster) keyIDs(t *testing.T) (ids []uint32) {
	t.Helper()
	var report struct{ Keys []struct{ Key uint32 } }
	if err := json.Unmarshal([]byte(c.mdsctl(t, "key", "ls", "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	for _, k := range report.Keys {
		ids = append(ids, k.Key)
	}
	return ids
}

// nothingForStrangers asks the data servers for a file's bytes as whoever reaches
// them can.
func (c *dataCluster) nothingForStrangers(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := data.New(data.Config{LayoutServices: func() []string { return []string{c.layout} }, Client: 77})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f := data.File{ID: base.DataID(info.Sys().(*syscall.Stat_t).Ino), Layout: stripe.Default(1), SizeEpoch: 1}
	p := make([]byte, 4096)
	if _, err := d.ReadAt(ctx, f, p, 0); !errors.Is(err, fserr.NoCapability) {
		t.Errorf("a stranger read %q: %v", p[:20], err)
	}
	if _, err := d.WriteAt(ctx, f, p, 0); !errors.Is(err, fserr.NoCapability) {
		t.Errorf("a stranger wrote: %v", err)
	}
	if err := d.Delete(ctx, f.ID, f.Layout, stripe.MaxFileBytes); !errors.Is(err, fserr.NoCapability) {
		t.Errorf("a stranger deleted: %v", err)
	}
	if _, err := d.StatColumns(ctx, f.ID); !errors.Is(err, fserr.NoCapability) {
		t.Errorf("a stranger looked: %v", err)
	}
}

// asUser runs do with an ordinary user's rights to files. The thread is given back:
// if it ended, the processes that other tests started from it would get a signal
// (Pdeathsig).
func asUser(uid uintptr, do func() error) error {
	become := func(id uintptr) {
		for _, call := range []uintptr{syscall.SYS_SETFSGID, syscall.SYS_SETFSUID} {
			syscall.RawSyscall(call, id, 0, 0) // it answers the old id, not whether it worked
		}
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		become(uid)
		err := do()
		become(0)
		done <- err
	}()
	return <-done
}
