package raftgroup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// A snapshot stream:
//
//	header   magic, shard id, zeros up to snapshotHeaderBytes
//	records  uvarint length of key (never 0), of value; key; value; in key order
//	end      a zero byte, number of records (8 bytes), SHA-256 of all before it
//
// The header is long so that a stream is never mistaken for the shrunk file that
// Dragonboat leaves of an installed one (see checkLog).
const (
	snapshotMagic       = "CNPYSNP1"
	snapshotHeaderBytes = 512
	maxSnapshotKey      = 1 << 16
	maxSnapshotValue    = 64 << 20
)

var errBadSnapshot = errors.New("damaged snapshot stream")

// prepared is a snapshot between PrepareSnapshot and SaveSnapshot.
type prepared struct {
	snap     shard.Snapshot
	installs uint64
}

func isStopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

func writeSnapshot(w io.Writer, r shard.Reader, id base.ShardID, lo, hi []byte, stop <-chan struct{}) error {
	sum := sha256.New()
	bw := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<20)
	header := make([]byte, snapshotHeaderBytes)
	copy(header, snapshotMagic)
	binary.BigEndian.PutUint64(header[len(snapshotMagic):], uint64(id))
	if _, err := bw.Write(header); err != nil {
		return err
	}
	records := uint64(0)
	var head [2 * binary.MaxVarintLen64]byte
	err := r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if records++; records%1024 == 0 && isStopped(stop) {
			return false, sm.ErrSnapshotStopped
		}
		n := binary.PutUvarint(head[:], uint64(len(key)))
		n += binary.PutUvarint(head[n:], uint64(len(value)))
		for _, part := range [][]byte{head[:n], key, value} {
			if _, err := bw.Write(part); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	if _, err := bw.Write(binary.BigEndian.AppendUint64([]byte{0}, records)); err != nil {
		return err
	}
	if err := bw.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// hashReader hashes what is read through it.
type hashReader struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (h *hashReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.sum.Write(p[:n])
	return n, err
}

func (h *hashReader) ReadByte() (byte, error) {
	c, err := h.r.ReadByte()
	if err == nil {
		h.sum.Write([]byte{c})
	}
	return c, err
}

func readSnapshot(r io.Reader, id base.ShardID, lo, hi []byte, stop <-chan struct{}, set func(key, value []byte) error) error {
	h := &hashReader{bufio.NewReaderSize(r, 1<<20), sha256.New()}
	header := make([]byte, snapshotHeaderBytes)
	if _, err := io.ReadFull(h, header); err != nil {
		return fmt.Errorf("%w: header: %w", errBadSnapshot, err)
	}
	if got := binary.BigEndian.Uint64(header[len(snapshotMagic):]); !bytes.HasPrefix(header, []byte(snapshotMagic)) || got != uint64(id) {
		return fmt.Errorf("%w: not one of shard %s", errBadSnapshot, id)
	}
	var key, value, last []byte
	records := uint64(0)
	for {
		n, err := binary.ReadUvarint(h)
		if err != nil {
			return fmt.Errorf("%w: %w", errBadSnapshot, err)
		}
		if n == 0 {
			return endSnapshot(h, records)
		}
		if records++; records%1024 == 0 && isStopped(stop) {
			return sm.ErrSnapshotStopped
		}
		v, err := binary.ReadUvarint(h)
		if err != nil || n > maxSnapshotKey || v > maxSnapshotValue {
			return fmt.Errorf("%w: lengths %d and %d: %w", errBadSnapshot, n, v, err)
		}
		last = append(last[:0], key...)
		key, value = grow(key, n), grow(value, v)
		if _, err := io.ReadFull(h, key); err != nil {
			return fmt.Errorf("%w: %w", errBadSnapshot, err)
		}
		if _, err := io.ReadFull(h, value); err != nil {
			return fmt.Errorf("%w: %w", errBadSnapshot, err)
		}
		if bytes.Compare(key, last) <= 0 || bytes.Compare(key, lo) < 0 || bytes.Compare(key, hi) >= 0 {
			return fmt.Errorf("%w: key %s out of place", errBadSnapshot, schema.Format(key))
		}
		if err := set(key, value); err != nil {
			return err
		}
	}
}

func endSnapshot(h *hashReader, records uint64) error {
	var count [8]byte
	if _, err := io.ReadFull(h, count[:]); err != nil || binary.BigEndian.Uint64(count[:]) != records {
		return fmt.Errorf("%w: %d records, want %d", errBadSnapshot, records, binary.BigEndian.Uint64(count[:]))
	}
	want := h.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(h.r, got); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("%w: wrong checksum", errBadSnapshot)
	}
	return nil
}

func grow(b []byte, n uint64) []byte {
	if uint64(cap(b)) < n {
		return make([]byte, n)
	}
	return b[:n]
}
