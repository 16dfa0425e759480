package replica

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// ringSize bounds the append spans that a replica remembers, so that a fetch of
// recent records continues their trace.
const ringSize = 128

// spanRange is the append span of a range of offsets.
type spanRange struct {
	base, end int64
	span      trace.SpanContext
}

// spanRing is the newest append spans; its zero value is empty and takes no
// memory. Its user locks.
type spanRing struct {
	entries []spanRange
	next    int
}

func (r *spanRing) add(e spanRange) {
	if len(r.entries) < ringSize {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[r.next] = e
	r.next = (r.next + 1) % ringSize
}

// newest is the span of the newest traced batch that begins within [from, to).
func (r *spanRing) newest(from, to int64) (trace.SpanContext, bool) {
	best := -1
	for i, e := range r.entries {
		if e.base >= from && e.base < to && (best < 0 || e.base > r.entries[best].base) {
			best = i
		}
	}
	if best < 0 {
		return trace.SpanContext{}, false
	}
	return r.entries[best].span, true
}

// startAppend begins the append span of a batch that carries a trace, else none.
func (r *Replica) startAppend(t *typev1.TraceContext, records int32, size int) trace.Span {
	if r.m.cfg.Tracer == nil || t.GetTraceparent() == "" {
		return nil
	}
	ctx := rpc.ExtractTrace(context.Background(), t)
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	_, span := r.m.cfg.Tracer.Start(ctx, "append "+r.Topic, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("messaging.system", "leat"),
		attribute.String("messaging.destination.name", r.Topic),
		attribute.Int("messaging.destination.partition.id", int(r.Key.Partition)),
		attribute.Int("messaging.batch.message_count", int(records)),
		attribute.Int("messaging.message.body.size", size),
	))
	return span
}

// TraceFetch makes the span of serving [from, to) as a child of the append of the
// newest traced batch within, ends it, and returns its context for the reader.
func (r *Replica) TraceFetch(from, to int64, size int) *typev1.TraceContext {
	if r.m.cfg.Tracer == nil {
		return nil
	}
	r.mu.Lock()
	parent, ok := r.ring.newest(from, to)
	r.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, span := r.m.cfg.Tracer.Start(trace.ContextWithSpanContext(context.Background(), parent), "fetch "+r.Topic,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			attribute.String("messaging.system", "leat"),
			attribute.String("messaging.destination.name", r.Topic),
			attribute.Int("messaging.destination.partition.id", int(r.Key.Partition)),
			attribute.Int64("messaging.leat.offset", from),
			attribute.Int64("messaging.leat.next_offset", to),
			attribute.Int("messaging.message.body.size", size),
		))
	span.End()
	return rpc.InjectTrace(ctx)
}
