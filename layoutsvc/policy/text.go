package policy

import (
	"fmt"
	"strconv"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/layoutsvc/stripe"
)

// suffixes of sizes in bytes, the largest first.
var suffixes = []struct {
	letter string
	bytes  uint64
}{{"T", 1 << 40}, {"G", 1 << 30}, {"M", mib}, {"K", kib}}

// Bytes returns a size as ParseBytes reads it.
func Bytes(n uint64) string {
	for _, s := range suffixes {
		if n != 0 && n%s.bytes == 0 {
			return strconv.FormatUint(n/s.bytes, 10) + s.letter
		}
	}
	return strconv.FormatUint(n, 10)
}

// ParseBytes reads a size: a number of bytes, or of K, M, G or T.
func ParseBytes(text string) (uint64, error) {
	number, unit := text, uint64(1)
	for _, s := range suffixes {
		if rest, ok := strings.CutSuffix(strings.ToUpper(text), s.letter); ok {
			number, unit = rest, s.bytes
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n > 1<<62/unit {
		return 0, invalid("%q is no size: want a number of bytes, or one with K, M, G or T", text)
	}
	return n * unit, nil
}

// StripesText returns components as ParseStripes reads them.
func StripesText(list []*canopyv1.LayoutComponent) string {
	var parts []string
	for _, c := range list {
		part := fmt.Sprintf("%dx%s", c.GetStripeCount(), Bytes(c.GetStripeBytes()))
		if c.GetOffset() > 0 {
			part = Bytes(c.GetOffset()) + ":" + part
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// ParseStripes reads components: COUNTxSIZE for the whole file, or such parts
// separated by commas, each but the first with the offset where it begins:
// 1x1M,1M:4x4M.
func ParseStripes(text string) ([]*canopyv1.LayoutComponent, error) {
	var out []*canopyv1.LayoutComponent
	for part := range strings.SplitSeq(text, ",") {
		c := &canopyv1.LayoutComponent{}
		rest := part
		if offset, after, ok := strings.Cut(part, ":"); ok {
			n, err := ParseBytes(offset)
			if err != nil {
				return nil, err
			}
			c.Offset, rest = n, after
		}
		count, size, ok := strings.Cut(rest, "x")
		n, err := strconv.ParseUint(count, 10, 32)
		if !ok || err != nil {
			return nil, invalid("%q are no stripes: want COUNTxSIZE[,OFFSET:COUNTxSIZE...], as 16x8M or 1x1M,1M:4x4M", text)
		}
		c.StripeCount = uint32(n)
		if c.StripeBytes, err = ParseBytes(size); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, stripe.Validate(&canopyv1.Layout{Pool: 1, Components: out})
}

// Set sets one key by its name and its value's text. The pool of data is the
// caller's to fill in.
func Set(p *canopyv1.LayoutPolicy, key, value string) (err error) {
	switch key {
	case "class":
		if Class(value) == nil {
			return invalid("there is no class %q: want one of %s", value, strings.Join(Classes(), ", "))
		}
		p.Class = value
	case "stripes":
		p.Stripes, err = ParseStripes(value)
	case "data":
		p.Data, err = stripe.ParseClass(value)
	case "sync":
		switch value {
		case "data":
			p.Sync = canopyv1.LayoutSync_LAYOUT_SYNC_DATA
		case "none":
			p.Sync = canopyv1.LayoutSync_LAYOUT_SYNC_NONE
		default:
			return invalid("sync=%s: want data or none", value)
		}
	case "direct":
		if value != "on" && value != "off" {
			return invalid("direct=%s: want on or off", value)
		}
		p.Direct = on(value == "on")
	case "spread":
		if value != SpreadChildren && value != "none" {
			return invalid("spread=%s: want children or none", value)
		}
		p.Spread = value
	case "pin":
		p.Pin, err = strconv.ParseUint(value, 10, 64)
		if err != nil || p.Pin == 0 {
			return invalid("pin=%s: want the number of a shard", value)
		}
	default:
		return invalid("there is no key %q: want stripe-size, stripe-count, or one of class, %s", key, strings.Join(keyNames[:], ", "))
	}
	return err
}

// Text returns the value of a key as people write it; standard and class are the
// layout and the redundancy class where no policy says anything.
func (e Effective) Text(k Key, standard *canopyv1.Layout, class string) string {
	switch k {
	case Stripes:
		return StripesText(e.Layout(standard).Components)
	case Data:
		if e.Data != nil {
			return stripe.ClassText(e.Data)
		}
		return class
	case Sync:
		if e.NoSync {
			return "none"
		}
		return "data"
	case Spread:
		if e.Spread {
			return SpreadChildren
		}
		return "none"
	case Pin:
		if e.Pin == 0 {
			return "none"
		}
		return strconv.FormatUint(e.Pin, 10)
	}
	if e.Direct {
		return "on"
	}
	return "off"
}

// OwnText returns what a policy itself sets, as `policy set` takes it.
func OwnText(p *canopyv1.LayoutPolicy) string {
	var parts []string
	if p.GetClass() != "" {
		parts = append(parts, p.Class)
	}
	e := Effective{}.with(p, p.GetPool(), Source{})
	for k := range Keys {
		if sets(p, k) {
			parts = append(parts, k.String()+"="+e.Text(k, nil, ""))
		}
	}
	return strings.Join(parts, " ")
}
