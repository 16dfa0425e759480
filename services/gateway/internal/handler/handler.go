package handler

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/groups"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// Limits are the published limits of one gateway.
type Limits struct {
	Produce session.ProduceLimits
	Consume session.ConsumeLimits

	MaxProduceStreams int           // open at once
	MaxConsumeStreams int           // open at once
	MaxProduceBytes   int64         // of records without a result, over all streams
	MaxProducers      int           // kinds of settings in use at once
	BatchBytes        int           // of the batches that the gateway builds
	FetchBytes        int64         // read ahead for one consume stream
	MaxResponseBytes  int           // of one answer of a broker
	MaxDecodedBytes   int           // that one batch may unpack to
	AdminTimeout      time.Duration // of admin calls without a deadline
	MarksTimeout      time.Duration // that a description waits for brokers
	ProxiedClients    bool          // HTTP/2 pings say nothing about whether a client lives
	PingAfter         time.Duration // of silence on a client's connection, until the server sends an HTTP/2 ping
}

// Config is what a Handler needs. All fields are required unless stated.
type Config struct {
	Limits      Limits
	Identity    session.Identity
	Mesh        Mesh
	Controllers Controllers
	Images      Images
	// Draining is closed when streams are to end.
	Draining <-chan struct{}
	Logger   *slog.Logger
	// TracerProvider makes spans; nil: none.
	TracerProvider trace.TracerProvider
	// Registry takes the metrics; nil: none are kept.
	Registry prometheus.Registerer
	// Now is the clock; nil: the system's.
	Now func() time.Time
}

// Handler serves the public API. It is safe for concurrent use.
type Handler struct {
	gatewayv1.UnimplementedProducerServiceServer
	gatewayv1.UnimplementedConsumerServiceServer

	cfg       Config
	tracing   tracing
	metrics   *metrics
	producers *producerPool
	budget    *semaphore.Weighted // of MaxProduceBytes
	rates     *groups.Rates

	produceStreams atomic.Int64
	consumeStreams atomic.Int64
	readers        sync.WaitGroup // end with their streams, just after the handlers
}

// New returns a handler, which must be closed. The error is that of the registry.
func New(cfg Config) (*Handler, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{
		cfg:       cfg,
		tracing:   newTracing(cfg.TracerProvider),
		metrics:   newMetrics(),
		producers: newProducerPool(cfg.Mesh, cfg.Limits, cfg.Logger),
		budget:    semaphore.NewWeighted(cfg.Limits.MaxProduceBytes),
		rates:     groups.NewRates(),
	}
	if err := h.register(cfg.Registry); err != nil {
		return nil, err
	}
	return h, nil
}

// Register adds the public services to a server.
func (h *Handler) Register(s grpc.ServiceRegistrar) {
	gatewayv1.RegisterProducerServiceServer(s, h)
	gatewayv1.RegisterConsumerServiceServer(s, h)
	gatewayv1.RegisterAdminServiceServer(s, &Admin{h: h})
}

// Close ends the producers, failing what has no result when ctx ends, and waits
// for what runs in the background. The server must have stopped.
func (h *Handler) Close(ctx context.Context) {
	h.producers.close(ctx)
	h.readers.Wait()
}

// started refuses calls while the gateway knows nothing of the mesh.
func (h *Handler) started() error {
	if h.cfg.Images.Image().Position() != (metadata.Position{}) {
		return nil
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING,
		"the gateway is waiting for the mesh's metadata: no controller has sent any yet; start a controller and etcd if none runs, else try again in a moment").
		With("waiting_for", "controller")
}

// admit counts a stream against its limit; release undoes it.
func admit(count *atomic.Int64, most int, what string) (release func(), err error) {
	if count.Add(1) > int64(most) {
		count.Add(-1)
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			"this gateway serves %d %s streams already, which is its limit; use another gateway, or raise max.%s.streams", most, what, what).
			With("limit", "max."+what+".streams").WithAction(typev1.Action_ACTION_REOPEN)
	}
	return func() { count.Add(-1) }, nil
}
