package check

import (
	"slices"

	"github.com/canopyfs/canopy/loadtest/history"
)

// refusals are the errors that an operation can be refused with in the histories of
// package work. What lies behind a handle can be gone altogether (ESTALE).
var refusals = map[history.Kind][]string{
	history.Create:    {"EEXIST"},
	history.Mkdir:     {"EEXIST"},
	history.Stat:      {"ENOENT"},
	history.Links:     {"ENOENT", "ESTALE"},
	history.Link:      {"EEXIST", "ENOENT", "ESTALE"},
	history.Unlink:    {"ENOENT"},
	history.Rmdir:     {"ENOENT", "ENOTEMPTY"},
	history.Rename:    {"ENOENT", "ENOTEMPTY"},
	history.NoReplace: {"ENOENT", "EEXIST"},
	history.Exchange:  {"ENOENT"},
	history.Enter:     {"EEXIST", "ENOENT", "ESTALE"},
	history.Leave:     {"ENOENT", "ESTALE"},
	history.Get:       {"ENODATA"},
	history.Remove:    {"ENODATA"},
}

// checkRefusals finds answers that no operation of its kind can have, and outcomes
// that are unknown for another reason than that its client did not wait.
func checkRefusals(r *Report, ops []*history.Op) {
	for _, op := range ops {
		switch {
		case op.Outcome == history.Done, saysNothing(op), slices.Contains(refusals[op.Kind], op.Outcome):
		case op.Outcome == history.Unknown && (op.Hurried || op.Said == ""):
		default:
			r.add(RuleRefusal, string(op.Kind), "%s", describe(op))
		}
	}
}

// saysNothing reports whether an answer tells nothing of names. The kernel of a mount
// answers ESTALE when what it looked up was gone before its next question, twice, and when it meets a
// directory under a new name while another rename holds what it would need to follow. It
// takes a directory for dead, and answers ENOENT for all in it, when a rename over it or an rmdir
// has gone through by a name under which another mount had put another one meanwhile.
func saysNothing(op *history.Op) bool {
	if op.Via == history.ByMount && op.Outcome == "ENOENT" && (op.Kind == history.Enter || op.Kind == history.Leave) {
		return true
	}
	return op.Group != 0 && op.Via == history.ByMount && op.Outcome == "ESTALE" && !byHandle(op.Kind)
}

func byHandle(k history.Kind) bool {
	return k == history.Links || k == history.Link || k == history.Enter || k == history.Leave
}

// fits reports whether an operation takes part in the search for an order: not those
// that say nothing, nor those whose answer is a violation by itself.
func fits(op *history.Op) bool {
	switch op.Outcome {
	case history.Done:
		return op.Kind != history.Stat || op.Ino != 0
	case history.Unknown:
		return op.Kind.Changes()
	}
	return !saysNothing(op) && slices.Contains(refusals[op.Kind], op.Outcome)
}
