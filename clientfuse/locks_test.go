package clientfuse

import (
	"strings"
	"testing"
)

// TestIsSetLkw: dead-locks count for the locks of processes only, which the request
// does not tell from those of open file descriptions.
func TestIsSetLkw(t *testing.T) {
	for line, want := range map[string]bool{
		"72 0x3 0x7 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  true,  // F_SETLKW
		"72 0x3 0x26 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f": false, // F_OFD_SETLKW
		"72 0x3 0x6 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  false, // F_SETLK
		"73 0x7 0x7 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f":  false, // flock
		"-1 0x7 0x7": false, "": false, "72 0x3": false, "72 0x3 ?": false,
	} {
		if got := isSetLkw(strings.Fields(line)); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	if waitsInFcntl("/proc", 0) {
		t.Error("something is known of a thread of another pid namespace")
	}
}
