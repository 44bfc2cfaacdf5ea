package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize reads a number of bytes with an optional binary unit: 4096, 64K,
// 1M, 2GiB. flag names it in the error.
func ParseSize(flag, s string) (int64, error) {
	text := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B"), "I")
	shift := 0
	for i, unit := range []string{"K", "M", "G", "T"} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			shift, text = 10*(i+1), number
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%s %q: want a number of bytes such as 4096, 64K, 1M or 2G", flag, s)
	}
	return n << shift, nil
}
