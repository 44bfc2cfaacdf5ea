package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/canopyfs/canopy/shard"
)

func openWithValues(t testing.TB, sizeBytes int64) *Store {
	t.Helper()
	s, err := openAt(t, vfs.NewMem(), func(o *Options) { o.ValueCacheBytes = sizeBytes })
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// The rules of valueCache, one interleaving each. A reader has its bound before
// its snapshot; "visible" is the moment between begin and end.
func TestValueCacheInterleavings(t *testing.T) {
	key := []byte("key")
	cached := func(c *valueCache, bound uint64) string {
		v, _, known := c.get(c.hash(key), key, bound)
		if !known {
			return "unknown"
		}
		return string(v)
	}
	for name, run := range map[string]func(c *valueCache, h []uint64) (got, want string){
		"a later commit is not for an old snapshot": func(c *valueCache, h []uint64) (string, string) {
			old := c.bound()
			c.begin(h)
			c.end(h)
			c.add(h[0], key, []byte("new"), true, c.bound())
			return cached(c, old) + cached(c, c.bound()), "unknownnew"
		},
		"a late add of an old value": func(c *valueCache, h []uint64) (string, string) {
			old := c.bound()
			c.begin(h)
			c.end(h)
			c.add(h[0], key, []byte("old"), true, old)
			return cached(c, c.bound()), "unknown"
		},
		"an add during a commit": func(c *valueCache, h []uint64) (string, string) {
			c.begin(h)
			c.add(h[0], key, []byte("old"), true, c.bound())
			c.end(h)
			return cached(c, c.bound()), "unknown"
		},
		"a commit of other keys ends first": func(c *valueCache, h []uint64) (string, string) {
			other := []uint64{^h[0]}
			c.begin(h)
			c.begin(other)
			c.end(other)
			old := c.bound() // its snapshot lacks the first commit
			c.end(h)
			c.add(h[0], key, []byte("old"), true, old)
			return cached(c, c.bound()), "unknown"
		},
		"a late add over a change of ranges": func(c *valueCache, h []uint64) (string, string) {
			old := c.bound()
			check(t, c.changeAll(func() error {
				c.add(h[0], key, []byte("old"), true, old)
				return nil
			}))
			c.add(h[0], key, []byte("old"), true, old)
			return cached(c, c.bound()), "unknown"
		},
		"a hash that two keys share": func(c *valueCache, h []uint64) (string, string) {
			c.add(h[0], []byte("other"), []byte("not this"), true, c.bound())
			return cached(c, c.bound()), "unknown"
		},
	} {
		c := newValueCache(0)
		if got, want := run(c, []uint64{c.hash(key)}); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Readers race with commits. Each batch writes one number into all keys of its
// writer, so a snapshot that shows two numbers mixes two states.
func TestValueCacheUnderCommits(t *testing.T) {
	const writers, keys, commits = 3, 4, 1500
	s := openWithValues(t, 0)
	name := func(w, k int) []byte { return tkey(100*w + k) }
	var done [writers]atomic.Uint64 // number of the last commit that returned
	var running sync.WaitGroup
	var stop atomic.Bool
	for w := range writers {
		running.Go(func() {
			for n := uint64(1); n <= commits; n++ {
				commitNumber(t, s, n, func(k int) []byte { return name(w, k) }, keys, w == 0 && n%50 == 0)
				done[w].Store(n)
			}
		})
	}
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 9))
			for !stop.Load() {
				w := rng.IntN(writers)
				least := done[w].Load()
				snap := s.NewSnapshot()
				first := numberOf(t, snap, name(w, 0))
				for range 3 * keys {
					if got := numberOf(t, snap, name(w, rng.IntN(keys))); got != first || got < least {
						t.Errorf("one snapshot shows %d and %d, with %d committed before", first, got, least)
						stop.Store(true)
					}
				}
				check(t, snap.Close())
				b := s.NewBatch()
				least = done[w].Load()
				if got := numberOf(t, b, name(w, 1)); got < least {
					t.Errorf("a batch reads %d after %d was committed", got, least)
				}
				check(t, b.Close())
			}
		})
	}
	running.Wait()
	stop.Store(true)
	readers.Wait()
	if hits, _, _ := s.values.counts(); hits == 0 {
		t.Error("nothing was read from the cache")
	}
}

func commitNumber(t *testing.T, s *Store, n uint64, name func(k int) []byte, keys int, ranges bool) {
	b := s.NewBatch()
	if ranges {
		check(t, b.DeleteRange(name(0), name(keys)))
	}
	for k := range keys {
		check(t, b.Set(name(k), binary.BigEndian.AppendUint64(nil, n)))
	}
	_, err := b.Commit()
	check(t, err, b.Close())
}

func numberOf(t *testing.T, r shard.Reader, key []byte) uint64 {
	v, found, err := r.Get(key)
	check(t, err)
	if !found {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

// Snapshots and batches answer like maps, in caches of any size.
func TestValueCacheLikeAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &valueModel{
			s:   openWithValues(t, rapid.SampledFrom([]int64{-1, valueShards * 200, valueShards * 400, 0}).Draw(rt, "cache")),
			now: map[string]string{},
		}
		rt.Repeat(map[string]func(*rapid.T){
			"commit": m.commit, "wipe": m.wipe, "install": m.install,
			"open": m.open, "close": m.close, "get": m.get, "get again": m.get,
		})
		m.closeAll(rt)
	})
}

type valueModel struct {
	s     *Store
	now   map[string]string
	snaps []shard.Snapshot
	then  []map[string]string // what each of snaps holds
}

const modelKeys = 12

func (m *valueModel) draw(rt *rapid.T) []byte {
	return tkey(rapid.IntRange(0, modelKeys-1).Draw(rt, "key"))
}

func (m *valueModel) commit(rt *rapid.T) {
	b := m.s.NewBatch()
	next := maps.Clone(m.now)
	for range rapid.IntRange(0, 4).Draw(rt, "changes") {
		k := m.draw(rt)
		switch rapid.SampledFrom([]string{"set", "set", "delete", "range", "get"}).Draw(rt, "change") {
		case "set":
			v := bytes.Repeat([]byte{byte(rapid.IntRange('a', 'z').Draw(rt, "letter"))}, rapid.SampledFrom([]int{0, 1, 30, 5000}).Draw(rt, "size"))
			check(rt, b.Set(k, v))
			next[string(k)] = string(v)
		case "delete":
			check(rt, b.Delete(k))
			delete(next, string(k))
		case "range":
			hi := m.draw(rt)
			check(rt, b.DeleteRange(k, hi))
			maps.DeleteFunc(next, func(n, _ string) bool { return string(k) <= n && n < string(hi) })
		case "get":
			wantValue(rt, b, k, next)
		}
	}
	if rapid.Bool().Draw(rt, "commit") {
		_, err := b.Commit()
		check(rt, err)
		m.now = next
	}
	check(rt, b.Close())
}

func (m *valueModel) wipe(rt *rapid.T) {
	check(rt, m.s.Wipe(testLo(), testHi()))
	m.now = map[string]string{}
}

// install closes the snapshots first: nobody reads a range that is replaced (A4).
func (m *valueModel) install(rt *rapid.T) {
	m.closeAll(rt)
	m.now = map[string]string{}
	check(rt, m.s.Install(testLo(), testHi(), func(set func(k, v []byte) error) error {
		for i := range modelKeys / 2 {
			m.now[string(tkey(2*i))] = "installed"
			if err := set(tkey(2*i), []byte("installed")); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (m *valueModel) open(*rapid.T) {
	m.snaps = append(m.snaps, m.s.NewSnapshot())
	m.then = append(m.then, maps.Clone(m.now))
}

func (m *valueModel) close(rt *rapid.T) {
	if len(m.snaps) > 0 {
		check(rt, m.snaps[0].Close())
		m.snaps, m.then = m.snaps[1:], m.then[1:]
	}
}

func (m *valueModel) closeAll(rt *rapid.T) {
	for len(m.snaps) > 0 {
		m.close(rt)
	}
}

func (m *valueModel) get(rt *rapid.T) {
	if len(m.snaps) == 0 {
		m.open(rt)
	}
	for range 4 {
		i := rapid.IntRange(0, len(m.snaps)-1).Draw(rt, "snapshot")
		wantValue(rt, m.snaps[i], m.draw(rt), m.then[i])
	}
}

func wantValue(rt *rapid.T, r shard.Reader, key []byte, in map[string]string) {
	get := r.Get
	if rapid.Bool().Draw(rt, "new") {
		get = r.GetNew
	}
	v, found, err := get(key)
	check(rt, err)
	if want, ok := in[string(key)]; found != ok || string(v) != want {
		rt.Fatalf("%s: %q %v, want %q %v", key, v, found, want, ok)
	}
}

func TestValueCacheStaysWithinItsSize(t *testing.T) {
	const sizeBytes = 1 << 20
	s := openWithValues(t, sizeBytes)
	snap := s.NewSnapshot()
	for i := range 20000 {
		_, _, err := snap.Get(fmt.Appendf(nil, "absent %d", i))
		check(t, err)
	}
	check(t, snap.Close())
	if _, _, used := s.values.counts(); used > sizeBytes || used < sizeBytes/2 {
		t.Errorf("%d bytes are cached, of %d", used, sizeBytes)
	}
}

// BenchmarkGet reads 1000 keys that lie in a table, with and without the cache.
func BenchmarkGet(b *testing.B) {
	for name, sizeBytes := range map[string]int64{"hit": 0, "pebble": -1, "miss": valueShards * 500} {
		b.Run(name, func(b *testing.B) {
			s := openWithValues(b, sizeBytes)
			n := 1000
			if name == "miss" { // more than the cache holds
				n = 20000
			}
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = binary.BigEndian.AppendUint64(testLo(), uint64(i))
				w := s.NewBatch()
				check(b, w.Set(keys[i], make([]byte, 120)))
				_, err := w.Commit()
				check(b, err, w.Close())
			}
			check(b, s.flushAll())
			snap := s.NewSnapshot()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, found, err := snap.Get(keys[i%n]); !found || err != nil {
					b.Fatal(found, err)
				}
			}
			check(b, snap.Close())
		})
	}
}
