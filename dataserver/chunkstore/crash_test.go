package chunkstore

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// unsafeFS is the real file system with two additions: it knows what was synced,
// so that it can do what a crash of the machine does to the rest; and it fails
// on demand.
type unsafeFS struct {
	OS
	mu      sync.Mutex
	durable map[string][]byte // contents at the last sync
	touched map[string]bool
	fail    func(op string) error // nil: nothing fails
}

func newUnsafeFS() *unsafeFS {
	return &unsafeFS{durable: map[string][]byte{}, touched: map[string]bool{}}
}

func (u *unsafeFS) failing(op string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fail == nil {
		return nil
	}
	return u.fail(op)
}

func (u *unsafeFS) OpenFile(name string, flag int) (File, error) {
	f, err := u.OS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.touched[name] = true
	return &unsafeFile{f, u, name}, nil
}

func (u *unsafeFS) Remove(name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.durable, name)
	delete(u.touched, name)
	return u.OS.Remove(name)
}

func (u *unsafeFS) Rename(from, to string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.durable[to] = u.durable[from]
	u.touched[to] = true
	delete(u.durable, from)
	delete(u.touched, from)
	return u.OS.Rename(from, to)
}

func (u *unsafeFS) SyncAll(string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name := range u.touched {
		u.keepLocked(name)
	}
	return nil
}

func (u *unsafeFS) keepLocked(name string) {
	if b, err := os.ReadFile(name); err == nil {
		u.durable[name] = b
	}
}

type unsafeFile struct {
	File
	fs   *unsafeFS
	name string
}

func (f *unsafeFile) WriteAt(p []byte, at int64) (int, error) {
	if err := f.fs.failing("write"); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, at)
}

// WriteVec may fail after a part was written, as a full disk does.
func (f *unsafeFile) WriteVec(parts [][]byte, at int64) error {
	if err := f.fs.failing("writevec"); err != nil {
		all := bytes.Join(parts, nil)
		n := len(all) / 2 / BlockBytes * BlockBytes
		return errors.Join(err, f.File.WriteVec([][]byte{all[:n]}, at))
	}
	return f.File.WriteVec(parts, at)
}

func (f *unsafeFile) Deallocate(offset, length int64) error {
	if err := f.fs.failing("deallocate"); err != nil {
		return err
	}
	return f.File.Deallocate(offset, length)
}

func (f *unsafeFile) Truncate(size int64) error {
	if err := f.fs.failing("truncate"); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *unsafeFile) Sync() error {
	if err := f.fs.failing("sync"); err != nil {
		return err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.keepLocked(f.name)
	return nil
}

// crash makes of everything not synced what a crash may leave: each sector as it
// was or as it is, lengths and files likewise.
func (u *unsafeFS) crash(t testing.TB, seed uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := rand.New(rand.NewPCG(seed, 1))
	for name := range u.touched {
		now, err := os.ReadFile(name)
		if err != nil || !strings.Contains(name, "/pgs/") {
			continue
		}
		before, known := u.durable[name]
		if !known && r.IntN(3) == 0 {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		length := len(now)
		if r.IntN(2) == 0 {
			length = len(before)
		}
		mixed := make([]byte, length)
		for at := 0; at < length; at += 512 {
			from := now
			if r.IntN(2) == 0 {
				from = before
			}
			if at < len(from) {
				copy(mixed[at:min(at+512, length)], from[at:])
			}
		}
		if err := os.WriteFile(name, mixed, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// abandon is what the end of the process does to an open store.
func abandon(t testing.TB, s *Store) {
	t.Helper()
	s.endEarly()
	for _, c := range s.columns {
		if c.file != nil {
			c.file.Close()
		}
	}
	if err := s.release(); err != nil {
		t.Fatal(err)
	}
}

// memoryDir returns a directory in memory where there is one: syncs cost
// nothing there.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "canopy-chunkstore-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// history is what a block may read as.
type history struct {
	versions [][]byte // since the last sync, that one first
}

const crashBlocks = 300 // two groups

// TestCrashOfMachine: after a crash a block reads as one of its versions since
// the last sync or, if it had changed since, is an error; never as anything else.
func TestCrashOfMachine(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := memoryDir(t)
		fs := newUnsafeFS()
		key := Key{1, 2, 77, 1, 0}
		s := open(t, dir, Options{FS: fs, Boot: "a"})
		blocks := make([]history, crashBlocks)
		for i := range blocks {
			blocks[i].versions = [][]byte{make([]byte, BlockBytes)}
		}
		if rapid.Bool().Draw(r, "faults") {
			n := 0
			every := rapid.IntRange(2, 9).Draw(r, "every")
			fs.fail = func(op string) error {
				if n++; op == "writevec" && n%every == 0 {
					return syscall.ENOSPC
				}
				return nil
			}
		}
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			if rapid.IntRange(0, 3).Draw(r, "sync") == 0 {
				if err := s.Sync(key); err != nil {
					r.Fatal(err)
				}
				for i := range blocks {
					checkBlock(r, s, key, i, &blocks[i], false)
				}
				continue
			}
			if rapid.IntRange(0, 2).Draw(r, "punch") == 0 {
				crashPunch(r, s, key, blocks)
			} else {
				crashWrite(r, s, key, blocks)
			}
		}
		abandon(t, s)
		fs.crash(t, rapid.Uint64().Draw(r, "seed"))
		s = open(t, dir, Options{FS: fs, Boot: "b"})
		defer func() { fs.fail = nil; s.Close() }()
		if !s.Suspect() {
			r.Fatal("the store trusts what it has")
		}
		for i := range blocks {
			checkBlock(r, s, key, i, &blocks[i], len(blocks[i].versions) > 1)
		}
	})
}

// checkBlock reads one block and wants one of its versions; where nothing is
// pending that becomes its only one.
func checkBlock(r *rapid.T, s *Store, key Key, i int, h *history, mayFail bool) {
	p := make([]byte, BlockBytes)
	data, _, err := s.Read(key, uint64(i)*BlockBytes, BlockBytes, 0, nil, p)
	if err != nil {
		if !mayFail || !errors.Is(err, fserr.IO) {
			r.Fatalf("block %d: %v", i, err)
		}
		return
	}
	got := append(append([]byte(nil), data...), make([]byte, BlockBytes-len(data))...)
	for _, v := range h.versions {
		if bytes.Equal(got, v) {
			h.versions = [][]byte{v}
			return
		}
	}
	r.Fatalf("block %d reads as none of its %d versions", i, len(h.versions))
}

func crashWrite(r *rapid.T, s *Store, key Key, blocks []history) {
	first := rapid.IntRange(0, crashBlocks-1).Draw(r, "first")
	n := min(rapid.IntRange(1, 30).Draw(r, "blocks"), crashBlocks-first)
	p := make([]byte, n*BlockBytes)
	rand.NewChaCha8([32]byte{byte(rapid.Uint32().Draw(r, "bytes")), byte(first), byte(n)}).Read(p)
	_, err := s.Write(key, Write{Offset: uint64(first) * BlockBytes, Parts: [][]byte{append([]byte(nil), p...)}, CRC: crc32.Checksum(p, castagnoli)})
	if err != nil && !errors.Is(err, fserr.NoSpace) {
		r.Fatal(err)
	}
	for i := range n {
		h := &blocks[first+i]
		h.versions = append(h.versions, p[i*BlockBytes:(i+1)*BlockBytes])
	}
}

func crashPunch(r *rapid.T, s *Store, key Key, blocks []history) {
	first := rapid.IntRange(0, crashBlocks-1).Draw(r, "first")
	n := min(rapid.IntRange(1, 60).Draw(r, "blocks"), crashBlocks-first)
	if _, err := s.Punch(key, Range{Offset: uint64(first) * BlockBytes, Length: uint64(n) * BlockBytes}); err != nil {
		r.Fatal(err)
	}
	for i := first; i < first+n; i++ {
		blocks[i].versions = append(blocks[i].versions, make([]byte, BlockBytes))
	}
}

// TestKilledInWrite: a process that was killed between checksums and data leaves
// each block as it was or as it was to be.
func TestKilledInWrite(t *testing.T) {
	for name, dataBlocks := range map[string]uint64{"no data": 0, "half of the data": 2, "all data": 4} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			key := Key{1, 2, 77, 1, 0}
			s := open(t, dir, Options{Boot: "a"})
			before := bytes.Repeat([]byte{1}, 3*BlockBytes)
			if _, err := s.Write(key, write(0, append([]byte(nil), before...), 0)); err != nil {
				t.Fatal(err)
			}
			after := bytes.Repeat([]byte{2}, 4*BlockBytes)
			c, err := s.acquire(key, true, 0)
			if err != nil {
				t.Fatal(err)
			}
			s.inflight.begin(key, 0, 4)
			old, err := c.readEntries(0, 4)
			if err != nil {
				t.Fatal(err)
			}
			entries := make([]byte, len(old))
			for i := range 4 {
				putEntry(entries, i, entry{cur: sumOf(crc32.Checksum(after[:BlockBytes], castagnoli)), prev: getEntry(old, i).cur})
			}
			if _, err := c.file.WriteAt(entries, spanAt(0, 4).entries); err != nil {
				t.Fatal(err)
			}
			if _, err := c.file.WriteAt(after[:dataBlocks*BlockBytes], spanAt(0, 4).data); err != nil {
				t.Fatal(err)
			}
			abandon(t, s)
			s = open(t, dir, Options{Boot: "a"})
			defer s.Close()
			want := append(append([]byte(nil), after[:dataBlocks*BlockBytes]...), make([]byte, 4*BlockBytes)...)[:4*BlockBytes]
			if dataBlocks*BlockBytes < 3*BlockBytes {
				copy(want[dataBlocks*BlockBytes:], before[dataBlocks*BlockBytes:])
			}
			if got := readBack(t, s, key, 0, 4*BlockBytes); !bytes.Equal(got, want) {
				t.Error("blocks are neither as they were nor as they were to be")
			}
		})
	}
}

// TestDamage: a flipped bit is an error, never returned, and a full overwrite
// heals it.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	key := Key{1, 2, 77, 1, 0}
	s := open(t, dir, Options{})
	p := bytes.Repeat([]byte{7}, 3*BlockBytes)
	if _, err := s.Write(key, write(0, append([]byte(nil), p...), 0)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(s.dirOf(key), nameOf(key))
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{8}, position(BlockBytes+9)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	defer s.Close()
	_, _, err = s.Read(key, 0, 3*BlockBytes, 0, nil, make([]byte, 3*BlockBytes))
	var damaged *ChecksumError
	if !errors.As(err, &damaged) || damaged.Block != 1 || !errors.Is(err, fserr.IO) {
		t.Fatalf("read of a damaged block: %v", err)
	}
	if _, err := s.Write(key, write(BlockBytes+5, []byte("x"), 0)); !errors.Is(err, fserr.IO) {
		t.Fatalf("write into a damaged block: %v", err)
	}
	if _, err := s.Write(key, write(BlockBytes, append([]byte(nil), p[:BlockBytes]...), 0)); err != nil {
		t.Fatal(err)
	}
	if got := readBack(t, s, key, 0, 3*BlockBytes); !bytes.Equal(got, p) {
		t.Error("the overwritten block reads wrong")
	}
}

// TestCutSurvivesCrash: a cut that began before a crash of the machine is
// completed or was never made, and a full disk or failed write does not lose
// what remains.
func TestCutSurvivesCrash(t *testing.T) {
	for seed := range uint64(20) {
		dir := t.TempDir()
		fs := newUnsafeFS()
		key := Key{1, 2, 77, 1, 0}
		s := open(t, dir, Options{FS: fs, Boot: "a"})
		p := bytes.Repeat([]byte{byte(seed + 1)}, 280*BlockBytes)
		if _, err := s.Write(key, write(0, append([]byte(nil), p...), 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(key); err != nil {
			t.Fatal(err)
		}
		const size = 261*BlockBytes + 100
		c, err := s.acquire(key, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.cut(c, 2, []*canopyv1.Cut{{SizeEpoch: 2, Size: size}}); err != nil {
			t.Fatal(err)
		}
		abandon(t, s)
		fs.crash(t, seed)
		s = open(t, dir, Options{FS: fs, Boot: "b"})
		got := readBack(t, s, key, 0, 280*BlockBytes)
		epoch := s.columnEpoch(t, key)
		if epoch != 2 {
			t.Fatalf("seed %d: the cut's intention was made durable first, but the epoch is %d", seed, epoch)
		}
		if !bytes.Equal(got[:size], p[:size]) || !bytes.Equal(got[size:], make([]byte, len(p)-size)) {
			t.Fatalf("seed %d: wrong bytes after the cut", seed)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *Store) columnEpoch(t testing.TB, key Key) uint64 {
	_, epoch, err := s.Size(key)
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}
