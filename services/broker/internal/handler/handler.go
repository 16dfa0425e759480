package handler

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// Limits of the streams; those of a request are in their protos.
const (
	// DefaultMaxInFlight is how many batches of a produce stream may be unanswered.
	DefaultMaxInFlight = 64
	// defaultProduceTimeout and maxProduceTimeout bound how long a batch may wait.
	defaultProduceTimeout = 30 * time.Second
	maxProduceTimeout     = 10 * time.Minute
	// DefaultMaxPartitions is how many partitions a fetch stream may ask for.
	DefaultMaxPartitions = 10_000
	// DefaultPartitionWait is far above a healthy disk's sync.
	DefaultPartitionWait = time.Second
	defaultResponseBytes = 1 << 20
	minResponseBytes     = 1 << 10
	// smallResponseBytes is what a response is cut to while memory is short: still
	// large enough that bytes cost little.
	smallResponseBytes = 64 << 10
	DefaultFetchMemory = 256 << 20
	maxClientID        = 255
	maxListOffsets     = 10_000
)

// Config is what the handlers need.
type Config struct {
	Broker *typev1.Process
	Logger *slog.Logger
	// MaxInFlight and MaxPartitions bound each stream.
	MaxInFlight, MaxPartitions int
	// PartitionWait is how long a partition that holds half of a produce stream's
	// window may hold up the stream before its batches are refused.
	PartitionWait time.Duration
	// MaxFetchBytes bounds a fetch response, whatever is asked.
	MaxFetchBytes int
	// FetchMemory is how many bytes of responses may be on their way to all readers
	// before responses get small.
	FetchMemory int64
	// MaxBatchBytes bounds a batch, whatever its topic says: what a message between
	// services may carry.
	MaxBatchBytes int
	// ValidateRecords has every record of a batch looked at, not only its header.
	ValidateRecords bool
	// MaxDecodedBytes caps what a batch may decompress to for that.
	MaxDecodedBytes int
	// Draining is closed when the server drains.
	Draining <-chan struct{}
	// NextProducerID gives an id that was never given before.
	NextProducerID func(ctx context.Context) (int64, *rpc.Error)
	// Position tells how new the metadata is.
	Position func() metadata.Position
	// Unreachable are the leaders that this broker follows and has not heard of for a
	// second; nil: none.
	Unreachable func() []int32
	// Deaf are those that speak and have left the hello of a leadership unanswered; nil:
	// none.
	Deaf func() []int32
}

// Handlers are the broker's services.
type Handlers struct {
	brokerv1.UnimplementedLogServiceServer
	brokerv1.UnimplementedHealthStreamServiceServer

	cfg      Config
	replicas atomic.Pointer[replica.Manager]
	readers  sync.WaitGroup // of streams; each ends once its stream has
	onTheWay atomic.Int64   // bytes of fetch responses that may not have left yet
	refused  refusal
	digests  chan struct{} // has a value for each log that is being read for a digest
}

// Wait returns when nothing of a stream is left; call it once the server has shut
// down.
func (h *Handlers) Wait() { h.readers.Wait() }

// New makes handlers that answer STARTING.
func New(cfg Config) *Handlers {
	return &Handlers{cfg: cfg, digests: make(chan struct{}, digestsAtOnce)}
}

// Open lets requests reach the replicas.
func (h *Handlers) Open(m *replica.Manager) { h.replicas.Store(m) }

// manager is the replicas, or why they are not there yet.
func (h *Handlers) manager() (*replica.Manager, *rpc.Error) {
	if _, err := h.refused.serving(); err != nil {
		return nil, err
	}
	if m := h.replicas.Load(); m != nil {
		return m, nil
	}
	return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING, "broker %d is starting: try again shortly", h.cfg.Broker.GetId())
}

func protocolError(format string, args ...any) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL, format, args...)
}

func (h *Handlers) draining() *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "broker %d is stopping: open the stream again after its restart, or at the new leader", h.cfg.Broker.GetId())
}

// checkInitial checks what every stream of a client begins with.
func checkInitial(handshake *typev1.Handshake, clientID string) *rpc.Error {
	if err := rpc.CheckHandshake(handshake); err != nil {
		return rpc.FromError(err)
	}
	if len(clientID) > maxClientID {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "client_id has %d bytes: use at most %d", len(clientID), maxClientID)
	}
	return nil
}

// DescribeReplicas tells the marks of replicas.
func (h *Handlers) DescribeReplicas(_ context.Context, req *brokerv1.DescribeReplicasRequest) (*brokerv1.DescribeReplicasResponse, error) {
	m, err := h.manager()
	if err != nil {
		return nil, err
	}
	if n := len(req.GetReplicas()); n > maxListOffsets {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "%d replicas are asked for: ask for at most %d at a time", n, maxListOffsets)
	}
	return &brokerv1.DescribeReplicasResponse{Replicas: m.Describe(req.GetReplicas())}, nil
}
