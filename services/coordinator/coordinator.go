package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/lifecycle"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/coordinator/internal/handler"
	"github.com/leat-io/leat/services/coordinator/internal/offsets"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

const kind = controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR

// Coordinator is one coordinator, made by New and run once.
type Coordinator struct {
	cfg      Config
	logger   *slog.Logger
	listener net.Listener
	process  *typev1.Process

	etcd        *clientv3.Client
	pool        *rpc.ConnPool
	watcher     *metadata.Watcher
	registrar   *registry.Registrar
	controllers *metadata.Controllers
	client      *client.Client
	manager     *shard.Manager
	aside       *aside
	handler     *handler.Handler
	server      *rpc.Server
	group       *lifecycle.Group
}

// New checks the configuration and takes the listener; nothing runs before Run.
// After an error nothing is left open.
func New(cfg Config, deps service.Deps) (_ *Coordinator, err error) {
	if cfg.Listen == "" {
		cfg.Listen = fmt.Sprintf("127.0.0.1:%d", DefaultPort)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.NodeID < 1 {
		return nil, errors.New("node.id: 0 is drawn by the binary; give New an id from 1")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Coordinator{cfg: cfg, logger: deps.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.closeAll())
		}
	}()
	if c.listener, err = service.Listen(&c.cfg.Common); err != nil {
		return nil, err
	}
	incarnation := deps.Incarnation
	if incarnation == 0 {
		incarnation = service.NewIncarnation()
	}
	c.process = &typev1.Process{Id: cfg.NodeID, Incarnation: incarnation}
	if err := c.connect(deps); err != nil {
		return nil, err
	}
	if c.server, err = rpc.NewServer(c.cfg.ServerConfig(deps, c.identity)); err != nil {
		return nil, err
	}
	c.manager = shard.NewManager(c.managerConfig())
	if deps.Registry != nil {
		if err := c.manager.Register(deps.Registry); err != nil {
			return nil, err
		}
	}
	c.aside = &aside{
		patience: 2 * cfg.LeaseTTL, backoff: rpc.Backoff{Min: 2 * cfg.LeaseTTL, Max: max(time.Minute, 2*cfg.LeaseTTL)},
		prober: registry.NewProber(cfg.DialConfig(deps)), watcher: c.watcher, manager: c.manager, self: c.process, logger: deps.Logger,
	}
	c.handler = handler.New(handler.Config{
		Manager: c.manager, Process: c.process, MaxQueuedFrames: cfg.MaxQueuedFrames,
		MaxMembersPerStream: cfg.MaxMembersPerStream, Logger: deps.Logger,
	})
	coordinatorv1.RegisterGroupServiceServer(c.server, c.handler)
	c.group = lifecycle.New(deps.Logger)
	c.group.Add("metadata", c.runWatcher)
	c.group.Add("server", c.runServer)
	c.group.Add("registration", c.runRegistrar)
	c.group.Add("shards", c.runShards)
	return c, nil
}

func (c *Coordinator) keys() registry.Keys { return registry.NewKeys(c.cfg.EtcdPrefix) }

// connect makes what the coordinator talks to others with. Nothing is dialled yet.
func (c *Coordinator) connect(deps service.Deps) (err error) {
	if c.etcd, err = registry.NewEtcd(c.cfg.EtcdEndpoints, c.cfg.DialSource, deps.Logger); err != nil {
		return err
	}
	dial := c.cfg.DialConfig(deps)
	c.pool = rpc.NewConnPool(dial)
	discover := registry.Discovery(c.etcd, c.keys(), c.cfg.ControllerAddresses)
	c.watcher = metadata.NewWatcher(metadata.Options{
		Kind: kind, Process: c.process, Discover: discover, Pool: c.pool, Logger: deps.Logger,
	})
	c.registrar = registry.NewRegistrar(registry.RegistrarConfig{
		Client: c.etcd, Keys: c.keys(), Kind: kind, Process: c.process, Address: c.cfg.Advertise(c.listener),
		Rack: c.cfg.Rack, TTL: c.cfg.LeaseTTL, Prober: registry.NewProber(dial), Logger: deps.Logger,
	})
	c.controllers = metadata.NewControllers(metadata.ControllersOptions{
		Watcher: c.watcher, Discover: discover, Pool: c.pool, Logger: deps.Logger,
	})
	c.client, err = client.New(client.Config{
		Source: client.NewWatcherSource(c.watcher), ClientID: fmt.Sprintf("coordinator-%d", c.cfg.NodeID),
		Conns: c.pool, TracerProvider: deps.TracerProvider, Logger: deps.Logger,
		// A shard has one batch on its way; many shards share a broker's stream.
		MaxInFlightPerStream: 256,
	})
	return err
}

func (c *Coordinator) managerConfig() shard.ManagerConfig {
	return shard.ManagerConfig{
		Config: shard.Config{
			Group:         c.cfg.core(),
			AppendTimeout: milliseconds(c.cfg.CommitTimeoutMs),
			Starts:        offsets.NewStarts(c.client),
			LoadTimeout:   milliseconds(c.cfg.LoadTimeoutMs),
			MaxRequests:   c.cfg.MaxQueuedRequests,
			DrainTimeout:  min(2*time.Second, c.cfg.ShutdownTimeout/4),
			Logger:        c.logger,
		},
		ID: c.process.GetId(), Incarnation: c.process.GetIncarnation(),
		Metadata: &pictures{watcher: c.watcher},
		OpenLog:  func(topic topicid.ID) shard.Log { return offsets.NewLog(c.client, topic) },
		EnsureTopic: func(ctx context.Context) error {
			_, err := c.controllers.EnsureInternalTopic(ctx, &controllerv1.EnsureInternalTopicRequest{Name: client.OffsetsTopic})
			return err
		},
		MaxLoads: c.cfg.LoadThreads,
	}
}

func (c *Coordinator) identity() *meshv1.GetIdentityResponse {
	return &meshv1.GetIdentityResponse{
		Kind: registry.KindName(kind), Process: c.process,
		ClusterId: c.watcher.Image().ClusterID(), Handshake: rpc.LocalHandshake(),
	}
}

// runWatcher follows the metadata. It counts as ready at once: services start in
// any order, and the server has to be there to say that the mesh is not.
func (c *Coordinator) runWatcher(ctx context.Context, ready func()) error {
	ready()
	return c.watcher.Run(ctx)
}

// runServer serves until ctx ends, then drains. Whoever probes a registration must
// be answered, so it starts before that.
func (c *Coordinator) runServer(ctx context.Context, ready func()) error {
	ready()
	err := c.server.Run(ctx, c.listener, c.cfg.ShutdownTimeout*3/4)
	c.handler.Wait()
	return err
}

// runRegistrar keeps the registration, but for while the coordinator stands aside. It
// is ready once the metadata has reached the registration: before that no shard may
// be served.
func (c *Coordinator) runRegistrar(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := make(chan struct{})
	go func() {
		defer close(reached)
		revision, err := c.registrar.WaitRegistered(ctx)
		if err == nil && c.watcher.WaitForRevision(ctx, revision) == nil {
			ready()
		}
	}()
	err := c.keepRegistered(ctx)
	cancel()
	<-reached
	return err
}

// runShards serves groups until ctx ends. Streams are told to go elsewhere before
// the shards stop.
func (c *Coordinator) runShards(ctx context.Context, ready func()) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- c.manager.Run(run, func() {
			c.server.SetServing(true)
			ready()
		})
	}()
	<-ctx.Done()
	c.server.SetServing(false)
	c.handler.Drain()
	cancel()
	return <-done
}

// Run serves until ctx ends, then stops in order: streams are told to go elsewhere,
// what is being appended commits, the registration is given back, the server
// drains. It returns nil after a clean stop.
func (c *Coordinator) Run(ctx context.Context) error {
	return errors.Join(c.group.Run(ctx), c.closeAll())
}

// Ready is closed once the coordinator is registered and serves the shards it is
// given.
func (c *Coordinator) Ready() <-chan struct{} { return c.group.Ready() }

// Addr is where the coordinator listens, host:port.
func (c *Coordinator) Addr() string { return c.listener.Addr().String() }

// closeAll ends what New made, in reverse. The server has closed the listener if it
// ever ran.
func (c *Coordinator) closeAll() error {
	var errs []error
	if c.client != nil {
		errs = append(errs, c.client.Close())
	}
	if c.pool != nil {
		errs = append(errs, c.pool.Close())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.Close())
	}
	if c.listener != nil {
		if err := c.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
