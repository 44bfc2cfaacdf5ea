package placement

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// maxTxnWrites keeps a transaction below etcd's limit of 128 operations.
const maxTxnWrites = 100

func (s *Store) poolKey(id base.PoolID) string { return s.key("pools", idString(uint64(id))) }

func (s *Store) pgKey(k PGKey) string {
	return s.key("pgs", idString(uint64(k.Pool)), idString(uint64(k.PG)))
}

// CreatePool creates a pool with its placement groups. The pool's record is
// written with the last of them, so that a pool is either absent or complete;
// ErrConflict: it exists. guard may be nil.
func (s *Store) CreatePool(ctx context.Context, guard *Leadership, pool *canopyv1.Pool) error {
	const op = "create a pool"
	id := base.PoolID(pool.Pool)
	absent := append(guard.guard(), at(s.poolKey(id), 0))
	head := proto.CloneOf(pool)
	head.Pgs = nil
	for rest := pool.Pgs; ; {
		n := min(len(rest), maxTxnWrites)
		var writes []write
		for _, pg := range rest[:n] {
			writes = append(writes, write{s.pgKey(PGKey{id, base.PGID(pg.Pg)}), pg})
		}
		if rest = rest[n:]; len(rest) == 0 {
			writes = append(writes, write{s.poolKey(id), head})
		}
		if _, err := s.commit(ctx, op, absent, writes...); err != nil || len(rest) == 0 {
			return err
		}
	}
}

// PutPool changes a pool's own record (placement groups in it are ignored) if it
// is at revision have, and returns its new revision. guard may be nil.
func (s *Store) PutPool(ctx context.Context, guard *Leadership, pool *canopyv1.Pool, have Revision) (Revision, error) {
	head := proto.CloneOf(pool)
	head.Pgs = nil
	key := s.poolKey(base.PoolID(pool.Pool))
	return s.commit(ctx, "change a pool", append(guard.guard(), at(key, have)), write{key, head})
}

// PutPG changes one placement group if it is at revision have, and returns its
// new revision (PROTOCOLS J3). guard may be nil. After an error other than
// ErrConflict the outcome is unknown: Sync and look.
func (s *Store) PutPG(ctx context.Context, guard *Leadership, pool base.PoolID, pg *canopyv1.PlacementGroup, have Revision) (Revision, error) {
	key := s.pgKey(PGKey{pool, base.PGID(pg.Pg)})
	return s.commit(ctx, "change a placement group", append(guard.guard(), at(key, have)), write{key, pg})
}

// PutServer changes the registration of a data server if it is at revision have
// (0: it is new), and returns its new revision. guard may be nil.
func (s *Store) PutServer(ctx context.Context, guard *Leadership, server *canopyv1.DataServerInfo, have Revision) (Revision, error) {
	key := s.key("servers", idString(server.Server))
	return s.commit(ctx, "change a data server's registration", append(guard.guard(), at(key, have)), write{key, server})
}

// DeleteServer removes the registration of a data server if it is at revision
// have. Data shows it when it returns. guard may be nil.
func (s *Store) DeleteServer(ctx context.Context, guard *Leadership, server base.NodeID, have Revision) error {
	const op = "remove a data server's registration"
	key := s.key("servers", idString(uint64(server)))
	var answer *clientv3.TxnResponse
	err := s.request(ctx, op, func(ctx context.Context) (err error) {
		answer, err = s.client.Txn(ctx).If(append(guard.guard(), at(key, have))...).Then(clientv3.OpDelete(key)).Commit()
		return err
	})
	switch {
	case err != nil:
		return err
	case !answer.Succeeded:
		return fmt.Errorf("%s: %w", op, ErrConflict)
	}
	return s.Sync(ctx)
}

// PutScrub changes what was asked of the scrub if that is at revision have (0: it
// never was asked anything). guard may be nil.
func (s *Store) PutScrub(ctx context.Context, guard *Leadership, state *canopyv1.ScrubState, have Revision) (Revision, error) {
	key := s.key("scrub")
	return s.commit(ctx, "change the scrub", append(guard.guard(), at(key, have)), write{key, state})
}

// PutScrubResult replaces what the last scrub of a placement group found. guard
// may be nil.
func (s *Store) PutScrubResult(ctx context.Context, guard *Leadership, result *canopyv1.ScrubResult) error {
	key := s.key("scrubs", idString(result.Pool), idString(uint64(result.Pg)))
	_, err := s.commit(ctx, "note a scrub's result", guard.guard(), write{key, result})
	return err
}
