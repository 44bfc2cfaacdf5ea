package mdsctl

import (
	"strings"
	"testing"
)

// TestKeyCommands: the keys are shown without their secrets, and a rotation reaches
// the leader (PROTOCOLS J4).
func TestKeyCommands(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{{"ls"}, {"rotate"}, {"rotate", "--revoke"}} {
		code, out, stderr := f.run(append([]string{"key"}, args...)...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, stderr)
		}
		for _, want := range []string{"accepted for 22m0s", "signs", "lives for 30s", "replaced after 24h0m0s"} {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in:\n%s", args, want, out)
			}
		}
	}
	if len(f.keys) != 3 || f.keys[0].Rotate || !f.keys[1].Rotate || f.keys[1].Revoke || !f.keys[2].Rotate || !f.keys[2].Revoke {
		t.Errorf("asked for %v", f.keys)
	}
	if code, out, _ := f.run("key", "ls", "-o", "json"); code != 0 || strings.Contains(out, "secret") || !strings.Contains(out, `"capability_ms": 30000`) {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, bad := range [][]string{{"ls", "1"}, {"rotate", "2"}, {"revoke"}} {
		if code, _, stderr := f.run(append([]string{"key"}, bad...)...); code == 0 || stderr == "" {
			t.Errorf("%v: exit %d: %s", bad, code, stderr)
		}
	}
}
