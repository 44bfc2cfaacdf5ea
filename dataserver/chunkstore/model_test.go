package chunkstore

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

func write(offset uint64, p []byte, epoch uint64, cuts ...*canopyv1.Cut) Write {
	return Write{Offset: offset, Parts: [][]byte{p}, CRC: crc32.Checksum(p, castagnoli), SizeEpoch: epoch, Cuts: cuts}
}

// readBack reads a range as a data server does: what is missing is zeros.
func readBack(t interface{ Fatalf(string, ...any) }, s *Store, key Key, offset, length uint64) []byte {
	data := readPresent(t, s, key, offset, length)
	return append(append([]byte(nil), data...), make([]byte, length-uint64(len(data)))...)
}

// readPresent reads what a column has of a range: what is missing counts as zeros.
func readPresent(t interface{ Fatalf(string, ...any) }, s *Store, key Key, offset, length uint64) []byte {
	data, crc, err := s.Read(key, offset, length, 0, nil, make([]byte, BufferBytes(offset, length)))
	if err != nil {
		t.Fatalf("read [%d, +%d): %v", offset, length, err)
	}
	if got := crc32.Checksum(data, castagnoli); got != crc {
		t.Fatalf("read [%d, +%d): crc %08x, bytes have %08x", offset, length, crc, got)
	}
	return data
}

type modelColumn struct {
	bytes   []byte
	epoch   uint64
	deleted bool
}

// is reports whether data, and zeros behind them, are what the column has at offset.
func (m *modelColumn) is(data []byte, offset, length uint64) bool {
	var want []byte
	if size := uint64(len(m.bytes)); offset < size {
		want = m.bytes[offset:min(size, offset+length)]
	}
	n := min(len(want), len(data))
	return bytes.Equal(data[:n], want[:n]) && isZero(data[n:]) && isZero(want[n:])
}

// isZero compares with a run of zeros: a loop over bytes is slow under the race
// detector.
func isZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if !bytes.Equal(p[:n], zeros[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

var zeros [64 << 10]byte

const modelBytes = 5 << 20 // three groups

// TestModel compares random histories, with re-openings, with a byte slice.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := memoryDir(t)
		s := open(t, dir, Options{MaxOpenFiles: 2})
		defer func() { s.Close() }()
		keys := []Key{{1, 0, 10, 0, 0}, {1, 0, 10, 1, 0}, {1, 3, 11, 1, 2}, {1, 3, 12, 0, 0}}
		models := map[Key]*modelColumn{}
		for _, k := range keys {
			models[k] = &modelColumn{}
		}
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			key := rapid.SampledFrom(keys).Draw(r, "key")
			m := models[key]
			switch rapid.SampledFrom([]string{"write", "write", "write", "punch", "punch", "reserve", "read", "cut", "sync", "reopen", "delete"}).Draw(r, "op") {
			case "write":
				modelWrite(r, s, key, m)
			case "punch":
				modelPunch(r, s, key, m)
			case "reserve":
				modelReserve(r, s, key, m)
			case "read":
				modelRead(r, s, key, m)
			case "cut":
				modelCut(r, s, key, m)
			case "sync":
				if err := s.Sync(key); err != nil {
					r.Fatal(err)
				}
			case "reopen":
				if err := s.Close(); err != nil {
					r.Fatal(err)
				}
				s = open(t, dir, Options{MaxOpenFiles: 2})
			case "delete":
				if rapid.IntRange(0, 9).Draw(r, "really") == 0 {
					if err := s.Delete(key); err != nil {
						r.Fatal(err)
					}
					for k, m := range models {
						if k.PG == key.PG && k.Data == key.Data {
							*m = modelColumn{deleted: true}
						}
					}
				}
			}
		}
		for _, k := range keys {
			if !models[k].is(readPresent(r, s, k, 0, modelBytes), 0, modelBytes) {
				r.Fatalf("%v differs at the end", k)
			}
			checkHoles(r, s, k, models[k])
		}
	})
}

func drawRange(r *rapid.T) (offset, length uint64) {
	unit := rapid.SampledFrom([]uint64{1, 512, BlockBytes, 64 << 10}).Draw(r, "unit")
	offset = rapid.Uint64Range(0, (modelBytes-1)/unit).Draw(r, "offset") * unit
	length = rapid.Uint64Range(1, 40).Draw(r, "length") * unit
	return offset, min(length, modelBytes-offset)
}

func modelWrite(r *rapid.T, s *Store, key Key, m *modelColumn) {
	offset, length := drawRange(r)
	p := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(r, "fill"))}, int(length))
	p[0]++
	epoch := m.epoch
	if epoch > 0 && rapid.IntRange(0, 4).Draw(r, "old") == 0 {
		epoch--
	}
	w := write(offset, p, epoch)
	cutAt := rapid.IntRange(0, int(length)).Draw(r, "parts")
	w.Parts = [][]byte{append([]byte(nil), p[:cutAt]...), append([]byte(nil), p[cutAt:]...)}
	_, err := s.Write(key, w)
	switch {
	case m.deleted:
		if !errors.Is(err, fserr.Stale) {
			r.Fatalf("write after delete: %v", err)
		}
	case epoch < m.epoch:
		if !errors.Is(err, fserr.OldEpoch) {
			r.Fatalf("write of epoch %d at %d: %v", epoch, m.epoch, err)
		}
	case err != nil:
		r.Fatal(err)
	default:
		if grown := offset + length; grown > uint64(len(m.bytes)) {
			m.bytes = append(m.bytes, make([]byte, grown-uint64(len(m.bytes)))...)
		}
		copy(m.bytes[offset:], p)
	}
}

func modelRead(r *rapid.T, s *Store, key Key, m *modelColumn) {
	offset, length := drawRange(r)
	if !m.is(readPresent(r, s, key, offset, length), offset, length) {
		r.Fatalf("%v [%d, +%d) differs", key, offset, length)
	}
}

func modelCut(r *rapid.T, s *Store, key Key, m *modelColumn) {
	size := rapid.Uint64Range(0, modelBytes).Draw(r, "size")
	epoch := m.epoch + uint64(rapid.IntRange(0, 2).Draw(r, "epoch"))
	if err := s.Cut(key, epoch, []*canopyv1.Cut{{SizeEpoch: epoch, Size: size}}); err != nil {
		r.Fatal(err)
	}
	if !m.deleted && epoch > m.epoch {
		m.epoch = epoch
		m.bytes = m.bytes[:min(size, uint64(len(m.bytes)))]
	}
}

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCRCThen(t *testing.T) {
	a, b := bytes.Repeat([]byte("canopy"), 999), bytes.Repeat([]byte{7, 1, 3, 9}, BlockBytes/4)
	want := crc32.Checksum(append(append([]byte(nil), a...), b...), castagnoli)
	if got := blockShift.then(crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli)); got != want {
		t.Fatalf("then: %08x, want %08x", got, want)
	}
}

func TestPositions(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		size := rapid.Uint64Range(0, 1<<40).Draw(r, "size")
		if got := columnBytes(fileBytes(size)); got != size {
			r.Fatalf("column of %d bytes has a file of %d, which has a column of %d", size, fileBytes(size), got)
		}
	})
}
