package chunkstore

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

func openUndo(t *testing.T, dir, boot string) (*Store, *UndoLog) {
	t.Helper()
	s, err := Open(dir, Options{Boot: boot})
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.Undo(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	return s, u
}

// killStore ends a store as the end of its process does.
func killStore(t *testing.T, s *Store, u *UndoLog) {
	t.Helper()
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.release(); err != nil {
		t.Fatal(err)
	}
}

func undoRecord(term, seq uint64, n int) *canopyv1.ShardUndo {
	return &canopyv1.ShardUndo{
		Term: term, Seq: seq, Column: &canopyv1.Column{Pool: 1, Pg: 2, DataId: 3}, States: []byte{2},
		OldData: bytes.Repeat([]byte{byte(seq)}, n),
	}
}

func add(t *testing.T, u *UndoLog, r *canopyv1.ShardUndo) {
	t.Helper()
	if err := u.Add(r); err != nil {
		t.Fatal(err)
	}
}

func mark(t *testing.T, u *UndoLog, term, floor uint64) {
	t.Helper()
	if err := u.Mark(term, floor); err != nil {
		t.Fatal(err)
	}
}

// TestUndoLog: what is open outlives the process with what was there before, what the
// primary settled does not come back, and another term ends all of it.
func TestUndoLog(t *testing.T) {
	dir := t.TempDir()
	s, u := openUndo(t, dir, "boot")
	mark(t, u, 7, 0)
	for seq := uint64(1); seq <= 4; seq++ {
		add(t, u, undoRecord(7, seq, 100))
	}
	if err := u.Undone(3); err != nil {
		t.Fatal(err)
	}
	mark(t, u, 7, 2)
	add(t, u, undoRecord(7, 5, 100)) // brings the floor to the disk
	if u.Add(undoRecord(6, 9, 1)) == nil {
		t.Error("a change of an older term is logged")
	}
	killStore(t, s, u)
	s, u = openUndo(t, dir, "boot")
	term, floor, open, lost := u.State()
	if term != 7 || floor != 2 || len(open) != 3 || lost {
		t.Fatalf("term %d, floor %d, open %v, lost %v", term, floor, open, lost)
	}
	for _, seq := range []uint64{2, 4, 5} {
		r, err := u.Record(seq)
		if err != nil || r == nil || !bytes.Equal(r.OldData, bytes.Repeat([]byte{byte(seq)}, 100)) {
			t.Errorf("change %d: %v, %v", seq, r, err)
		}
	}
	mark(t, u, 8, 0)
	killStore(t, s, u)
	s, u = openUndo(t, dir, "boot")
	if term, _, open, _ := u.State(); term != 8 || len(open) != 0 {
		t.Errorf("after a new term: %d, open %v", term, open)
	}
	killStore(t, s, u)
}

// TestUndoLogAfterCrash: the log of a machine that crashed is void until a new term; a
// torn record is one that was not begun.
func TestUndoLogAfterCrash(t *testing.T) {
	dir := t.TempDir()
	s, u := openUndo(t, dir, "boot")
	mark(t, u, 7, 0)
	add(t, u, undoRecord(7, 1, 100))
	add(t, u, undoRecord(7, 2, 100))
	killStore(t, s, u)
	name := filepath.Join(dir, "pgs", "1.2", "undo0")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	s, u = openUndo(t, dir, "boot")
	if _, _, open, lost := u.State(); len(open) != 1 || open[0].Seq != 1 || lost {
		t.Errorf("with a torn record: %v, lost %v", open, lost)
	}
	killStore(t, s, u)
	s, u = openUndo(t, dir, "another boot")
	if _, _, open, lost := u.State(); len(open) != 0 || !lost {
		t.Errorf("after a crash: %v, lost %v", open, lost)
	}
	mark(t, u, 8, 0)
	if _, _, _, lost := u.State(); lost {
		t.Error("a new term does not end it")
	}
	killStore(t, s, u)
}

// TestRelativeDirectory: a directory may be named as ./name.
func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	s, u := openUndo(t, "./data", "boot")
	mark(t, u, 1, 0)
	killStore(t, s, u)
}

// TestCutsOutliveACrash: of a machine that lost power the log still tells the cuts, which
// were synced before they were made.
func TestCutsOutliveACrash(t *testing.T) {
	dir := t.TempDir()
	s, u := openUndo(t, dir, "boot")
	mark(t, u, 7, 0)
	add(t, u, undoRecord(7, 1, 100))
	cut := undoRecord(7, 2, 0)
	cut.Cut, cut.SizeEpoch = true, 9
	add(t, u, cut)
	killStore(t, s, u)
	s, u = openUndo(t, dir, "another boot")
	_, _, open, lost := u.State()
	if !lost || len(open) != 1 || !open[0].Cut || open[0].SizeEpoch != 9 {
		t.Errorf("after a crash: %v, lost %v", open, lost)
	}
	mark(t, u, 8, 0)
	if _, _, open, _ := u.State(); len(open) != 0 {
		t.Errorf("in a new term: %v", open)
	}
	killStore(t, s, u)
}

// syncedFS notes which files were synced.
type syncedFS struct {
	OS
	synced *[]string
}

func (f syncedFS) OpenFile(name string, flag int) (File, error) {
	file, err := f.OS.OpenFile(name, flag)
	return syncedFile{file, name, f.synced}, err
}

func (f syncedFS) SyncDir(name string) error {
	*f.synced = append(*f.synced, filepath.Base(name)+"/")
	return f.OS.SyncDir(name)
}

type syncedFile struct {
	File
	name   string
	synced *[]string
}

func (f syncedFile) Sync() error {
	*f.synced = append(*f.synced, filepath.Base(f.name))
	return f.File.Sync()
}

// TestCutRecordsAreSynced: with the file's name, the first time.
func TestCutRecordsAreSynced(t *testing.T) {
	var synced []string
	s, err := Open(t.TempDir(), Options{FS: syncedFS{synced: &synced}, Boot: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.Undo(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	mark(t, u, 7, 0)
	synced = nil
	add(t, u, undoRecord(7, 1, 100))
	if len(synced) > 0 {
		t.Errorf("a write's record costs the sync of %v", synced)
	}
	cut := func(seq uint64) string {
		synced = nil
		r := undoRecord(7, seq, 0)
		r.Cut = true
		add(t, u, r)
		return strings.Join(synced, " ")
	}
	if got := cut(2); !strings.HasPrefix(got, "undo0 1.2/") {
		t.Errorf("the first cut syncs %q", got)
	}
	if got := cut(3); got != "undo0" {
		t.Errorf("the second cut syncs %q", got)
	}
	killStore(t, s, u)
}

// FuzzUndoLog: whatever is in the files, the log opens or says that it cannot, and what
// is written to it then is read again.
func FuzzUndoLog(f *testing.F) {
	frame := func(r *canopyv1.ShardUndo) []byte {
		b, err := r.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		out := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(b, castagnoli))
		return append(out, b...)
	}
	head := frame(&canopyv1.ShardUndo{Term: 7, Generation: 1, Boot: "boot"})
	newer := frame(&canopyv1.ShardUndo{Term: 7, Generation: 2, Boot: "boot", Floor: 1})
	record := frame(undoRecord(7, 1, 5000))
	undone := frame(&canopyv1.ShardUndo{Term: 7, Seq: 1, Undone: true})
	f.Add([]byte{}, []byte{}, false)
	f.Add(slices.Concat(head, record), []byte{}, false)
	f.Add(slices.Concat(head, record, undone), slices.Concat(newer, frame(undoRecord(7, 2, 10))), false)
	f.Add(slices.Concat(head, record[:len(record)-1]), newer, true)
	f.Add(slices.Concat(newer, head, frame(&canopyv1.ShardUndo{Term: 8, Seq: 3, Cut: true})), head, true)
	f.Add([]byte{0xff, 0xff, 0xff, 3, 0, 0, 0, 0}, []byte{8, 0, 0, 0}, false)
	dir := f.TempDir()
	s, err := Open(dir, Options{Boot: "boot"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	group := filepath.Join(dir, "pgs", "1.2")
	if err := os.MkdirAll(group, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, zero, one []byte, crashed bool) {
		for name, b := range map[string][]byte{"undo0": zero, "undo1": one} {
			if err := os.WriteFile(filepath.Join(group, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.crashed = crashed
		u, err := s.Undo(1, 2)
		if err != nil {
			return
		}
		term, _, open, _ := u.State()
		for _, r := range open {
			if got, err := u.Record(r.Seq); err != nil || got != nil && got.Seq != r.Seq {
				t.Errorf("change %d: %v, %v", r.Seq, got, err)
			}
		}
		if term == 1<<64-1 {
			u.Close()
			return
		}
		mark(t, u, term+1, 0)
		add(t, u, undoRecord(term+1, 77, 100))
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		s.crashed = false
		if u, err = s.Undo(1, 2); err != nil {
			t.Fatal(err)
		}
		if now, _, open, lost := u.State(); now != term+1 || len(open) != 1 || open[0].Seq != 77 || lost {
			t.Errorf("term %d after %d, open %v, lost %v", now, term, open, lost)
		}
		u.Close()
	})
}

// TestUndoLogTurns: the files do not grow for ever, and what is open is not lost when
// they take turns.
func TestUndoLogTurns(t *testing.T) {
	dir := t.TempDir()
	s, u := openUndo(t, dir, "boot")
	mark(t, u, 7, 0)
	const n = 1 << 20
	for seq := uint64(1); seq <= 30; seq++ {
		if seq > 2 {
			mark(t, u, 7, seq-2)
		}
		add(t, u, undoRecord(7, seq, n))
	}
	for _, f := range u.files {
		if f.size > undoTurn+2*n {
			t.Errorf("a file has %d bytes", f.size)
		}
	}
	killStore(t, s, u)
	s, u = openUndo(t, dir, "boot")
	if _, floor, open, _ := u.State(); floor != 28 || len(open) != 3 {
		t.Errorf("floor %d, %d open", floor, len(open))
	}
	killStore(t, s, u)
}
