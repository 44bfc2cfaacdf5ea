package cli

import (
	"fmt"
	"strings"
)

// CheckLabels refuses labels that are not KEY=VALUE.
func CheckLabels(labels []string) error {
	for _, l := range labels {
		if key, value, ok := strings.Cut(l, "="); !ok || key == "" || value == "" {
			return fmt.Errorf("--label %q: want KEY=VALUE, such as rack=r1", l)
		}
	}
	return nil
}
