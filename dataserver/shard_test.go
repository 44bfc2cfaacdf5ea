package dataserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// TestShards: what is written in an erasure coded pool is read back, with all servers
// and with as many down as there are parity shards; what is recovered is right.
func TestShards(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 6, replicas: 1, data: 4, parity: 2, pgs: 2})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 3<<20+12345)
	if allocated := mustWrite(t, d, f, want, 0); allocated != 3<<20+16384 {
		t.Errorf("%d bytes allocated", allocated)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "all there")
	copy(want[5000:], "here")
	if allocated := mustWrite(t, d, f, []byte("here"), 5000); allocated != 0 {
		t.Errorf("%d bytes allocated by an overwrite", allocated)
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after a small write")
	c.requireWholeRows(d)
	for _, s := range c.servers[:2] {
		s.stop()
		c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(s.id))
		requireBytes(t, mustRead(t, d, f, len(want), 0), want, "degraded")
		copy(want[1<<20+77:], randomBytes(2, 100000))
		mustWrite(t, d, f, want[1<<20+77:1<<20+100077], 1<<20+77)
		requireBytes(t, mustRead(t, d, f, len(want), 0), want, "degraded, after a write")
	}
	for _, s := range c.servers[:2] {
		s.start()
	}
	c.waitMap(d, "all in sync", allInSync)
	c.requireWholeRows(d)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after recovery")
	for _, s := range c.servers[2:4] {
		s.stop()
		c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(s.id))
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "from what was recovered")
}

// makeShardPool makes the erasure coded pool, number 2.
func (c *testCluster) makeShardPool() {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+c.layAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	await.Nil(c.t, 20*time.Second, "the pool", func() error {
		answer, err := canopyv1.NewLayoutServiceClient(conn).EnsurePool(testContext(c.t), &canopyv1.EnsurePoolRequest{
			Redundancy: &canopyv1.Redundancy{Data: uint32(c.options.data), Parity: uint32(c.options.parity)},
		})
		if err == nil && answer.Error != 0 {
			err = errors.New(answer.Detail)
		}
		return err
	})
}

func shardFile(id base.DataID) data.File { return data.File{ID: id, Layout: stripe.Default(2)} }

func shardPool(m *canopyv1.PoolMap) *canopyv1.Pool {
	for _, p := range m.Pools {
		if p.Pool == 2 {
			return p
		}
	}
	return nil
}

// requireWholeRows reads all shards of all columns from the servers' disks: every row
// is one codeword, on every member.
func (c *testCluster) requireWholeRows(d *data.Data) {
	c.t.Helper()
	m, err := d.PoolMap(testContext(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	servers := map[uint64]*server{}
	for _, s := range c.servers {
		servers[s.id] = s.server
	}
	for _, pg := range shardPool(m).Pgs {
		keys := map[chunkstore.Key]bool{}
		groups := map[uint64]*group{}
		for _, id := range pg.Members {
			groups[id] = servers[id].group(chunkstore.Key{Pool: 2, PG: base.PGID(pg.Pg)})
			have, err := servers[id].store.Keys(2, base.PGID(pg.Pg))
			if err != nil {
				c.t.Fatal(err)
			}
			for _, key := range have {
				keys[key] = !servers[id].store.Deleted(key)
			}
		}
		for key, lives := range keys {
			if lives {
				c.requireWholeColumn(pg, groups, key)
			}
		}
	}
}

func (c *testCluster) requireWholeColumn(pg *canopyv1.PlacementGroup, groups map[uint64]*group, key chunkstore.Key) {
	c.t.Helper()
	code := groups[pg.Members[0]].code
	epochs := map[uint64]int{}
	rows := uint64(0)
	for _, id := range pg.Members {
		size, epoch, err := groups[id].s.store.Size(key)
		if err != nil {
			c.t.Fatal(err)
		}
		epochs[epoch]++
		rows = max(rows, size/erasure.BlockBytes)
	}
	if len(epochs) != 1 {
		c.t.Errorf("%s has size epochs %v", key, epochs)
	}
	for first := uint64(0); first < rows; first += mendRows {
		var ids []base.NodeID
		var got []*shardRows
		for _, id := range pg.Members {
			r, err := groups[id].readShard(key, shardOf(pg, id), first, mendRows, true, true)
			if err != nil {
				c.t.Fatal(err)
			}
			ids, got = append(ids, base.NodeID(id)), append(got, r)
		}
		v := newView(code, pg, ids, nil, got)
		for row := range mendRows {
			verdict := v.judge(row)
			if verdict.Lost || len(verdict.Wrong) > 0 {
				c.t.Fatalf("%s, row %d: %+v", key, first+uint64(row), verdict)
			}
			if !c.parityFits(v, row, verdict) {
				c.t.Fatalf("%s, row %d: the parity blocks are not of the data", key, first+uint64(row))
			}
		}
	}
}

// parityFits encodes a row anew.
func (c *testCluster) parityFits(v *view, row int, verdict erasure.Verdict) bool {
	set, _ := newRowSet(v.code, 0, 1)
	for _, m := range v.members {
		if !v.code.IsParity(m.shard) {
			copy(set.blocks[m.shard], block(m.rows.data, row))
			set.sums[m.shard][0] = m.rows.sums[row]
		}
	}
	parity, _, err := set.encode(v.code)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, m := range v.members {
		if v.code.IsParity(m.shard) && !slices.Equal(parity[m.shard-v.code.Data()], block(m.rows.data, row)) {
			return false
		}
	}
	return true
}

// shardModel is a file and what it has to be.
type shardModel struct {
	t     *testing.T
	d     *data.Data
	f     data.File
	want  []byte // up to modelBytes
	r     *rand.Rand
	cuts  uint64
	steps int
}

const modelBytes = 1 << 20

// try repeats what fails while too few servers are there.
func (m *shardModel) try(what string, do func(ctx context.Context) error) {
	m.t.Helper()
	await.Nil(m.t, 60*time.Second, what, func() error { return do(testContext(m.t)) })
}

func (m *shardModel) step() {
	m.steps++
	off := m.r.Int64N(modelBytes)
	n := m.r.Int64N([]int64{10, 5000, 20000, 200000}[m.r.IntN(4)]) + 1
	if m.r.IntN(3) == 0 {
		off -= off % 4096
	}
	n = min(n, modelBytes-off)
	switch m.r.IntN(10) {
	case 0:
		m.cut(off)
	case 1:
		clear(m.want[off : off+n])
		m.try("punch", func(ctx context.Context) error {
			_, _, err := m.d.Punch(ctx, m.f, data.Range{Offset: off, Length: n})
			return err
		})
	case 2:
		m.try("reserve", func(ctx context.Context) error {
			_, _, err := m.d.Reserve(ctx, m.f, data.Range{Offset: off, Length: n})
			return err
		})
	case 3, 4:
		got := make([]byte, n)
		m.try("read", func(ctx context.Context) error { _, err := m.d.ReadAt(ctx, m.f, got, off); return err })
		requireBytes(m.t, got, m.want[off:off+n], fmt.Sprintf("step %d: read [%d, +%d)", m.steps, off, n))
	default:
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(m.r.Uint32())
		}
		copy(m.want[off:], p)
		m.try("write", func(ctx context.Context) error { _, err := m.d.WriteAt(ctx, m.f, p, off); return err })
	}
}

// cut cuts the file, under a new size epoch; half of the time the servers are told with
// the next request alone.
func (m *shardModel) cut(size int64) {
	m.cuts++
	m.f.SizeEpoch = m.cuts
	m.f.Cuts = append(slices.Clone(m.f.Cuts), &canopyv1.Cut{SizeEpoch: m.cuts, Size: uint64(size)})
	clear(m.want[size:])
	if m.r.IntN(2) == 0 {
		m.try("cut", func(ctx context.Context) error { return m.d.Cut(ctx, m.f) })
		m.f.Cuts = nil
	}
}

func (m *shardModel) check(what string) {
	m.t.Helper()
	got := make([]byte, modelBytes)
	m.try("read", func(ctx context.Context) error { _, err := m.d.ReadAt(ctx, m.f, got, 0); return err })
	requireBytes(m.t, got, m.want, what)
}

func modelSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("CANOPY_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("CANOPY_TEST_SEED=%d", seed)
	return seed
}

// shardHistory is a random history of one cluster.
type shardHistory struct {
	c      *testCluster
	r      *rand.Rand
	models []*shardModel
}

// round kills servers amid changes and starts them again. The first to be hit loses
// power too, if that takes nothing that was promised to be kept.
func (h *shardHistory) round(what string, hit []int) {
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for _, m := range h.models {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					m.step()
				}
			}
		})
	}
	for range 20 + h.r.IntN(30) {
		time.Sleep(10 * time.Millisecond) // let changes be under way; nothing hangs on how many
	}
	for _, n := range hit {
		h.c.servers[n].kill(false)
	}
	h.losePower(hit)
	h.c.startAll()
	close(stop)
	for _, pg := range h.c.shardGroups() {
		if pg.LossEpoch != 0 {
			h.c.t.Errorf("%s: a loss is recorded: %v", what, pg)
		}
	}
	writers.Wait()
	for _, m := range h.models {
		m.check(what)
	}
}

// losePower makes the first of those that were killed lose power, if the promise holds
// then: K members in sync have everything without it. Who is out of sync does not count;
// who is killed has lost nothing. Unless nobody else is missing, or may soon be, that is
// asked when the layout service does not take the first for alive any more: until then it
// may take out another one instead.
func (h *shardHistory) losePower(hit []int) {
	first := h.c.servers[hit[0]]
	killed := time.Now()
	if !h.c.spares(hit, 1) {
		await.Until(h.c.t, time.Minute, "it is not taken for alive", func() bool { return time.Since(killed) > h.c.options.lease/2 })
		if !h.c.spares(hit[:1], 0) {
			return
		}
	}
	first.losePower()
}

// shardGroups returns the groups of the erasure coded pool, as they are in etcd now.
func (c *testCluster) shardGroups() (groups []*canopyv1.PlacementGroup) {
	c.t.Helper()
	if err := c.keys.Sync(testContext(c.t)); err != nil {
		c.t.Fatal(err)
	}
	for key, pg := range c.keys.Data().PGs {
		if key.Pool == 2 {
			groups = append(groups, pg.Value)
		}
	}
	return groups
}

// spares reports whether the members in sync have everything without some servers, and
// without any other ones besides.
func (c *testCluster) spares(servers []int, others int) bool {
	for _, pg := range c.shardGroups() {
		left := proto.CloneOf(pg)
		left.InSync = slices.DeleteFunc(left.InSync, func(id uint64) bool {
			return slices.ContainsFunc(servers, func(n int) bool { return c.servers[n].id == id })
		})
		if inSyncShards(left) < c.options.data+others {
			return false
		}
	}
	return true
}

// TestShardModel: random changes of a file, with servers that are killed, that lose
// power one at a time, and that are killed all at once, amid writes. At every time the file
// is what it has to be, and in the end every row is whole on every server. With
// CANOPY_HISTORIES it has that many rounds.
func TestShardModel(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 6, replicas: 1, data: 4, parity: 2, pgs: 2, power: true, lease: 2 * time.Second})
	r := rand.New(rand.NewPCG(modelSeed(t), 1))
	h := &shardHistory{c: c, r: r}
	for i := range 2 {
		h.models = append(h.models, &shardModel{
			t: t, d: c.client(base.ClientID(i + 1)), f: shardFile(base.DataID(100 + i)), want: make([]byte, modelBytes),
			r: rand.New(rand.NewPCG(r.Uint64(), 2)),
		})
	}
	rounds := 6
	if n, err := strconv.Atoi(os.Getenv("CANOPY_HISTORIES")); err == nil {
		rounds = n
	}
	for round := range rounds {
		hit := r.Perm(6)
		if round < rounds-1 {
			hit = hit[:1+r.IntN(3)]
		}
		h.round(fmt.Sprintf("round %d", round), hit)
	}
	c.waitMap(h.models[0].d, "all in sync", allInSync)
	for _, m := range h.models {
		m.check("in the end")
	}
	c.requireWholeRows(h.models[0].d)
}

// TestTooFewShards: with more servers down than there are parity shards nothing is
// answered, and nothing lost: when one is back everything acknowledged is there.
func TestTooFewShards(t *testing.T) {
	t.Parallel() // most of it is waiting
	c := newCluster(t, clusterOptions{servers: 6, replicas: 1, data: 4, parity: 2, pgs: 1, power: true})
	d := c.client(1)
	f := shardFile(100)
	want := randomBytes(1, 1<<20)
	mustWrite(t, d, f, want, 0)
	for _, s := range c.servers[1:3] {
		s.kill(false)
		c.waitMap(d, "the server to be out of sync", outOfSyncEverywhere(s.id))
	}
	copy(want[12345:], randomBytes(2, 54321))
	mustWrite(t, d, f, want[12345:12345+54321], 12345)
	c.servers[3].kill(false)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	if _, err := d.WriteAt(ctx, f, []byte("never"), 1<<19); err == nil {
		t.Error("a write is acknowledged that too few have")
	}
	ctx, cancel = context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := d.ReadAt(ctx, f, make([]byte, len(want)), 0); err == nil || errors.Is(err, fserr.IO) {
		t.Errorf("a read with too few shards: %v", err)
	}
	c.servers[3].start()
	copy(want[1<<19:], "never") // it may be there or not: it was not acknowledged
	mustWrite(t, d, f, []byte("never"), 1<<19)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "when the third is back")
	c.startAll()
	c.waitMap(d, "all in sync", allInSync)
	c.requireWholeRows(d)
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "when all are back")
}
