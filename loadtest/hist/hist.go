// Package hist is a latency histogram with a fixed relative precision (three
// digits, by HdrHistogram) that workers fill without locks and that can be
// merged, and sent between processes as text.
package hist

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range of durations told apart; others count as the nearest of the two.
const (
	lowest  = 100 * time.Nanosecond
	highest = 1000 * time.Second
	digits  = 3
)

// Histogram counts durations. One goroutine at a time may use it.
type Histogram struct{ h *hdrhistogram.Histogram }

// New returns an empty histogram.
func New() *Histogram {
	return &Histogram{h: hdrhistogram.New(int64(lowest), int64(highest), digits)}
}

// Record counts one duration.
func (h *Histogram) Record(d time.Duration) {
	// The value is within the range, so that RecordValue cannot fail.
	_ = h.h.RecordValue(int64(min(max(d, lowest), highest)))
}

// Merge adds what o counted.
func (h *Histogram) Merge(o *Histogram) { h.h.Merge(o.h) }

// Count returns how many durations were counted.
func (h *Histogram) Count() int64 { return h.h.TotalCount() }

// Quantile returns the duration that the share q of all (0 to 1) did not exceed.
func (h *Histogram) Quantile(q float64) time.Duration {
	return time.Duration(h.h.ValueAtQuantile(q * 100))
}

// Latency is what a report shows of a histogram, in microseconds.
type Latency struct {
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"`
	P95US  float64 `json:"p95_us"`
	P99US  float64 `json:"p99_us"`
	P999US float64 `json:"p999_us"`
	MaxUS  float64 `json:"max_us"`
}

// Latency summarizes the histogram.
func (h *Histogram) Latency() Latency {
	us := func(q float64) float64 { return float64(h.Quantile(q)) / 1e3 }
	return Latency{
		MeanUS: h.h.Mean() / 1e3,
		P50US:  us(0.50), P95US: us(0.95), P99US: us(0.99), P999US: us(0.999), MaxUS: us(1),
	}
}

// MarshalText encodes the histogram in HdrHistogram's compressed form.
func (h *Histogram) MarshalText() ([]byte, error) {
	return h.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
}

// UnmarshalText decodes what MarshalText made.
func (h *Histogram) UnmarshalText(b []byte) error {
	decoded, err := hdrhistogram.Decode(b)
	if err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	h.h = decoded
	return nil
}
