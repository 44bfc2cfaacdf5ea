package client

import (
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

const maxCached = 1 << 17 // names, and inodes with attributes, each

// cache holds names and attributes of the relaxed mode: positive lookups and
// what their inodes looked like, for a stated time. Nil-safe: a strict client
// has none.
type cache struct {
	age time.Duration

	mu    sync.Mutex
	names map[nameKey]cachedName
	attrs map[base.Ino]cachedAttr
}

type nameKey struct {
	dir  base.Ino
	name string
}

type cachedName struct {
	ino base.Ino
	at  time.Time
}

type cachedAttr struct {
	attr *Attr
	at   time.Time
}

// newCache returns a cache for the mode, nil for strict.
func newCache(age time.Duration) *cache {
	if age <= 0 {
		return nil
	}
	return &cache{age: age, names: map[nameKey]cachedName{}, attrs: map[base.Ino]cachedAttr{}}
}

func (c *cache) attr(ino base.Ino) *Attr {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.attrs[ino]; ok && time.Since(a.at) < c.age {
		return a.attr
	}
	return nil
}

func (c *cache) lookup(dir base.Ino, name string) *Attr {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.names[nameKey{dir, name}]
	if !ok || time.Since(n.at) >= c.age {
		return nil
	}
	if a, ok := c.attrs[n.ino]; ok && time.Since(a.at) < c.age {
		return a.attr
	}
	return nil
}

// putAttr takes attributes that were asked for at the time asked; an answer
// never replaces a newer version.
func (c *cache) putAttr(attr *Attr, asked time.Time) {
	if c == nil || attr == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(attr, asked)
}

func (c *cache) putLocked(attr *Attr, asked time.Time) {
	ino := base.Ino(attr.Ino)
	if isPartial(attr) {
		delete(c.attrs, ino)
		return
	}
	if a, ok := c.attrs[ino]; ok && !newer(attr, a.attr) {
		return
	}
	if len(c.attrs) >= maxCached {
		evict(c.attrs)
	}
	c.attrs[ino] = cachedAttr{attr, asked}
}

func (c *cache) putName(dir base.Ino, name string, attr *Attr, asked time.Time) {
	if c == nil || attr == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) >= maxCached {
		evict(c.names)
	}
	c.names[nameKey{dir, name}] = cachedName{base.Ino(attr.Ino), asked}
	c.putLocked(attr, asked)
}

// dropName forgets a name that this client removed or replaced, and dropAttr
// attributes that it changed without learning the new ones.
func (c *cache) dropName(dir base.Ino, name string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.names, nameKey{dir, name})
}

func (c *cache) dropAttr(ino base.Ino) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attrs, ino)
}

func (c *cache) dropPlace(p *canopyv1.Place) {
	if p.Dir != 0 {
		c.dropName(base.Ino(p.Dir), string(p.Name))
	}
	c.dropAttr(base.Ino(p.Ino))
}

// evict removes a sixteenth of the entries; a map's order is as good as random.
func evict[K comparable, V any](m map[K]V) {
	n := len(m)/16 + 1
	for k := range m {
		delete(m, k)
		if n--; n == 0 {
			return
		}
	}
}
