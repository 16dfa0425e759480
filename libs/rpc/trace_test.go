package rpc

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// A unary call is one trace over both sides; streams and probes make no spans.
func TestUnaryCallsAreTraced(t *testing.T) {
	ctx := testContext(t)
	serverSpans, clientSpans := tracetest.NewSpanRecorder(), tracetest.NewSpanRecorder()
	provider := func(r *tracetest.SpanRecorder) oteltrace.TracerProvider {
		return trace.NewTracerProvider(trace.WithSpanProcessor(r))
	}
	_, addr := startServer(t, ServerConfig{
		TracerProvider: provider(serverSpans),
		Identity:       func() *meshv1.GetIdentityResponse { return &meshv1.GetIdentityResponse{} },
	}, &echoService{
		produce: countProduce,
		list: func(context.Context, *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
			return &brokerv1.ListOffsetsResponse{}, nil
		},
	})
	conn := dial(t, addr, DialConfig{TracerProvider: provider(clientSpans)})
	client := brokerv1.NewLogServiceClient(conn)
	st, err := client.Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(st, someRequest(0), NewPayload([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := meshv1.NewIdentityServiceClient(conn).GetIdentity(ctx, &meshv1.GetIdentityRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ListOffsets(ctx, &brokerv1.ListOffsetsRequest{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the spans", func() bool { return len(serverSpans.Ended()) > 0 && len(clientSpans.Ended()) > 0 })
	if len(serverSpans.Ended()) != 1 || len(clientSpans.Ended()) != 1 {
		t.Fatalf("%d spans at the server, %d at the client", len(serverSpans.Ended()), len(clientSpans.Ended()))
	}
	server, c := serverSpans.Ended()[0], clientSpans.Ended()[0]
	if server.Parent().SpanID() != c.SpanContext().SpanID() || server.SpanContext().TraceID() != c.SpanContext().TraceID() {
		t.Error("the server's span is no child of the client's")
	}
}

func TestTraceInMessages(t *testing.T) {
	ctx := context.Background()
	if InjectTrace(ctx) != nil || ExtractTrace(ctx, nil) != ctx || ExtractTrace(ctx, &typev1.TraceContext{}) != ctx {
		t.Error("without a trace there is something")
	}
	if got := ExtractTrace(ctx, &typev1.TraceContext{Traceparent: "garbage"}); oteltrace.SpanContextFromContext(got).IsValid() {
		t.Error("garbage is a trace")
	}
	for _, sampler := range []trace.Sampler{trace.AlwaysSample(), trace.NeverSample()} {
		tp := trace.NewTracerProvider(trace.WithSampler(sampler))
		spanCtx, span := tp.Tracer("test").Start(ctx, "x")
		m := InjectTrace(spanCtx)
		if !span.SpanContext().IsSampled() {
			if m != nil {
				t.Error("an unsampled trace travels")
			}
			continue
		}
		got := oteltrace.SpanContextFromContext(ExtractTrace(ctx, m))
		if got.SpanID() != span.SpanContext().SpanID() || !got.IsRemote() || !got.IsSampled() {
			t.Errorf("extracted %v", got)
		}
		span.End()
	}
}

// Off costs nothing: no stats handler is installed for a provider that records
// nothing.
func TestNoProviderNoHandler(t *testing.T) {
	if traces(nil) || traces(noop.NewTracerProvider()) || !traces(trace.NewTracerProvider()) {
		t.Error("traces decides wrongly")
	}
}
