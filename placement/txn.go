package placement

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func idString(id uint64) string { return strconv.FormatUint(id, 10) }

// get reads one record, linearizably, into message. Revision 0: there is none.
func (s *Store) get(ctx context.Context, op, key string, message proto.Message) (Revision, error) {
	var answer *clientv3.GetResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		answer, err = s.client.Get(ctx, key)
		return err
	})
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(answer.Kvs[0].Value, message); err != nil {
		return 0, fmt.Errorf("placement: %s: record %s: %w", op, key, err)
	}
	return Revision(answer.Kvs[0].ModRevision), nil
}

// at is the condition that a record is still at a revision (0: does not exist).
func at(key string, revision Revision) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", int64(revision))
}

// write is one record to put in a transaction.
type write struct {
	key     string
	message proto.Message
}

// commit puts the records if all conditions hold, and returns the revision at
// which it did. ErrConflict: a condition does not hold, nothing was written. Any
// other error: it may or may not have been written.
func (s *Store) commit(ctx context.Context, op string, conditions []clientv3.Cmp, writes ...write) (Revision, error) {
	puts := make([]clientv3.Op, len(writes))
	values := make([][]byte, len(writes))
	for i, w := range writes {
		values[i] = encode(w.message)
		puts[i] = clientv3.OpPut(w.key, string(values[i]))
	}
	var answer *clientv3.TxnResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		answer, err = s.client.Txn(ctx).If(conditions...).Then(puts...).Commit()
		return err
	})
	if err != nil {
		return 0, err
	}
	if !answer.Succeeded {
		return 0, fmt.Errorf("%s: %w", op, ErrConflict)
	}
	for i, w := range writes {
		s.wrote(w.key, values[i], answer.Header.Revision)
	}
	return Revision(answer.Header.Revision), nil
}

// AllocateID returns an id of a kind ("node", "server", "layoutsvc") that was
// never given out before, from 1 (PROTOCOLS A7). A failed call may burn one.
func (s *Store) AllocateID(ctx context.Context, kind string) (uint64, error) {
	key, op := s.key("ids", kind), "allocate a "+kind+" id"
	wait := newBackoff()
	for {
		var answer *clientv3.GetResponse
		err := s.request(ctx, op, func(ctx context.Context) (err error) {
			answer, err = s.client.Get(ctx, key)
			return err
		})
		if err != nil {
			return 0, err
		}
		var last uint64
		var revision Revision
		if len(answer.Kvs) > 0 {
			revision = Revision(answer.Kvs[0].ModRevision)
			if last, err = strconv.ParseUint(string(answer.Kvs[0].Value), 10, 64); err != nil {
				return 0, fmt.Errorf("placement: record %s: %w", key, err)
			}
		}
		var done *clientv3.TxnResponse
		err = s.request(ctx, op, func(ctx context.Context) (err error) {
			done, err = s.client.Txn(ctx).If(at(key, revision)).Then(clientv3.OpPut(key, idString(last+1))).Commit()
			return err
		})
		if err != nil {
			return 0, err
		}
		if done.Succeeded {
			return last + 1, nil
		}
		if !wait.sleep(ctx) {
			return 0, ctx.Err()
		}
	}
}
