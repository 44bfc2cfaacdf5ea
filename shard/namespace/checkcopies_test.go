package namespace

import (
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestCheckOverFragments: what is damaged in one fragment of a split directory is found,
// there or when all fragments are looked at (PROTOCOLS F1, DESIGN section 10).
func TestCheckOverFragments(t *testing.T) {
	copied := func(change func(id base.SubtreeID, h *schema.Header)) func(base.SubtreeID, []byte, []byte) []byte {
		return func(id base.SubtreeID, _, value []byte) []byte {
			h, err := schema.DecodeHeader(value)
			if err != nil || !h.Fragments.Split() {
				return value
			}
			change(id, h)
			return h.Append(nil)
		}
	}
	for _, x := range []struct {
		what string
		want []string
		harm func(s *shards)
	}{
		{"nothing", nil, func(*shards) {}},
		{"a mode", []string{"differ in attributes"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, copied(func(_ base.SubtreeID, h *schema.Header) { h.Mode ^= 0o22 }))
		}},
		{"an owner", []string{"differ in attributes"}, func(s *shards) {
			s.of[1].eachRow(schema.KindHeader, copied(func(_ base.SubtreeID, h *schema.Header) { h.GID = 99 }))
		}},
		{"names that nobody owns", []string{"no fragment of it owns the names [c000000, 10000000)", "lies in another fragment"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, copied(func(_ base.SubtreeID, h *schema.Header) {
				h.Fragments = h.Fragments.With(shard.Range{Lo: half + quarter, Hi: shard.BorderEnd}, h.Fragments.Home())
			}))
		}},
		{"names that two own", []string{"its names [4000000, 8000000) have two owners"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, copied(func(id base.SubtreeID, h *schema.Header) {
				h.Fragments = h.Fragments.With(shard.Range{Lo: quarter, Hi: half}, id)
			}))
		}},
		{"another home", []string{"say that it is at home in"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, copied(func(_ base.SubtreeID, h *schema.Header) { h.Fragments[0].Subtree = 77 }))
		}},
		{"a count", []string{"its count of names is 1 more than its names"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, copied(func(_ base.SubtreeID, h *schema.Header) { h.Entries++ }))
		}},
		{"a fragment's header", []string{"which has no header", "no fragment of it owns the names [8000000, 10000000)"}, func(s *shards) {
			s.of[2].eachRow(schema.KindHeader, func(_ base.SubtreeID, _, value []byte) []byte {
				if h, err := schema.DecodeHeader(value); err == nil && h.Fragments.Split() {
					return nil
				}
				return value
			})
		}},
		{"a directory's parent hint", []string{"its header says that its name is in subtree 77"}, func(s *shards) {
			s.of[1].eachRow(schema.KindHeader, func(_ base.SubtreeID, _, value []byte) []byte {
				h, err := schema.DecodeHeader(value)
				if err != nil || !strings.HasPrefix(string(h.Name), "sub") {
					return value
				}
				h.ParentSubtree = 77
				return h.Append(nil)
			})
		}},
	} {
		s := newShards(t, 3)
		sampleTree(s)
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			s.mkdir("/a/b/sub" + name)
		}
		s.split("/a/b", half, shard.BorderEnd, 2)
		x.harm(s)
		got := strings.Join(s.findings(), "\n")
		if (len(x.want) == 0) != (got == "") {
			t.Errorf("%s:\n%s", x.what, got)
		}
		for _, want := range x.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s:\n%s\nwant %q", x.what, got, want)
			}
		}
	}
}
