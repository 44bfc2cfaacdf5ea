// Package check says whether the answers in a history can be those of a linearizable
// file system: whether each operation can be put at one moment between its call and
// its return so that all answers follow from the order of these moments.
//
// That is searched for by porcupine in parts that have nothing to do with each other:
// a group of names that only its own operations touch ([CheckNames]), and a register
// ([CheckRegister]). Listings are no operations of one moment; what they promise is
// checked rule by rule (listing.go), and so are appended records (logs.go).
//
// An operation with an unknown outcome may take effect at any time after its call, or
// never. A refusal is held to what it says alone (ENOENT: the name was not there), not
// to the order in which a file system looks for reasons: before a mount's request comes to the
// server, the kernel has asked for both names of a rename, one after the other.
package check

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"

	"github.com/canopyfs/canopy/loadtest/history"
)

// The rules.
const (
	RuleNames      = "names"     // a group's names are linearizable
	RuleRegister   = "register"  // an extended attribute is
	RuleRefusal    = "refusal"   // no answer but those that the operation can have
	RuleOnce       = "once"      // what is done once cannot fail
	RuleInode      = "inode"     // no inode is made twice
	RuleTwice      = "twice"     // no listing shows a name twice
	RuleMissing    = "missing"   // a name that is there throughout is shown
	RuleSurplus    = "surplus"   // a name that is never there is not
	RuleOrder      = "order"     // who sees f2 sees f1, if f1 was there before f2 was asked for (F3)
	RuleLost       = "lost"      // an acknowledged record is in its log
	RuleRepeated   = "repeated"  // no record is there twice
	RuleTorn       = "torn"      // no record is torn, none that nobody wrote
	RuleAppendSeen = "append"    // records are in the order of their appends
	RuleUndecided  = "undecided" // the search took too long to say
)

// Options of a check.
type Options struct {
	// Timeout bounds the search in one part; 0: a minute.
	Timeout time.Duration
}

// Violation is one thing that cannot be.
type Violation struct {
	Rule   string `json:"rule"`
	Where  string `json:"where"`
	Detail string `json:"detail"`
}

func (v Violation) String() string { return v.Rule + " of " + v.Where + ": " + v.Detail }

// Report is the outcome of a check.
type Report struct {
	Ops        int            `json:"operations"`
	Kinds      []KindCount    `json:"kinds"`
	Unknown    int            `json:"unknown"`
	Unhurried  int            `json:"unknown_unhurried"` // of them, of clients that had time
	LongestGap time.Duration  `json:"longest_gap_ns"`    // between two answers of any client
	Parts      int            `json:"parts"`             // that porcupine searched
	Listings   int            `json:"listings"`
	Names      int            `json:"names"`   // that were made once
	Records    int            `json:"records"` // that were appended
	Rules      map[string]int `json:"violations"`
	Violations []Violation    `json:"found,omitempty"` // the first of each rule
}

// KindCount says how often an operation was done, by what came of it.
type KindCount struct {
	Kind                          history.Kind
	Done, Refused, Unknown, Mount int
	Longest                       time.Duration
}

// maxShown bounds how many violations of one rule a report describes.
const maxShown = 10

// OK reports whether nothing was found.
func (r *Report) OK() bool { return len(r.Rules) == 0 }

func (r *Report) add(rule, where, format string, args ...any) {
	r.Rules[rule]++
	if r.Rules[rule] <= maxShown {
		r.Violations = append(r.Violations, Violation{rule, where, fmt.Sprintf(format, args...)})
	}
}

// Run checks a history.
func Run(ctx context.Context, h *history.History, o Options) (*Report, error) {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	r := &Report{Ops: len(h.Ops), Rules: map[string]int{}}
	r.count(h)
	checkRefusals(r, h.Ops)
	checkSingles(r, h.Ops)
	checkLogs(r, h)
	parts := append(namesParts(h.Ops), registerParts(h.Ops)...)
	r.Parts = len(parts)
	found := make([]*Violation, len(parts))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, p := range parts {
		g.Go(func() error {
			found[i] = p.check(o.Timeout)
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, v := range found {
		if v != nil {
			r.add(v.Rule, v.Where, "%s", v.Detail)
		}
	}
	return r, nil
}

func (r *Report) count(h *history.History) {
	byKind := map[history.Kind]*KindCount{}
	var ends []int64
	for _, op := range h.Ops {
		k := byKind[op.Kind]
		if k == nil {
			k = &KindCount{Kind: op.Kind}
			byKind[op.Kind] = k
		}
		switch op.Outcome {
		case history.Unknown:
			k.Unknown++
			r.Unknown++
			if !op.Hurried {
				r.Unhurried++
			}
		case history.Done:
			k.Done++
		default:
			k.Refused++
		}
		if op.Via == history.ByMount {
			k.Mount++
		}
		k.Longest = max(k.Longest, time.Duration(op.Return-op.Call))
		if op.Outcome != history.Unknown {
			ends = append(ends, op.Return)
		}
	}
	slices.Sort(ends)
	for i := 1; i < len(ends); i++ {
		r.LongestGap = max(r.LongestGap, time.Duration(ends[i]-ends[i-1]))
	}
	for _, k := range byKind {
		r.Kinds = append(r.Kinds, *k)
	}
	slices.SortFunc(r.Kinds, func(a, b KindCount) int { return cmp.Compare(a.Kind, b.Kind) })
}

// part is operations that no other part's have to do with.
type part struct {
	rule, where string
	model       porcupine.Model
	ops         []porcupine.Operation
}

// add gives the part an operation, with what the model makes of it.
func (p *part) add(op *history.Op, input any) {
	p.ops = append(p.ops, porcupine.Operation{ClientId: max(op.Client, 0), Input: input, Call: op.Call, Return: op.End(), Metadata: op})
}

// check returns what is wrong with the part; nil: nothing.
func (p *part) check(timeout time.Duration) *Violation {
	switch porcupine.CheckOperationsTimeout(p.model, p.ops, timeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return &Violation{RuleUndecided, p.where, fmt.Sprintf("%d operations, no answer within %v", len(p.ops), timeout)}
	}
	_, info := porcupine.CheckOperationsVerbose(p.model, p.ops, timeout)
	return &Violation{p.rule, p.where, p.explain(info.PartialLinearizationsOperations())}
}

// explained bounds how many operations around a contradiction are shown.
const explained = 16

// explain describes the longest order that was found, and what does not fit behind it.
func (p *part) explain(partial [][][]porcupine.Operation) string {
	var longest []porcupine.Operation
	for _, orders := range partial {
		for _, o := range orders {
			if len(o) > len(longest) {
				longest = o
			}
		}
	}
	in := map[any]bool{}
	for _, o := range longest {
		in[o.Metadata] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no order of its %d operations explains all answers. As far as one goes (the last of %d):\n", len(p.ops), len(longest))
	state := p.model.Init()
	for i, o := range longest {
		_, state = p.model.Step(state, o.Input, o.Output)
		if i >= len(longest)-explained {
			fmt.Fprintf(&b, "    %s -> %s\n", describe(o.Metadata.(*history.Op)), p.model.DescribeState(state))
		}
	}
	var rest []*history.Op
	for _, o := range p.ops {
		if !in[o.Metadata] {
			rest = append(rest, o.Metadata.(*history.Op))
		}
	}
	slices.SortFunc(rest, func(a, b *history.Op) int { return cmp.Compare(a.End(), b.End()) })
	fmt.Fprintf(&b, "  and then comes none of these:\n")
	for _, op := range rest[:min(len(rest), explained)] {
		fmt.Fprintf(&b, "    %s\n", describe(op))
	}
	return strings.TrimRight(b.String(), "\n")
}

// describe is an operation in words.
func describe(op *history.Op) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%.6f, %.6f] client %d", float64(op.Call)/1e9, float64(op.Return)/1e9, op.Client)
	if op.Via == history.ByMount {
		b.WriteString(" (mount)")
	}
	fmt.Fprintf(&b, " %s", op.Kind)
	for _, s := range []string{op.A, op.B, op.Value} {
		if s != "" {
			b.WriteString(" " + s)
		}
	}
	if op.Ino != 0 {
		fmt.Fprintf(&b, " inode %d", op.Ino)
	}
	if op.Links != 0 {
		fmt.Fprintf(&b, " links %d", op.Links)
	}
	if op.Outcome != history.Done {
		b.WriteString(": " + op.Outcome)
	}
	if op.Said != "" {
		b.WriteString(" (" + op.Said + ")")
	}
	return b.String()
}

// inOrder returns operations by their calls.
func inOrder(ops []*history.Op) []*history.Op {
	sorted := slices.Clone(ops)
	slices.SortStableFunc(sorted, func(a, b *history.Op) int { return cmp.Compare(a.Call, b.Call) })
	return sorted
}
