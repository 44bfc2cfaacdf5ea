package link

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// stoppingServer refuses streams while it is stopping, and counts them.
type stoppingServer struct {
	canopyv1.UnimplementedDataServer
	stopping atomic.Bool
	streams  atomic.Int64
}

func (s *stoppingServer) Access(stream canopyv1.Data_AccessServer) error {
	s.streams.Add(1)
	if s.stopping.Load() {
		return fserr.New(fserr.NotReady, "data", errors.New("this server is stopping"))
	}
	for {
		r := &Request{}
		if err := stream.RecvMsg(r); err != nil {
			return err
		}
		if err := stream.SendMsg(&Response{DataResponse: &canopyv1.DataResponse{Id: r.Id}}); err != nil {
			return err
		}
	}
}

// TestReopenBacksOff: who calls without a pause does not cost a server that
// refuses a stream per call, and gets through soon after the server answers again.
func TestReopenBacksOff(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stoppingServer{}
	server := grpc.NewServer(wire.ServerOptions()...)
	canopyv1.RegisterDataServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	l, err := New(Config{Address: listener.Addr().String(), Caller: func() wire.Caller { return wire.Caller{} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ask := func() error {
		_, err := l.Do(t.Context(), &Request{DataRequest: &canopyv1.DataRequest{}})
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	s.stopping.Store(true)
	l.stream.cancel() // what the server's drain does to the stream
	began := time.Now()
	for time.Since(began) < reopenMax {
		if err := ask(); fserr.KindOf(err) != fserr.NotReady {
			t.Fatalf("while it is stopping: %v", err)
		}
	}
	// 1 at once, then after 10, 20, 40, 80, 160 and 250 ms at the least.
	if n := s.streams.Load() - 1; n > 8 {
		t.Errorf("%d streams were opened in %v", n, time.Since(began))
	}
	s.stopping.Store(false)
	for began = time.Now(); ask() != nil; {
		if time.Since(began) > 10*reopenMax {
			t.Fatal("it does not come back")
		}
	}
	if err := ask(); err != nil {
		t.Errorf("after it came back: %v", err)
	}
}
