package cli

import "testing"

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "4096": 4096, "64K": 64 << 10, "1m": 1 << 20, "2GiB": 2 << 30, "3TB": 3 << 40, "": 0, "K": 0, "-1": 0, "1X": 0, "9999999T": 0, "0": 0} {
		if got, err := ParseSize("--size", s); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
}
