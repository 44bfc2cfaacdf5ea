// Package policy says what directory policies mean: what the classes set, how what
// is set on a directory overrides what it inherits, and which layout comes out
// for a new file. It is pure and shared by the metadata service, which decides by
// it when a file is made, and by mdsctl, which explains the decision.
package policy

import (
	"fmt"
	"slices"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// Key is one thing that a policy decides.
type Key int

// The keys.
const (
	Stripes Key = iota
	Data
	Sync
	Direct
	Spread // of new directories: not inherited
	Pin    // of new directories
	Keys   // how many there are
)

var keyNames = [Keys]string{"stripes", "data", "sync", "direct", "spread", "pin"}

func (k Key) String() string { return keyNames[k] }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// Names of classes.
const (
	Checkpoint = "checkpoint"
	Dataset    = "dataset"
	Scratch    = "scratch"
	Auto       = "auto"
	Standard   = "default"
)

func on(v bool) *bool { return &v }
func single(count uint32, size uint64) []*canopyv1.LayoutComponent {
	return []*canopyv1.LayoutComponent{{StripeBytes: size, StripeCount: count}}
}

// headThen is a layout whose first bytes, up to first, lie on one placement group,
// so that a small file sits on one.
func headThen(first uint64, count uint32, size uint64) []*canopyv1.LayoutComponent {
	return []*canopyv1.LayoutComponent{{StripeBytes: first, StripeCount: 1}, {Offset: first, StripeBytes: size, StripeCount: count}}
}

// wide is for large files: the best of three layouts that were measured
// (docs/design/0007-layout-policies.md). The number of columns is a prime, since
// ranks that write ranges of one file begin at multiples of a power of two.
var wide = single(17, 4*mib)

// class is a named policy. What it leaves out is inherited.
type class struct {
	policy *canopyv1.LayoutPolicy
	about  string
	resets bool // everything that policy leaves out is the default's, not inherited
}

var classes = map[string]class{
	Checkpoint: {&canopyv1.LayoutPolicy{Stripes: wide, Sync: canopyv1.LayoutSync_LAYOUT_SYNC_DATA, Direct: on(true)},
		"large files, written by many at once: wide, large stripes, past the page cache", false},
	Dataset: {&canopyv1.LayoutPolicy{Stripes: headThen(mib, 4, 4*mib), Sync: canopyv1.LayoutSync_LAYOUT_SYNC_DATA, Direct: on(false)},
		"files that are read: the small ones on one group, large ones over four, by way of the page cache and its read-ahead", false},
	Scratch: {&canopyv1.LayoutPolicy{Data: stripe.Copies(1), Sync: canopyv1.LayoutSync_LAYOUT_SYNC_NONE},
		"what can be made again: one copy, fsync does not wait for the disk", false},
	Auto: {&canopyv1.LayoutPolicy{},
		"stripes by the size of the files that a directory gets", false},
	Standard: {&canopyv1.LayoutPolicy{}, "as if no directory above had a policy", true},
}

// levels are what auto chooses from, by the mean size of a directory's files.
var levels = []struct {
	below   uint64 // mean size in bytes; the last has no bound
	about   string
	stripes []*canopyv1.LayoutComponent
}{
	{0, "", nil}, // level 0: nothing is chosen yet
	{mib, "small files", headThen(4*mib, 3, 4*mib)},
	{64 * mib, "middling files", headThen(mib, 4, 4*mib)},
	{1<<64 - 1, "large files", wide},
}

// Window is after how many files auto chooses. Half of their weight is kept, so
// that it chooses again after each further half of the window.
const Window = 16

// LevelOf returns what auto chooses for files of the mean size.
func LevelOf(meanBytes uint64) uint32 {
	for i := 1; i < len(levels); i++ {
		if meanBytes < levels[i].below {
			return uint32(i)
		}
	}
	return uint32(len(levels) - 1)
}

// LevelText says what a level is for.
func LevelText(level uint32) string {
	if level == 0 || int(level) >= len(levels) {
		return "nothing yet"
	}
	return levels[level].about
}

// Classes returns the names of all classes, About what one is for.
func Classes() []string { return []string{Checkpoint, Dataset, Scratch, Auto, Standard} }

// About says what a class is for.
func About(name string) string { return classes[name].about }

// Class returns what a class sets, nil if there is no such class. Do not change
// it.
func Class(name string) *canopyv1.LayoutPolicy { return classes[name].policy }

// Source is where a value comes from.
type Source struct {
	Dir   uint64 // the directory that decides; 0: none does, it is the default
	Class string // the class that was set there; "": the key itself was
}

// Effective is what holds for new files of a directory.
type Effective struct {
	Stripes []*canopyv1.LayoutComponent // nil: the default layout's
	Data    *canopyv1.Redundancy        // nil: the default layout's pool
	Pool    uint64                      // of Data
	NoSync  bool
	Direct  bool
	Auto    bool   // stripes follow what is seen of the files
	Level   uint32 // what auto chose
	Spread  bool   // each new directory starts a subtree
	Pin     uint64 // the shard of new directories; 0: their parent's
	From    [Keys]Source
}

// Below returns what holds in a directory, given what holds in its parent: own is
// what was set on it (nil: nothing), level what auto has chosen for it. The zero
// Effective holds above the root.
func (e Effective) Below(dir uint64, own *canopyv1.LayoutPolicy, level uint32) Effective {
	e.Spread, e.From[Spread] = false, Source{}
	if own.GetClass() != "" {
		c := classes[own.Class]
		from := Source{dir, own.Class}
		if c.resets {
			e = Effective{Pin: e.Pin, From: e.From} // a class is about files
			for k := range Spread {
				e.From[k] = from
			}
		}
		e = e.with(c.policy, own.ClassPool, from)
		if own.Class == Auto {
			e.Auto, e.Level, e.Stripes, e.From[Stripes] = true, 0, nil, from
		}
	}
	if own != nil {
		e = e.with(own, own.Pool, Source{Dir: dir})
	}
	if e.Auto && level > 0 && int(level) < len(levels) {
		e.Level, e.Stripes = level, levels[level].stripes
	}
	return e
}

// with returns e with what p sets.
func (e Effective) with(p *canopyv1.LayoutPolicy, pool uint64, from Source) Effective {
	if len(p.GetStripes()) > 0 {
		e.Stripes, e.Auto, e.Level, e.From[Stripes] = p.Stripes, false, 0, from
	}
	if p.GetData() != nil {
		e.Data, e.Pool, e.From[Data] = p.Data, pool, from
	}
	if p.GetSync() != canopyv1.LayoutSync_LAYOUT_SYNC_UNSET {
		e.NoSync, e.From[Sync] = p.Sync == canopyv1.LayoutSync_LAYOUT_SYNC_NONE, from
	}
	if p != nil && p.Direct != nil {
		e.Direct, e.From[Direct] = *p.Direct, from
	}
	if sets(p, Spread) {
		e.Spread, e.From[Spread] = p.Spread == SpreadChildren, from
	}
	if sets(p, Pin) {
		e.Pin, e.From[Pin] = p.Pin, from
	}
	return e
}

// SpreadChildren is the value of spread that puts each new directory into a
// subtree of its own.
const SpreadChildren = "children"

// Inherited returns what a directory below would inherit as a policy of its own,
// nil if that is nothing: what the root of a new subtree keeps, since no directory
// above is in its subtree.
func (e Effective) Inherited() *canopyv1.LayoutPolicy {
	p := &canopyv1.LayoutPolicy{Stripes: e.Stripes, Data: e.Data, Pin: e.Pin}
	if e.Data != nil {
		p.Pool = e.Pool
	}
	if e.Auto {
		p.Class, p.Stripes = Auto, nil
	}
	if e.NoSync {
		p.Sync = canopyv1.LayoutSync_LAYOUT_SYNC_NONE
	}
	if e.Direct {
		p.Direct = on(true)
	}
	if isEmpty(p) {
		return nil
	}
	return p
}

// Layout returns the layout of a new file; standard is what it is where no policy
// says anything. It shares memory with both.
func (e Effective) Layout(standard *canopyv1.Layout) *canopyv1.Layout {
	l := &canopyv1.Layout{Pool: standard.GetPool(), Components: standard.GetComponents()}
	if e.Stripes != nil {
		l.Components = e.Stripes
	}
	if e.Pool != 0 {
		l.Pool = e.Pool
	}
	if e.Direct {
		l.Flags |= uint32(canopyv1.LayoutFlag_LAYOUT_DIRECT)
	}
	if e.NoSync {
		l.Flags |= uint32(canopyv1.LayoutFlag_LAYOUT_NO_SYNC)
	}
	return l
}

// Merge returns what is set on a directory after a change: first what clear names
// goes, then what set has comes. A class takes the place of the keys that it
// sets. nil: nothing is set any more. Neither argument is changed.
func Merge(old, set *canopyv1.LayoutPolicy, clear []string) (*canopyv1.LayoutPolicy, error) {
	out := &canopyv1.LayoutPolicy{Class: old.GetClass(), ClassPool: old.GetClassPool()}
	take(out, old)
	for _, name := range clear {
		if !drop(out, name) {
			return nil, invalid("there is no key %q: want class or one of %v", name, keyNames)
		}
	}
	if set.GetClass() != "" {
		c, ok := classes[set.Class]
		if !ok {
			return nil, invalid("there is no class %q: want one of %v", set.Class, Classes())
		}
		out.Class, out.ClassPool = set.Class, set.ClassPool
		for k := range Keys {
			if c.resets && k < Spread || sets(c.policy, k) || k == Stripes && set.Class == Auto {
				drop(out, k.String())
			}
		}
	}
	take(out, set)
	if isEmpty(out) {
		return nil, nil
	}
	return out, validate(out)
}

// sets reports whether p sets the key.
func sets(p *canopyv1.LayoutPolicy, k Key) bool {
	switch k {
	case Stripes:
		return len(p.GetStripes()) > 0
	case Data:
		return p.GetData() != nil
	case Sync:
		return p.GetSync() != canopyv1.LayoutSync_LAYOUT_SYNC_UNSET
	case Spread:
		return p.GetSpread() != ""
	case Pin:
		return p.GetPin() != 0
	}
	return p != nil && p.Direct != nil
}

// take copies the keys that from sets.
func take(p, from *canopyv1.LayoutPolicy) {
	if sets(from, Stripes) {
		p.Stripes = from.Stripes
	}
	if sets(from, Data) {
		p.Data, p.Pool = from.Data, from.Pool
	}
	if sets(from, Sync) {
		p.Sync = from.Sync
	}
	if sets(from, Direct) {
		p.Direct = from.Direct
	}
	if sets(from, Spread) {
		p.Spread = from.Spread
	}
	if sets(from, Pin) {
		p.Pin = from.Pin
	}
}

func drop(p *canopyv1.LayoutPolicy, name string) bool {
	switch name {
	case "class":
		p.Class, p.ClassPool = "", 0
	case "stripes":
		p.Stripes = nil
	case "data":
		p.Data, p.Pool = nil, 0
	case "sync":
		p.Sync = canopyv1.LayoutSync_LAYOUT_SYNC_UNSET
	case "direct":
		p.Direct = nil
	case "spread":
		p.Spread = ""
	case "pin":
		p.Pin = 0
	default:
		return false
	}
	return true
}

func isEmpty(p *canopyv1.LayoutPolicy) bool {
	return p.Class == "" && !slices.ContainsFunc([]Key{Stripes, Data, Sync, Direct, Spread, Pin}, func(k Key) bool { return sets(p, k) })
}

func validate(p *canopyv1.LayoutPolicy) error {
	if len(p.Stripes) > 0 {
		if err := stripe.Validate(&canopyv1.Layout{Pool: 1, Components: p.Stripes}); err != nil {
			return err
		}
	}
	if p.Data != nil {
		if err := stripe.ValidateClass(p.Data); err != nil {
			return err
		}
	}
	switch {
	case (p.Data != nil) != (p.Pool != 0) || (Class(p.Class).GetData() != nil) != (p.ClassPool != 0):
		return invalid("how data is kept and its pool go together")
	case p.Sync > canopyv1.LayoutSync_LAYOUT_SYNC_NONE || p.Sync < 0:
		return invalid("sync is data or none")
	case p.Spread != "" && p.Spread != SpreadChildren && p.Spread != "none":
		return invalid("spread is children or none")
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fserr.New(fserr.Invalid, "policy", fmt.Errorf(format, args...))
}
