package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/lifecycle"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/broker/internal/handler"
	"github.com/leat-io/leat/services/broker/internal/producerid"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/replication"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Broker is one log storage node.
type Broker struct {
	cfg     Config
	deps    service.Deps
	logger  *slog.Logger
	self    *typev1.Process
	lis     net.Listener
	address string // as others are told

	server      *rpc.Server
	handlers    *handler.Handlers
	leading     *replication.Server
	following   *replication.Fetchers
	metrics     *replica.Metrics
	group       *lifecycle.Group
	pool        *rpc.ConnPool
	watcher     *metadata.Watcher
	controllers *metadata.Controllers
	producerIDs *producerid.Pool

	// Made by Run and its parts, each before the parts that use it start.
	discover  func(context.Context) ([]string, error)
	store     *store.Store
	registrar *registry.Registrar
	replicas  atomic.Pointer[replica.Manager]
	regressed atomic.Pointer[rpc.Error] // etcd went back in time; nil: it did not
	leaving   atomic.Bool               // it has asked for leave, and registers no more
	lease     leaseGate
}

// New checks the configuration and listens. Nothing runs before Run.
func New(cfg Config, deps service.Deps) (_ *Broker, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Incarnation == 0 {
		deps.Incarnation = service.NewIncarnation()
	}
	b := &Broker{cfg: cfg, deps: deps, logger: deps.Logger, self: &typev1.Process{Id: cfg.NodeID, Incarnation: deps.Incarnation}}
	b.producerIDs = producerid.New(producerid.Config{Allocate: b.allocateProducerIDs, Logger: b.logger})
	if deps.Registry != nil {
		b.metrics, err = replica.NewMetrics(deps.Registry)
		err = errors.Join(err, b.producerIDs.Register(deps.Registry))
	} else {
		b.metrics, err = replica.NewMetrics(nil)
	}
	if err != nil {
		return nil, fmt.Errorf("register the broker's metrics: %w", err)
	}
	if b.lis, err = service.Listen(&cfg.Common); err != nil {
		return nil, err
	}
	b.address = cfg.Advertise(b.lis)
	b.server, err = rpc.NewServer(cfg.ServerConfig(deps, b.identity))
	if err != nil {
		return nil, errors.Join(err, b.lis.Close())
	}
	b.handlers = handler.New(handler.Config{
		Broker: b.self, Logger: b.logger, MaxInFlight: cfg.ProduceMaxInFlight, MaxPartitions: cfg.FetchMaxPartitions, PartitionWait: handler.DefaultPartitionWait,
		MaxFetchBytes: cfg.FetchMaxBytes, FetchMemory: cfg.FetchMemoryBytes, MaxBatchBytes: cfg.MessageMaxBytes, ValidateRecords: cfg.ValidateRecords,
		MaxDecodedBytes: cfg.MaxDecodedBytes, Draining: b.server.Draining(),
		NextProducerID: func(ctx context.Context) (int64, *rpc.Error) { return b.producerIDs.Next(ctx) },
		Position:       func() metadata.Position { return b.watcher.Image().Position() },
		Unreachable:    func() []int32 { return b.following.Unreachable() },
		Deaf:           func() []int32 { return b.following.Deaf() },
	})
	b.pool = rpc.NewConnPool(cfg.DialConfig(deps))
	discover := func(ctx context.Context) ([]string, error) { return b.discover(ctx) }
	b.watcher = metadata.NewWatcher(metadata.Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: b.self, Discover: discover, Pool: b.pool, Logger: b.logger,
	})
	b.controllers = metadata.NewControllers(metadata.ControllersOptions{Watcher: b.watcher, Discover: discover, Pool: b.pool, Logger: b.logger})
	brokerv1.RegisterLogServiceServer(b.server, b.handlers)
	image := func() *metadata.Image { return b.watcher.Image() }
	b.leading = replication.NewServer(replication.ServerConfig{Broker: b.self, Logger: b.logger, Draining: b.server.Draining(), Image: image, Metrics: b.metrics})
	b.following = replication.NewFetchers(replication.FetchersConfig{Broker: b.self, Pool: b.pool, Logger: b.logger, Image: image, Metrics: b.metrics, Window: b.cfg.ReplicaFetchWindow})
	brokerv1.RegisterReplicationServiceServer(b.server, b.leading)
	brokerv1.RegisterHealthStreamServiceServer(b.server, b.handlers)
	brokerv1.RegisterMetadataServiceServer(b.server, metadata.NewServer(b.watcher))
	b.lease.registration, b.lease.tell = func() int64 { return b.registrar.Revision() }, b.leaseRenewed
	b.group = lifecycle.New(b.logger)
	return b, nil
}

// Ready is closed once the broker serves what it leads and the metadata shows it
// unfenced.
func (b *Broker) Ready() <-chan struct{} { return b.group.Ready() }

// Addr is the bound address, host:port.
func (b *Broker) Addr() string { return b.lis.Addr().String() }

func (b *Broker) identity() *meshv1.GetIdentityResponse {
	return &meshv1.GetIdentityResponse{Kind: "broker", Process: b.self, ClusterId: b.clusterID()}
}

func (b *Broker) clusterID() string { return b.watcher.Image().ClusterID() }

// tracer is nil where nothing is traced, so that it costs nothing.
func (b *Broker) tracer() trace.Tracer {
	if tp := b.deps.TracerProvider; tp != nil {
		if _, off := tp.(tracenoop.TracerProvider); !off {
			return tp.Tracer("github.com/leat-io/leat/services/broker")
		}
	}
	return nil
}
