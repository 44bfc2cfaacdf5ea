package dataserver

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/fserr"
)

type metrics struct {
	latency    *prometheus.HistogramVec
	errors     *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	queued     prometheus.Gauge
	recoveries *prometheus.CounterVec
	recovered  prometheus.Counter
	damaged    prometheus.Counter
	repaired   prometheus.Counter
	lost       prometheus.Counter
	differing  prometheus.Counter
	scrubbed   prometheus.Counter
	refused    *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, s *server) (*metrics, error) {
	m := &metrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "canopy_data_request_seconds", Help: "Time from a worker's start to the answer, by call.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18),
		}, []string{"call"}),
		errors:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_data_errors_total", Help: "Requests that failed, by call and kind."}, []string{"call", "kind"}),
		bytes:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_data_bytes_total", Help: "Payload, by call."}, []string{"call"}),
		queued:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "canopy_data_requests_in_flight", Help: "Requests received and not answered yet."}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_data_recoveries_total", Help: "Recoveries of members by this server as primary."}, []string{"result"}),
		recovered:  prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_recovered_bytes_total", Help: "Bytes sent to members that were out of sync."}),
		damaged:    prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_damaged_blocks_total", Help: "Blocks found that did not match their checksum."}),
		repaired:   prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_repaired_blocks_total", Help: "Damaged blocks that were put right from another member."}),
		lost:       prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_unrepairable_blocks_total", Help: "Times that a damaged block was found that no other member in sync has."}),
		differing:  prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_differing_columns_total", Help: "Columns whose members differed though each was whole, found by scrubs."}),
		scrubbed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "canopy_data_scrubbed_bytes_total", Help: "Bytes that scrubs read, of all members, as primary."}),
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_data_capability_refused_total", Help: "Requests refused for their capability, by reason."}, []string{"reason"})
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	collectors := []prometheus.Collector{
		m.latency, m.errors, m.bytes, m.queued, m.recoveries, m.recovered, m.damaged, m.repaired, m.lost, m.differing, m.scrubbed, m.refused,
		gauge("canopy_data_lease_valid", "1 while the layout service's lease runs.", func() float64 {
			if s.lease.valid() {
				return 1
			}
			return 0
		}),
		gauge("canopy_data_free_bytes", "What may still be written to the disk.", func() float64 {
			_, free, err := s.store.Usage()
			if err != nil {
				return 0
			}
			return float64(free)
		}),
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("dataserver: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(call string, kind fserr.Kind, r *link.Request, response *link.Response, took time.Duration) {
	m.latency.WithLabelValues(call).Observe(took.Seconds())
	if kind != fserr.OK {
		m.errors.WithLabelValues(call, kind.Error()).Inc()
		return
	}
	n := r.Payload.Len()
	if response != nil {
		n += response.Payload.Len()
	}
	if n > 0 {
		m.bytes.WithLabelValues(call).Add(float64(n))
	}
}

// callName is the call's name in metrics.
func callName(r *link.Request) string {
	name := "unknown"
	switch r.Call.(type) {
	case *canopyv1.DataRequest_Write:
		name = "write"
	case *canopyv1.DataRequest_Read:
		name = "read"
	case *canopyv1.DataRequest_Sync:
		name = "sync"
	case *canopyv1.DataRequest_Cut:
		name = "cut"
	case *canopyv1.DataRequest_Delete:
		name = "delete"
	case *canopyv1.DataRequest_ListColumns:
		name = "list"
	case *canopyv1.DataRequest_FetchColumn:
		name = "fetch"
	case *canopyv1.DataRequest_BlockSums:
		name = "sums"
	case *canopyv1.DataRequest_DropColumn:
		name = "drop"
	case *canopyv1.DataRequest_InFlight:
		name = "in_flight"
	case *canopyv1.DataRequest_Condemn:
		name = "condemn"
	case *canopyv1.DataRequest_Punch:
		name = "punch"
	case *canopyv1.DataRequest_Reserve:
		name = "reserve"
	case *canopyv1.DataRequest_Seek:
		name = "seek"
	}
	if r.FromPrimary {
		return "replica_" + name
	}
	return name
}
