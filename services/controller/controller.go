package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"

	clientv3 "go.etcd.io/etcd/client/v3"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/lifecycle"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/controller/internal/handler"
	"github.com/leat-io/leat/services/controller/internal/liveness"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// Controller is one controller process. Run is called once.
type Controller struct {
	cfg     Config
	logger  *slog.Logger
	process *typev1.Process
	lis     net.Listener
	etcd    *clientv3.Client
	server  *rpc.Server
	pool    *rpc.ConnPool // to other controllers
	group   *lifecycle.Group

	store     *store.Store
	monitor   *liveness.Monitor
	loop      *reconcile.Loop
	registrar *registry.Registrar
	election  *registry.Election
}

// New makes a controller: it listens, and does nothing else before Run. If it
// fails, nothing is left behind.
func New(cfg Config, deps service.Deps) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.NodeID < 1 {
		return nil, fmt.Errorf("node.id: a controller needs an id from 1; draw one before it is made")
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	incarnation := deps.Incarnation
	if incarnation == 0 {
		incarnation = service.NewIncarnation()
	}
	c := &Controller{cfg: cfg, logger: logger, process: &typev1.Process{Id: cfg.NodeID, Incarnation: incarnation}, group: lifecycle.New(logger)}
	var err error
	if c.lis, err = service.Listen(&cfg.Common); err != nil {
		return nil, err
	}
	if c.etcd, err = registry.NewEtcd(cfg.EtcdEndpoints, cfg.DialSource, logger); err == nil {
		err = c.build(deps)
	}
	if err != nil {
		_ = c.lis.Close() // nothing was served
		if c.etcd != nil {
			_ = c.etcd.Close()
		}
		return nil, err
	}
	return c, nil
}

// build makes the parts and puts them in order.
func (c *Controller) build(deps service.Deps) error {
	keys := registry.NewKeys(c.cfg.EtcdPrefix)
	self := cluster.Process{ID: c.process.GetId(), Incarnation: c.process.GetIncarnation()}
	dial := c.cfg.DialConfig(deps)
	dial.Logger = nil // probes dial all the time
	prober := registry.NewProber(dial)
	address := c.cfg.Advertise(c.lis)

	c.pool = rpc.NewConnPool(dial)
	c.store = store.New(c.etcd, keys, c.logger)
	c.monitor = liveness.New(liveness.Config{Store: c.store, Self: self, Dial: dial, Prober: prober, Logger: c.logger})
	c.store.Remember(func(s *cluster.State) { s.PreferHearing(c.monitor.Hears) })
	c.loop = reconcile.New(reconcile.Config{
		Store: c.store, Self: self, Logger: c.logger,
		Prepare: reconcile.Command{Name: "prepare", Plan: c.prepare},
		Observe: c.monitor.Observe, Wake: c.monitor.Wake(), Leading: c.monitor.SetLeading, Probes: c.monitor.Probes,
		FolderWait: folderWait, UncleanWait: c.cfg.LeaseTTL + uncleanMargin, RebalanceInterval: c.cfg.rebalanceInterval(),
	})
	c.registrar = registry.NewRegistrar(registry.RegistrarConfig{
		Client: c.etcd, Keys: keys, Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Process: c.process,
		Address: address, Rack: c.cfg.Rack, TTL: c.cfg.LeaseTTL, Prober: prober, Logger: c.logger,
	})
	c.election = registry.NewElection(registry.ElectionConfig{
		Client: c.etcd, Keys: keys, Process: c.process, Address: address, TTL: c.cfg.LeaseTTL, Prober: prober, Logger: c.logger,
	})
	server, err := rpc.NewServer(c.cfg.ServerConfig(deps, c.identity))
	if err != nil {
		return err
	}
	c.server = server
	if deps.Registry != nil {
		if err := deps.Registry.Register(&metrics{store: c.store, loop: c.loop}); err != nil {
			return fmt.Errorf("register the controller's metrics: %w", err)
		}
	}
	handler.New(handler.Config{
		Store: c.store, Loop: c.loop, Prober: prober, Liveness: c.monitor, Conns: c.pool, Limits: c.cfg.limits(), Self: self,
		Draining: server.Draining(), Logger: c.logger,
	}).Register(server)

	// The server comes first and goes last: a process is registered only while its
	// address answers. The election comes last and goes first.
	c.group.Add("grpc", func(ctx context.Context, ready func()) error {
		ready()
		return server.Run(ctx, c.lis, c.cfg.ShutdownTimeout)
	})
	c.group.Add("metadata", immediately(c.store.Run))
	c.group.Add("registration", immediately(c.registrar.Run))
	c.group.Add("liveness", immediately(c.monitor.Run))
	c.group.Add("election", immediately(func(ctx context.Context) error {
		return c.election.Run(ctx, func(ctx context.Context, term *registry.Term) {
			c.store.Doubt()
			c.loop.Lead(ctx, term)
		})
	}))
	c.group.Add("serving", c.becomeReady)
	return nil
}

// immediately is a part on which others rely from its start.
func immediately(run func(context.Context) error) lifecycle.RunFunc {
	return func(ctx context.Context, ready func()) error {
		ready()
		return run(ctx)
	}
}

// becomeReady says that the controller serves once it is registered and knows the
// metadata.
func (c *Controller) becomeReady(ctx context.Context, ready func()) error {
	if _, err := c.registrar.WaitRegistered(ctx); err != nil {
		return nil // the end of ctx is no failure
	}
	if err := c.store.WaitRevision(ctx, c.registrar.Revision()); err != nil {
		return nil
	}
	c.server.SetServing(true)
	ready()
	<-ctx.Done()
	return nil
}

// prepare is the first thing that a new leader writes.
func (c *Controller) prepare(state *cluster.State, _ int) (cluster.Plan, error) {
	id, err := topicid.New(rand.Reader)
	if err != nil {
		return cluster.Plan{}, fmt.Errorf("draw a cluster id: %w", err)
	}
	return cluster.EnsureCluster(state, id.String(), c.cfg.TopicDefaults.Map())
}

// identity answers who this is.
func (c *Controller) identity() *meshv1.GetIdentityResponse {
	resp := &meshv1.GetIdentityResponse{
		Kind:    registry.KindName(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER),
		Process: c.process, Handshake: rpc.LocalHandshake(),
	}
	c.store.View(func(state *cluster.State, _ int64) { resp.ClusterId = state.Cluster().ID })
	return resp
}

// Run serves until ctx ends, then stops in order, and returns nil. It returns an
// error if the controller cannot go on: another process runs with its id, or a
// newer release wrote what is in etcd.
func (c *Controller) Run(ctx context.Context) error {
	err := c.group.Run(ctx)
	if closeErr := c.pool.Close(); closeErr != nil {
		c.logger.Debug("closing the connections to other controllers", "error", closeErr)
	}
	if closeErr := c.etcd.Close(); closeErr != nil && ctx.Err() == nil {
		c.logger.Debug("closing the etcd client", "error", closeErr)
	}
	return err
}

// Ready is closed once the controller is registered and knows the metadata.
func (c *Controller) Ready() <-chan struct{} { return c.group.Ready() }

// Addr is the bound address, host:port.
func (c *Controller) Addr() string { return c.lis.Addr().String() }

// IsLeading tells whether this controller leads.
func (c *Controller) IsLeading() bool { return c.loop.IsLeading() }
