package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// checkIdentity refuses a store that this binary or node must not open, labels
// a new one, and begins the next incarnation, durably (PROTOCOLS A6).
func (s *Store) checkIdentity(o Options) error {
	format, labelled, err := s.nodeNumber(schema.NodeFormatKey())
	if err != nil {
		return err
	}
	if !labelled {
		if err := s.refuseForeignKeys(); err != nil {
			return err
		}
	} else if err := s.checkLabels(o, format); err != nil {
		return err
	}
	last, _, err := s.nodeNumber(schema.NodeIncarnationKey())
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	err = errors.Join(
		b.Set(schema.NodeFormatKey(), schema.EncodeUint64(FormatVersion), nil),
		b.Set(schema.NodeIdentityKey(), identity(o.Cluster, o.Node), nil),
		b.Set(schema.NodeIncarnationKey(), schema.EncodeUint64(last+1), nil),
		b.Commit(pebble.NoSync),
		s.db.Flush(),
	)
	if err != nil {
		return fmt.Errorf("store in %s: write the incarnation: %w", o.Dir, err)
	}
	s.incarnation = last + 1
	return nil
}

func (s *Store) checkLabels(o Options, format uint64) error {
	if format > FormatVersion {
		return fserr.New(fserr.NotSupported, "open store", fmt.Errorf(
			"the store in %s has format %d, newer than this binary's %d: run a newer binary", o.Dir, format, FormatVersion))
	}
	v, closer, err := s.db.Get(schema.NodeIdentityKey())
	if err != nil {
		return fmt.Errorf("store in %s: read the identity: %w", o.Dir, err)
	}
	cluster, node, err := parseIdentity(bytes.Clone(v))
	if err = errors.Join(err, closer.Close()); err != nil {
		return fmt.Errorf("store in %s: %w", o.Dir, err)
	}
	if cluster != o.Cluster {
		return fserr.New(fserr.WrongCluster, "open store", fmt.Errorf(
			"the store in %s belongs to cluster %q, not to %q", o.Dir, cluster, o.Cluster))
	}
	if node != o.Node {
		return fserr.New(fserr.WrongCluster, "open store", fmt.Errorf(
			"the store in %s belongs to node %s, not to node %s", o.Dir, node, o.Node))
	}
	return nil
}

// refuseForeignKeys is an error if a store without a label holds anything.
func (s *Store) refuseForeignKeys() error {
	r := reader{r: s.db}
	return r.Scan(nil, nil, func(key, _ []byte) (bool, error) {
		return false, fserr.New(fserr.NotSupported, "open store", fmt.Errorf(
			"%s holds keys but no format version: this is no Canopy store", s.dir))
	})
}

func (s *Store) nodeNumber(key []byte) (v uint64, found bool, err error) {
	r := reader{r: s.db}
	raw, found, err := r.Get(key)
	if err == nil && found {
		v, err = schema.DecodeUint64(raw)
	}
	return v, found, errors.Join(err, r.release())
}

func identity(cluster string, node base.NodeID) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(node)), cluster...)
}

func parseIdentity(b []byte) (cluster string, node base.NodeID, err error) {
	if len(b) < 8 {
		return "", 0, fmt.Errorf("an identity of %d bytes", len(b))
	}
	return string(b[8:]), base.NodeID(binary.BigEndian.Uint64(b)), nil
}
