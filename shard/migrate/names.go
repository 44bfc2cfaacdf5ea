package migrate

import (
	"bytes"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// fillNames takes rows of a move of names from the cursor on: the names, which are one
// range of keys with all that belongs to them (PROTOCOLS A8), and results and
// relocations. A new subtree gets those of all clients and files.
func (p *page) fillNames() error {
	d, m := p.d, p.d.move
	lo, hi := schema.DentryRange(d.id, d.subtree, m.Root, m.Names.First(), m.Names.Last())
	spans := [][2][]byte{{lo, hi}}
	for _, kind := range []schema.Kind{schema.KindResults, schema.KindRelocation} {
		lo, hi := schema.KindRange(d.id, d.subtree, kind)
		spans = append(spans, [2][]byte{lo, hi})
	}
	for p.at.stage < len(spans) {
		full, err := p.span(spans[p.at.stage][0], spans[p.at.stage][1])
		if err != nil || full {
			return err
		}
		p.at = cursor{stage: p.at.stage + 1}
	}
	p.done = true
	return nil
}

// takeNames adds a row of a move of names. A subtree that has others gets of the
// relocations those that lead to the names: it leads to the rest by its own. What it
// gets of results stays as it is, so that the last batches have only what is new.
func (p *page) takeNames(kind schema.Kind, key, value []byte) error {
	switch kind {
	case schema.KindResults:
		if p.d.move.Join {
			p.d.copy.results[string(key)] = struct{}{}
		}
	case schema.KindRelocation:
		to, leads, err := p.relocation(value)
		if err != nil || p.d.move.Join && !leads {
			return err
		}
		value = to
	}
	p.add(key, value)
	return nil
}

// goes reports whether a file at a place goes along.
func (d *Driver) goes(r shard.Reader, dir base.Ino, name []byte) (bool, error) {
	if d.move.OfNames() {
		return dir == d.move.Root && d.move.Names.Contains(d.Hash(name).Border()), nil
	}
	return d.isMember(r, dir)
}

// namesRows come with the last batches of a move of names. A new subtree gets what
// stands behind the directory's header, and the policy that holds in it; one that has
// the directory gets results, since it has its own already (PROTOCOLS C5).
func (d *Driver) namesRows(r shard.Reader) (rows []raw, err error) {
	if d.move.Join {
		return d.kind(r, schema.KindResults, func(key []byte) bool {
			_, sent := d.copy.results[string(key)]
			return !sent
		})
	}
	lo, hi := schema.HeaderRange(d.id, d.subtree, d.move.Root)
	err = r.Scan(lo, hi, func(key, value []byte) (bool, error) {
		if !schema.IsSelf(key) {
			rows = append(rows, raw{bytes.Clone(key), bytes.Clone(value)})
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	policy, err := d.src.Policy(r, d.subtree, d.move.Root)
	if policy != nil {
		rows = append(rows, raw{schema.PolicyKey(d.id, d.subtree, d.move.Root), policy})
	}
	return rows, err
}

// header returns the directory's header as it is at the source, of a move of names.
func (d *Driver) header(r shard.Reader) ([]byte, error) {
	if !d.move.OfNames() {
		return nil, nil
	}
	value, _, err := r.Get(schema.HeaderKey(d.id, d.subtree, d.move.Root))
	return bytes.Clone(value), err
}
