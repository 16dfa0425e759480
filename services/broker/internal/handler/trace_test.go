package handler

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestOneRecordIsOneTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	h := start(t, brokertest.Start(t), harnessOptions{tracer: tp.Tracer("test")})
	id := h.topic("t", 1, nil)
	ctx, root := tp.Tracer("client").Start(t.Context(), "publish t")
	p := h.producer()
	p.mustStore(id, 0, "untraced")
	r := p.result(p.send(id, 0, encode(t, "traced"), func(b *brokerv1.ProduceBatch) { b.Trace = rpc.InjectTrace(ctx) }))
	if r.GetError() != nil {
		t.Fatal(r)
	}
	root.End()
	f := h.fetcher(1, 1024)
	f.add(1, id, 0, 1)
	resp, _ := f.recv()
	trace := resp.GetBatches().GetTrace()
	if trace.GetTraceparent() == "" {
		t.Fatal("the fetched batch carries no trace")
	}
	byName := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		if _, twice := byName[s.Name]; twice {
			t.Errorf("two spans %q; the untraced batch has none", s.Name)
		}
		byName[s.Name] = s
	}
	publish, appended, fetched := byName["publish t"], byName["append t"], byName["fetch t"]
	if appended.Parent.SpanID() != publish.SpanContext.SpanID() || fetched.Parent.SpanID() != appended.SpanContext.SpanID() {
		t.Errorf("publish %v, append under %v, fetch under %v", publish.SpanContext.SpanID(), appended.Parent.SpanID(), fetched.Parent.SpanID())
	}
	if want := rpc.ExtractTrace(t.Context(), trace); want == t.Context() || appended.SpanContext.TraceID() != publish.SpanContext.TraceID() {
		t.Error("the trace does not go on")
	}
	f = h.fetcher(1, 1024)
	f.add(1, id, 0, 0)
	if resp, _ := f.recv(); resp.GetBatches().GetTrace() != nil {
		t.Error("the untraced batch carries a trace")
	}
}
