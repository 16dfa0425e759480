package cluster

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"

	"github.com/leat-io/leat/tests/internal/mesh"
)

// span is what the test reads of an OTLP span.
type span struct {
	trace, id, parent, name string
	service, instance       string
	pid                     string
}

// receiver is an OTLP receiver that keeps what it gets.
type receiver struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []span
}

func startReceiver(t *testing.T) (*receiver, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{}
	s := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return r, l.Addr().String()
}

// Export takes in spans.
func (r *receiver) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		attrs := rs.GetResource().GetAttributes()
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				r.spans = append(r.spans, span{
					trace: hex.EncodeToString(s.GetTraceId()), id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
					name: s.GetName(), service: attribute(attrs, "service.name"),
					instance: attribute(attrs, "service.instance.id"), pid: attribute(attrs, "process.pid"),
				})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func attribute(attrs []*commonv1.KeyValue, key string) string {
	for _, a := range attrs {
		if a.GetKey() == key {
			if v := a.GetValue(); v.GetStringValue() != "" {
				return v.GetStringValue()
			}
			return fmt.Sprint(a.GetValue().GetIntValue())
		}
	}
	return ""
}

// ofTrace returns the spans of a trace by id.
func (r *receiver) ofTrace(trace string) map[string]span {
	r.mu.Lock()
	defer r.mu.Unlock()
	spans := map[string]span{}
	for _, s := range r.spans {
		if s.trace == trace {
			spans[s.id] = s
		}
	}
	return spans
}

// TestOneRecordIsOneTrace: the spans of a produced and consumed record (gateway,
// broker append, fetch, delivery) are one trace over different processes.
func TestOneRecordIsOneTrace(t *testing.T) {
	otlp, addr := startReceiver(t)
	var sets []string
	for _, s := range []string{"gateway", "broker", "coordinator", "controller"} {
		sets = append(sets, "--set", s+".otlp.endpoint="+addr)
	}
	m := mesh.Start(t, mesh.Options{Processes: true, Args: sets})
	m.MustLeat("topic", "create", "traced")
	m.MustLeatInput("seen\n", "produce", "traced")
	records := parseRecords(t, m.MustLeat("consume", "traced", "--from-beginning", "--follow=false", "-o", "json"))
	if len(records) != 1 {
		t.Fatalf("consumed %d records, want 1", len(records))
	}
	trace := ""
	for _, h := range records[0].Headers {
		if h.Key == "traceparent" && h.Value != nil {
			trace = strings.Split(*h.Value, "-")[1]
		}
	}
	if trace == "" {
		t.Fatalf("the record carries no traceparent header: %+v", records[0].Headers)
	}
	var chain []span
	// Each process sends its spans every few seconds, and again where that fails.
	mesh.Eventually(t, 2*time.Minute, "a deliver span whose ancestors are fetch, append and publish", func() (bool, string) {
		spans := otlp.ofTrace(trace)
		chain = deliveryChain(spans)
		return len(chain) > 0, fmt.Sprintf("%+v", spans)
	})
	pids := map[string]bool{}
	for _, s := range chain {
		t.Logf("%s by %s (%s), pid %s", s.name, s.service, s.instance, s.pid)
		pids[s.pid] = true
	}
	if len(pids) < 2 {
		t.Errorf("all spans come from one process: %v", pids)
	}
}

// deliveryChain walks from a deliver span up its parents; the chain counts if
// it meets, in this order, fetch and append of a broker and publish of a gateway.
func deliveryChain(spans map[string]span) []span {
	steps := []struct{ name, service string }{
		{"deliver", "leat-gateway"}, {"fetch", "leat-broker"}, {"append", "leat-broker"}, {"publish", "leat-gateway"},
	}
	for _, s := range spans {
		if !strings.HasPrefix(s.name, "deliver") {
			continue
		}
		var chain []span
		step := 0
		for at, ok := s, true; ok; at, ok = spans[at.parent] {
			if step < len(steps) && strings.HasPrefix(at.name, steps[step].name) && at.service == steps[step].service {
				step++
			}
			chain = append(chain, at)
			if at.parent == "" || len(chain) > 20 {
				break
			}
		}
		if step == len(steps) {
			return chain
		}
	}
	return nil
}
