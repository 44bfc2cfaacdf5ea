package stripe

import (
	"testing"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// TestClasses: what people write, and what no class is.
func TestClasses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		class   *canopyv1.Redundancy
		members int
	}{
		"replica:1": {&canopyv1.Redundancy{Copies: 1}, 1},
		"replica:3": {&canopyv1.Redundancy{Copies: 3}, 3},
		"ec:4+2":    {&canopyv1.Redundancy{Data: 4, Parity: 2}, 6},
	} {
		got, err := ParseClass(text)
		if err != nil || !proto.Equal(got, want.class) || Members(got) != want.members || ClassText(got) != text {
			t.Errorf("%s: %v, %v, %d members, back %s", text, got, err, Members(got), ClassText(got))
		}
	}
	for _, text := range []string{"", "replica", "replica:", "replica:0", "replica:02", "replica:6", "replica:2+1", "replica:-1", "ec:4", "ec:1+1", "ec:4+0", "ec:31+2", "ec:65535+65535", "copies:2", "replica:2 "} {
		if got, err := ParseClass(text); err == nil {
			t.Errorf("%q is taken as %v", text, got)
		}
	}
	if old := RedundancyOf(&canopyv1.Pool{Replicas: 2}); ClassText(old) != "replica:2" {
		t.Errorf("the class of an older pool: %v", old)
	}
}
