package placement

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// probeInterval is how often etcd is asked whether it is there.
const probeInterval = 2 * time.Second

// errWatchEnded is returned when the watch channel was closed.
var errWatchEnded = errors.New("the watch ended")

// watchLoop follows all changes after revision until ctx is done. What ends a
// watch (compaction of what it needs, no leader, a closed connection) is followed
// by reading everything anew.
func (s *Store) watchLoop(ctx context.Context, revision int64) {
	defer close(s.done)
	wait := newBackoff()
	for {
		err := s.watch(ctx, revision)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("the watch of the placement map ended; reading it anew", "error", err)
		for {
			if !wait.sleep(ctx) {
				return
			}
			if revision, err = s.readAll(ctx); err == nil {
				break
			}
			s.setReachable(false, err)
		}
		s.setReachable(true, nil)
		wait = newBackoff()
	}
}

// watch applies the changes behind revision until the watch fails.
func (s *Store) watch(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := s.client.Watch(ctx, s.config.Prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	probe := time.NewTicker(jittered(probeInterval))
	defer probe.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case response, ok := <-changes:
			if !ok {
				return errWatchEnded
			}
			if err := response.Err(); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			s.mu.Lock()
			routing, data := s.mirror.apply(response.Events, response.Header.Revision)
			s.publishLocked(routing, data)
			s.mu.Unlock()
		case <-probe.C:
			s.probe(ctx)
		}
	}
}

// probe asks etcd for one key and records whether it answered.
func (s *Store) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	_, err := s.client.Get(ctx, s.key("cluster"))
	s.setReachable(err == nil, err)
}

func (s *Store) setReachable(reachable bool, err error) {
	if s.reachable.Swap(reachable) == reachable {
		return
	}
	if reachable {
		s.log.Info("etcd answers again")
	} else {
		s.log.Warn("etcd does not answer; the last known placement map is served", "error", err)
	}
}
