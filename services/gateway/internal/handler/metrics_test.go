package handler

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// TestMetrics: what is counted, and that the documentation lists all of it.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newRig(t, func(_ *Limits, m *fakeMesh, c *Config) {
		c.Registry = registry
		m.onFetch = serve(record.Record{Offset: 0, Value: []byte("x")})
		m.onSend = func(rec client.Record, done func(client.Result)) error {
			if string(rec.Value) == "bad" {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "x")
			}
			done(client.Result{})
			return nil
		}
	})
	p := r.open(t, testContext(t), &gatewayv1.ProduceOpen{})
	p.send(1, rec("x"), rec("bad"), rec("y"))
	p.get()
	c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}})
	c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
	docs, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	values := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			if !strings.Contains(string(docs), "`"+f.GetName()+"`") {
				t.Errorf("docs/metrics.md does not list %s", f.GetName())
			}
			for _, m := range f.Metric {
				key := f.GetName()
				for _, l := range m.Label {
					key += "," + l.GetValue()
				}
				out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return out
	}
	want := map[string]float64{
		"leat_gateway_produce_records_total": 2, "leat_gateway_produce_failures_total,RECORD_TOO_LARGE": 1, "leat_gateway_send_seconds": 1,
		"leat_gateway_consume_records_total": 1, "leat_gateway_streams,produce": 1, "leat_gateway_streams,consume": 1, "leat_gateway_buffered_bytes": 0,
	}
	eventually(t, "everything is counted", func() bool {
		got := values()
		for k, v := range want {
			if got[k] != v {
				return false
			}
		}
		return got["leat_gateway_produce_bytes_total"] > 0 && got["leat_gateway_consume_bytes_total"] > 0
	})
	if err := p.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err = error(nil); err == nil; _, err = p.Recv() {
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("ends with %v", err)
	}
	eventually(t, "the stream is counted no more", func() bool { return values()["leat_gateway_streams,produce"] == 0 })
}
