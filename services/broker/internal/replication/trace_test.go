package replication

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// The append of every replica is part of the record's one story.
func TestReplicaAppendsAreTraced(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	m := newMesh(t, 3, meshOptions{tracer: func(int32) trace.Tracer { return tp.Tracer("test") }})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "untraced")
	ctx, root := tp.Tracer("client").Start(context.Background(), "publish t")
	batch := encode(t, "traced")
	h, err := record.ParseHeader(batch)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan replica.Result, 1)
	m.nodes[1].replica(id, 0).Produce(&replica.Batch{
		Payload: rpc.NewPayload(batch), Header: h, Acks: acksAll, LeaderEpoch: -1, Timeout: brokertest.Patience, Trace: rpc.InjectTrace(ctx),
		Done: func(res replica.Result) { done <- res },
	})
	if res := <-done; res.Err != nil {
		t.Fatal(res.Err)
	}
	root.End()
	brokertest.Await(t, "both followers have told of their appends", func() bool {
		var appended tracetest.SpanStub
		under := 0
		for _, s := range spans.GetSpans() {
			if s.Name == "append t" {
				appended = s
			}
		}
		for _, s := range spans.GetSpans() {
			if s.Name == "replica append t" && s.Parent.SpanID() == appended.SpanContext.SpanID() && s.SpanContext.TraceID() == root.SpanContext().TraceID() {
				under++
			}
		}
		return under == 2
	})
}
