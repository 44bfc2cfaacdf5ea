package chunkstore

import "hash/crc32"

// castagnoli and blockShift are constant tables.
var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	blockShift = makeShift(BlockBytes)
	zeroCRC    = crc32.Checksum(make([]byte, BlockBytes), castagnoli)
)

// shiftTable maps the CRC of some bytes to what it contributes to the CRC of
// those bytes followed by a fixed number of others. The map is linear over
// GF(2), so four lookups do (zlib's crc32_combine, with the matrix of one length
// spread over tables).
type shiftTable [4][256]uint32

func makeShift(n int) *shiftTable {
	var column [32]uint32
	for bit := range column {
		// Appending zero bytes to a CRC register without the inversions.
		v := uint32(1) << bit
		for range n {
			v = castagnoli[byte(v)] ^ v>>8
		}
		column[bit] = v
	}
	t := &shiftTable{}
	for i := range t {
		for b := range t[i] {
			for bit := range 8 {
				if b>>bit&1 == 1 {
					t[i][b] ^= column[i*8+bit]
				}
			}
		}
	}
	return t
}

// then returns the CRC of A followed by B from those of A and B, where B has
// the table's length.
func (t *shiftTable) then(a, b uint32) uint32 {
	return t[0][byte(a)] ^ t[1][byte(a>>8)] ^ t[2][byte(a>>16)] ^ t[3][byte(a>>24)] ^ b
}

// sumOf is what an entry stores for a CRC: never 0, which means hole.
func sumOf(crc uint32) uint32 {
	if crc == 0 {
		return 1
	}
	return crc
}
