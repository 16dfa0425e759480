package handler

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
)

const (
	traceOne = "00-11111111111111111111111111111111-aaaaaaaaaaaaaaaa-01"
	traceTwo = "00-22222222222222222222222222222222-bbbbbbbbbbbbbbbb-01"
)

// TestTracing: a send is a span under its own context, or the stream's; a record
// with a context of its own is a span under that; a delivery is one under the
// broker's fetch, or the record's own.
func TestTracing(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	var fetchTrace *typev1.TraceContext
	r := newRig(t, func(_ *Limits, m *fakeMesh, c *Config) {
		c.TracerProvider = provider
		m.onFetch = func(f *fakeFetcher, s client.FetchStart) {
			f.push(&client.FetchEvent{
				TopicPartition: s.TopicPartition, Topic: "a", Tag: s.Tag, Kind: client.FetchRecords, NextOffset: 1, Trace: fetchTrace,
				Records: []record.Record{{Offset: 0, Headers: []record.RecordHeader{{Key: []byte("traceparent"), Value: []byte(traceTwo)}}}},
			})
		}
	})
	ctx := metadata.AppendToOutgoingContext(testContext(t), "traceparent", traceOne)
	p := r.open(t, ctx, &gatewayv1.ProduceOpen{})
	own := rec("y")
	own.Headers = []*typev1.Header{{Key: []byte("traceparent"), Value: []byte(traceTwo)}}
	p.send(1, rec("x"), own)
	p.get()
	p.put(&gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Send{Send: &gatewayv1.ProduceSend{
		Id: 2, Topic: "a", Records: []*gatewayv1.ProduceRecord{rec("z")}, Trace: &typev1.TraceContext{Traceparent: traceTwo},
	}}})
	p.get()
	spans := exporter.GetSpans()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	parents := map[string]int{}
	for _, s := range spans {
		if s.Name != "publish a" {
			t.Errorf("span %q", s.Name)
		}
		parents[s.Parent.TraceID().String()[:4]+"/"+s.Parent.SpanID().String()[:4]]++
	}
	if parents["1111/aaaa"] != 1 || parents["2222/bbbb"] != 2 {
		t.Errorf("parents %v", parents)
	}
	// The producer got each record under the span of its own trace.
	got := r.mesh.producers[0].spans
	if len(got) != 3 || got[0].TraceID().String()[:4] != "1111" || got[1].TraceID().String()[:4] != "2222" || got[2].TraceID().String()[:4] != "2222" {
		t.Errorf("the producer saw %v", got)
	}

	for _, tc := range []struct {
		fetch *typev1.TraceContext
		want  string
	}{{&typev1.TraceContext{Traceparent: traceOne}, "1111/aaaa"}, {nil, "2222/bbbb"}} {
		exporter.Reset()
		fetchTrace = tc.fetch
		c := r.subscribe(t, testContext(t), &gatewayv1.ConsumeOpen{Partitions: []*gatewayv1.ConsumePartition{{Topic: "a", Offset: ptr(int64(0))}}})
		c.until("records", func(m *gatewayv1.ConsumeResponse) bool { return m.GetRecords() != nil })
		eventually(t, "the delivery's span", func() bool { return len(exporter.GetSpans()) == 1 })
		s := exporter.GetSpans()[0]
		if parent := s.Parent.TraceID().String()[:4] + "/" + s.Parent.SpanID().String()[:4]; s.Name != "deliver a" || parent != tc.want {
			t.Errorf("span %q under %s, want %s", s.Name, parent, tc.want)
		}
	}
	if err := provider.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}
