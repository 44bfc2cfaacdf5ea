package chunkstore

import (
	"bytes"
	"os"
	"path/filepath"
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
