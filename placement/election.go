package placement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Leadership is a won election. Done is closed when it may be lost; writes that
// name it as their guard are refused by etcd once it is.
type Leadership struct {
	session  *concurrency.Session
	election *concurrency.Election
}

// Campaign waits until this caller leads the services of a kind. value (an
// address, say) is what Leader tells others. Cancelling ctx gives up. While etcd
// is away it returns an error of kind NotReady: try again after a while.
func (s *Store) Campaign(ctx context.Context, kind, value string) (*Leadership, error) {
	op := "campaign for the lead of " + kind
	var lease *clientv3.LeaseGrantResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		lease, err = s.client.Grant(ctx, int64(s.config.LeaseTTL/time.Second))
		return err
	})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(s.client, concurrency.WithLease(lease.ID))
	if err != nil {
		return nil, fserr.New(fserr.NotReady, op, err)
	}
	election := concurrency.NewElection(session, s.key("election", kind))
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(session.Ctx(), cancel)
	defer stop()
	if err := election.Campaign(wait, value); err != nil {
		l := &Leadership{session: session}
		l.close(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fserr.New(fserr.NotReady, op, fmt.Errorf("etcd at %s: %w", strings.Join(s.config.Endpoints, ","), err))
	}
	return &Leadership{session: session, election: election}, nil
}

// Done is closed when the leadership is lost or its lease could not be renewed
// in time.
func (l *Leadership) Done() <-chan struct{} { return l.session.Done() }

// Resign gives the lead up and waits, about a second at most if etcd is away.
func (l *Leadership) Resign(ctx context.Context) { l.close(ctx) }

// close ends the session's lease, and with it the leadership.
func (l *Leadership) close(ctx context.Context) {
	l.session.Orphan()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = l.session.Client().Revoke(ctx, l.session.Lease()) // if it fails, the lease runs out
}

// EndLeadership ends what a candidate with this value left of an election: it is
// for who knows that the candidate's process is dead, and would wait for its lease
// otherwise.
func (s *Store) EndLeadership(ctx context.Context, kind, value string) error {
	return s.request(ctx, "end an earlier lead of "+kind, func(ctx context.Context) error {
		answer, err := s.client.Get(ctx, s.key("election", kind)+"/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range answer.Kvs {
			if string(kv.Value) != value || kv.Lease == 0 {
				continue
			}
			if _, err := s.client.Revoke(ctx, clientv3.LeaseID(kv.Lease)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return err
			}
		}
		return nil
	})
}

// guard is the condition that the leadership stands.
func (l *Leadership) guard() []clientv3.Cmp {
	if l == nil {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(l.election.Key()), "=", l.election.Rev())}
}

// Leader returns the value of the present leader of a kind, "" if there is none.
func (s *Store) Leader(ctx context.Context, kind string) (string, error) {
	var answer *clientv3.GetResponse
	err := s.request(ctx, "ask who leads "+kind, func(ctx context.Context) (err error) {
		answer, err = s.client.Get(ctx, s.key("election", kind)+"/", clientv3.WithFirstCreate()...)
		return err
	})
	if err != nil || len(answer.Kvs) == 0 {
		return "", err
	}
	return string(answer.Kvs[0].Value), nil
}

// IsConflict tells whether a write failed because the record, or the caller's
// leadership, is not what it was.
func IsConflict(err error) bool { return errors.Is(err, ErrConflict) }
