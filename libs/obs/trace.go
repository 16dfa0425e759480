package obs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// TraceConfig says where spans go and whose they are.
type TraceConfig struct {
	// Endpoint is host:port of an OTLP receiver over plain gRPC; "" turns tracing off.
	Endpoint string
	// SampleRatio is the share of traces begun here that are kept, 0 to 1; a
	// trace begun elsewhere keeps its beginner's decision.
	SampleRatio float64
	// Kind, ID and Incarnation name the component, Version its release.
	Kind        string
	ID          int32
	Incarnation uint64
	Version     string
	// Logger hears at most once a minute that spans cannot be delivered; may be nil.
	Logger *slog.Logger
}

// Bounds of what waits for the receiver. Beyond them spans are dropped; nothing
// ever waits for tracing.
const (
	maxQueuedSpans = 8192
	maxBatchSpans  = 512
	flushEvery     = time.Second
	exportTimeout  = 5 * time.Second
)

// NewTracerProvider makes the provider that is handed down, and the function
// that delivers what is left and ends it. It does not wait for the receiver,
// which may be absent. Errors are a malformed endpoint.
func NewTracerProvider(ctx context.Context, cfg TraceConfig) (trace.TracerProvider, func(context.Context) error, error) {
	if cfg.Endpoint == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracegrpc.New(ctx,
		otlptracegrpc.WithEndpoint(cfg.Endpoint),
		otlptracegrpc.WithInsecure(),
		otlptracegrpc.WithTimeout(exportTimeout),
		otlptracegrpc.WithReconnectionPeriod(time.Second),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{
			Enabled: true, InitialInterval: 200 * time.Millisecond, MaxInterval: time.Second, MaxElapsedTime: exportTimeout,
		}),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("trace to %s: %w", cfg.Endpoint, err)
	}
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&quietExporter{SpanExporter: exporter, logger: cfg.Logger, endpoint: cfg.Endpoint, now: time.Now},
			sdktrace.WithBatchTimeout(flushEvery),
			sdktrace.WithMaxQueueSize(maxQueuedSpans),
			sdktrace.WithMaxExportBatchSize(maxBatchSpans),
			sdktrace.WithExportTimeout(exportTimeout)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
		sdktrace.WithResource(Resource(cfg)),
	)
	return tp, tp.Shutdown, nil
}

// Resource describes the component as the owner of its spans.
func Resource(cfg TraceConfig) *resource.Resource {
	return resource.NewSchemaless(
		attribute.String("service.name", "leat-"+cfg.Kind),
		attribute.String("service.namespace", "leat"),
		attribute.String("service.instance.id", ComponentName(cfg.Kind, cfg.ID)),
		attribute.String("service.version", cfg.Version),
		attribute.String("leat.incarnation", FormatIncarnation(cfg.Incarnation)),
		attribute.Int("process.pid", os.Getpid()),
	)
}

// quietExporter keeps an absent receiver from filling the log: the SDK would
// report each failed batch through a global handler.
type quietExporter struct {
	sdktrace.SpanExporter
	logger   *slog.Logger
	endpoint string
	now      func() time.Time

	mu      sync.Mutex
	quietTo time.Time
	lost    int
}

// complainEvery is how often a lasting failure is logged.
const complainEvery = time.Minute

func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil || e.logger == nil {
		return nil
	}
	e.mu.Lock()
	e.lost += len(spans)
	lost, say := e.lost, e.now().After(e.quietTo)
	if say {
		e.quietTo, e.lost = e.now().Add(complainEvery), 0
	}
	e.mu.Unlock()
	if say {
		e.logger.Warn("spans cannot be delivered and are dropped; check otlp.endpoint", "endpoint", e.endpoint, "spans", lost, "error", err)
	}
	return nil
}
