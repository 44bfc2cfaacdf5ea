package dataserver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// rawClient speaks to one data server without a library.
func rawClient(t *testing.T, s *testServer) *link.Link {
	t.Helper()
	l, err := link.New(link.Config{Address: s.address, Caller: func() wire.Caller { return wire.Caller{Client: 7} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// ring returns the keys in etcd.
func (c *testCluster) ring() *capability.Keyring {
	c.t.Helper()
	k, err := capability.NewKeyring(c.keys.Capabilities().Value)
	if err != nil {
		c.t.Fatal(err)
	}
	return k
}

// granted returns a capability as a metadata node signs it.
func (c *testCluster) granted(client, data uint64, rights capability.Rights) []byte {
	c.t.Helper()
	var s capability.Signer
	s.Update(c.ring(), time.Now())
	token, ok := s.Sign(client, data, rights, time.Now())
	if !ok {
		c.t.Fatal("nothing was signed")
	}
	return token[:]
}

// dataCalls is every call of the Data service's stream.
func dataCalls() map[string]*canopyv1.DataRequest {
	return map[string]*canopyv1.DataRequest{
		"write":        {Call: &canopyv1.DataRequest_Write{Write: &canopyv1.WriteCall{Crc32C: link.CRC(mem.BufferSlice{mem.SliceBuffer("evil")})}}},
		"read":         {Call: &canopyv1.DataRequest_Read{Read: &canopyv1.ReadCall{Length: 4096}}},
		"sync":         {Call: &canopyv1.DataRequest_Sync{Sync: &canopyv1.SyncCall{}}},
		"punch":        {Call: &canopyv1.DataRequest_Punch{Punch: &canopyv1.PunchCall{Length: 4096}}},
		"reserve":      {Call: &canopyv1.DataRequest_Reserve{Reserve: &canopyv1.ReserveCall{Length: 4096}}},
		"seek":         {Call: &canopyv1.DataRequest_Seek{Seek: &canopyv1.SeekCall{}}},
		"cut":          {SizeEpoch: 2, Cuts: []*canopyv1.Cut{{SizeEpoch: 2}}, Call: &canopyv1.DataRequest_Cut{Cut: &canopyv1.CutCall{}}},
		"delete":       {Call: &canopyv1.DataRequest_Delete{Delete: &canopyv1.DeleteCall{}}},
		"list columns": {Call: &canopyv1.DataRequest_ListColumns{ListColumns: &canopyv1.ListColumnsCall{}}},
		"fetch column": {Call: &canopyv1.DataRequest_FetchColumn{FetchColumn: &canopyv1.FetchColumnCall{Length: 4096}}},
		"block sums":   {Call: &canopyv1.DataRequest_BlockSums{BlockSums: &canopyv1.BlockSumsCall{Blocks: 1}}},
		"drop column":  {Call: &canopyv1.DataRequest_DropColumn{DropColumn: &canopyv1.DropColumnCall{}}},
		"in flight":    {Call: &canopyv1.DataRequest_InFlight{InFlight: &canopyv1.InFlightCall{}}},
		"condemn":      {Call: &canopyv1.DataRequest_Condemn{Condemn: &canopyv1.CondemnCall{}}},
	}
}

// TestEveryCallIsListed: dataCalls has all calls of the message, so that a new one
// is tested too.
func TestEveryCallIsListed(t *testing.T) {
	calls := (&canopyv1.DataRequest{}).ProtoReflect().Descriptor().Oneofs().ByName("call").Fields()
	seen := map[string]bool{}
	for _, r := range dataCalls() {
		seen[string(r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().ByName("call")).Name())] = true
	}
	for i := range calls.Len() {
		if name := string(calls.Get(i).Name()); !seen[name] {
			t.Errorf("call %s is not tested without a capability", name)
		}
	}
}

// TestNothingWithoutACapability: J4: a client without a capability, or with one
// that is not for what it asks, gets nothing from a data server by any call, over
// the network and within the process; nor does one that says that it is a server.
func TestNothingWithoutACapability(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 1, replicas: 1, pgs: 1})
	d := c.client(1)
	f := testFile(100)
	want := randomBytes(1, 100_000)
	mustWrite(t, d, f, want, 0)
	m, err := d.PoolMap(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	l := rawClient(t, c.servers[0])
	local := localServer{c.servers[0].server}
	ask := func(call *canopyv1.DataRequest, token []byte, fromPrimary, within bool) (fserr.Kind, int) {
		t.Helper()
		head := proto.CloneOf(call)
		head.Column = columnOf(chunkstore.Key{Pool: 1, Data: f.ID})
		head.PgEpoch, head.Client, head.Incarnation, head.Seq = m.Pools[0].Pgs[0].Epoch, 7, 1, 1
		head.FromPrimary, head.Capability = fromPrimary, token
		r := &link.Request{DataRequest: head}
		if head.GetWrite() != nil {
			r.Payload = mem.BufferSlice{mem.SliceBuffer("evil")}
		}
		var answer *link.Response
		var err error
		if within {
			answer, err = local.DoLocal(testContext(t), wire.Caller{Client: 7}, r)
		} else {
			answer, err = l.Do(testContext(t), r)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Free()
		return fserr.Kind(answer.Error), answer.Payload.Len() + len(answer.Columns)
	}
	forged := c.granted(7, 100, capability.Read|capability.Write)
	forged[len(forged)-1] ^= 1
	tokens := map[string][]byte{
		"none": nil, "nonsense": []byte("let me in"), "forged": forged,
		"of another client": c.granted(8, 100, capability.Read|capability.Write),
		"of another file":   c.granted(7, 101, capability.Read|capability.Write),
	}
	for name, call := range dataCalls() {
		for kind, token := range tokens {
			for _, fromPrimary := range []bool{false, true} {
				for _, within := range []bool{false, true} {
					if got, n := ask(call, token, fromPrimary, within); got != fserr.NoCapability || n != 0 {
						t.Errorf("%s, capability %s, as a server %v, within the process %v: kind %v, %d parts", name, kind, fromPrimary, within, got, n)
					}
				}
			}
		}
	}
	reader := c.granted(7, 100, capability.Read)
	for name, call := range dataCalls() {
		allowed := name == "read" || name == "sync" || name == "seek"
		if got, _ := ask(call, reader, false, false); (got == fserr.OK) != allowed || !allowed && got != fserr.NoCapability {
			t.Errorf("%s with a capability to read: %v", name, got)
		}
		if got, _ := ask(call, reader, true, false); got != fserr.NoCapability {
			t.Errorf("%s with a capability to read, as a server: %v", name, got)
		}
	}
	requireBytes(t, mustRead(t, d, f, len(want), 0), want, "after all that")
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.servers[0].server.metrics.refused)
	counted, err := registry.Gather()
	if err != nil || len(counted) != 1 || len(counted[0].Metric) != 4 { // missing, malformed, forged, not for this
		t.Errorf("refusals are counted as %v, %v", counted, err)
	}
}

// TestNoInspectionWithoutACapability: J4: what a server holds is for who may
// inspect it, by every call beside the stream.
func TestNoInspectionWithoutACapability(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 1, replicas: 1, pgs: 1})
	conn := canopyv1.NewDataClient(rawClient(t, c.servers[0]).Conn())
	calls := map[string]func(context.Context) error{
		"StatColumns": func(ctx context.Context) error {
			_, err := conn.StatColumns(ctx, &canopyv1.StatColumnsRequest{DataId: 1})
			return err
		},
		"ListData": func(ctx context.Context) error {
			s, err := conn.ListData(ctx, &canopyv1.ListDataRequest{})
			if err != nil {
				return err
			}
			for err == nil {
				_, err = s.Recv()
			}
			if fserr.KindOf(err) == fserr.NoCapability {
				return err
			}
			return nil
		},
		"RepairStatus": func(ctx context.Context) error {
			_, err := conn.RepairStatus(ctx, &canopyv1.RepairStatusRequest{})
			return err
		},
		"Access": func(context.Context) error { return fserr.NoCapability }, // TestNothingWithoutACapability
	}
	for _, m := range canopyv1.Data_ServiceDesc.Methods {
		if calls[m.MethodName] == nil {
			t.Errorf("%s is not tested without a capability", m.MethodName)
		}
	}
	for _, m := range canopyv1.Data_ServiceDesc.Streams {
		if calls[m.StreamName] == nil {
			t.Errorf("%s is not tested without a capability", m.StreamName)
		}
	}
	delete(calls, "Access")
	inspection := c.ring().Service(capability.Inspect)
	for name, call := range calls {
		for kind, token := range map[string][]byte{"none": nil, "of a client": c.granted(7, 1, capability.Read|capability.Write), "of a member": c.servers[0].server.guard.member()} {
			ctx := testContext(t)
			if token != nil {
				ctx = metadata.AppendToOutgoingContext(ctx, wire.MetadataCapability, string(token))
			}
			if err := call(ctx); fserr.KindOf(err) != fserr.NoCapability {
				t.Errorf("%s, capability %s: %v", name, kind, err)
			}
		}
		if err := call(metadata.AppendToOutgoingContext(testContext(t), wire.MetadataCapability, string(inspection[:]))); err != nil {
			t.Errorf("%s with a capability: %v", name, err)
		}
	}
}

// fileAccess grants what metadata nodes grant: for one file of one client, with what
// etcd says now. It counts how often a server refused.
type fileAccess struct {
	c            *testCluster
	client, data uint64
	token        atomic.Pointer[[]byte]
	refusals     *atomic.Int64
}

func (a *fileAccess) Capability(ctx context.Context, _ bool, refused []byte) ([]byte, error) {
	if last := a.token.Load(); last != nil && (refused == nil || string(refused) != string(*last)) {
		return *last, nil
	}
	if refused != nil {
		a.refusals.Add(1)
	}
	token := a.c.granted(a.client, a.data, capability.Read|capability.Write)
	a.token.Store(&token)
	return token, ctx.Err()
}

// TestRotationUnderLoad: J4: keys rotate with overlap, and are revoked, while files
// are written and read: no call fails, and who holds on to an old capability is made
// to get another.
func TestRotationUnderLoad(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 3, replicas: 2})
	var refusals atomic.Int64
	stop := make(chan struct{})
	var workers errgroup.Group
	var rounds [4]atomic.Int64
	for i := range rounds {
		client := uint64(i + 1)
		d := c.client(base.ClientID(client))
		f := testFile(base.DataID(100 + i))
		f.Access = &fileAccess{c: c, client: client, data: uint64(f.ID), refusals: &refusals}
		workers.Go(func() error {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				want := randomBytes(n, 300_000)
				if _, err := d.WriteAt(testContext(t), f, want, 0); err != nil {
					return err
				}
				got := make([]byte, len(want))
				if _, err := d.ReadAt(testContext(t), f, got, 0); err != nil {
					return err
				}
				if string(got) != string(want) {
					return errors.New("read something else than was written")
				}
				rounds[i].Add(1)
			}
		})
	}
	everybody := func(what string) {
		t.Helper()
		var before [4]int64
		for i := range rounds {
			before[i] = rounds[i].Load()
		}
		await.Until(t, 60*time.Second, "every writer goes on after "+what, func() bool {
			for i := range rounds {
				if rounds[i].Load() < before[i]+3 {
					return false
				}
			}
			return true
		})
	}
	rotate := func(revoke bool) {
		t.Helper()
		answer, err := c.layoutClient().Keys(testContext(t), &canopyv1.KeysRequest{Rotate: true, Revoke: revoke})
		if err != nil || answer.Error != 0 {
			t.Fatalf("rotate: %v, %v", answer, err)
		}
	}
	everybody("the start")
	rotate(false)
	everybody("a rotation")
	away := c.servers[2]
	away.stop() // it has not got the next keys when it comes back
	rotate(false)
	everybody("another")
	if n := refusals.Load(); n != 0 {
		t.Errorf("%d capabilities were refused though their keys overlap", n)
	}
	rotate(true)
	await.Until(t, 60*time.Second, "capabilities of the revoked keys are refused", func() bool { return refusals.Load() >= int64(len(rounds)) })
	everybody("the old keys were revoked")
	away.start()
	everybody("a server that was away came back")
	close(stop)
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestCapabilityEnds: J4: a capability ends when its time is over, by the time of
// the cluster and no clock of this machine, and its holder gets another; a member's
// own are renewed.
func TestCapabilityEnds(t *testing.T) {
	c := newCluster(t, clusterOptions{servers: 2, replicas: 2, pgs: 1, keyPeriod: time.Second})
	var refusals atomic.Int64
	d := c.client(7)
	f := testFile(100)
	f.Access = &fileAccess{c: c, client: 7, data: 100, refusals: &refusals}
	old := c.granted(7, 100, capability.Read)
	until := time.Now().Add(30 * time.Second)
	for n := uint64(0); refusals.Load() < 3; n++ {
		if time.Now().After(until) {
			t.Fatal("capabilities of past periods are accepted")
		}
		mustWrite(t, d, f, randomBytes(n, 10_000), 0)
	}
	k := c.ring()
	if err := k.Check(old, 7, 100, capability.Read); !errors.Is(err, capability.Expired) {
		t.Errorf("a capability of long ago: %v", err)
	}
	c.requireEqualReplicas(d, 2, f.ID)
}

// TestTombstonesOutliveCapabilities: H3: what was allowed before a file was deleted
// makes no column of it again: the tombstone is there for longer.
func TestTombstonesOutliveCapabilities(t *testing.T) {
	for _, period := range []time.Duration{capability.DefaultPeriod, capability.MaxPeriod} {
		if life := capability.MaxLife(period); life >= chunkstore.DefaultTombstoneTTL {
			t.Errorf("with periods of %v a capability can live for %v, a tombstone for %v", period, life, chunkstore.DefaultTombstoneTTL)
		}
	}
}
