package chunkstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

const (
	// Format is the version of the directory's format. 1 spread data ids over a
	// placement group's directories by a hash; such a directory is served as it is.
	Format = 2
	// columnFormat is that of column files.
	columnFormat = 1
	// BlockBytes is what one checksum covers.
	BlockBytes = 4096

	headBlocks  = 256 // blocks whose checksums are in the first page
	groupBlocks = 512
	entryBytes  = 8
	headEntries = 2048 // offset of the first page's entries
	groupBytes  = (groupBlocks + 1) * BlockBytes
	headBytes   = (headBlocks + 1) * BlockBytes

	headerBytes = 76
	noCut       = ^uint64(0)
)

var magic = [8]byte{'C', 'A', 'N', 'O', 'P', 'Y', 'C', '1'}

// Key names a column.
type Key struct {
	Pool      base.PoolID
	PG        base.PGID
	Data      base.DataID
	Component uint32
	Column    uint32
}

// String returns the form that logs and errors show.
func (k Key) String() string {
	return fmt.Sprintf("column %d.%d of data %d in pg %d.%d", k.Component, k.Column, k.Data, k.Pool, k.PG)
}

// header is the beginning of a column file.
type header struct {
	key       Key
	sizeEpoch uint64
	// cut is the size that the column is being cut to; noCut: none. A crash
	// amid a cut is completed when the file is opened.
	cut uint64
}

// encode fills the first headerBytes of b.
func (h *header) encode(b []byte) {
	copy(b, magic[:])
	binary.LittleEndian.PutUint32(b[8:], columnFormat)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.key.Pool))
	binary.LittleEndian.PutUint32(b[24:], uint32(h.key.PG))
	binary.LittleEndian.PutUint32(b[28:], h.key.Component)
	binary.LittleEndian.PutUint32(b[32:], h.key.Column)
	binary.LittleEndian.PutUint64(b[40:], uint64(h.key.Data))
	binary.LittleEndian.PutUint64(b[48:], h.sizeEpoch)
	binary.LittleEndian.PutUint64(b[56:], h.cut)
	binary.LittleEndian.PutUint32(b[72:], crc32.Checksum(b[:72], castagnoli))
}

// decodeHeader reads a header; its error is of kind IO, or NotSupported for a
// newer format.
func decodeHeader(b []byte) (header, error) {
	if len(b) < headerBytes || [8]byte(b[:8]) != magic {
		return header{}, fserr.New(fserr.IO, "column header", fmt.Errorf("no column file"))
	}
	if crc32.Checksum(b[:72], castagnoli) != binary.LittleEndian.Uint32(b[72:]) {
		return header{}, fserr.New(fserr.IO, "column header", fmt.Errorf("checksum mismatch"))
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != columnFormat {
		return header{}, fserr.New(fserr.NotSupported, "column header", fmt.Errorf("format %d, this program knows %d", v, columnFormat))
	}
	return header{
		key: Key{
			Pool:      base.PoolID(binary.LittleEndian.Uint64(b[16:])),
			PG:        base.PGID(binary.LittleEndian.Uint32(b[24:])),
			Component: binary.LittleEndian.Uint32(b[28:]),
			Column:    binary.LittleEndian.Uint32(b[32:]),
			Data:      base.DataID(binary.LittleEndian.Uint64(b[40:])),
		},
		sizeEpoch: binary.LittleEndian.Uint64(b[48:]),
		cut:       binary.LittleEndian.Uint64(b[56:]),
	}, nil
}

// entry is the checksums of one block: as it is and as it was before; 0: hole.
type entry struct{ cur, prev uint32 }

func getEntry(b []byte, i int) entry {
	return entry{binary.LittleEndian.Uint32(b[i*entryBytes:]), binary.LittleEndian.Uint32(b[i*entryBytes+4:])}
}

func putEntry(b []byte, i int, e entry) {
	binary.LittleEndian.PutUint32(b[i*entryBytes:], e.cur)
	binary.LittleEndian.PutUint32(b[i*entryBytes+4:], e.prev)
}

// span is a run of blocks within one group: contiguous in the file, and so are
// their entries.
type span struct {
	first, blocks uint64
	entries       int64 // file offset of the first block's entry
	data          int64 // file offset of the first block
}

// spanAt returns the part of blocks [first, end) that lies in first's group.
func spanAt(first, end uint64) span {
	if first < headBlocks {
		return span{
			first: first, blocks: min(end, headBlocks) - first,
			entries: int64(headEntries + first*entryBytes),
			data:    int64((1 + first) * BlockBytes),
		}
	}
	g, i := (first-headBlocks)/groupBlocks, (first-headBlocks)%groupBlocks
	start := int64(headBytes + g*groupBytes)
	return span{
		first: first, blocks: min(end-first, groupBlocks-i),
		entries: start + int64(i*entryBytes),
		data:    start + int64((1+i)*BlockBytes),
	}
}

// groupEnd returns the first block behind the group of the block.
func groupEnd(block uint64) uint64 {
	if block < headBlocks {
		return headBlocks
	}
	return block + groupBlocks - (block-headBlocks)%groupBlocks
}

// position returns where a byte of the column lies in the file.
func position(offset uint64) int64 {
	return spanAt(offset/BlockBytes, offset/BlockBytes+1).data + int64(offset%BlockBytes)
}

// fileBytes returns the length of a file whose column has the size.
func fileBytes(size uint64) int64 {
	if size == 0 {
		return BlockBytes
	}
	return position(size-1) + 1
}

// columnBytes is the inverse of fileBytes. A file that ends within a page of
// checksums has nothing of the blocks behind it.
func columnBytes(length int64) uint64 {
	if length <= BlockBytes {
		return 0
	}
	if length <= headBytes {
		return uint64(length - BlockBytes)
	}
	rest := uint64(length - headBytes)
	g, in := rest/groupBytes, rest%groupBytes
	size := uint64(headBlocks+g*groupBlocks) * BlockBytes
	if in > BlockBytes {
		size += in - BlockBytes
	}
	return size
}

// blocksOf returns the block range that covers the bytes.
func blocksOf(offset, length uint64) (first, end uint64) {
	return offset / BlockBytes, (offset + length + BlockBytes - 1) / BlockBytes
}
