package data

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/fserr"
)

type metrics struct {
	latency *prometheus.HistogramVec
	errors  *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	retries prometheus.Counter
	reads   *prometheus.CounterVec
}

// newMetrics registers with r unless it is nil.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "canopy_client_data_seconds", Help: "Time of calls to data servers, retries included, by call.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18),
		}, []string{"call"}),
		errors:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_client_data_errors_total", Help: "Failed calls to data servers, by call and kind."}, []string{"call", "kind"}),
		bytes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_client_data_bytes_total", Help: "Bytes moved, by call."}, []string{"call"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_client_data_retries_total", Help: "Attempts at data servers that were repeated after a pause."}),
	}
	m.reads = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_client_data_reads_total", Help: "Reads of columns, by who answered."}, []string{"member"})
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.latency, m.errors, m.bytes, m.retries, m.reads} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("data: metrics: %w", err)
		}
	}
	return m, nil
}

// observe is deferred: *err is the call's outcome then.
func (m *metrics) observe(call string, bytes int, started time.Time, err *error) {
	m.latency.WithLabelValues(call).Observe(time.Since(started).Seconds())
	if *err != nil {
		m.errors.WithLabelValues(call, fserr.KindOf(*err).Error()).Inc()
		return
	}
	if bytes > 0 {
		m.bytes.WithLabelValues(call).Add(float64(bytes))
	}
}
