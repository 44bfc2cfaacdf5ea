package stripe

import (
	"fmt"
	"strconv"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// MaxCopies bounds the copies that a redundancy class may ask for, MaxShards the
// data and parity columns together.
const (
	MaxCopies = 5
	MaxShards = 32
)

// Copies returns the class of n whole copies.
func Copies(n int) *canopyv1.Redundancy { return &canopyv1.Redundancy{Copies: uint32(n)} }

// RedundancyOf returns a pool's class. A pool that was made before there were
// classes has copies.
func RedundancyOf(p *canopyv1.Pool) *canopyv1.Redundancy {
	if p.GetRedundancy() != nil {
		return p.Redundancy
	}
	return Copies(int(p.GetReplicas()))
}

// Erasure reports whether a class has parity instead of copies.
func Erasure(r *canopyv1.Redundancy) bool { return r.GetData() > 0 }

// Members returns on how many data servers a class puts each placement group.
func Members(r *canopyv1.Redundancy) int {
	if Erasure(r) {
		return int(r.GetData() + r.GetParity())
	}
	return int(r.GetCopies())
}

// ClassText returns a class as people write it: replica:2, ec:4+2.
func ClassText(r *canopyv1.Redundancy) string {
	if Erasure(r) {
		return fmt.Sprintf("ec:%d+%d", r.GetData(), r.GetParity())
	}
	return fmt.Sprintf("replica:%d", r.GetCopies())
}

// ParseClass is the inverse of ClassText.
func ParseClass(s string) (*canopyv1.Redundancy, error) {
	bad := func() (*canopyv1.Redundancy, error) {
		return nil, invalid("%q is no redundancy class: want replica:N or ec:K+M", s)
	}
	r := &canopyv1.Redundancy{}
	number := func(text string, to *uint32) bool {
		n, err := strconv.ParseUint(text, 10, 16)
		*to = uint32(n)
		return err == nil && strconv.FormatUint(n, 10) == text
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "replica":
		if !number(rest, &r.Copies) {
			return bad()
		}
	case "ec":
		data, parity, _ := strings.Cut(rest, "+")
		if !number(data, &r.Data) || !number(parity, &r.Parity) {
			return bad()
		}
	default:
		return bad()
	}
	return r, ValidateClass(r)
}

// ValidateClass reports what is wrong with a class, as kind Invalid.
func ValidateClass(r *canopyv1.Redundancy) error {
	switch {
	case r == nil || r.Copies > 0 && (r.Data > 0 || r.Parity > 0):
		return invalid("a redundancy class has either copies or data and parity")
	case r.Data == 0 && r.Parity == 0 && (r.Copies < 1 || r.Copies > MaxCopies):
		return invalid("%d copies: want 1 to %d", r.Copies, MaxCopies)
	case r.Copies == 0 && (r.Data < 2 || r.Parity < 1 || r.Data > MaxShards || r.Parity > MaxShards || r.Data+r.Parity > MaxShards):
		return invalid("ec:%d+%d: want at least 2 data and 1 parity columns, and at most %d together", r.Data, r.Parity, MaxShards)
	}
	return nil
}
