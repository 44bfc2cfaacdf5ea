package check

import (
	"slices"
	"strconv"

	"github.com/anishathalye/porcupine"

	"github.com/canopyfs/canopy/loadtest/history"
)

// registerParts returns a part for each register: a value, or none.
func registerParts(ops []*history.Op) []*part {
	registers := map[string]*part{}
	for _, op := range inOrder(ops) {
		switch op.Kind {
		case history.Set, history.Get, history.Remove:
		default:
			continue
		}
		if !fits(op) {
			continue
		}
		p := registers[op.A]
		if p == nil {
			p = &part{rule: RuleRegister, where: op.A, model: registerModel}
			registers[op.A] = p
		}
		p.add(op, op)
	}
	keys := make([]string, 0, len(registers))
	for k := range registers {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var parts []*part
	for _, k := range keys {
		parts = append(parts, registers[k])
	}
	return parts
}

var registerModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		op, value := input.(*history.Op), state.(string)
		switch {
		case op.Outcome == "ENODATA":
			return value == "", value
		case op.Kind == history.Set:
			return true, op.Value
		case op.Kind == history.Get:
			return value == op.Value, value
		}
		return value != "" || op.Outcome == history.Unknown, ""
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeState:     func(state any) string { return strconv.Quote(state.(string)) },
	DescribeOperation: func(input, _ any) string { return describe(input.(*history.Op)) },
}
