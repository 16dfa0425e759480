package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// metrics reads the metadata's figures when they are asked for.
type metrics struct {
	store *store.Store
	loop  *reconcile.Loop
}

// The metrics of a controller. Every controller reports them; those about
// partitions are the same on all, as far as each has followed.
func gauges() map[string]*prometheus.Desc {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("leat_controller_"+name, help, nil, nil)
	}
	return map[string]*prometheus.Desc{
		"leading":    describe("leading", "1 if this controller leads, else 0."),
		"revision":   describe("metadata_revision", "etcd revision up to which this controller has followed."),
		"silent":     describe("etcd_silent_seconds", "Seconds since etcd last confirmed that revision."),
		"topics":     describe("topics", "Topics, without those being deleted."),
		"partitions": describe("partitions", "Partitions of these topics."),
		"offline":    describe("offline_partitions", "Partitions without a leader."),
		"under":      describe("under_replicated_partitions", "Partitions whose in-sync set is smaller than their replica set."),
		"brokers":    describe("brokers", "Broker records."),
		"fenced":     describe("fenced_brokers", "Broker records that are fenced."),
		"deletions":  describe("pending_deletions", "Topics whose deletion some broker has not confirmed."),
	}
}

// Describe lists the metrics.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range gauges() {
		ch <- d
	}
}

// Collect reads them.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	values := map[string]float64{"leading": 0, "silent": m.store.Silent().Seconds()}
	if m.loop.IsLeading() {
		values["leading"] = 1
	}
	m.store.View(func(state *cluster.State, revision int64) {
		values["revision"] = float64(revision)
		count := state.Count()
		values["topics"], values["partitions"] = float64(count.Topics), float64(count.Partitions)
		values["offline"], values["under"] = float64(count.Offline), float64(count.UnderReplicated)
		values["brokers"], values["fenced"] = float64(count.Brokers), float64(count.Fenced)
		values["deletions"] = float64(count.Deletions)
	})
	for name, d := range gauges() {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, values[name])
	}
}
