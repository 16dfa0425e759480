package rpc

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// InjectTrace gives the trace context of ctx for a message inside a stream; nil
// if there is none or it is not sampled, so that untraced records cost nothing.
func InjectTrace(ctx context.Context) *typev1.TraceContext {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return &typev1.TraceContext{
		Traceparent: carrier.Get("traceparent"),
		Tracestate:  carrier.Get("tracestate"),
	}
}

// ExtractTrace gives ctx with the remote parent that a message carries. Without
// one, or with one that is malformed, it is ctx itself.
func ExtractTrace(ctx context.Context, t *typev1.TraceContext) context.Context {
	if t.GetTraceparent() == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": t.Traceparent,
		"tracestate":  t.Tracestate,
	})
}
