package namespace

import (
	"bytes"
	"fmt"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// pageRows is how many rows a check copies at once: between two pages it may read
// whatever else it needs, it can be slowed down or ended, and no iterator is open.
const pageRows = 1024

// rows goes through a range of keys page by page.
type rows struct {
	r        shard.Reader
	lo, hi   []byte
	buf      []byte // of the page: keys and values, one after the other
	ends     []int  // where each of them ends
	at       int    // row of the page
	progress func(rows uint64) error
}

func (c *checker) rows(kind schema.Kind) *rows {
	lo, hi := schema.KindRange(c.id, c.subtree, kind)
	return &rows{r: c.r, lo: lo, hi: hi, progress: c.look.Progress}
}

// more tells whether there is a present row; it reads the next page if it must.
func (p *rows) more() (bool, error) {
	if 2*p.at < len(p.ends) {
		return true, nil
	}
	if p.lo == nil {
		return false, nil
	}
	p.at, p.buf, p.ends = 0, p.buf[:0], p.ends[:0]
	err := p.r.Scan(p.lo, p.hi, func(key, value []byte) (bool, error) {
		p.buf = append(p.buf, key...)
		p.ends = append(p.ends, len(p.buf))
		p.buf = append(p.buf, value...)
		p.ends = append(p.ends, len(p.buf))
		return len(p.ends) < 2*pageRows, nil
	})
	if err != nil {
		return false, err
	}
	n := len(p.ends) / 2
	if n < pageRows {
		p.lo = nil
	} else {
		last := p.buf[p.start(2*(n-1)):p.ends[2*(n-1)]]
		p.lo = append(bytes.Clone(last), 0)
	}
	if p.progress != nil {
		err = p.progress(uint64(n))
	}
	return n > 0, err
}

func (p *rows) start(i int) int {
	if i == 0 {
		return 0
	}
	return p.ends[i-1]
}

// key and value return the present row's, valid until the next call of more.
func (p *rows) key() []byte { return p.buf[p.start(2*p.at):p.ends[2*p.at]] }

func (p *rows) value() []byte { return p.buf[p.ends[2*p.at]:p.ends[2*p.at+1]] }

// each calls fn for every row of a kind; fn may read.
func (c *checker) each(kind schema.Kind, fn func(key, value []byte) error) error {
	p := c.rows(kind)
	for {
		some, err := p.more()
		if err != nil || !some {
			return err
		}
		if err := fn(p.key(), p.value()); err != nil {
			return err
		}
		p.at++
	}
}

// belongings is what stands behind an owner's key.
type belongings struct {
	names  uint32   // bytes of xattr names
	locked bool     // there are locks
	ino    base.Ino // of a file, to find locks again
}

func belongingsOf(n *schema.Inode) belongings {
	return belongings{n.XattrNames, n.Locked, n.Ino}
}

// owners follows the rows of a kind that can own xattrs and locks, which stand behind
// their owner.
type owners struct {
	c          *checker
	key        []byte // of the present owner; empty: none
	want, have belongings
	ignored    bool // the present owner does not count, nor does what stands behind it
}

// part takes a row that is no owner; false: it is one.
func (o *owners) part(key, value []byte) (bool, error) {
	if name, ok := schema.XattrOf(o.key, key); ok {
		o.have.names += uint32(len(name)) + 1
		return true, nil
	}
	if lock, ok := schema.LockOf(o.key, key); ok {
		if o.have.locked = true; o.ignored {
			return true, nil
		}
		return true, o.c.lockListed(lock.Client, o.want.ino)
	}
	if schema.IsSelf(key) {
		return false, nil
	}
	o.c.found(Finding{Invariant: "3", Object: schema.Format(key), Problem: "it belongs to nothing", Repair: o.c.dropRow(key, value)})
	return true, nil
}

// begin takes the next owner and says what it must have.
func (o *owners) begin(key []byte, want belongings) {
	o.settle()
	o.key, o.want, o.have, o.ignored = append(o.key[:0], key...), want, belongings{}, false
}

// ignore is begin for one that does not count.
func (o *owners) ignore(key []byte) {
	o.begin(key, belongings{})
	o.ignored = true
}

// settle compares what was found of the present owner with what it says.
func (o *owners) settle() {
	if len(o.key) == 0 || o.ignored {
		return
	}
	if o.want.names != o.have.names {
		o.c.found(Finding{Invariant: "3", Object: schema.Format(o.key),
			Problem: fmt.Sprintf("its count of xattr names is %d bytes, the names have %d", o.want.names, o.have.names)})
	}
	if o.want.locked != o.have.locked {
		o.c.found(Finding{Invariant: "3", Object: schema.Format(o.key), Problem: fmt.Sprintf("locked=%v, but there are locks=%v", o.want.locked, o.have.locked)})
	}
	o.want, o.have = belongings{}, belongings{}
}

// eachOwner calls fn for each owner of a kind; fn returns what there must be behind it.
func (c *checker) eachOwner(kind schema.Kind, fn func(key, value []byte) (belongings, error)) error {
	o := &owners{c: c}
	err := c.each(kind, func(key, value []byte) error {
		if part, err := o.part(key, value); part || err != nil {
			return err
		}
		want, err := fn(key, value)
		o.begin(key, want)
		return err
	})
	o.settle()
	return err
}
