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
		"moves":      describe("reassigning_partitions", "Partitions that a reassignment moves."),
	}
}

// counters are what this controller has done since it started; only a leader does
// anything.
type counters struct {
	elections, isrChanges                    *prometheus.Desc
	leaderless, fencings, unknown, conflicts *prometheus.Desc
}

func newCounters() counters {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("leat_controller_"+name, help, labels, nil)
	}
	return counters{
		elections:  describe("elections_total", "Leaders elected by this controller, by what they were elected out of.", "kind"),
		isrChanges: describe("isr_changes_total", "In-sync sets made smaller or larger by this controller.", "kind"),
		leaderless: describe("lost_leaders_total", "Partitions that lost their leader while nobody could follow it."),
		fencings:   describe("fencings_total", "Brokers fenced by this controller."),
		unknown:    describe("unknown_transactions_total", "Writes to etcd whose outcome had to be settled."),
		conflicts:  describe("conflicts_total", "Writes to etcd that were planned anew because a record had changed."),
	}
}

func (c counters) all() []*prometheus.Desc {
	return []*prometheus.Desc{c.elections, c.isrChanges, c.leaderless, c.fencings, c.unknown, c.conflicts}
}

// Describe lists the metrics.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range gauges() {
		ch <- d
	}
	for _, d := range newCounters().all() {
		ch <- d
	}
}

// collectCounters reads the counters.
func (m *metrics) collectCounters(ch chan<- prometheus.Metric) {
	c, counts := newCounters(), m.loop.Counts()
	counter := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for kind, n := range counts.Elections {
		counter(c.elections, n, string(kind))
	}
	counter(c.isrChanges, counts.ISRShrinks, "shrink")
	counter(c.isrChanges, counts.ISRExpands, "expand")
	counter(c.leaderless, counts.Leaderless)
	counter(c.fencings, counts.Fencings)
	counter(c.unknown, counts.Unknown)
	counter(c.conflicts, counts.Conflicts)
}

// Collect reads them.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.collectCounters(ch)
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
		for _, r := range state.Reassignments() {
			values["moves"] += float64(len(r.Value.Partitions))
		}
	})
	for name, d := range gauges() {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, values[name])
	}
}
