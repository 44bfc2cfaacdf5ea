package dataserver

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// fullFS is the real file system with a disk that is full when the test says so.
type fullFS struct {
	chunkstore.OS
	fail atomic.Pointer[func(op, name string) error] // asked before what may need space
}

func (f *fullFS) set(fail func(op, name string) error) { f.fail.Store(&fail) }

func (f *fullFS) ask(op, name string) error {
	if fail := f.fail.Load(); fail != nil && *fail != nil {
		return (*fail)(op, name)
	}
	return nil
}

func (f *fullFS) OpenFile(name string, flag int) (chunkstore.File, error) {
	file, err := f.OS.OpenFile(name, flag)
	if err != nil || !strings.Contains(name, "/pgs/") {
		return file, err
	}
	return &fullFile{file, f, name}, nil
}

func (f *fullFS) Remove(name string) error {
	if err := f.ask("remove", name); err != nil {
		return err
	}
	return f.OS.Remove(name)
}

type fullFile struct {
	chunkstore.File
	fs   *fullFS
	name string
}

// WriteAt writes checksums and headers. One that sets a single checksum right after
// a failure finds its page there.
func (f *fullFile) WriteAt(p []byte, at int64) (int, error) {
	if len(p) > 8 {
		if err := f.fs.ask("entries", f.name); err != nil {
			return 0, err
		}
	}
	return f.File.WriteAt(p, at)
}

// WriteVec writes a part before it fails, by whole pages, as file systems do.
func (f *fullFile) WriteVec(parts [][]byte, at int64) error {
	if err := f.fs.ask("data", f.name); err != nil {
		all := slices.Concat(parts...)
		n := rand.IntN(len(all)/chunkstore.BlockBytes+1) * chunkstore.BlockBytes
		if at%chunkstore.BlockBytes != 0 {
			n = 0
		}
		return errors.Join(err, f.File.WriteVec([][]byte{all[:n]}, at))
	}
	return f.File.WriteVec(parts, at)
}

func noSpace() func(op, name string) error {
	return func(op, _ string) error {
		if op == "remove" {
			return nil
		}
		return syscall.ENOSPC
	}
}

// server returns the test server with the id.
func (c *testCluster) server(id uint64) *testServer {
	c.t.Helper()
	for _, s := range c.servers {
		if s.id == id {
			return s
		}
	}
	c.t.Fatalf("there is no server %d", id)
	return nil
}

// TestFullPrimaryEndsAmidRepair (PROTOCOLS J3): a write that does not fit on the
// primary is on the other member already. What that one has of the file besides is
// not touched while it is made as the primary is: the primary may end at any time,
// and then the other has the only copy of what was acknowledged.
func TestFullPrimaryEndsAmidRepair(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1, full: true})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 512<<10)
	mustWrite(t, d, f, want, 0)
	if err := d.Sync(testContext(t), f, nil); err != nil {
		t.Fatal(err)
	}
	pg := mapOf(t, d).Pools[0].Pgs[0]
	primary, other := c.server(pg.InSync[0]), c.server(pg.InSync[1])
	// The other's disk stops at the first sign that the column is being replaced.
	var stopped sync.Once
	gone := make(chan struct{})
	other.full.set(func(op, _ string) error {
		if op == "remove" {
			stopped.Do(func() { close(gone) })
		}
		return nil
	})
	primary.full.set(noSpace())
	if _, err := d.WriteAt(testContext(t), f, randomBytes(2, 256<<10), 512<<10); !errors.Is(err, fserr.NoSpace) {
		t.Fatalf("a write to a full primary: %v", err)
	}
	select {
	case <-gone:
		t.Error("the other member's column was removed while it was in sync")
	default:
	}
	primary.stop()
	c.waitMap(d, "the primary to be out", outOfSyncEverywhere(primary.id))
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "what was acknowledged before")
}

// TestAFailedWriteHasEnded (PROTOCOLS J3): when a write of several requests fails,
// none of them is still on its way: it would be made behind what is written there
// next.
func TestAFailedWriteHasEnded(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 1, replicas: 1, pgs: 1, full: true})
	d := c.client(1)
	f := testFile(100)
	mustWrite(t, d, f, randomBytes(1, 4096), 0)
	var n atomic.Int64
	held, goOn := make(chan struct{}), make(chan struct{})
	c.servers[0].full.set(func(op, _ string) error {
		if op != "data" {
			return nil
		}
		if n.Add(1) == 1 {
			close(held)
			<-goOn
			return nil
		}
		<-held
		return syscall.ENOSPC
	})
	done := make(chan error, 1)
	go func() {
		_, err := d.WriteAt(testContext(t), f, randomBytes(2, 1<<20), 0) // two requests
		done <- err
	}()
	sessions := &c.servers[0].server.group(keyAt(f)).sessions
	await.Until(t, patience, "the other request failed", func() bool {
		sessions.mu.Lock()
		defer sessions.mu.Unlock()
		s := sessions.clients[1]
		return s != nil && len(s.running) == 1 && len(s.done) > 0
	})
	for range 50 { // answers behind that one
		if _, err := d.Allocated(testContext(t), testFile(101)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Errorf("a request is under way, and the write has ended: %v", err)
		close(goOn)
		return
	default:
	}
	close(goOn)
	if err := <-done; !errors.Is(err, fserr.NoSpace) {
		t.Errorf("the write: %v", err)
	}
}

// TestFullPrimaryMendsWhoIsRecovered (PROTOCOLS J3): a member that is being recovered
// takes changes too. One that the primary has no space for is undone there as well,
// though the column was compared before.
func TestFullPrimaryMendsWhoIsRecovered(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1, full: true})
	d := c.client(1)
	pg := mapOf(t, d).Pools[0].Pgs[0]
	primary, other := c.server(pg.InSync[0]), c.server(pg.InSync[1])
	other.stop()
	var ids []base.DataID
	for id := base.DataID(100); id < 112; id++ {
		ids = append(ids, id)
		mustWrite(t, d, testFile(id), randomBytes(uint64(id), 64<<10), 0)
	}
	var mu sync.Mutex
	var compared []base.DataID
	held, goOn := make(chan struct{}), make(chan struct{})
	other.full.set(func(op, name string) error {
		if op != "data" {
			return nil
		}
		id, _, _ := strings.Cut(filepath.Base(name), ".")
		n, err := strconv.ParseUint(id, 16, 64)
		mu.Lock()
		wait := false
		if !slices.Contains(compared, base.DataID(n)) {
			compared = append(compared, base.DataID(n))
			wait = len(compared) == 7
		}
		mu.Unlock()
		if wait {
			close(held)
			<-goOn
		}
		return err
	})
	other.start()
	<-held
	primary.full.set(noSpace())
	mu.Lock()
	done := slices.Clone(compared[:6])
	mu.Unlock()
	for _, id := range done {
		if _, err := d.WriteAt(testContext(t), testFile(id), randomBytes(1, 64<<10), 0); !errors.Is(err, fserr.NoSpace) {
			t.Errorf("a write to a full primary: %v", err)
		}
	}
	primary.full.set(nil)
	close(goOn)
	c.waitMap(d, "all in sync", allInSync)
	c.requireEqualReplicas(d, 2, ids...)
}

// blockFile is a file and what each of its blocks may be: the writes that
// succeeded last, and those that failed since.
type blockFile struct {
	data.File
	allowed [][]uint64
}

const fileBlocks = 900 // 3.5 MiB: all columns

func newBlockFile(id base.DataID) *blockFile {
	b := &blockFile{File: testFile(id), allowed: make([][]uint64, fileBlocks)}
	for i := range b.allowed {
		b.allowed[i] = []uint64{0}
	}
	return b
}

// wrote notes a write of blocks [first, end) with a content.
func (b *blockFile) wrote(first, end int, content uint64, err error) {
	for i := first; i < end; i++ {
		if err == nil {
			b.allowed[i] = nil
		}
		b.allowed[i] = append(b.allowed[i], content)
	}
}

// check compares bytes that were read with what may be there.
func (b *blockFile) check(t testing.TB, p []byte) bool {
	for i := range b.allowed {
		block := p[i*chunkstore.BlockBytes : (i+1)*chunkstore.BlockBytes]
		content := binary.LittleEndian.Uint64(block)
		for at := 0; at < len(block); at += 8 {
			if got := binary.LittleEndian.Uint64(block[at:]); got != content {
				t.Errorf("file %d, block %d: %x at its begin, %x at %d", b.ID, i, content, got, at)
				return false
			}
		}
		if !slices.Contains(b.allowed[i], content) {
			t.Errorf("file %d, block %d is %x, and may be one of %x", b.ID, i, content, b.allowed[i])
			return false
		}
	}
	return true
}

func (b *blockFile) readAll(ctx context.Context, t testing.TB, d *data.Data) bool {
	p := make([]byte, fileBlocks*chunkstore.BlockBytes)
	_, err := d.ReadAt(ctx, b.File, p, 0)
	switch {
	case errors.Is(err, fserr.NoSpace):
		return true // a cut has to be completed first, and these disks refuse even what needs no space
	case err != nil:
		t.Errorf("file %d: read: %v", b.ID, err)
		return false
	}
	return b.check(t, p)
}

// history does random things to one file, as its only client.
func (b *blockFile) history(ctx context.Context, t testing.TB, d *data.Data, r *rand.Rand) (failed int) {
	content := uint64(b.ID) << 16
	for range 4 + r.IntN(12) {
		first := r.IntN(fileBlocks)
		end := min(fileBlocks, first+1+r.IntN(280))
		content++
		var err error
		switch r.IntN(10) {
		case 0, 1: // a truncation, of which the metadata service knows at once
			b.SizeEpoch++
			b.Cuts = append(b.Cuts, &canopyv1.Cut{SizeEpoch: b.SizeEpoch, Size: uint64(first) * chunkstore.BlockBytes})
			b.wrote(first, fileBlocks, 0, nil)
			if r.IntN(2) == 0 {
				if err = d.Cut(ctx, b.File); err == nil {
					b.Cuts = nil
				}
			}
		case 2:
			_, _, err = d.Punch(ctx, b.File, data.Range{Offset: int64(first) * chunkstore.BlockBytes, Length: int64(end-first) * chunkstore.BlockBytes})
			b.wrote(first, end, 0, err)
		case 3:
			if !b.readAll(ctx, t, d) {
				return failed
			}
		default:
			p := make([]byte, (end-first)*chunkstore.BlockBytes)
			for at := 0; at < len(p); at += 8 {
				binary.LittleEndian.PutUint64(p[at:], content)
			}
			_, err = d.WriteAt(ctx, b.File, p, int64(first)*chunkstore.BlockBytes)
			b.wrote(first, end, content, err)
		}
		if err != nil {
			failed++
			if ctx.Err() != nil {
				t.Errorf("file %d: %v", b.ID, err)
				return failed
			}
		}
	}
	b.readAll(ctx, t, d)
	return failed
}

// TestFullDiskHistories: many files are written, cut and punched while the disks of
// both data servers fail for want of space at random points, and the servers come
// and go. What is read is always the last write that succeeded, or one that failed
// since; in the end the members are equal.
func TestFullDiskHistories(t *testing.T) {
	histories := 60
	if n, err := strconv.Atoi(os.Getenv("CANOPY_HISTORIES")); err == nil {
		histories = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 4, full: true})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(histories)*2*time.Second)
	defer cancel()
	d := c.client(1)
	var next, failed atomic.Int64
	files := make([]*blockFile, histories)
	var writers sync.WaitGroup
	for w := range 4 {
		r := rand.New(rand.NewPCG(seed, uint64(w)))
		writers.Go(func() {
			for i := next.Add(1) - 1; i < int64(histories) && !t.Failed(); i = next.Add(1) - 1 {
				files[i] = newBlockFile(base.DataID(1000 + i))
				failed.Add(int64(files[i].history(ctx, t, d, r)))
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	c.trouble(rand.New(rand.NewPCG(seed, 99)), ended)
	for _, s := range c.servers {
		s.full.set(nil)
	}
	c.waitMap(d, "all in sync again", allInSync)
	for _, f := range files {
		if f != nil && !t.Failed() {
			f.readAll(ctx, t, d)
			c.requireEqualReplicas(d, 2, f.ID)
		}
	}
	t.Logf("%d histories, %d calls that failed", histories, failed.Load())
	if failed.Load() == 0 {
		t.Error("no call failed")
	}
}

// trouble makes disks full at random and restarts servers until the writers ended.
func (c *testCluster) trouble(r *rand.Rand, ended <-chan struct{}) {
	for n := 0; ; n++ {
		s := c.servers[r.IntN(len(c.servers))]
		switch r.IntN(4) {
		case 0:
			s.full.set(nil)
		case 1:
			s.full.set(noSpace())
		default:
			every := 2 + r.IntN(20)
			s.full.set(func(op, _ string) error {
				if op != "remove" && rand.IntN(every) == 0 {
					return syscall.ENOSPC
				}
				return nil
			})
		}
		if n%40 == 39 {
			s.full.set(nil)
			s.stop()
			s.start()
		}
		select {
		case <-ended:
			return
		case <-time.After(time.Duration(r.IntN(60)) * time.Millisecond):
		}
	}
}
