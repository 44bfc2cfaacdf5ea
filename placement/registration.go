package placement

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
)

// Registration keeps one record under an etcd lease: the record goes when the
// process stops for longer than the lease's time, and comes back when etcd is
// there again. Safe for concurrent use.
type Registration struct {
	store  *Store
	key    string
	cancel context.CancelFunc
	done   chan struct{}
	update chan struct{}

	mu      sync.Mutex
	message proto.Message
	lease   clientv3.LeaseID // 0: none
}

func (s *Store) register(key string, message proto.Message) *Registration {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Registration{
		store: s, key: key, cancel: cancel, done: make(chan struct{}),
		update: make(chan struct{}, 1), message: proto.Clone(message),
	}
	go r.run(ctx)
	return r
}

// Update replaces the record.
func (r *Registration) Update(message proto.Message) {
	r.mu.Lock()
	r.message = proto.Clone(message)
	r.mu.Unlock()
	select {
	case r.update <- struct{}{}:
	default:
	}
}

// Close stops renewing and waits. It removes the record, unless ctx is done: then
// it goes when its lease runs out.
func (r *Registration) Close(ctx context.Context) {
	r.cancel()
	<-r.done
	r.mu.Lock()
	lease := r.lease
	r.mu.Unlock()
	if lease != 0 && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := r.store.client.Revoke(ctx, lease); err != nil {
			r.store.log.Warn("a registration could not be removed; it lapses", "key", r.key, "error", err)
		}
	}
}

// run makes the lease and the record, again and again when they are lost.
func (r *Registration) run(ctx context.Context) {
	defer close(r.done)
	wait := newBackoff()
	for ctx.Err() == nil {
		started := time.Now()
		err := r.hold(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > r.store.config.LeaseTTL {
			wait = newBackoff()
		}
		r.store.log.Warn("a registration was lost; making it anew", "key", r.key, "error", err)
		if !wait.sleep(ctx) {
			return
		}
	}
}

// hold keeps the record under one lease until the lease is lost.
func (r *Registration) hold(ctx context.Context) error {
	const op = "register"
	s := r.store
	var lease *clientv3.LeaseGrantResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		lease, err = s.client.Grant(ctx, int64(s.config.LeaseTTL/time.Second))
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.lease = lease.ID
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	put := func() error {
		r.mu.Lock()
		value := encode(r.message)
		r.mu.Unlock()
		return s.request(ctx, op, func(ctx context.Context) error {
			_, err := s.client.Put(ctx, r.key, string(value), clientv3.WithLease(lease.ID))
			return err
		})
	}
	if err := put(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-alive:
			if !ok {
				return context.DeadlineExceeded
			}
		case <-r.update:
			if err := put(); err != nil {
				return err
			}
		}
	}
}
