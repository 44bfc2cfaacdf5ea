package dataserver

import (
	"errors"
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/dataserver/chunkstore"
	"github.com/canopyfs/canopy/dataserver/erasure"
	"github.com/canopyfs/canopy/internal/base"
)

// view is what members answered of some rows.
type view struct {
	code    *erasure.Code
	members []viewed
	damaged []uint64 // rows, counted from the first, with a damaged block
}

type viewed struct {
	id      base.NodeID
	shard   int
	trusted bool
	rows    *shardRows
}

// newView joins the answers; a nil one is of a member that gave none. Of those in
// extra nothing is used.
func newView(code *erasure.Code, pg *canopyv1.PlacementGroup, ids, extra []base.NodeID, got []*shardRows) *view {
	v := &view{code: code}
	for i, id := range ids {
		if got[i] == nil {
			continue
		}
		v.members = append(v.members, viewed{id, shardOf(pg, uint64(id)), !slices.Contains(extra, id), got[i]})
		for row, damaged := range got[i].damaged {
			if damaged {
				v.damaged = append(v.damaged, uint64(row))
			}
		}
	}
	return v
}

// judge returns the verdict on one row; its indices are those of members.
func (v *view) judge(row int) erasure.Verdict {
	seen := make([]erasure.Seen, len(v.members))
	for i, m := range v.members {
		seen[i] = erasure.Seen{Shard: m.shard, Trusted: m.trusted, Damaged: m.rows.damaged[row], Sum: m.rows.sums[row]}
		if m.rows.entries != nil {
			seen[i].Entry = m.rows.entries[row]
		}
	}
	return v.code.Judge(seen)
}

var errTooFew = errors.New("too few of its blocks are whole and belong together")

// decode fills a stripe, of the wanted data shards at least. Rows that have the same
// sources are decoded together.
func (v *view) decode(s *rowSet, wanted []bool) error {
	for i := range s.blocks {
		s.blocks[i], s.sums[i] = make([]byte, s.rows*erasure.BlockBytes), make([]uint32, s.rows)
	}
	for row := 0; row < s.rows; {
		verdict := v.judge(row)
		end := row + 1
		var sums [][]uint32
		sums = append(sums, verdict.Sums)
		for ; end < s.rows; end++ {
			next := v.judge(end)
			if next.Lost != verdict.Lost || !slices.Equal(next.Sources, verdict.Sources) {
				break
			}
			sums = append(sums, next.Sums)
		}
		var err error
		if verdict.Lost {
			err = v.takeWhole(s, row, end, wanted)
		} else {
			err = v.decodeRun(s, row, end, verdict.Sources, sums)
		}
		if err != nil {
			return err
		}
		row = end
	}
	return nil
}

// takeWhole takes the wanted blocks of rows that cannot be decoded, if they are all
// there.
func (v *view) takeWhole(s *rowSet, row, end int, wanted []bool) error {
	for shard, want := range wanted {
		for r := row; want && r < end; r++ {
			at := slices.IndexFunc(v.members, func(m viewed) bool { return m.trusted && m.shard == shard && !m.rows.damaged[r] })
			if at < 0 {
				return fmt.Errorf("row %d: %w", s.first+uint64(r), errTooFew)
			}
			s.sums[shard][r] = v.members[at].rows.sums[r]
			copy(block(s.blocks[shard], r), block(v.members[at].rows.data, r))
		}
	}
	return nil
}

func block(b []byte, row int) []byte {
	return b[row*erasure.BlockBytes : (row+1)*erasure.BlockBytes]
}

// decodeRun makes rows [row, end) of the sources. What is made is checked: bytes that
// do not have the sum that parity tells are never given out.
func (v *view) decodeRun(s *rowSet, row, end int, sources []int, sums [][]uint32) error {
	shards := make([][]byte, v.code.Shards())
	for _, i := range sources {
		m := v.members[i]
		shards[m.shard] = m.rows.data[row*erasure.BlockBytes : end*erasure.BlockBytes]
	}
	made := make([]bool, len(s.blocks))
	for i := range made {
		made[i] = shards[i] == nil
	}
	if slices.Contains(made, true) {
		if err := v.code.Decode(shards); err != nil {
			return err
		}
	}
	for i := range s.blocks {
		copy(s.blocks[i][row*erasure.BlockBytes:], shards[i])
		for r := row; r < end; r++ {
			sum := sums[r-row][i]
			s.sums[i][r] = sum
			b := block(s.blocks[i], r)
			switch {
			case !made[i]:
			case sum == 0:
				clear(b)
			case chunkstore.BlockSum(b) != sum:
				return fmt.Errorf("row %d: what is made of block %d does not match its checksum: %w", s.first+uint64(r), i, errTooFew)
			}
		}
	}
	return nil
}
