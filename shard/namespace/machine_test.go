package namespace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/memkv"
	"github.com/canopyfs/canopy/shard/schema"
)

func (r *rig) run(format string, args ...any) string {
	return r.line(parseLine(r.t, nil, fmt.Sprintf(format, args...)))
}

func (r *rig) mustRun(format string, args ...any) string {
	r.t.Helper()
	out := r.run(format, args...)
	if !strings.HasPrefix(out, "ok") {
		r.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), out)
	}
	return out
}

// TestProbing fills the collision values of a hash: names beyond 128 go to the next
// full-name hash, are found there, and stay found when names before them go
// (PROTOCOLS F2).
func TestProbing(t *testing.T) {
	r := newRig(t, func([]byte) shard.Hash { return 1<<shard.FullBits | 5 })
	r.bootstrap()
	r.openSession(0xa1)
	const names = 300
	for i := range names {
		r.mustRun("create /n%d", i)
	}
	for i := 0; i < names; i += 3 {
		r.mustRun("unlink /n%d", i)
	}
	for i := range names {
		want := "ok"
		if i%3 == 0 {
			want = "no such file"
		}
		if out := r.run("lookup /n%d", i); !strings.HasPrefix(out, want) {
			t.Fatalf("n%d: %s", i, out)
		}
	}
	if n := strings.Count(r.run("ls /"), "="); n != names-names/3 {
		t.Fatalf("a listing shows %d names", n)
	}
	r.mustBeClean()
	// One displaced name is left, in the third hash: it must still be found.
	for i := range names - 1 {
		if i%3 != 0 {
			r.mustRun("unlink /n%d", i)
		}
	}
	r.mustRun("lookup /n%d", names-1)
	r.load()
	r.mustRun("lookup /n%d", names-1)
	r.mustBeClean()
}

// TestCost holds what a create may cost the store: one Get and one Set of its own;
// header, counters, results and shard state once per entry.
func TestCost(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	var commands []*canopyv1.Command
	for i := range 64 {
		commands = append(commands, r.command(0xa1, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{
			Create: &canopyv1.CreateCall{Dir: 1, Name: fmt.Appendf(nil, "f%d", i)}}}))
	}
	r.kv.ResetCounts()
	r.apply(commands...)
	if r.kv.Gets > 64+1 || r.kv.Sets > 64+4 || r.kv.Scans+r.kv.Deletes > 0 {
		t.Errorf("64 creates cost %d gets, %d sets, %d scans, %d deletes", r.kv.Gets, r.kv.Sets, r.kv.Scans, r.kv.Deletes)
	}
	r.kv.ResetCounts()
	r.mustRun("getattr /f1")
	if r.kv.Gets > 6 || r.kv.Scans > 0 { // the rig's own lookup included
		t.Errorf("a stat costs %d gets, %d scans", r.kv.Gets, r.kv.Scans)
	}
}

// TestResultSize holds the size of stored results: a few hundred bytes (C2).
func TestResultSize(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	for _, l := range []string{"create /a", "create /b", "mkdir /d", "setattr /a size=5", "rename /a /d/x", "rename /b /d/x", "unlink /d/x"} {
		c := r.commandOf(parseLine(t, nil, l))
		if n := len(r.apply(c)[0]); n > 400 {
			t.Errorf("%s: a result of %d bytes", l, n)
		}
	}
}

// failingStore fails the nth call.
type failingStore struct {
	*memkv.Store
	left int
}

var errDisk = errors.New("disk")

func (s *failingStore) fail() error {
	if s.left--; s.left < 0 {
		return errDisk
	}
	return nil
}

func (s *failingStore) Get(key []byte) ([]byte, bool, error) {
	if err := s.fail(); err != nil {
		return nil, false, err
	}
	return s.Store.Get(key)
}

func (s *failingStore) GetNew(key []byte) ([]byte, bool, error) { return s.Get(key) }

func (s *failingStore) Scan(lo, hi []byte, fn func(k, v []byte) (bool, error)) error {
	if err := s.fail(); err != nil {
		return err
	}
	return s.Store.Scan(lo, hi, fn)
}

func (s *failingStore) Set(key, value []byte) error {
	if err := s.fail(); err != nil {
		return err
	}
	return s.Store.Set(key, value)
}

func (s *failingStore) Delete(key []byte) error {
	if err := s.fail(); err != nil {
		return err
	}
	return s.Store.Delete(key)
}

// TestStoreErrors fails each call of the store in turn: Apply must return the
// error, never a result that was not written.
func TestStoreErrors(t *testing.T) {
	build := func() *rig {
		r := newRig(t, func([]byte) shard.Hash { return 9 })
		r.bootstrap()
		r.openSession(0xa1)
		for _, l := range []string{"create /a", "setx /a user.k v", "create /b", "mkdir /d", "mkdir /d/e", "link /b /c", "reserve /a len=5", "setattr /b size=9"} {
			r.mustRun("%s", l)
		}
		r.places["a"] = r.place("/a")
		return r
	}
	for _, l := range []string{"create /n", "rename /a /d/x", "rename /a /c", "rename /a /c exchange", "link /a /n", "unlink /a", "rmdir /d/e",
		"rename /d/e /n", "setattr /a size=1", "rmx /a user.k", "report /c size=99 epoch=2 changed", "end-sessions a1", "purge @a", "cut-done /b epoch=2", "close-session"} {
		for n := 0; ; n++ {
			r := build()
			b, err := r.commandOf(parseLine(t, nil, l)).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.m.Apply(&failingStore{r.kv, n}, 5000, [][]byte{b})
			if err == nil {
				if n == 0 {
					t.Errorf("%s did not touch the store", l)
				}
				break
			}
			if !errors.Is(err, errDisk) {
				t.Fatalf("%s, call %d: %v", l, n, err)
			}
		}
	}
	r := build()
	for n := range 3 {
		res := r.m.Query(&failingStore{r.kv, n}, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: []byte("a")}}})
		if fserr.Kind(res.Error) != fserr.IO {
			t.Errorf("a query whose call %d failed answers %v", n, fserr.Kind(res.Error))
		}
	}
}

// TestDamagedValue: a value that cannot be decoded breaks the replica in apply, and
// is an I/O error to who reads it.
func TestDamagedValue(t *testing.T) {
	r := newRig(t, nil)
	r.bootstrap()
	r.openSession(0xa1)
	if err := r.kv.Set(schema.HeaderKey(testShard, 1, 1), []byte{0xff}); err != nil {
		t.Fatal(err)
	}
	b, err := r.command(0xa1, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: 1, Name: []byte("a")}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.Apply(r.kv, 5000, [][]byte{b}); err == nil {
		t.Error("a damaged header was accepted")
	}
	res := r.m.Query(r.kv, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: []byte("a")}}})
	if fserr.Kind(res.Error) != fserr.IO {
		t.Errorf("answered %v", fserr.Kind(res.Error))
	}
}

// TestCheckFinds damages a sound state in ways that fsck must see.
func TestCheckFinds(t *testing.T) {
	damage := map[string]func(r *rig){
		"a name without its directory": func(r *rig) { r.drop(schema.HeaderKey(testShard, 1, inoOf("/d", r))) },
		"a lost name": func(r *rig) {
			r.drop(schema.DentryKey(testShard, 1, 1, shard.NameHash([]byte("a")).Cookie(0)))
		},
		"a lost directory name": func(r *rig) {
			r.drop(schema.DentryKey(testShard, 1, 1, shard.NameHash([]byte("d")).Cookie(0)))
		},
		"a lost record":  func(r *rig) { r.drop(schema.InodeKey(testShard, 1, inoOf("/l1", r))) },
		"wrong counters": func(r *rig) { r.put(schema.CountersKey(testShard, 1), &schema.Counters{Files: 9}) },
		"a lost xattr": func(r *rig) {
			r.drop(schema.XattrKey(schema.HeaderKey(testShard, 1, inoOf("/d", r)), []byte("user.k")))
		},
		"a lost orphan": func(r *rig) {
			r.drop(schema.CutKey(testShard, 1, inoOf("/a", r)))
			r.put(schema.CutKey(testShard, 1, 5), &schema.Locator{})
		},
		"an orphan's name": func(r *rig) {
			r.put(schema.OrphanKey(testShard, 1, inoOf("/a", r)), &schema.Orphan{Inode: &schema.Inode{Ino: inoOf("/a", r), Mode: schema.TypeFile, File: schema.File{DataID: 1}}})
		},
		"a wrong quota": func(r *rig) {
			r.put(schema.QuotaKey(testShard, 1, inoOf("/d", r)), &schema.Quota{Counted: true, MaxInodes: 9, Usage: schema.Usage{Inodes: 3}})
		},
		"a lost quota": func(r *rig) { r.drop(schema.QuotaKey(testShard, 1, inoOf("/d", r))) },
		"a quota of nothing": func(r *rig) {
			r.put(schema.QuotaKey(testShard, 1, inoOf("/a", r)), &schema.Quota{MaxInodes: 9})
		},
		"a lost list of names": func(r *rig) { r.drop(schema.NamesKey(testShard, 1, inoOf("/l1", r))) },
		"a wrong list of names": func(r *rig) {
			r.put(schema.NamesKey(testShard, 1, inoOf("/l1", r)), &schema.Names{Dirs: []base.Ino{1, inoOf("/d", r)}})
		},
		"a cycle": func(r *rig) {
			for _, dir := range []string{"/d", "/d/e"} {
				h := r.header(dir)
				h.Parent = inoOf("/d/e", r)
				if dir == "/d/e" {
					h.Parent = inoOf("/d", r)
				}
				defer r.put(schema.HeaderKey(testShard, 1, h.Ino), h)
			}
		},
	}
	for name, harm := range damage {
		r := newRig(t, nil)
		r.bootstrap()
		r.openSession(0xa1)
		for _, l := range []string{"create /a", "mkdir /d", "mkdir /d/e", "create /l1", "link /l1 /l2", "setx /d user.k v", "setattr /a size=4", "create /d/f",
			"quota /d inodes=9"} {
			r.mustRun("%s", l)
		}
		r.mustBeClean()
		harm(r)
		found := 0
		if _, err := r.m.Check(r.kv, func(Finding) { found++ }); err != nil || found == 0 {
			t.Errorf("%s: %d findings, %v", name, found, err)
		}
	}
}

func inoOf(path string, r *rig) base.Ino { return base.Ino(r.place(path).Ino) }

func (r *rig) header(path string) *schema.Header {
	b, _, err := r.kv.Get(schema.HeaderKey(testShard, 1, inoOf(path, r)))
	if err != nil {
		r.t.Fatal(err)
	}
	h, err := schema.DecodeHeader(b)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *rig) drop(key []byte) {
	if err := r.kv.Delete(key); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) put(key []byte, v value) {
	if err := r.kv.Set(key, v.Append(nil)); err != nil {
		r.t.Fatal(err)
	}
}
