package memkv

import "testing"

func TestScanOrderAndStrictness(t *testing.T) {
	s := New()
	for _, k := range []string{"b", "a", "c"} {
		if err := s.Set([]byte(k), []byte("v"+k)); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	if err := s.Scan([]byte("a"), []byte("c"), func(k, v []byte) (bool, error) {
		got += string(k) + string(v)
		return true, nil
	}); err != nil || got != "avabvb" {
		t.Fatalf("scan: %q, %v", got, err)
	}
	first, _, _ := s.Get([]byte("a"))
	if _, _, err := s.Get([]byte("b")); err != nil || string(first) == "va" {
		t.Fatalf("a value outlived the next call: %q, %v", first, err)
	}
	c := s.Clone()
	if err := c.DeleteRange([]byte("a"), []byte("b")); err != nil || c.Len() != 2 {
		t.Fatalf("%d keys left, %v", c.Len(), err)
	}
	id := func(k []byte) string { return string(k) }
	if d := s.Diff(c, id); d != "only first: a = 7661\n" {
		t.Fatalf("diff %q", d)
	}
	if d := s.Diff(s.Clone(), id); d != "" {
		t.Fatalf("diff of a clone: %q", d)
	}
}
