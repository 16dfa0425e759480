package replica

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Metrics are the broker's metrics. Their names are documented in
// docs/metrics.md and do not change.
type Metrics struct {
	appendBytes, appendRecords prometheus.Counter
	fetchBytes, fetchRecords   prometheus.Counter
	fsync                      prometheus.Histogram
	failures                   *prometheus.CounterVec
	replicas                   *prometheus.GaugeVec
}

// NewMetrics makes the metrics and registers them; reg may be nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "leat", Subsystem: "broker", Name: name, Help: help})
	}
	m := &Metrics{
		appendBytes:   counter("append_bytes_total", "Bytes of record batches appended to logs that this broker leads."),
		appendRecords: counter("append_records_total", "Records appended to logs that this broker leads."),
		fetchBytes:    counter("fetch_bytes_total", "Bytes of record batches sent to readers."),
		fetchRecords:  counter("fetch_records_total", "Offsets covered by the record batches sent to readers."),
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "leat", Subsystem: "broker", Name: "fsync_seconds", Help: "Time of one sync of a log; it serves all batches appended before it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "leat", Subsystem: "broker", Name: "produce_failures_total", Help: "Batches that were not acknowledged, by reason; those sent with acks=0 are told nowhere else.",
		}, []string{"reason"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "leat", Subsystem: "broker", Name: "replicas", Help: "Replicas on this broker by state: leading, idle or offline.",
		}, []string{"state"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.appendBytes, m.appendRecords, m.fetchBytes, m.fetchRecords, m.fsync, m.failures, m.replicas} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// Failure counts a batch that was not acknowledged.
func (m *Metrics) Failure(reason typev1.ErrorReason) {
	m.failures.WithLabelValues(rpc.ReasonName(reason)).Inc()
}

// Fetched counts what was sent to a reader.
func (m *Metrics) Fetched(bytes int, records int64) {
	m.fetchBytes.Add(float64(bytes))
	m.fetchRecords.Add(float64(records))
}
