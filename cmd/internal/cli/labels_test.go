package cli

import "testing"

func TestLabels(t *testing.T) {
	if err := CheckLabels([]string{"rack=r1", "a=b=c"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "rack", "=r1", "rack="} {
		if CheckLabels([]string{bad}) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
