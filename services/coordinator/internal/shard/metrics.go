package shard

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leat-io/leat/libs/core/group"
)

// metrics are what docs/metrics.md lists for the coordinator. They count whether or
// not they are registered anywhere.
type metrics struct {
	offsets, rebalances        prometheus.Counter
	failures                   *prometheus.CounterVec
	appendSeconds, loadSeconds prometheus.Histogram
}

func newMetrics() *metrics {
	return &metrics{
		offsets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_coordinator_commit_offsets_total", Help: "offsets committed",
		}),
		rebalances: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_coordinator_rebalances_total", Help: "targets written anew",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_coordinator_append_failures_total", Help: "appends to shards that failed, by what is known of them",
		}, []string{"outcome"}),
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_coordinator_append_seconds", Help: "time of one append to a shard; it serves all requests gathered before it",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		loadSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_coordinator_load_seconds", Help: "time to read a shard",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
		}),
	}
}

// appended counts what an append brought into the log.
func (m *metrics) appended(kvs []group.KV, took time.Duration) {
	m.appendSeconds.Observe(took.Seconds())
	for _, kv := range kvs {
		switch kv.Value.(type) {
		case group.OffsetValue:
			m.offsets.Inc()
		case group.LedgerValue:
			m.rebalances.Inc()
		}
	}
}

func (m *metrics) failed(kind group.FailKind) {
	outcome := "unknown"
	if kind == group.NotDone {
		outcome = "not_done"
	}
	m.failures.WithLabelValues(outcome).Inc()
}

// Register adds the manager's metrics to a registry; nil: none.
func (m *Manager) Register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{
		m.metrics.offsets, m.metrics.rebalances, m.metrics.failures, m.metrics.appendSeconds, m.metrics.loadSeconds, newCensus(m),
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// census counts shards, groups and members when it is asked.
type census struct {
	manager                 *Manager
	shards, groups, members *prometheus.Desc
}

func newCensus(m *Manager) *census {
	return &census{
		manager: m,
		shards:  prometheus.NewDesc("leat_coordinator_shards", "shards owned", []string{"state"}, nil),
		groups:  prometheus.NewDesc("leat_coordinator_groups", "groups of the shards served", nil, nil),
		members: prometheus.NewDesc("leat_coordinator_members", "members of those groups", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *census) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.shards
	ch <- c.groups
	ch <- c.members
}

// censusPatience bounds a scrape: a shard that is too busy to answer is left out.
const censusPatience = time.Second

// Collect implements prometheus.Collector.
func (c *census) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), censusPatience)
	defer cancel()
	serving, loading, groups, members := 0, 0, 0, 0
	for _, s := range c.manager.Shards() {
		if !s.serving.Load() {
			loading++
			continue
		}
		serving++
		list, err := s.List(ctx)
		if err != nil {
			continue
		}
		groups += len(list)
		for _, g := range list {
			members += g.Members
		}
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(c.shards, serving, "serving")
	gauge(c.shards, loading, "loading")
	gauge(c.groups, groups)
	gauge(c.members, members)
}
