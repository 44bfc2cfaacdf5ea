package mds_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// cpuTime is what the process has used of processors: unlike the clock it does not
// count what other programs do meanwhile.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// round sends n operations in messages of batch, and waits for all answers.
func round(b *testing.B, stream grpc.BidiStreamingClient[canopyv1.OperateRequest, canopyv1.OperateResponse], n, batch int, op func() *canopyv1.Op) {
	slots, received := make(chan struct{}, benchDepth*batch), make(chan error, 1)
	go func() {
		for got := 0; got < n; {
			answer, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			for _, o := range answer.Outcomes {
				if len(o.Result) > 0 && o.Result[0] == 8 {
					received <- fmt.Errorf("an operation failed: %x", o.Result)
					return
				}
				<-slots
			}
			got += len(answer.Outcomes)
		}
		received <- nil
	}()
	for sent := 0; sent < n; {
		request := &canopyv1.OperateRequest{Shard: 1, Floor: 1}
		for range min(batch, n-sent) {
			o := op()
			request.Floor = max(request.Floor, o.Seq-min(o.Seq, 4000))
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
}

// BenchmarkHeat compares a node that counts with one that does not, by turns in one run:
// each iteration is a round of both. cpu-ratio and time-ratio are what the operations of
// a round take with counting, in processor time (client, node and log) and by the clock,
// over what they take without: the median over the rounds' pairs.
func BenchmarkHeat(b *testing.B) {
	const dirs = 2000
	for _, load := range []struct {
		name     string
		n, batch int
		op       func(k *caller, made []uint64, id uint64) *canopyv1.Op
	}{
		{"create", 4000, 32, func(k *caller, made []uint64, id uint64) *canopyv1.Op {
			return k.write(create(made[0], fmt.Sprint("n", id)))
		}},
		{"create/alone", 400, 1, func(k *caller, made []uint64, id uint64) *canopyv1.Op {
			return k.write(create(made[0], fmt.Sprint("a", id)))
		}},
		{"create/scattered", 4000, 32, func(k *caller, made []uint64, id uint64) *canopyv1.Op {
			return k.write(create(made[rand.IntN(dirs)], fmt.Sprint("s", id)))
		}},
		{"lookup", 20000, 32, func(_ *caller, made []uint64, _ uint64) *canopyv1.Op { return lookup(1, "d1") }},
		{"lookup/alone", 4000, 1, func(_ *caller, made []uint64, _ uint64) *canopyv1.Op { return lookup(1, "d1") }},
		{"lookup/scattered", 20000, 32, func(_ *caller, made []uint64, _ uint64) *canopyv1.Op {
			return lookup(made[rand.IntN(dirs)], "f")
		}},
		{"lookup/scattered/alone", 4000, 1, func(_ *caller, made []uint64, _ uint64) *canopyv1.Op {
			return lookup(made[rand.IntN(dirs)], "f")
		}},
	} {
		b.Run(load.name, func(b *testing.B) {
			c := newCluster(b, single, nil)
			k := c.caller(7).open(1)
			var made []uint64
			for i := range dirs {
				made = append(made, k.must(1, k.write(mkdir(1, fmt.Sprint("d", i)))).Attr.Ino)
			}
			var files []*canopyv1.Op
			for _, dir := range made {
				files = append(files, k.write(create(dir, "f")))
			}
			for _, answered := range k.send(c.nodes[0], 1, files...) {
				answer(b, answered)
			}
			stream, err := canopyv1.NewMetadataClient(connect(b, c.nodes[0].Addr())).Operate(k.context(b.Context()))
			if err != nil {
				b.Fatal(err)
			}
			var id uint64
			next := func() *canopyv1.Op {
				id++
				o := load.op(k, made, id)
				o.Id = id
				return o
			}
			round(b, stream, load.n, load.batch, next) // caches are warm
			var cpu, clock []float64
			for i := 0; b.Loop(); i++ {
				var cpuOf, clockOf [2]time.Duration
				for turn := range 2 {
					on := (i + turn) % 2
					c.nodes[0].SetHeat(on == 1)
					cpuBefore, before := cpuTime(b), time.Now()
					round(b, stream, load.n, load.batch, next)
					cpuOf[on], clockOf[on] = cpuTime(b)-cpuBefore, time.Since(before)
				}
				cpu = append(cpu, float64(cpuOf[1])/float64(cpuOf[0]))
				clock = append(clock, float64(clockOf[1])/float64(clockOf[0]))
			}
			slices.Sort(cpu)
			slices.Sort(clock)
			b.ReportMetric(cpu[len(cpu)/2], "cpu-ratio")
			b.ReportMetric(clock[len(clock)/2], "time-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
