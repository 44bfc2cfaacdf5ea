package client

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// instantNode answers every operation at once with the same result, so that a
// benchmark measures the client and the stream.
type instantNode struct {
	fakeNode
	result []byte
}

func (n *instantNode) Operate(stream grpc.BidiStreamingServer[canopyv1.OperateRequest, canopyv1.OperateResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil
		}
		response := &canopyv1.OperateResponse{Outcomes: make([]*canopyv1.Outcome, len(request.Ops))}
		for i, op := range request.Ops {
			response.Outcomes[i] = &canopyv1.Outcome{Id: op.Id, Result: n.result}
		}
		if err := stream.Send(response); err != nil {
			return nil
		}
	}
}

func newInstant(b *testing.B) *Client {
	f := newFake(b, 1)
	n := &instantNode{fakeNode: fakeNode{c: f, id: 1}}
	attr := func(ino uint64, mode uint32) *Attr {
		return &Attr{Ino: ino, Mode: mode, Nlink: 1, MtimeNs: 1, CtimeNs: 1, AtimeNs: 1, BtimeNs: 1, Version: 1, SizeEpoch: 1, DataId: ino, Subtree: 1, Epoch: 1,
			Layout: &canopyv1.Layout{Pool: 1, Components: []*canopyv1.LayoutComponent{{StripeBytes: 1 << 20, StripeCount: 1}, {Offset: 1 << 20, StripeBytes: 1 << 20, StripeCount: 3}}}}
	}
	var err error
	n.result, err = (&canopyv1.Result{Attr: attr(1<<44|1, syscall.S_IFREG|0o644), DirAttr: attr(1, syscall.S_IFDIR|0o755)}).MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	f.nodes[0].stop()
	n.address = f.nodes[0].address
	n.listenAs(n)
	f.nodes[0].server, f.nodes[0].done = n.server, n.done
	return f.connect(b, newMemData())
}

func benchmark(b *testing.B, callers int, op func(c *Client, i int64) error) {
	c := newInstant(b)
	if err := op(c, 0); err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	defer func() { b.ReportMetric(float64(cpu(b)-before)/1e3/float64(b.N), "cpu-us/op") }()
	for range callers {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := op(c, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// cpu returns the processor time of this process, in nanoseconds: of the client
// and of the node that answers.
func cpu(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkCreate(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			benchmark(b, callers, func(c *Client, i int64) error {
				made, err := c.Create(b.Context(), root, c.Root(), fmt.Sprint("file-", i), 0o644, syscall.O_WRONLY)
				if err != nil {
					return err
				}
				made.Inode.Release()
				return made.File.Close(b.Context())
			})
		})
	}
}

func BenchmarkGetAttr(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			benchmark(b, callers, func(c *Client, i int64) error {
				_, err := c.GetAttr(b.Context(), root, c.Root())
				return err
			})
		})
	}
}
