package hist

import (
	"encoding/json"
	"testing"
	"time"
)

func TestQuantilesWithinPrecision(t *testing.T) {
	h := New()
	for i := 1; i <= 10000; i++ {
		h.Record(time.Duration(i) * time.Microsecond)
	}
	for q, want := range map[float64]float64{0.5: 5000, 0.95: 9500, 0.99: 9900, 0.999: 9990, 1: 10000} {
		got := float64(h.Quantile(q)) / 1e3
		if got < want*0.998 || got > want*1.002 {
			t.Errorf("quantile %v: %v us, want %v", q, got, want)
		}
	}
}

func TestMergeAndTextRoundTrip(t *testing.T) {
	a, b := New(), New()
	for i := range 1000 {
		a.Record(time.Duration(i) * time.Microsecond)
		b.Record(time.Duration(i) * time.Millisecond)
	}
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var back Histogram
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Count() != b.Count() || back.Quantile(0.99) != b.Quantile(0.99) {
		t.Fatalf("round trip: %d %v, want %d %v", back.Count(), back.Quantile(0.99), b.Count(), b.Quantile(0.99))
	}
	a.Merge(&back)
	if a.Count() != 2000 {
		t.Fatalf("merged count %d", a.Count())
	}
	if m := a.Quantile(1); m < 990*time.Millisecond {
		t.Fatalf("merged maximum %v", m)
	}
}

func TestOutOfRangeIsClamped(t *testing.T) {
	h := New()
	h.Record(-time.Second)
	h.Record(time.Hour)
	if h.Count() != 2 {
		t.Fatalf("count %d", h.Count())
	}
}
