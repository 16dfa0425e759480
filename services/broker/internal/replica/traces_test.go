package replica

import (
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestSpanRing(t *testing.T) {
	var r spanRing
	if _, ok := r.newest(0, 100); ok {
		t.Error("an empty ring has a span")
	}
	span := func(n int64) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{byte(n >> 8), byte(n), 1}})
	}
	for n := range int64(3 * ringSize) {
		r.add(spanRange{base: 10 * n, end: 10*n + 10, span: span(n)})
	}
	if len(r.entries) != ringSize {
		t.Errorf("%d entries, want %d", len(r.entries), ringSize)
	}
	for _, tt := range []struct {
		from, to, want int64 // -1: none
	}{
		{0, 10, -1}, // forgotten
		{0, 1 << 40, 3*ringSize - 1},
		{10 * (3*ringSize - 5), 10 * (3*ringSize - 3), 3*ringSize - 4},
		{10*(3*ringSize-5) + 1, 10 * (3*ringSize - 4), -1},
	} {
		got, ok := r.newest(tt.from, tt.to)
		if ok != (tt.want >= 0) || ok && got.SpanID() != span(tt.want).SpanID() {
			t.Errorf("[%d,%d): %v %v, want span %d", tt.from, tt.to, got.SpanID(), ok, tt.want)
		}
	}
}
