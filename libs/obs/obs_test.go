package obs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

func TestLoggerIdentity(t *testing.T) {
	var b bytes.Buffer
	l := NewLogger(&b, "warn", "json", "broker", 3, 0xabc)
	l.Info("quiet")
	l.Warn("loud", "topic", "hdfs")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, b.String())
	}
	if line["component"] != "broker-3" || line["incarnation"] != "0000000000000abc" || line["msg"] != "loud" || line["topic"] != "hdfs" {
		t.Errorf("got %v", line)
	}
	b.Reset()
	NewLogger(&b, "nonsense", "text", "gateway", 1, 1).Info("hello")
	if !strings.Contains(b.String(), "msg=hello component=gateway-1") {
		t.Errorf("got %q", b.String())
	}
}

func TestParseLevel(t *testing.T) {
	for name, want := range map[string]slog.Level{"debug": slog.LevelDebug, "INFO": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		if got, err := ParseLevel(name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("loud is a level")
	}
	if CheckFormat("json") != nil || CheckFormat("text") != nil || CheckFormat("xml") == nil {
		t.Error("CheckFormat decides wrongly")
	}
}

// receiver is an OTLP receiver that keeps what it gets.
type receiver struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.ResourceSpans
	got   chan struct{}
}

func (r *receiver) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	r.spans = append(r.spans, req.ResourceSpans...)
	r.mu.Unlock()
	select {
	case r.got <- struct{}{}:
	default:
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Spans reach the receiver within about a second by themselves, and say whose
// they are.
func TestSpansReachTheReceiver(t *testing.T) {
	ctx := testContext(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{got: make(chan struct{}, 1)}
	s := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, r)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	tp, shutdown, err := NewTracerProvider(ctx, TraceConfig{Endpoint: lis.Addr().String(), SampleRatio: 1, Kind: "broker", ID: 2, Incarnation: 5, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tp.Tracer("test").Start(ctx, "append hdfs")
	span.End()
	select {
	case <-r.got:
	case <-ctx.Done():
		t.Fatal("no spans came")
	}
	_, last := tp.Tracer("test").Start(ctx, "last")
	last.End()
	if err := shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	names, attrs := "", map[string]string{}
	for _, rs := range r.spans {
		for _, ss := range rs.ScopeSpans {
			for _, sp := range ss.Spans {
				names += sp.Name + ";"
			}
		}
		for _, kv := range rs.Resource.Attributes {
			attrs[kv.Key] = kv.Value.GetStringValue()
		}
	}
	if names != "append hdfs;last;" {
		t.Errorf("spans %q", names)
	}
	if attrs["service.name"] != "leat-broker" || attrs["service.instance.id"] != "broker-2" || attrs["service.version"] != "v1" {
		t.Errorf("resource %v", attrs)
	}
	if _, ok := attrs["process.pid"]; !ok {
		t.Error("no process.pid")
	}
}

func TestTracingOff(t *testing.T) {
	tp, shutdown, err := NewTracerProvider(testContext(t), TraceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tp.(noop.TracerProvider); !ok {
		t.Errorf("off gives a %T", tp)
	}
	if err := shutdown(testContext(t)); err != nil {
		t.Error(err)
	}
}

// failing is an exporter that never delivers.
type failing struct{ tracetest.NoopExporter }

func (failing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("connection refused")
}

// An absent receiver is worth one line a minute, and no error.
func TestAbsentReceiverIsQuiet(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(0, 0)
	e := &quietExporter{SpanExporter: &failing{}, logger: NewLogger(&b, "info", "text", "broker", 1, 1), now: func() time.Time { return now }}
	export := func(times int) int {
		for range times {
			if err := e.ExportSpans(testContext(t), make([]sdktrace.ReadOnlySpan, 10)); err != nil {
				t.Fatal(err)
			}
		}
		return strings.Count(b.String(), "\n")
	}
	if n := export(100); n != 1 {
		t.Errorf("%d lines", n)
	}
	now = now.Add(complainEvery + time.Second)
	if n := export(100); n != 2 {
		t.Errorf("%d lines after a minute", n)
	}
	if !strings.Contains(b.String(), "spans=1000 ") {
		t.Errorf("the lost spans are not counted: %s", b.String())
	}
}

// Making a provider for an endpoint where nobody listens neither waits nor fails.
func TestRefusedEndpointDoesNotBlock(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	tp, shutdown, err := NewTracerProvider(testContext(t), TraceConfig{Endpoint: lis.Addr().String(), SampleRatio: 1, Kind: "broker"})
	if err != nil {
		t.Fatal(err)
	}
	for range maxQueuedSpans * 2 {
		_, span := tp.Tracer("test").Start(t.Context(), "x")
		span.SetAttributes(attribute.Int("n", 1))
		span.End()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := shutdown(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOpsServer(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ready := false
	s := NewOpsServer(lis, NewRegistry("broker", "v1"), func() bool { return ready })
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, tt := range []struct {
		path string
		code int
		text string
	}{
		{"/healthz", 200, "ok"},
		{"/readyz", 503, "not ready"},
		{"/metrics", 200, `leat_build_info{kind="broker",version="v1"} 1`},
		{"/debug/pprof/", 200, "goroutine"},
		{"/debug/pprof/cmdline", 200, ""},
		{"/nonsense", 404, ""},
	} {
		if code, body := get(tt.path); code != tt.code || !strings.Contains(body, tt.text) {
			t.Errorf("%s: %d %.100q", tt.path, code, body)
		}
	}
	ready = true
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("ready, and /readyz says %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOpsServerListenerFails(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	if err := NewOpsServer(lis, NewRegistry("x", "v"), func() bool { return true }).Run(testContext(t)); err == nil {
		t.Error("no error")
	}
}
