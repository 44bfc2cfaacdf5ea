package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

var errNotExist = fs.ErrNotExist

// pebbleLog sends Pebble's log to ours.
type pebbleLog struct {
	log   *slog.Logger
	fatal func(error)
}

func (l pebbleLog) Infof(format string, args ...any) {
	l.log.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf is called where going on would lose data.
func (l pebbleLog) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if l.fatal != nil {
		l.fatal(errors.New("store: " + msg))
	}
	l.log.Error("pebble: " + msg)
	panic("pebble: " + msg)
}

type metrics struct {
	flushSeconds prometheus.Histogram
	batchBytes   prometheus.Counter
	registerer   prometheus.Registerer
	registered   []prometheus.Collector
}

func newMetrics(s *Store, r prometheus.Registerer) *metrics {
	m := &metrics{
		registerer: r,
		flushSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "canopy_store_flush_seconds", Help: "Time of a flush of the memtable.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		batchBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_store_batch_bytes_total", Help: "Bytes of keys and values committed.",
		}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	all := []prometheus.Collector{
		m.flushSeconds, m.batchBytes,
		gauge("canopy_store_memtable_bytes", "Bytes in memtables.",
			func() float64 { return float64(s.db.Metrics().MemTable.Size) }),
		gauge("canopy_store_disk_bytes", "Bytes of the store's files.",
			func() float64 { return float64(s.db.Metrics().DiskSpaceUsage()) }),
		gauge("canopy_store_read_amplification", "Sorted runs that a read may touch.",
			func() float64 { return float64(s.db.Metrics().ReadAmp()) }),
	}
	all = append(all, valueMetrics(s.values)...)
	if r == nil {
		return m
	}
	for _, c := range all {
		var dup prometheus.AlreadyRegisteredError
		if err := r.Register(c); err == nil {
			m.registered = append(m.registered, c)
		} else if !errors.As(err, &dup) {
			s.log.Warn("store: metric not registered", "err", err)
		}
	}
	return m
}

func valueMetrics(c *valueCache) []prometheus.Collector {
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		counter("canopy_store_value_hits_total", "Reads of a key that the cache of values answered.",
			func() uint64 { hits, _, _ := c.counts(); return hits }),
		counter("canopy_store_value_misses_total", "Reads of a key that the cache of values did not answer.",
			func() uint64 { _, misses, _ := c.counts(); return misses }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "canopy_store_value_bytes", Help: "Bytes in the cache of values."},
			func() float64 { _, _, size := c.counts(); return float64(size) }),
	}
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
}
