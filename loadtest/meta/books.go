package meta

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"github.com/canopyfs/canopy/loadtest/target"
)

// maxShown bounds how many wrong names an error lists.
const maxShown = 5

// books are the names that a kind of directory must hold, kept by what the
// workers were told: false stands for a name whose outcome is not known.
type books struct {
	cfg  *Config
	dirs string
	want map[string]map[string]bool // by directory
}

func newBooks(cfg *Config, dirs string) *books {
	b := &books{cfg: cfg, dirs: dirs, want: map[string]map[string]bool{}}
	for w := range cfg.Total() {
		b.want[cfg.dirName(dirs, w)] = map[string]bool{}
	}
	return b
}

// check takes over what a phase did and compares with a listing: every name
// that must be there is there exactly once, and no other is.
func (b *books) check(ctx context.Context, tg target.Target, phase string, r *stepResult) error {
	switch phase {
	case Mkdir, Create, Rename, Unlink, Rmdir:
	default:
		return nil
	}
	for _, ch := range r.Workers {
		names := b.want[b.cfg.dirName(b.dirs, ch.Worker)]
		for _, i := range ch.Done {
			b.apply(names, phase, ch.Worker, i, true)
		}
		for _, i := range ch.Unknown {
			b.apply(names, phase, ch.Worker, i, false)
		}
	}
	for dir, names := range b.want {
		if err := compare(ctx, tg, dir, names); err != nil {
			return fmt.Errorf("after %s: %w", phase, err)
		}
	}
	return nil
}

func (b *books) apply(names map[string]bool, phase string, worker, item int, sure bool) {
	file := itemName(letterFile, worker, item)
	renamed := itemName(letterRenamed, worker, item)
	gone := func(name string) {
		if _, there := names[name]; !there {
			return
		}
		if sure {
			delete(names, name)
		} else {
			names[name] = false
		}
	}
	switch phase {
	case Mkdir:
		names[itemName(letterDir, worker, item)] = sure
	case Create:
		names[file] = sure
	case Rename:
		gone(file)
		names[renamed] = sure
	case Unlink:
		gone(file)
		gone(renamed)
	case Rmdir:
		gone(itemName(letterDir, worker, item))
	}
}

func compare(ctx context.Context, tg target.Target, dir string, want map[string]bool) error {
	d, err := tg.Dir(ctx, dir)
	if err != nil {
		return err
	}
	defer d.Close()
	seen := make(map[string]int, len(want))
	if _, err := d.List(ctx, func(name string, _ uint64) { seen[name]++ }); err != nil {
		return err
	}
	var missing, twice, surplus []string
	for name, sure := range want {
		if sure && seen[name] == 0 {
			missing = append(missing, name)
		}
	}
	for name, n := range seen {
		if _, known := want[name]; !known {
			surplus = append(surplus, name)
		}
		if n > 1 {
			twice = append(twice, name)
		}
	}
	if len(missing)+len(twice)+len(surplus) == 0 {
		return nil
	}
	return fmt.Errorf("%s is wrong: %s, %s, %s", dir,
		some("missing", missing), some("listed twice", twice), some("not expected", surplus))
}

func some(what string, names []string) string {
	if len(names) == 0 {
		return "0 " + what
	}
	sort.Strings(names)
	n := len(names)
	return fmt.Sprintf("%d %s (%s)", n, what, strings.Join(names[:min(n, maxShown)], " "))
}
