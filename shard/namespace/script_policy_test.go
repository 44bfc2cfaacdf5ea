package namespace

import (
	"fmt"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/layoutsvc/policy"
)

// policyOperation builds the operation of a line:
//
//	policy DIR [class=NAME] [class-pool=] [KEY=VALUE] [pool=] [clear=KEY,...]
//	policies DIR   all-policies
func (r *rig) policyOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "policy":
		c := &canopyv1.SetPolicyCall{Dir: r.place(l.arg(0)).Ino, Set: &canopyv1.LayoutPolicy{Pool: l.num("pool", 0), ClassPool: l.num("class-pool", 0)}}
		for _, key := range []string{"class", "stripes", "data", "sync", "direct"} {
			v, ok := l.opts[key]
			switch {
			case key == "class":
				c.Set.Class = v // also one that does not exist
			case ok:
				if err := policy.Set(c.Set, key, v); err != nil {
					l.t.Fatal(err)
				}
			}
		}
		if v := l.opts["clear"]; v != "" {
			c.Clear = strings.Split(v, ",")
		}
		return &canopyv1.Op{Call: &canopyv1.Op_SetPolicy{SetPolicy: c}}
	case "policies":
		return &canopyv1.Op{Call: &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{Dir: r.place(l.arg(0)).Ino}}}
	case "all-policies":
		return &canopyv1.Op{Call: &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{}}}
	}
	return nil
}

// layoutText says what a file was made with.
func layoutText(l *canopyv1.Layout) string {
	s := fmt.Sprintf("pool %d: %s", l.GetPool(), policy.StripesText(l.GetComponents()))
	if l.GetFlags() != 0 {
		s += fmt.Sprintf(" flags=%d", l.GetFlags())
	}
	return s
}

func formatPolicies(list []*canopyv1.DirPolicy) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "\n  %s: %s", d.GetPath(), policy.OwnText(d.GetPolicy()))
		if d.GetLevel() != 0 || d.GetFiles() != 0 {
			fmt.Fprintf(&b, " (level %d, %d bytes in %d files)", d.GetLevel(), d.GetBytes(), d.GetFiles())
		}
	}
	return b.String()
}
