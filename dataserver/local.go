package dataserver

import (
	"context"
	"errors"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/fserr"
)

// localServer is the data server as the other parts of its process reach it. The
// bounds on what runs are those of streams.
type localServer struct{ s *server }

// DoLocal implements link.Local.
func (l localServer) DoLocal(ctx context.Context, caller wire.Caller, r *link.Request) (*link.Response, error) {
	s := l.s
	if err := l.admit(caller); err != nil {
		r.Free()
		return nil, err
	}
	defer s.leave()
	in, size := s.intakeOf(r)
	if err := in.bytes.acquire(ctx, size); err != nil {
		r.Free()
		return nil, err
	}
	defer in.bytes.release(size)
	s.metrics.queued.Inc()
	defer s.metrics.queued.Dec()
	under := s.ctx
	if r.GetRead() != nil {
		under = ctx
	}
	return s.work(ctx, under, in, r), nil
}

// admit counts a request in, which s.leave ends.
func (l localServer) admit(caller wire.Caller) error {
	s := l.s
	if own := s.store.Identity().Cluster; caller.Cluster != "" && own != "" && caller.Cluster != own {
		return &fserr.Error{Kind: fserr.WrongCluster, Op: "data", Path: "cluster " + caller.Cluster}
	}
	if !s.enter() {
		return fserr.New(fserr.NotReady, "data", errors.Join(link.ErrBroken, errors.New("this server is stopping")))
	}
	return nil
}
