package mds_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// benchBatch is how many operations go into one message, and benchDepth how many
// messages are in flight.
const (
	benchBatch = 32
	benchDepth = 4
)

// benchmarkOperate drives one stream of one client with batches; its figures are
// those of a node and a client in one process.
func benchmarkOperate(b *testing.B, op func(k *caller, i int) *canopyv1.Op) {
	c := newCluster(b, single, nil)
	k := c.caller(7).open(1)
	k.must(1, k.write(create(1, "file")))
	c.keys().put(1)
	eventually(b, "the node has a key of capabilities", func() bool { return k.must(1, lookup(1, "file")).Capability != nil })
	stream, err := canopyv1.NewMetadataClient(connect(b, c.nodes[0].Addr())).Operate(k.context(b.Context()))
	if err != nil {
		b.Fatal(err)
	}
	var failed atomic.Int64
	slots := make(chan struct{}, benchDepth*benchBatch)
	received := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		for got := 0; got < b.N; {
			answer, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			for _, o := range answer.Outcomes {
				if len(o.Result) > 0 && o.Result[0] == 8 {
					failed.Add(1)
				}
				<-slots
			}
			got += len(answer.Outcomes)
		}
		received <- nil
	}()
	for sent := 0; sent < b.N; {
		request := &canopyv1.OperateRequest{Shard: 1, Floor: uint64(max(sent-4000, 1))}
		for range min(benchBatch, b.N-sent) {
			o := op(k, sent)
			o.Id = uint64(sent + 1)
			request.Ops = append(request.Ops, o)
			slots <- struct{}{}
			sent++
		}
		if err := stream.Send(request); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-received; err != nil {
		b.Fatal(err)
	}
	if n := failed.Load(); n > 0 {
		b.Fatalf("%d of %d operations failed", n, b.N)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkLookup(b *testing.B) {
	benchmarkOperate(b, func(*caller, int) *canopyv1.Op { return lookup(1, "file") })
}

func BenchmarkCreate(b *testing.B) {
	benchmarkOperate(b, func(k *caller, i int) *canopyv1.Op { return k.write(create(1, fmt.Sprint("n", i))) })
}
