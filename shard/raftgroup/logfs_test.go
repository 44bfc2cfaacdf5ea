package raftgroup

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/plugin/tan"
	"github.com/lni/dragonboat/v4/raftio"
	pb "github.com/lni/dragonboat/v4/raftpb"
	"github.com/lni/vfs"
)

func openTan(t *testing.T, dir string, fs config.IFS) raftio.ILogDB {
	t.Helper()
	logs := config.GetTinyMemLogDBConfig()
	logs.KVWriteBufferSize = 1 << 20
	db, err := tan.Factory.Create(config.NodeHostConfig{Expert: config.ExpertConfig{FS: fs, LogDB: logs}}, nil, []string{dir}, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func saveEntries(t *testing.T, db raftio.ILogDB, first, n uint64, size int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		cmd := make([]byte, size)
		cmd[0] = byte(i)
		err := db.SaveRaftState([]pb.Update{{
			ShardID: 1, ReplicaID: 1, State: pb.State{Term: 1, Vote: 1, Commit: i},
			EntriesToSave: []pb.Entry{{Index: i, Term: 1, Cmd: cmd}},
		}}, 1)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func wantEntries(t *testing.T, db raftio.ILogDB, first, n uint64) {
	t.Helper()
	ents, _, err := db.IterateEntries(nil, 0, 1, 1, first, n+1, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if uint64(len(ents)) != n+1-first {
		t.Fatalf("%d entries, want %d", len(ents), n+1-first)
	}
	for i, e := range ents {
		if e.Index != first+uint64(i) || e.Cmd[0] != byte(e.Index) {
			t.Fatalf("entry %d is index %d with %d", i, e.Index, e.Cmd[0])
		}
	}
}

// tan reads its log while it is being written ahead, and after a switch of files.
func TestLogFSHidesTheZeros(t *testing.T) {
	dir := t.TempDir()
	fs := newLogFS(nil)
	db := openTan(t, dir, fs)
	total := uint64(0)
	for _, step := range []struct {
		n    uint64
		size int
	}{{100, 100}, {20, 40 << 10}, {18, 4 << 20}, {10, 10}} {
		saveEntries(t, db, total+1, step.n, step.size)
		total += step.n
		wantEntries(t, db, total-3, total)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	fs.wait()
	db = openTan(t, dir, newLogFS(nil))
	wantEntries(t, db, 1, total)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A copy of the directory taken at any moment, as a crash leaves it, opens with
// every entry whose save returned before.
func TestLogSurvivesACrash(t *testing.T) {
	dir := t.TempDir()
	fs := newLogFS(nil)
	db := openTan(t, dir, fs)
	rng := rand.New(rand.NewPCG(1, 2))
	total := uint64(0)
	for round := range 6 {
		n := uint64(rng.IntN(40) + 1)
		saveEntries(t, db, total+1, n, rng.IntN(100<<10)+1)
		total += n
		crashed := filepath.Join(t.TempDir(), "tandb-parent")
		if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		tearTail(t, crashed, rng, round)
		if err := trimLogs(crashed, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		other := openTan(t, crashed, newLogFS(nil))
		wantEntries(t, other, 1, total)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	fs.wait()
}

// tearTail writes what a write in progress may leave behind the log's end.
func tearTail(t *testing.T, dir string, rng *rand.Rand, round int) {
	files, err := filepath.Glob(filepath.Join(dir, "tandb", "*", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	path := files[len(files)-1]
	s := tanScan{}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.f = f
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, rng.IntN(60<<10))
	switch round % 3 {
	case 0: // only zeros
		return
	case 1: // half a record: a sound header, a payload that did not arrive
		copy(garbage, []byte{1, 2, 3, 4, 100, 0, tanFull})
	case 2:
		for i := range garbage {
			garbage[i] = byte(rng.Uint32())
		}
	}
	if _, err := f.WriteAt(garbage, s.good); err != nil {
		t.Fatal(err)
	}
}

// A record damaged in the midst of the log is an error, not the log's end.
func TestDamagedLogIsRefused(t *testing.T) {
	dir := t.TempDir()
	fs := newLogFS(nil)
	db := openTan(t, dir, fs)
	saveEntries(t, db, 1, 8, 4<<20)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "tandb", "*", "*.log"))
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[4<<20] ^= 1
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := trimLogs(dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("a damaged log was cut")
	}
	if after, _ := os.ReadFile(files[0]); !bytes.Equal(after, b) {
		t.Fatal("a damaged log was changed")
	}
}

// What a writer in front of zeros sees: never a zero where it wrote.
func TestLogFileAgainstFiller(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tandb", "node-1-1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fs := newLogFS(nil)
	path := filepath.Join(dir, "000001.log")
	f, err := fs.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var want []byte
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && len(want) < 40<<20; {
		p := bytes.Repeat([]byte{byte(len(want)%250 + 1)}, rng.IntN(64<<10)+1)
		if _, err := f.Write(p); err != nil {
			t.Fatal(err)
		}
		want = append(want, p...)
		if rng.IntN(20) == 0 {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	fs.wait()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, want %d, equal %v, %v", len(got), len(want), bytes.Equal(got, want), err)
	}
}

// countingDB counts what tan is asked to save with a state that is new to it.
type countingDB struct {
	raftio.ILogDB
	last  pb.State
	syncs int
}

func (c *countingDB) SaveRaftState(updates []pb.Update, _ uint64) error {
	for _, u := range updates {
		if len(u.EntriesToSave) > 0 || u.State.Term != c.last.Term || u.State.Vote != c.last.Vote {
			c.syncs++ // as tan's db.write decides it
		}
		c.last = u.State
	}
	return nil
}

// An entry and the commit index behind it cost one flush.
func TestOneFlushPerEntry(t *testing.T) {
	c := &countingDB{}
	db := &logDB{ILogDB: c, arrived: func(_, _, _, _ uint64) {}, states: make(map[raftio.NodeInfo]pb.State)}
	save := func(u pb.Update) {
		t.Helper()
		u.ShardID, u.ReplicaID = 1, 1
		list := []pb.Update{u}
		if err := db.SaveRaftState(list, 1); err != nil {
			t.Fatal(err)
		}
		if list[0].State != u.State {
			t.Fatal("the caller's update was changed")
		}
	}
	save(pb.Update{State: pb.State{Term: 2, Vote: 1, Commit: 1}})
	c.syncs = 0
	for i := uint64(2); i < 12; i++ {
		save(pb.Update{EntriesToSave: []pb.Entry{{Index: i, Term: 2}}})
		save(pb.Update{State: pb.State{Term: 2, Vote: 1, Commit: i}})
		save(pb.Update{}) // messages only
	}
	if c.syncs != 10 {
		t.Fatalf("%d flushes for 10 entries", c.syncs)
	}
	save(pb.Update{State: pb.State{Term: 3, Vote: 2, Commit: 12}})
	if c.syncs != 11 {
		t.Fatal("a new vote was not flushed")
	}
}

// What comes of a snapshot is on its way to the disk when its chunk was taken: not
// all of it when the last was.
func TestChunksAreWrittenBack(t *testing.T) {
	fs := newLogFS(nil)
	var written []int64 // the file's size at each
	fs.writeBack = func(f vfs.File) error {
		info, err := f.Stat()
		if err == nil {
			written = append(written, info.Size())
		}
		return errors.Join(err, writeBack(f))
	}
	name := filepath.Join(t.TempDir(), "snapshot-0000000000000007.gbsnap")
	open := fs.Create
	for range 3 {
		f, err := open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		open = fs.OpenForAppend
	}
	if !slices.Equal(written, []int64{1000, 2000, 3000}) {
		t.Errorf("written back at sizes %v", written)
	}
}
