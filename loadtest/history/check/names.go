package check

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/canopyfs/canopy/loadtest/history"
)

// maxNames bounds the names of a group.
const maxNames = 8

// names is the state of a group: which inode each of its names leads to. Only names of
// the group lead to these inodes, so it knows their links, too.
type names struct {
	// ino is 0 for a name that is not there. An inode whose number nobody has seen
	// yet is told by a negative number, of the operation that made it.
	ino  [maxNames]int64
	full uint8 // bit i: ino[i] is a directory with a file in it
}

// step is an operation on names by their positions.
type step struct {
	op    *history.Op
	a, b  int
	token int64 // for the inode that it makes
}

// namesParts returns a part for each group, with what the recount found.
func namesParts(ops []*history.Op) []*part {
	groups := map[int][]*history.Op{}
	var recounts []*history.Op
	for _, op := range inOrder(ops) {
		switch {
		case op.Group != 0 && fits(op):
			groups[op.Group] = append(groups[op.Group], op)
		case op.Kind == history.Recount && op.Outcome == history.Done:
			recounts = append(recounts, op)
		}
	}
	var parts []*part
	for _, number := range sortedKeys(groups) {
		parts = append(parts, namesPart(number, groups[number], recounts))
	}
	return parts
}

func sortedKeys[V any](m map[int]V) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func namesPart(number int, ops, recounts []*history.Op) *part {
	p := &part{rule: RuleNames, where: fmt.Sprintf("group %d", number)}
	position := map[string]int{}
	var all []string
	at := func(name string) int {
		i, known := position[name]
		if !known && name != "" {
			i = len(all)
			position[name], all = i, append(all, name)
		}
		return i
	}
	for i, op := range ops {
		p.add(op, &step{op: op, a: at(op.A), b: at(op.B), token: -int64(i) - 1})
	}
	for _, r := range recounts {
		for _, op := range recounted(r, all) {
			p.add(op, &step{op: op, a: at(op.A)})
		}
	}
	p.model = namesModel(all)
	return p
}

// recounted says of each name whether a recount showed it, and as what.
func recounted(r *history.Op, all []string) []*history.Op {
	shown := map[string]uint64{}
	for _, e := range r.Entries {
		shown[r.A+"/"+e.Name] = e.Ino
	}
	var ops []*history.Op
	for _, name := range all {
		if !strings.HasPrefix(name, r.A+"/") {
			continue
		}
		op := &history.Op{Client: r.Client, Kind: history.Stat, A: name, Ino: shown[name], Call: r.Call, Return: r.Return}
		if op.Ino == 0 {
			op.Outcome = "ENOENT"
		}
		ops = append(ops, op)
	}
	return ops
}

func namesModel(all []string) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{names{}} },
		Step: func(state, input, _ any) []any {
			var after []any
			for _, s := range state.(names).after(input.(*step)) {
				after = append(after, s)
			}
			return after
		},
		Hash: func(state any) uint64 {
			h := fnv.New64a()
			s := state.(names)
			fmt.Fprint(h, s.ino, s.full)
			return h.Sum64()
		},
		DescribeState: func(state any) string { return state.(names).describe(all) },
	}
	return m.ToModel()
}

func (s names) describe(all []string) string {
	var there []string
	for i, name := range all {
		if i >= maxNames || s.ino[i] == 0 {
			continue
		}
		what := fmt.Sprintf("%s=%d", name, s.ino[i])
		if s.has(i) {
			what += " with a file"
		}
		there = append(there, what)
	}
	return strings.Join(there, ", ")
}

func (s names) has(i int) bool { return s.full&(1<<i) != 0 }

func (s names) put(i int, ino int64, full bool) names {
	s.ino[i] = ino
	s.full &^= 1 << i
	if full {
		s.full |= 1 << i
	}
	return s
}

// links counts the names of an inode.
func (s names) links(ino int64) (n uint64) {
	for _, x := range s.ino {
		if x == ino {
			n++
		}
	}
	return n
}

// find returns a name of an inode.
func (s names) find(ino int64) (int, bool) {
	i := slices.Index(s.ino[:], ino)
	return i, i >= 0
}

// saw says that name i leads to the inode, and whether that can be.
func (s names) saw(i int, ino int64) (names, bool) {
	switch was := s.ino[i]; {
	case was == ino:
		return s, true
	case was >= 0 || s.links(ino) > 0:
		return s, false
	default: // nobody had seen the number of what was made there
		for k, x := range s.ino {
			if x == was {
				s.ino[k] = ino
			}
		}
		return s, true
	}
}

// after returns which states can follow: none if the operation cannot be answered as
// it was, more than one if what it did is not told by its answer.
func (s names) after(st *step) []names {
	if st.a >= maxNames || st.b >= maxNames {
		return nil
	}
	op := st.op
	switch op.Kind {
	case history.Create, history.Mkdir:
		return s.afterMake(st)
	case history.Stat:
		return s.afterStat(st)
	case history.Links, history.Link, history.Enter, history.Leave:
		return s.afterHandle(st)
	case history.Unlink, history.Rmdir:
		there := s.ino[st.a] != 0
		return settle(op, s, s.put(st.a, 0, false), there && !s.has(st.a), map[string]bool{"ENOENT": !there, "ENOTEMPTY": s.has(st.a)})
	}
	return s.afterRename(st)
}

// settle returns what follows an operation that changes s to changed if it can be done,
// and can else be refused for what is true of the reasons.
func settle(op *history.Op, s, changed names, can bool, reasons map[string]bool) []names {
	switch op.Outcome {
	case history.Done:
		if can {
			return []names{changed}
		}
	case history.Unknown:
		if can {
			return []names{changed}
		}
		return []names{s} // and so it is if it comes last, that is, never
	default:
		if reasons[op.Outcome] {
			return []names{s}
		}
	}
	return nil
}

func (s names) afterMake(st *step) []names {
	ino := int64(st.op.Ino)
	if ino == 0 {
		ino = st.token
	}
	there := s.ino[st.a] != 0
	return settle(st.op, s, s.put(st.a, ino, false), !there && s.links(ino) == 0, map[string]bool{"EEXIST": there})
}

func (s names) afterStat(st *step) []names {
	if st.op.Outcome == "ENOENT" {
		if s.ino[st.a] == 0 {
			return []names{s}
		}
		return nil
	}
	changed, can := s.saw(st.a, int64(st.op.Ino))
	if !can || st.op.Links != 0 && changed.links(int64(st.op.Ino)) != st.op.Links {
		return nil
	}
	return []names{changed}
}

// afterHandle is for what is asked of an inode that a stat has shown before.
func (s names) afterHandle(st *step) []names {
	op := st.op
	i, there := s.find(int64(op.Ino))
	full := there && s.has(i)
	gone := map[string]bool{"ENOENT": !there, "ESTALE": !there}
	switch op.Kind {
	case history.Links:
		return settle(op, s, s, s.links(int64(op.Ino)) == op.Links, gone)
	case history.Link:
		gone["EEXIST"] = s.ino[st.b] != 0
		return settle(op, s, s.put(st.b, int64(op.Ino), false), there && s.ino[st.b] == 0, gone)
	case history.Enter:
		gone["EEXIST"] = full
		return settle(op, s, s.put(max(i, 0), int64(op.Ino), true), there && !full, gone)
	}
	gone["ENOENT"] = !full
	return settle(op, s, s.put(max(i, 0), int64(op.Ino), false), full, gone)
}

func (s names) afterRename(st *step) []names {
	op, a, b := st.op, s.ino[st.a], s.ino[st.b]
	moved := s.put(st.b, a, s.has(st.a)).put(st.a, 0, false)
	var after []names
	switch op.Kind {
	case history.Rename:
		if a == b { // two links of one file: nothing is done
			moved = s
		}
		after = settle(op, s, moved, a != 0 && (a == b || !s.has(st.b)), map[string]bool{"ENOENT": a == 0, "ENOTEMPTY": s.has(st.b)})
	case history.NoReplace:
		return settle(op, s, moved, a != 0 && b == 0, map[string]bool{"ENOENT": a == 0, "EEXIST": b != 0})
	case history.Exchange:
		swapped := s.put(st.a, b, s.has(st.b)).put(st.b, a, s.has(st.a))
		after = settle(op, s, swapped, a != 0 && b != 0, map[string]bool{"ENOENT": a == 0 || b == 0})
	}
	// The kernel of a mount looks both names up, one after the other, and does nothing
	// if it found the same inode: so if another client moved it just then.
	if op.Via == history.ByMount && op.Outcome == history.Done && b != 0 {
		after = append(after, s)
	}
	return after
}
