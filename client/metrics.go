package client

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/fserr"
)

// metrics counts what the client does. Vectors are resolved once.
type metrics struct {
	seconds [opKinds]prometheus.Observer
	errors  *prometheus.CounterVec
	retries *prometheus.CounterVec
	resent  prometheus.Counter
	batch   prometheus.Histogram
	written prometheus.Counter
	read    prometheus.Counter
	lost    prometheus.Counter
	reports prometheus.Counter
}

// newMetrics makes the metrics and registers them, if r is not nil. buffered
// and outstanding are read when metrics are collected.
func newMetrics(r prometheus.Registerer, buffered, outstanding func() float64) (*metrics, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "canopy_client_operation_seconds",
		Help:    "Time of metadata operations from call to answer, retries included.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18),
	}, []string{"op"})
	m := &metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "canopy_client_operation_errors_total", Help: "Metadata operations that ended with an error, by kind.",
		}, []string{"op", "kind"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "canopy_client_retries_total", Help: "Operations put in again, by the reason.",
		}, []string{"kind"}),
		resent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_client_resent_total", Help: "Operations sent again because their stream ended."}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "canopy_client_batch_operations", Help: "Operations per message.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_client_written_bytes_total", Help: "Bytes written to data servers."}),
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_client_read_bytes_total", Help: "Bytes read from data servers."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_client_lost_bytes_total", Help: "Buffered bytes given up after an error that was reported to their handles."}),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_client_open_reports_total", Help: "Reports of open files sent."}),
	}
	for k := range opKinds {
		m.seconds[k] = seconds.WithLabelValues(k.String())
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		seconds, m.errors, m.retries, m.resent, m.batch, m.written, m.read, m.lost, m.reports,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "canopy_client_buffered_bytes", Help: "Written bytes in memory that are not reported yet."}, buffered),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "canopy_client_outstanding_sequence_numbers", Help: "Sequence numbers between the floor and the newest."}, outstanding),
	} {
		if err := r.Register(c); err != nil {
			return nil, fserr.New(fserr.Invalid, "register metrics", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(op opKind, start time.Time, kind fserr.Kind) {
	m.seconds[op].Observe(time.Since(start).Seconds())
	if kind != fserr.OK {
		m.errors.WithLabelValues(op.String(), kind.Error()).Inc()
	}
}

func (m *metrics) retried(kind fserr.Kind) { m.retries.WithLabelValues(kind.Error()).Inc() }
