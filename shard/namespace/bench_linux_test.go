package namespace

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// mapStore is a Writer that costs as little as possible, so that a benchmark shows
// what Apply itself costs. It has no Scan.
type mapStore struct {
	m    map[string][]byte
	gets int
	sets int
}

func (s *mapStore) Get(key []byte) ([]byte, bool, error) {
	s.gets++
	v, ok := s.m[string(key)]
	return v, ok, nil
}

func (s *mapStore) GetNew(key []byte) ([]byte, bool, error) { return s.Get(key) }

func (s *mapStore) Scan(_, _ []byte, _ func(_, _ []byte) (bool, error)) error { return nil }

func (s *mapStore) Set(key, value []byte) error {
	s.sets++
	s.m[string(key)] = append([]byte(nil), value...)
	return nil
}

func (s *mapStore) Delete(key []byte) error { delete(s.m, string(key)); return nil }

func (s *mapStore) DeleteRange(_, _ []byte) error { return nil }

// cpuTime returns what this process has computed: on a shared machine it says more
// than the time that passed.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchRig(b *testing.B, store *mapStore) *rig {
	r := newRig(b, nil)
	r.bootstrap()
	r.openSession(0xa1)
	lo, hi := []byte{0}, []byte{0xff}
	if err := r.kv.Scan(lo, hi, func(k, v []byte) (bool, error) { return true, store.Set(k, v) }); err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkApplyCreate measures creates in one directory, in entries of 32.
func BenchmarkApplyCreate(b *testing.B) {
	store := &mapStore{m: map[string][]byte{}}
	r := benchRig(b, store)
	const group = 32
	entries := make([][][]byte, (b.N+group-1)/group)
	for i := range entries {
		for range group {
			c := r.command(0xa1, &canopyv1.Op{Subtree: 1, Epoch: 3, Cred: &canopyv1.Credential{Uid: 0}, Call: &canopyv1.Op_Create{
				Create: &canopyv1.CreateCall{Dir: 1, Name: fmt.Appendf(nil, "file.%08d", r.seq[0xa1]), Mode: 0o644}}})
			encoded, err := c.MarshalVT()
			if err != nil {
				b.Fatal(err)
			}
			entries[i] = append(entries[i], encoded)
		}
	}
	store.gets, store.sets = 0, 0
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	for i, e := range entries {
		if _, err := r.m.Apply(store, int64(2000+i), e); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(len(entries)*group), "cpu-ns/op")
	b.ReportMetric(float64(store.gets)/float64(len(entries)*group), "gets/op")
	b.ReportMetric(float64(store.sets)/float64(len(entries)*group), "sets/op")
}

// BenchmarkQuery measures a stat by place and a lookup.
func BenchmarkQuery(b *testing.B) {
	store := &mapStore{m: map[string][]byte{}}
	r := benchRig(b, store)
	c := r.command(0xa1, &canopyv1.Op{Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: 1, Name: []byte("f")}}})
	encoded, err := c.MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	results, err := r.m.Apply(store, 2000, [][]byte{encoded})
	if err != nil {
		b.Fatal(err)
	}
	ino := r.decode(results[0]).Attr.Ino
	for name, op := range map[string]*canopyv1.Op{
		"getattr": {Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: ino, Dir: 1, Name: []byte("f")}}}},
		"lookup":  {Subtree: 1, Cred: &canopyv1.Credential{}, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: []byte("f")}}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				if res := r.m.Query(store, op); res.Error != 0 {
					b.Fatal(res.Error)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}
