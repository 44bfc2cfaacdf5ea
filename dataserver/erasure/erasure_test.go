package erasure

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

func drawCode(r *rapid.T) *Code {
	c, err := New(rapid.IntRange(2, stripe.MaxData).Draw(r, "k"), rapid.IntRange(1, stripe.MaxParity).Draw(r, "m"))
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func TestBadCodes(t *testing.T) {
	for _, km := range [][2]int{{1, 1}, {0, 2}, {4, 0}, {stripe.MaxData + 1, 2}, {4, stripe.MaxParity + 1}, {-1, -1}} {
		if _, err := New(km[0], km[1]); !errors.Is(err, fserr.Invalid) {
			t.Errorf("%d+%d: %v", km[0], km[1], err)
		}
	}
}

// TestPlaces: no two rows, nor a row and an entry, share bytes of a shard's file, and
// the inverse agrees.
func TestPlaces(t *testing.T) {
	c, err := New(4, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range []int{0, 3, 4, 5} {
		used := map[uint64]bool{}
		for row := range uint64(500) {
			b := c.FileBlock(shard, row)
			if used[b] {
				t.Fatalf("shard %d: two rows in block %d", shard, b)
			}
			used[b] = true
			if got := c.RowOf(shard, b); got != row {
				t.Fatalf("shard %d: block %d is of row %d, not %d", shard, b, got, row)
			}
			if b >= c.FileBlocks(shard, row+1) {
				t.Fatalf("shard %d: row %d lies behind %d blocks", shard, row, c.FileBlocks(shard, row+1))
			}
		}
		for row := range uint64(500) {
			if at := EntryOffset(row); c.IsParity(shard) && used[at/BlockBytes] {
				t.Fatalf("the entry of row %d lies in a parity block", row)
			}
		}
	}
	if c.FileBlocks(5, 64) != 65 || c.FileBlocks(5, 65) != 130 || c.FileBlocks(0, 65) != 65 {
		t.Error("sizes of shard files")
	}
}

// row is a codeword with its checksums.
func makeRow(r *rapid.T, c *Code, seed uint64) (blocks [][]byte, sums []uint32, entry func(parity int) Entry) {
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	for i := range c.Shards() {
		b := make([]byte, BlockBytes)
		if i < c.data {
			random.Read(b)
		}
		blocks = append(blocks, b)
	}
	if err := c.Encode(blocks); err != nil {
		r.Fatal(err)
	}
	for _, b := range blocks {
		sums = append(sums, crc32.ChecksumIEEE(b)|1)
	}
	return blocks, sums, func(parity int) Entry { return MakeEntry(sums[:c.data], sums[c.data+parity]) }
}

// TestAnyK: any k members of one codeword give all of it.
func TestAnyK(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := drawCode(r)
		blocks, sums, entry := makeRow(r, c, rapid.Uint64().Draw(r, "seed"))
		there := rapid.Permutation(indices(c.Shards())).Draw(r, "there")[:c.data]
		var seen []Seen
		for _, s := range there {
			x := Seen{Shard: s, Trusted: true, Sum: sums[s]}
			if c.IsParity(s) {
				x.Entry = entry(s - c.data)
			}
			seen = append(seen, x)
		}
		v := c.Judge(seen)
		if v.Lost || len(v.Wrong) > 0 || !slices.Equal(v.Sums, sums[:c.data]) {
			r.Fatalf("verdict %+v", v)
		}
		shards := make([][]byte, c.Shards())
		for _, i := range v.Sources {
			shards[seen[i].Shard] = bytes.Clone(blocks[seen[i].Shard])
		}
		if err := c.Decode(shards); err != nil {
			r.Fatal(err)
		}
		for i := range c.data {
			if !bytes.Equal(shards[i], blocks[i]) {
				r.Fatalf("block %d differs", i)
			}
		}
		seen[rapid.IntRange(0, c.data-1).Draw(r, "damaged")].Damaged = true
		if !c.Judge(seen).Lost {
			r.Fatal("k-1 blocks are taken for a whole row")
		}
	})
}

// TestMixedRows: two versions of a row, each member with one of them. What is judged
// to be the row is one version of each data block that is there, and never a
// missing block made of blocks of different versions.
func TestMixedRows(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := drawCode(r)
		_, old, oldEntry := makeRow(r, c, 1)
		_, now, nowEntry := makeRow(r, c, 2)
		var seen []Seen
		var isNow []bool
		dataThere := 0
		for s := range c.Shards() {
			if rapid.Bool().Draw(r, "missing") {
				continue
			}
			isNew := rapid.Bool().Draw(r, "new")
			x := Seen{Shard: s, Trusted: true, Sum: old[s]}
			if isNew {
				x.Sum = now[s]
			}
			if c.IsParity(s) {
				x.Entry = oldEntry(s - c.data)
				if isNew {
					x.Entry = nowEntry(s - c.data)
				}
				if rapid.IntRange(0, 3).Draw(r, "torn") == 0 {
					x.Sum = old[s] ^ now[s] ^ x.Sum // the block of one version, the entry of the other
				}
			} else {
				dataThere++
			}
			seen, isNow = append(seen, x), append(isNow, isNew)
		}
		v := c.Judge(seen)
		if v.Lost {
			return
		}
		if len(v.Sources) != c.data {
			r.Fatalf("%d sources", len(v.Sources))
		}
		for _, i := range v.Sources {
			if dataThere < c.data && isNow[i] != isNow[v.Sources[0]] {
				r.Fatal("blocks of different versions are taken for one row")
			}
			if slices.Contains(v.Wrong, i) && dataThere < c.data {
				r.Fatal("a source is wrong")
			}
		}
	})
}

// TestUntrustedHelp: of a row of which too few trusted blocks are there, those of a
// member that is recovered count if they are what parity says, and only then.
func TestUntrustedHelp(t *testing.T) {
	c, err := New(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	sums := []uint32{7, 8, 9}
	trusted := []Seen{{Shard: 0, Trusted: true, Sum: 7}, {Shard: 3, Trusted: true, Sum: 5, Entry: MakeEntry(sums, 5)}}
	for name, x := range map[string]struct {
		other Seen
		helps bool
	}{
		"the data block":        {Seen{Shard: 1, Sum: 8}, true},
		"an older data block":   {Seen{Shard: 1, Sum: 4}, false},
		"a damaged data block":  {Seen{Shard: 1, Sum: 8, Damaged: true}, false},
		"nothing":               {Seen{Shard: 1}, false},
		"a data block we have":  {Seen{Shard: 0, Sum: 7}, false},
		"the other parity":      {Seen{Shard: 4, Sum: 6, Entry: MakeEntry(sums, 6)}, true},
		"an older parity":       {Seen{Shard: 4, Sum: 6, Entry: MakeEntry([]uint32{7, 8, 4}, 6)}, false},
		"a torn parity":         {Seen{Shard: 4, Sum: 5, Entry: MakeEntry(sums, 6)}, false},
		"the same parity again": {Seen{Shard: 3, Sum: 5, Entry: MakeEntry(sums, 5)}, false},
	} {
		v := c.Judge(append(slices.Clone(trusted), x.other))
		if v.Lost == x.helps || x.helps && (!slices.Equal(v.Sums, sums) || !slices.Equal(v.Sources, []int{0, 1, 2})) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestWrongMembers: a member that is recovered is judged, not believed, and a hole
// is no block of zeros.
func TestWrongMembers(t *testing.T) {
	c, err := New(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	e := MakeEntry([]uint32{7, 0}, 9)
	whole := []Seen{{Shard: 0, Trusted: true, Sum: 7}, {Shard: 1, Trusted: true}, {Shard: 2, Trusted: true, Sum: 9, Entry: e}}
	for name, change := range map[string]func(s []Seen) []int{
		"nothing":               func([]Seen) []int { return nil },
		"an old data block":     func(s []Seen) []int { s[0].Sum, s[0].Trusted = 6, false; return []int{0} },
		"zeros for a hole":      func(s []Seen) []int { s[1].Sum, s[1].Trusted = 5, false; return []int{1} },
		"old parity":            func(s []Seen) []int { s[2].Entry = MakeEntry([]uint32{6, 0}, 9); return []int{2} },
		"a torn parity":         func(s []Seen) []int { s[2].Sum = 8; return []int{2} },
		"a hole for parity":     func(s []Seen) []int { s[2].Sum, s[2].Entry = 0, MakeEntry([]uint32{7, 0}, 0); return []int{2} },
		"a damaged data block":  func(s []Seen) []int { s[1].Damaged = true; return []int{1} },
		"an untrusted good one": func(s []Seen) []int { s[1].Trusted = false; return nil },
	} {
		seen := slices.Clone(whole)
		want := change(seen)
		if v := c.Judge(seen); v.Lost || !slices.Equal(v.Wrong, want) || v.Sums[0] != 7 || v.Sums[1] != 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
