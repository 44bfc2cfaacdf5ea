package chunkstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

func modelPunch(r *rapid.T, s *Store, key Key, m *modelColumn) {
	offset, length := drawRange(r)
	before := allocated(r, s, key)
	freed, err := s.Punch(key, Range{Offset: offset, Length: length, SizeEpoch: m.epoch})
	if m.deleted {
		if !errors.Is(err, fserr.Stale) {
			r.Fatalf("punch after delete: %v", err)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	if after := allocated(r, s, key); after+freed != before {
		r.Fatalf("a punch of [%d, +%d) says that it freed %d bytes of %d, and %d are left", offset, length, freed, before, after)
	}
	if size := uint64(len(m.bytes)); offset < size {
		clear(m.bytes[offset:min(size, offset+length)])
	}
}

func modelReserve(r *rapid.T, s *Store, key Key, m *modelColumn) {
	offset, length := drawRange(r)
	before := allocated(r, s, key)
	got, err := s.Reserve(key, Range{Offset: offset, Length: length, SizeEpoch: m.epoch})
	if m.deleted {
		if !errors.Is(err, fserr.Stale) {
			r.Fatalf("reservation after delete: %v", err)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	if after := allocated(r, s, key); after != before+got {
		r.Fatalf("a reservation of [%d, +%d) says that it took %d bytes beside %d, and there are %d", offset, length, got, before, after)
	}
	if at, err := s.Seek(key, offset, true, 0, nil); err != nil || at < offset+length {
		r.Fatalf("[%d, +%d) is reserved and has a hole at %d (%v)", offset, length, at, err)
	}
	if grown := offset + length; grown > uint64(len(m.bytes)) {
		m.bytes = append(m.bytes, make([]byte, grown-uint64(len(m.bytes)))...)
	}
}

func allocated(r interface{ Fatal(...any) }, s *Store, key Key) uint64 {
	n, err := s.Allocated(key, 0, nil)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// checkHoles: what lies outside of what Seek calls data is zeros, and Seek, Stat
// and Allocated agree.
func checkHoles(r *rapid.T, s *Store, key Key, m *modelColumn) {
	if m.deleted {
		return
	}
	var data, at uint64
	for at < modelBytes {
		lo, err := s.Seek(key, at, false, 0, nil)
		if err != nil {
			r.Fatal(err)
		}
		stop := min(lo, uint64(len(m.bytes)))
		if at < stop && !isZero(m.bytes[at:stop]) {
			r.Fatalf("there are bytes in what Seek calls a hole, [%d, %d)", at, stop)
		}
		if lo == NoOffset {
			break
		}
		if at, err = s.Seek(key, lo, true, 0, nil); err != nil || at <= lo {
			r.Fatalf("data from %d to %d: %v", lo, at, err)
		}
		data += (at+BlockBytes-1)/BlockBytes*BlockBytes - lo/BlockBytes*BlockBytes
	}
	info, _, err := s.Stat(key, true)
	if n := allocated(r, s, key); err != nil || n != data || info.AllocatedBytes != data {
		r.Fatalf("Seek finds %d bytes of data, Allocated %d, Stat %d (%v)", data, n, info.AllocatedBytes, err)
	}
}

// TestPunchGivesSpaceBack: what Punch calls freed the file system has again, and a
// reservation takes what it says.
func TestPunchGivesSpaceBack(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	defer s.Close()
	key := Key{1, 2, 77, 1, 0}
	used := func() uint64 {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(s.dirOf(key), nameOf(key)), &st); err != nil {
			t.Fatal(err)
		}
		return uint64(st.Blocks) * 512
	}
	if _, err := s.Write(key, write(0, bytes.Repeat([]byte{7}, 4<<20), 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(key); err != nil {
		t.Fatal(err)
	}
	full := used()
	freed, err := s.Punch(key, Range{Offset: 100, Length: 3 << 20})
	if err != nil || freed != 3<<20-BlockBytes {
		t.Fatalf("freed %d bytes, %v", freed, err)
	}
	if now := used(); now > full-freed {
		t.Errorf("%d bytes of disk before, %d bytes freed, %d bytes of disk after", full, freed, now)
	}
	if again, err := s.Punch(key, Range{Offset: 0, Length: 1 << 20}); again != BlockBytes || err != nil {
		t.Errorf("the rest of the first block: freed %d bytes, %v", again, err)
	}
	took, err := s.Reserve(key, Range{Offset: 0, Length: 8 << 20})
	if want := uint64(7<<20) + 0; err != nil || took != want {
		t.Errorf("a reservation took %d bytes, want %d: %v", took, want, err)
	}
	if now := used(); now < 8<<20 {
		t.Errorf("8 MiB are reserved, and the file has %d bytes of disk", now)
	}
	if n, err := s.Write(key, write(5<<20, bytes.Repeat([]byte{8}, 1<<20), 0)); n != 0 || err != nil {
		t.Errorf("a write to what was reserved allocates %d bytes, %v", n, err)
	}
}

// TestReserveRefusesWhatIsNotThere: space that the disk does not have is refused,
// and writes to what was reserved before are not.
func TestReserveRefusesWhatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	key := Key{1, 2, 77, 1, 0}
	s := open(t, dir, Options{})
	if _, err := s.Reserve(key, Range{Length: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{ReserveBytes: 1 << 62})
	defer s.Close()
	if _, err := s.Reserve(key, Range{Length: 2 << 20}); !errors.Is(err, fserr.NoSpace) {
		t.Errorf("a reservation on a full disk: %v", err)
	}
	if _, err := s.Write(key, write(0, bytes.Repeat([]byte{1}, 1<<20), 0)); err != nil {
		t.Errorf("a write to what was reserved, on a full disk: %v", err)
	}
	if _, err := s.Write(key, write(1<<20, []byte("x"), 0)); !errors.Is(err, fserr.NoSpace) {
		t.Errorf("a write behind it, on a full disk: %v", err)
	}
}

// TestSparseChangeHonoursEpochs (PROTOCOLS J1): a punch or reservation of an older
// size epoch is refused, one of a newer epoch applies the cuts before it, and Seek
// does not see what lies beyond a cut that the column does not know.
func TestSparseChangeHonoursEpochs(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	defer s.Close()
	key := Key{1, 2, 77, 1, 0}
	p := bytes.Repeat([]byte{7}, 8*BlockBytes)
	if _, err := s.Write(key, write(0, append([]byte(nil), p...), 1)); err != nil {
		t.Fatal(err)
	}
	cuts := []*canopyv1.Cut{{SizeEpoch: 2, Size: 4 * BlockBytes}}
	if at, err := s.Seek(key, 0, true, 2, cuts); at != 4*BlockBytes || err != nil {
		t.Errorf("the first hole of a column that will be cut at %d is at %d, %v", 4*BlockBytes, at, err)
	}
	if at, err := s.Seek(key, 5*BlockBytes, false, 2, cuts); at != NoOffset || err != nil {
		t.Errorf("data at %d beyond the cut, %v", at, err)
	}
	if n, err := s.Allocated(key, 2, cuts); n != 4*BlockBytes || err != nil {
		t.Errorf("%d bytes before the cut, %v", n, err)
	}
	if freed, err := s.Punch(key, Range{Length: 2 * BlockBytes, SizeEpoch: 2, Cuts: cuts}); freed != 2*BlockBytes || err != nil {
		t.Errorf("punch of the new epoch: %d, %v", freed, err)
	}
	want := append(append(make([]byte, 2*BlockBytes), p[:2*BlockBytes]...), make([]byte, 4*BlockBytes)...)
	if got := readBack(t, s, key, 0, 8*BlockBytes); !bytes.Equal(got, want) {
		t.Error("wrong bytes after a punch with a cut")
	}
	for _, change := range []func(Key, Range) (uint64, error){s.Punch, s.Reserve} {
		if _, err := change(key, Range{Length: BlockBytes, SizeEpoch: 1}); !errors.Is(err, fserr.OldEpoch) {
			t.Errorf("a change of the old epoch: %v", err)
		}
		if _, err := change(key, Range{Offset: 1<<63 - 2, Length: 1, SizeEpoch: 2}); !errors.Is(err, fserr.FileTooBig) {
			t.Errorf("a change beyond what any file has: %v", err)
		}
	}
}

// TestPunchStopsAnywhere: the process or the machine stops at any step of a punch.
// A block is then what it was or zeros, never an error, also when it is written in
// part afterwards; with the process alone stopped, and after an acknowledged punch
// that was synced, nothing else either.
func TestPunchStopsAnywhere(t *testing.T) {
	const blocks = 280 // two groups
	key := Key{1, 2, 77, 1, 0}
	p := bytes.Repeat([]byte{7}, blocks*BlockBytes)
	for _, machine := range []bool{false, true} {
		on := Range{Offset: 200 * BlockBytes, Length: 79 * BlockBytes, SizeEpoch: 1}
		if !machine {
			on.Offset += 9 // what is zeroed in part is written, and may be torn like any write
		}
		punched := bytes.Clone(p)
		clear(punched[on.Offset : on.Offset+on.Length])
		for stop := 1; ; stop++ {
			finished := false
			for seed := range uint64(6) {
				what := fmt.Sprintf("machine %v, stop at step %d, seed %d", machine, stop, seed)
				dir, fs := memoryDir(t), newUnsafeFS()
				s := open(t, dir, Options{FS: fs, Boot: "a"})
				if _, err := s.Write(key, write(0, bytes.Clone(p), 1)); err != nil {
					t.Fatal(err)
				}
				if err := s.Sync(key); err != nil {
					t.Fatal(err)
				}
				var slots []byte
				finished, slots = stopIn(t, s, fs, stop, func() error {
					_, err := s.Punch(key, on)
					return err
				})
				synced := finished && seed%2 == 0
				if synced {
					if err := s.Sync(key); err != nil {
						t.Fatal(err)
					}
				}
				abandon(t, s)
				boot := "a"
				if machine {
					fs.crash(t, seed)
					boot = "b"
				} else if !finished {
					if err := os.WriteFile(filepath.Join(dir, "inflight"), slots, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				s = open(t, dir, Options{FS: fs, Boot: boot})
				got := readBack(t, s, key, 0, uint64(len(p)))
				for b := range blocks {
					block := got[b*BlockBytes : (b+1)*BlockBytes]
					asNew := bytes.Equal(block, punched[b*BlockBytes:(b+1)*BlockBytes])
					if !asNew && !bytes.Equal(block, p[b*BlockBytes:(b+1)*BlockBytes]) {
						t.Fatalf("%s: block %d is neither as it was nor as it was to be", what, b)
					}
					if !asNew && (synced || finished && !machine) {
						t.Fatalf("%s: block %d is not punched", what, b)
					}
				}
				checkPartialWrite(t, s, key, got, what)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if finished {
				if stop < 5 {
					t.Errorf("a punch of %d steps: the test does not see them", stop-1)
				}
				break
			}
		}
	}
}

// stopIn runs do, whose step numbered stop and all later ones fail; slots is what
// was in flight then.
func stopIn(t *testing.T, s *Store, fs *unsafeFS, stop int, do func() error) (finished bool, slots []byte) {
	t.Helper()
	errStop := errors.New("it stops here")
	steps := 0
	fs.fail = func(string) error {
		if steps++; steps < stop {
			return nil
		}
		if steps == stop {
			slots = bytes.Clone(s.inflight.memory)
		}
		return errStop
	}
	defer func() { fs.fail = nil }()
	err := do()
	if err != nil && !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	return err == nil, slots
}

// checkPartialWrite writes into the middle of each block and reads all back.
func checkPartialWrite(t *testing.T, s *Store, key Key, content []byte, what string) {
	t.Helper()
	for at := uint64(BlockBytes / 2); at < uint64(len(content)); at += BlockBytes {
		if _, err := s.Write(key, write(at, []byte("new"), 1)); err != nil {
			t.Fatalf("%s: writing to block %d: %v", what, at/BlockBytes, err)
		}
		copy(content[at:], "new")
	}
	if !bytes.Equal(readBack(t, s, key, 0, uint64(len(content))), content) {
		t.Fatalf("%s: wrong bytes after writing into the blocks", what)
	}
}

// TestHolesAreSkipped: a column with its only byte far out is looked through in no
// time, and has one block.
func TestHolesAreSkipped(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	defer s.Close()
	key := Key{1, 2, 77, 1, 0}
	const far = 8 << 40
	if _, err := s.Write(key, write(far, []byte("x"), 0)); err != nil {
		if errors.Is(err, fserr.FileTooBig) {
			t.Skip("the file system below has no files as large")
		}
		t.Fatal(err)
	}
	if at, err := s.Seek(key, 5, false, 0, nil); at != far || err != nil {
		t.Errorf("data at %d, %v", at, err)
	}
	if at, err := s.Seek(key, 5, true, 0, nil); at != 5 || err != nil {
		t.Errorf("hole at %d, %v", at, err)
	}
	if info, _, err := s.Stat(key, true); info.AllocatedBytes != BlockBytes || err != nil {
		t.Errorf("%d bytes, %v", info.AllocatedBytes, err)
	}
	if freed, err := s.Punch(key, Range{Length: far + 1}); freed != BlockBytes || err != nil {
		t.Errorf("freed %d bytes, %v", freed, err)
	}
}

// TestFileSystemWithoutHoles: where the file system cannot punch, holes still read
// as zeros, also after a part of them is written.
func TestFileSystemWithoutHoles(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte{1}, 3*BlockBytes)); err != nil {
		t.Fatal(err)
	}
	if err := (osFile{f}).writeZeros(BlockBytes, BlockBytes); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	want := bytes.Repeat([]byte{1}, 3*BlockBytes)
	clear(want[BlockBytes : 2*BlockBytes])
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("zeros were written elsewhere, %v", err)
	}
}
