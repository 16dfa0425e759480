package handler

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/metadata"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// traceparentHeader is the record header that carries a W3C trace context.
const traceparentHeader = "traceparent"

// maxLinks bounds the links of one span.
const maxLinks = 32

// tracing makes the gateway's spans. Off, it costs a comparison.
type tracing struct {
	tracer trace.Tracer // nil: off
}

func newTracing(tp trace.TracerProvider) tracing {
	if tp == nil {
		return tracing{}
	}
	if _, off := tp.(noop.TracerProvider); off {
		return tracing{}
	}
	return tracing{tracer: tp.Tracer("github.com/leat-io/leat/services/gateway")}
}

// stream is the context of a stream's caller: streams have no span of their own,
// since it would last for hours.
func (t tracing) stream(ctx context.Context) context.Context {
	if t.tracer == nil || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, incoming(md))
}

// incoming reads gRPC metadata as a carrier.
type incoming metadata.MD

// Get returns the first value of a key.
func (m incoming) Get(key string) string {
	if v := metadata.MD(m).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set does nothing: the carrier is for reading.
func (m incoming) Set(string, string) {}

// Keys lists the keys.
func (m incoming) Keys() []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// publish begins the span of a send. The returned function ends it with what
// became of its records.
func (t tracing) publish(ctx context.Context, topic string, records int, own *typev1.TraceContext) (context.Context, func(client.Result)) {
	if t.tracer == nil {
		return ctx, func(client.Result) {}
	}
	ctx, span := t.tracer.Start(rpc.ExtractTrace(ctx, own), "publish "+topic, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			attribute.String("messaging.system", "leat"),
			attribute.String("messaging.operation.name", "publish"),
			attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", topic),
			attribute.Int("messaging.batch.message_count", records),
		))
	return ctx, func(r client.Result) { endPublish(span, r) }
}

// record is the context under which one record goes: that of its own traceparent
// header if it has one, in a span of its own, else that of its send.
func (t tracing) record(ctx context.Context, topic string, r *gatewayv1.ProduceRecord) (context.Context, func(client.Result)) {
	if t.tracer == nil {
		return ctx, nil
	}
	own := headerContext(r.GetHeaders())
	if own == nil {
		return ctx, nil
	}
	send := trace.SpanContextFromContext(ctx)
	parent := rpc.ExtractTrace(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), own)
	ctx, span := t.tracer.Start(parent, "publish "+topic, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(trace.Link{SpanContext: send}),
		trace.WithAttributes(
			attribute.String("messaging.system", "leat"),
			attribute.String("messaging.operation.name", "publish"),
			attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", topic),
		))
	return ctx, func(r client.Result) { endPublish(span, r) }
}

func endPublish(span trace.Span, r client.Result) {
	switch {
	case r.Err != nil:
		span.SetStatus(codes.Error, rpc.ReasonName(rpc.ReasonOf(r.Err)))
		span.SetAttributes(attribute.String("error.type", rpc.ReasonName(rpc.ReasonOf(r.Err))))
	case r.Partition >= 0:
		span.SetAttributes(
			attribute.Int("messaging.destination.partition.id", int(r.Partition)),
			attribute.Int64("messaging.leat.offset", r.Offset),
		)
	}
	span.End()
}

// headerContext is what a traceparent header says; nil: there is none.
func headerContext(headers []*typev1.Header) *typev1.TraceContext {
	for _, h := range headers {
		if strings.EqualFold(string(h.GetKey()), traceparentHeader) && len(h.GetValue()) > 0 {
			return &typev1.TraceContext{Traceparent: string(h.GetValue())}
		}
	}
	return nil
}

// deliver begins the span of records that go to a consumer: a child of the
// broker's fetch, or of the records' own context where that tells nothing.
func (t tracing) deliver(ctx context.Context, m *gatewayv1.ConsumeRecords, event *client.FetchEvent, group string) func(error) {
	if t.tracer == nil || m == nil {
		return func(error) {}
	}
	root := trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	var parent context.Context
	if event != nil && event.Trace.GetTraceparent() != "" {
		parent = rpc.ExtractTrace(root, event.Trace)
	}
	var links []trace.Link
	for _, r := range m.GetRecords() {
		own := headerContext(r.GetHeaders())
		if own == nil {
			continue
		}
		at := rpc.ExtractTrace(root, own)
		if parent == nil {
			parent = at
			continue
		}
		if sc := trace.SpanContextFromContext(at); sc.IsValid() && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if parent == nil {
		return func(error) {}
	}
	first := m.GetRecords()[0].GetOffset()
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "leat"),
		attribute.String("messaging.operation.name", "deliver"),
		attribute.String("messaging.operation.type", "receive"),
		attribute.String("messaging.destination.name", m.GetTopic()),
		attribute.Int("messaging.destination.partition.id", int(m.GetPartition())),
		attribute.Int("messaging.batch.message_count", len(m.GetRecords())),
		attribute.Int64("messaging.leat.offset", first),
	}
	if group != "" {
		attrs = append(attrs, attribute.String("messaging.consumer.group.name", group))
	}
	_, span := t.tracer.Start(parent, "deliver "+m.GetTopic(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...), trace.WithAttributes(attrs...))
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, rpc.ReasonName(rpc.ReasonOf(err)))
		}
		span.End()
	}
}
