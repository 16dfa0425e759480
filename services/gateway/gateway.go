package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/lifecycle"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/gateway/internal/handler"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// Gateway is one gateway, made by New and run once.
type Gateway struct {
	cfg      Config
	logger   *slog.Logger
	listener net.Listener
	process  *typev1.Process

	etcd      *clientv3.Client
	pool      *rpc.ConnPool
	watcher   *metadata.Watcher
	registrar *registry.Registrar
	client    *client.Client
	handler   *handler.Handler
	server    *rpc.Server
	group     *lifecycle.Group
}

// New checks the configuration and takes the listener; nothing runs before Run.
// After an error nothing is left open.
func New(cfg Config, deps service.Deps) (_ *Gateway, err error) {
	if cfg.Listen == "" {
		cfg.Listen = fmt.Sprintf("127.0.0.1:%d", DefaultPort)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, logger: deps.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.closeAll())
		}
	}()
	if g.listener, err = service.Listen(&g.cfg.Common); err != nil {
		return nil, err
	}
	incarnation := deps.Incarnation
	if incarnation == 0 {
		incarnation = service.NewIncarnation()
	}
	g.process = &typev1.Process{Id: cfg.NodeID, Incarnation: incarnation}
	if err := g.connect(deps); err != nil {
		return nil, err
	}
	if g.server, err = rpc.NewServer(g.serverConfig(deps)); err != nil {
		return nil, err
	}
	if g.handler, err = handler.New(g.handlerConfig(deps)); err != nil {
		return nil, err
	}
	g.handler.Register(g.server)
	brokerv1.RegisterMetadataServiceServer(g.server, metadata.NewServer(g.watcher))
	g.group = lifecycle.New(deps.Logger)
	g.group.Add("metadata", g.runWatcher)
	g.group.Add("server", g.runServer)
	g.group.Add("registration", g.runRegistrar)
	return g, nil
}

func (g *Gateway) keys() registry.Keys { return registry.NewKeys(g.cfg.EtcdPrefix) }

func (g *Gateway) discover() func(context.Context) ([]string, error) {
	return registry.Discovery(g.etcd, g.keys(), g.cfg.ControllerAddresses)
}

// connect makes what the gateway talks to others with. Nothing is dialled yet.
func (g *Gateway) connect(deps service.Deps) (err error) {
	if g.etcd, err = registry.NewEtcd(g.cfg.EtcdEndpoints, g.cfg.DialSource, deps.Logger); err != nil {
		return err
	}
	dial := g.cfg.DialConfig(deps)
	g.pool = rpc.NewConnPool(dial)
	g.watcher = metadata.NewWatcher(metadata.Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: g.process,
		Discover: g.discover(), Pool: g.pool, Logger: deps.Logger,
	})
	g.registrar = registry.NewRegistrar(registry.RegistrarConfig{
		Client: g.etcd, Keys: g.keys(), Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Process: g.process,
		Address: g.cfg.Advertise(g.listener), Rack: g.cfg.Rack, TTL: g.cfg.LeaseTTL,
		Prober: registry.NewProber(dial), Logger: deps.Logger,
	})
	g.client, err = client.New(client.Config{
		Source: client.NewWatcherSource(g.watcher), ClientID: fmt.Sprintf("gateway-%d", g.cfg.NodeID),
		DialSource: g.cfg.DialSource, TracerProvider: deps.TracerProvider, Logger: deps.Logger,
	})
	return err
}

func (g *Gateway) handlerConfig(deps service.Deps) handler.Config {
	cfg := handler.Config{
		Limits:   g.cfg.limits(),
		Identity: session.Identity{Handshake: rpc.LocalHandshake(), Process: g.process},
		Mesh:     handler.NewMesh(g.client),
		Controllers: metadata.NewControllers(metadata.ControllersOptions{
			Watcher: g.watcher, Discover: g.discover(), Pool: g.pool, Logger: deps.Logger,
		}),
		Images: g.watcher, Draining: g.server.Draining(), Logger: deps.Logger, TracerProvider: deps.TracerProvider,
	}
	if deps.Registry != nil {
		cfg.Registry = deps.Registry
	}
	return cfg
}

func (g *Gateway) serverConfig(deps service.Deps) rpc.ServerConfig {
	cfg := g.cfg.ServerConfig(deps, func() *meshv1.GetIdentityResponse {
		return &meshv1.GetIdentityResponse{
			Kind:    registry.KindName(controllerv1.ServiceKind_SERVICE_KIND_GATEWAY),
			Process: g.process, ClusterId: g.watcher.Image().ClusterID(), Handshake: rpc.LocalHandshake(),
		}
	})
	// A member's session counts from what its client's connection last brought.
	cfg.PingAfter, cfg.PingTimeout, cfg.NoteReads = pingAfter, pingTimeout, true
	// A little more than the sessions give themselves, so that they end in words.
	cfg.StreamGrace = g.cfg.drainTimeout() + 500*time.Millisecond
	return cfg
}

// runWatcher follows the metadata. It counts as ready at once: the server has to be
// there to say that the mesh is not.
func (g *Gateway) runWatcher(ctx context.Context, ready func()) error {
	ready()
	return g.watcher.Run(ctx)
}

// runServer serves until ctx ends, then drains, then ends what the handlers used.
func (g *Gateway) runServer(ctx context.Context, ready func()) error {
	ready()
	err := g.server.Run(ctx, g.listener, g.cfg.ShutdownTimeout*4/5)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.ShutdownTimeout/10)
	defer cancel()
	g.handler.Close(closing)
	return err
}

// runRegistrar registers the gateway, and is ready once it also knows the mesh. It
// ends first, so that nobody is sent to a gateway that stops.
func (g *Gateway) runRegistrar(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- g.registrar.Run(ctx) }()
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		revision, err := g.registrar.WaitRegistered(ctx)
		if err != nil || g.watcher.WaitForRevision(ctx, revision) != nil {
			return
		}
		g.server.SetServing(true)
		ready()
	}()
	err := <-done
	cancel()
	<-serving
	return err
}

// Run serves until ctx ends, then stops in order: out of the registry, streams told
// to go elsewhere and given half of shutdown.timeout, then the rest. It returns nil
// after a clean stop.
func (g *Gateway) Run(ctx context.Context) error {
	return errors.Join(g.group.Run(ctx), g.closeAll())
}

// Ready is closed once the gateway is registered and knows the mesh.
func (g *Gateway) Ready() <-chan struct{} { return g.group.Ready() }

// Addr is where the gateway listens, host:port.
func (g *Gateway) Addr() string { return g.listener.Addr().String() }

// closeAll ends what New made, in reverse. The server has closed the listener if it
// ever ran.
func (g *Gateway) closeAll() error {
	var errs []error
	if g.client != nil {
		errs = append(errs, g.client.Close())
	}
	if g.pool != nil {
		errs = append(errs, g.pool.Close())
	}
	if g.etcd != nil {
		errs = append(errs, g.etcd.Close())
	}
	if g.listener != nil {
		if err := g.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
