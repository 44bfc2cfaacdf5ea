// Package erasure is the arithmetic of erasure coded columns: where a byte lies,
// how parity is made and blocks are made anew, and which of several members'
// blocks belong together. It is pure: blocks come in and go out as memory.
//
// A column is cut into rows of k blocks. Block i of row r is block r of data shard
// i; each of the m parity shards has one block per row. So block r of any k shards
// gives all of row r.
//
// A parity shard also keeps, per row, an Entry: the checksums of the k data blocks
// that its block was made of, and of its own block. It binds the row together: k
// blocks are used as one codeword only if the entries say that they are one, so
// that what a crash mixed, or a disk lost, is found and never decoded to wrong
// bytes. Its shard file has the blocks of 64 rows, then one block of their entries,
// and so on. 0 is the checksum of a hole, whose bytes are zeros in the code.
package erasure

import (
	"fmt"

	"github.com/klauspost/reedsolomon"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// Sizes in bytes, rows and shards.
const (
	BlockBytes = 4096
	EntryBytes = 64
	GroupRows  = BlockBytes / EntryBytes // rows whose entries are in one block

)

// An entry has room for the sums of all data blocks and its own.
var _ [EntryBytes - 4*(stripe.MaxData+1)]struct{}

// Code is one k+m code. Safe for concurrent use.
type Code struct {
	data, parity int
	codec        reedsolomon.Encoder
}

// New returns the code of data and parity shards; kind Invalid if there is none.
func New(data, parity int) (*Code, error) {
	if data < 2 || data > stripe.MaxData || parity < 1 || parity > stripe.MaxParity {
		return nil, fserr.New(fserr.Invalid, "erasure code", fmt.Errorf("%d+%d: want 2 to %d data and 1 to %d parity shards", data, parity, stripe.MaxData, stripe.MaxParity))
	}
	codec, err := reedsolomon.New(data, parity, reedsolomon.WithMaxGoroutines(1))
	if err != nil {
		return nil, fserr.New(fserr.Invalid, "erasure code", err)
	}
	return &Code{data, parity, codec}, nil
}

// Data returns k, Parity m, Shards k+m.
func (c *Code) Data() int   { return c.data }
func (c *Code) Parity() int { return c.parity }
func (c *Code) Shards() int { return c.data + c.parity }

// IsParity reports whether the shard is one of parity.
func (c *Code) IsParity(shard int) bool { return shard >= c.data }

// RowBytes returns how much of a column is in one row.
func (c *Code) RowBytes() uint64 { return uint64(c.data) * BlockBytes }

// Rows returns the rows that have the bytes [offset, offset+length).
func (c *Code) Rows(offset, length uint64) (first, end uint64) {
	return offset / c.RowBytes(), (offset + length + c.RowBytes() - 1) / c.RowBytes()
}

// FileBlock returns which block of the shard's file has the row's block.
func (c *Code) FileBlock(shard int, row uint64) uint64 {
	if c.IsParity(shard) {
		return row + row/GroupRows
	}
	return row
}

// FileBlocks returns how many blocks the shard's file has for the first rows rows.
func (c *Code) FileBlocks(shard int, rows uint64) uint64 {
	if c.IsParity(shard) {
		return (rows + GroupRows - 1) / GroupRows * (GroupRows + 1)
	}
	return rows
}

// EntryOffset returns where in a parity shard's file the row's entry lies.
func EntryOffset(row uint64) uint64 {
	return (row/GroupRows*(GroupRows+1)+GroupRows)*BlockBytes + row%GroupRows*EntryBytes
}

// RowOf returns the row whose block is block number b of the shard's file. For a
// block of entries it is the first row that they are of.
func (c *Code) RowOf(shard int, b uint64) uint64 {
	if !c.IsParity(shard) {
		return b
	}
	group, i := b/(GroupRows+1), b%(GroupRows+1)
	if i == GroupRows {
		i = 0
	}
	return group*GroupRows + i
}

// Entry is what a parity shard knows of one row.
type Entry [EntryBytes]byte

// MakeEntry returns the entry of data blocks with the sums, and a parity block.
func MakeEntry(sums []uint32, own uint32) (e Entry) {
	for i, s := range sums {
		put(e[4*i:], s)
	}
	put(e[4*stripe.MaxData:], own)
	return e
}

// Sum returns the checksum of data block i.
func (e *Entry) Sum(i int) uint32 { return get(e[4*i:]) }

// Own returns the checksum of the parity block.
func (e *Entry) Own() uint32 { return get(e[4*stripe.MaxData:]) }

func put(b []byte, v uint32) { b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24) }

func get(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// Encode fills the parity shards of shards, all of the same length, from its data
// shards.
func (c *Code) Encode(shards [][]byte) error {
	if err := c.codec.Encode(shards); err != nil {
		return fserr.New(fserr.Internal, "encode", err)
	}
	return nil
}

// Decode makes the missing data shards, which are empty, from any k others.
func (c *Code) Decode(shards [][]byte) error {
	if err := c.codec.ReconstructData(shards); err != nil {
		return fserr.New(fserr.Internal, "decode", err)
	}
	return nil
}
