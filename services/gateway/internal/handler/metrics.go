package handler

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// metrics are what docs/metrics.md lists for the gateway. They count whether or not
// they are registered anywhere.
type metrics struct {
	produced, producedBytes prometheus.Counter
	failures                *prometheus.CounterVec
	sendSeconds             prometheus.Histogram
	consumed, consumedBytes prometheus.Counter
	buffered                atomic.Int64
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &metrics{
		produced:      counter("leat_gateway_produce_records_total", "records acknowledged, or handed over with acks none"),
		producedBytes: counter("leat_gateway_produce_bytes_total", "bytes of the messages that records came in"),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_gateway_produce_failures_total", Help: "records that were not acknowledged, by reason",
		}, []string{"reason"}),
		sendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_gateway_send_seconds", Help: "time from the receipt of a send to its last result",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		consumed:      counter("leat_gateway_consume_records_total", "records given to consumers"),
		consumedBytes: counter("leat_gateway_consume_bytes_total", "bytes of records given to consumers, as messages carry them"),
	}
}

// register adds the metrics, and those that are read from the handler, to a
// registry; nil: none.
func (h *Handler) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	m := h.metrics
	gauge := func(name, help string, labels prometheus.Labels, v *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(v.Load()) })
	}
	const streams = "leat_gateway_streams"
	for _, c := range []prometheus.Collector{
		m.produced, m.producedBytes, m.failures, m.sendSeconds, m.consumed, m.consumedBytes,
		gauge("leat_gateway_buffered_bytes", "bytes of records without a result, overhead included", nil, &m.buffered),
		gauge(streams, "open streams", prometheus.Labels{"kind": "produce"}, &h.produceStreams),
		gauge(streams, "open streams", prometheus.Labels{"kind": "consume"}, &h.consumeStreams),
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// result counts what became of one record.
func (m *metrics) result(r client.Result) {
	if r.Err == nil {
		m.produced.Inc()
		return
	}
	m.failures.WithLabelValues(rpc.ReasonName(rpc.ReasonOf(r.Err))).Inc()
}

// answered counts a send whose records all have results.
func (m *metrics) answered(since, now time.Time) { m.sendSeconds.Observe(now.Sub(since).Seconds()) }

// delivered counts records that went to a consumer.
func (m *metrics) delivered(r *gatewayv1.ConsumeRecords) {
	m.consumed.Add(float64(len(r.GetRecords())))
	m.consumedBytes.Add(float64(r.GetCost()))
}
