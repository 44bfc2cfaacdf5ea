package mds

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// metrics are those of the node.
type metrics struct {
	latency        *prometheus.HistogramVec
	errors         *prometheus.CounterVec
	sessionsEnded  *prometheus.CounterVec
	purged         *prometheus.CounterVec
	deleted        *prometheus.CounterVec
	deletions      *prometheus.GaugeVec
	dataErrors     *prometheus.CounterVec
	streams        prometheus.Gauge
	refused        prometheus.Counter
	txns           *prometheus.CounterVec
	marks          *prometheus.CounterVec
	heldBack       prometheus.Counter
	failedReplicas prometheus.Counter
}

// shardMetrics are those of one shard, looked up once.
type shardMetrics struct {
	node          *metrics
	shard         string
	latency       [opTypes]prometheus.Observer
	sessionsEnded prometheus.Counter
	purged        prometheus.Counter
	deleted       prometheus.Counter
	deletions     prometheus.Gauge
	dataErrors    prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	perShard := []string{"shard"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, perShard)
	}
	m := &metrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "canopy_mds_op_seconds",
			Help:    "Time from receiving an operation to its answer, by type and shard.",
			Buckets: prometheus.ExponentialBuckets(20e-6, 2, 18), // 20 us to 2.6 s
		}, []string{"op", "shard"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "canopy_mds_op_errors_total",
			Help: "Operations that did not succeed, by type, shard and error kind.",
		}, []string{"op", "shard", "kind"}),
		sessionsEnded: counter("canopy_mds_sessions_ended_total", "Sessions ended because their client was not heard of."),
		purged:        counter("canopy_mds_orphans_purged_total", "Unlinked files that were removed."),
		deleted:       counter("canopy_mds_data_deleted_total", "Files whose data was deleted from the data servers."),
		deletions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "canopy_mds_deletions_queued",
			Help: "Files whose data waits for deletion, as of the last look.",
		}, perShard),
		dataErrors: counter("canopy_mds_data_errors_total", "Passes over queued work for data servers that failed."),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "canopy_mds_operate_streams", Help: "Open streams of operations.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_mds_refused_total", Help: "Operations refused because too many of their stream were outstanding.",
		}),
		txns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "canopy_mds_transactions_total", Help: "Tries of transactions over subtrees that this node drove, by outcome.",
		}, []string{"outcome"}),
		marks: newMarkEvents(),
		heldBack: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_mds_held_back_total", Help: "Operations that waited until a move of their subtree let them go on.",
		}),
		failedReplicas: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "canopy_mds_replicas_failed_total", Help: "Replicas that were stopped because they could not go on.",
		}),
	}
	for _, c := range []prometheus.Collector{
		m.latency, m.errors, m.sessionsEnded, m.purged, m.deleted, m.deletions, m.dataErrors, m.streams,
		m.refused, m.failedReplicas, m.txns, m.marks, m.heldBack,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func newMarkEvents() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "canopy_mds_marks_total",
		Help: "Marks that listings of split directories took, those that were not given back in time, and answers that waited for one.",
	}, []string{"event"})
}

func (m *metrics) ofShard(id base.ShardID) *shardMetrics {
	name := id.String()
	sm := &shardMetrics{
		node: m, shard: name,
		sessionsEnded: m.sessionsEnded.WithLabelValues(name),
		purged:        m.purged.WithLabelValues(name),
		deleted:       m.deleted.WithLabelValues(name),
		deletions:     m.deletions.WithLabelValues(name),
		dataErrors:    m.dataErrors.WithLabelValues(name),
	}
	for t := firstType; t < opTypes; t++ {
		sm.latency[t] = m.latency.WithLabelValues(t.String(), name)
	}
	return sm
}

const firstType = opUnknown + 1

// observe counts one answered operation.
func (m *shardMetrics) observe(t opType, kind fserr.Kind, took time.Duration) {
	m.latency[t].Observe(took.Seconds())
	if kind != fserr.OK {
		m.node.errors.WithLabelValues(t.String(), m.shard, kindLabel(kind)).Inc()
	}
}

// failed counts an operation that was refused before it started.
func (m *metrics) failed(h *hosted, t opType, kind fserr.Kind) {
	name := "none"
	if h != nil {
		name = h.metrics.shard
	}
	m.errors.WithLabelValues(t.String(), name, kindLabel(kind)).Inc()
}

func kindLabel(k fserr.Kind) string { return strconv.Itoa(int(k)) + " " + k.Error() }

// stateCollector shows the state of the shards at the time it is asked.
type stateCollector struct{ server *Server }

var (
	leaseDesc    = prometheus.NewDesc("canopy_mds_lease_held", "1 if this node holds the shard's lease.", []string{"shard"}, nil)
	sessionsDesc = prometheus.NewDesc("canopy_mds_sessions", "Sessions that the holder knows.", []string{"shard"}, nil)
	queueDesc    = prometheus.NewDesc("canopy_mds_queue_commands", "Commands that wait for the log.", []string{"shard"}, nil)
	readOnlyDesc = prometheus.NewDesc("canopy_mds_shard_read_only", "1 if the shard's holder takes nothing new: a disk is full.", []string{"shard"}, nil)
	diskFullDesc = prometheus.NewDesc("canopy_mds_disk_full", "1 if less than the reserve is free below the data directory.", nil, nil)
	diskFreeDesc = prometheus.NewDesc("canopy_mds_disk_free_bytes", "Free bytes below the data directory.", nil, nil)
	topDirDesc   = prometheus.NewDesc("canopy_mds_heat_top_directory_share", "Share of the shard's operations that are in its most used directory, with a half-life of a minute (mdsctl top says which).", []string{"shard"}, nil)
	heatOpsDesc  = prometheus.NewDesc("canopy_mds_heat_ops_per_second", "Operations per second of the shard, with a half-life of a minute.", []string{"shard"}, nil)
	conflictDesc = prometheus.NewDesc("canopy_mds_heat_conflict_seconds_per_second", "Time that operations of the shard wait for others, with a half-life of a minute.", []string{"shard"}, nil)
	heatLostDesc = prometheus.NewDesc("canopy_mds_heat_lost_operations", "Operations of the holder's term that mdsctl top does not count, as there were too many at once.", []string{"shard"}, nil)
	etcdDesc     = prometheus.NewDesc("canopy_mds_etcd_reachable", "1 if etcd answers.", nil, nil)
)

// Describe sends the descriptors.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leaseDesc, sessionsDesc, queueDesc, readOnlyDesc, topDirDesc, heatOpsDesc, conflictDesc, heatLostDesc, diskFullDesc, diskFreeDesc, etcdDesc} {
		out <- d
	}
}

// Collect sends the present values.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, h := range c.server.allHosted() {
		name := h.shard.String()
		held, sessions := 0.0, 0
		if t := h.tenure(); t != nil {
			held, sessions = 1, t.sessionCount()
			gauge(readOnlyDesc, flag(h.readOnly() != ""), name)
			if c.server.heat.Load() {
				t.heat.collect(gauge, name)
			}
		}
		gauge(leaseDesc, held, name)
		gauge(sessionsDesc, float64(sessions), name)
		gauge(queueDesc, float64(h.group.Status().Queue), name)
	}
	d := c.server.disk
	gauge(diskFullDesc, flag(d.full.Load()))
	gauge(diskFreeDesc, float64(d.last.Load().free))
	gauge(etcdDesc, flag(c.server.place.Reachable()))
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// sessionCount returns how many sessions the holder knows.
func (t *tenure) sessionCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, c := range t.clients {
		if c.known {
			n++
		}
	}
	return n
}
