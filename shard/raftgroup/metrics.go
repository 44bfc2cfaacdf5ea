package raftgroup

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/base"
)

// hostMetrics are the metrics of all groups of a host, by shard.
type hostMetrics struct {
	registerer prometheus.Registerer
	registered []prometheus.Collector

	entryCommands, proposalSeconds                                       *prometheus.HistogramVec
	appliedEntries, refused, resends, wallJumps, staleReads, snaps, inst *prometheus.CounterVec
	appliedIndex, holds, queue, inflight                                 *prometheus.GaugeVec
}

// groupMetrics are those of one group.
type groupMetrics struct {
	entryCommands, proposalSeconds                          prometheus.Observer
	appliedEntries, refused, resends, wallJumps, staleReads prometheus.Counter
	snapshots, snapshotsInstalled                           prometheus.Counter
	appliedIndex, holds, queue, inflight                    prometheus.Gauge
}

func newHostMetrics(r prometheus.Registerer) *hostMetrics {
	m := &hostMetrics{registerer: r}
	shard := []string{"shard"}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "canopy_raft_" + name, Help: help, Buckets: buckets}, shard)
		m.register(v)
		return v
	}
	counter := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "canopy_raft_" + name, Help: help}, shard)
		m.register(v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "canopy_raft_" + name, Help: help}, shard)
		m.register(v)
		return v
	}
	m.entryCommands = histogram("entry_commands", "Commands per Raft entry (group commit).", prometheus.ExponentialBuckets(1, 2, 13))
	m.proposalSeconds = histogram("proposal_seconds", "From an entry's first proposal to its apply.", prometheus.ExponentialBuckets(0.0001, 2, 16))
	m.appliedEntries = counter("applied_entries_total", "Entries applied.")
	m.refused = counter("refused_entries_total", "Entries that apply refused: out of order, of an old lease epoch, or a lost race for the lease.")
	m.resends = counter("resends_total", "Times that entries in flight were proposed again.")
	m.wallJumps = counter("wall_clock_jumps_total", "Jumps of the wall clock beyond the bound.")
	m.staleReads = counter("stale_reads_total", "Reads thrown away because the lease did not hold after them.")
	m.snaps = counter("snapshots_total", "Raft snapshots taken.")
	m.inst = counter("snapshots_installed_total", "Raft snapshots received and installed.")
	m.appliedIndex = gauge("applied_index", "Index of the last applied entry: the difference between replicas is the apply lag.")
	m.queue = gauge("queue_commands", "Commands that wait for an entry.")
	m.inflight = gauge("inflight_entries", "Entries proposed and not applied.")
	m.holds = gauge("lease_held", "1 while this replica serves under the lease.")
	return m
}

func (m *hostMetrics) register(c prometheus.Collector) {
	if m.registerer == nil {
		return
	}
	var dup prometheus.AlreadyRegisteredError
	if err := m.registerer.Register(c); err == nil || errors.As(err, &dup) {
		m.registered = append(m.registered, c)
	}
}

func (m *hostMetrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
}

func (m *hostMetrics) group(id base.ShardID) *groupMetrics {
	l := strconv.FormatUint(uint64(id), 10)
	return &groupMetrics{
		entryCommands: m.entryCommands.WithLabelValues(l), proposalSeconds: m.proposalSeconds.WithLabelValues(l),
		appliedEntries: m.appliedEntries.WithLabelValues(l), refused: m.refused.WithLabelValues(l),
		resends: m.resends.WithLabelValues(l), wallJumps: m.wallJumps.WithLabelValues(l),
		staleReads: m.staleReads.WithLabelValues(l), snapshots: m.snaps.WithLabelValues(l),
		snapshotsInstalled: m.inst.WithLabelValues(l),
		appliedIndex:       m.appliedIndex.WithLabelValues(l), holds: m.holds.WithLabelValues(l),
		queue: m.queue.WithLabelValues(l), inflight: m.inflight.WithLabelValues(l),
	}
}

func (g *groupMetrics) applied(index uint64, entries int) {
	g.appliedIndex.Set(float64(index))
	g.appliedEntries.Add(float64(entries))
}

func (g *groupMetrics) holder(self bool) {
	v := 0.0
	if self {
		v = 1
	}
	g.holds.Set(v)
}
