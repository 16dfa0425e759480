package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/leat-io/leat/libs/obs"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/version"
)

// flushLimit bounds the delivery of the last spans of a service.
const flushLimit = 2 * time.Second

// inProcess starts instances as goroutines of this process.
type inProcess struct {
	folder folder
	plan   *plan
	kinds  map[string]kind
}

// goroutine is a life in this process.
type goroutine struct {
	cancel  context.CancelFunc
	readyCh chan struct{}
	doneCh  chan struct{}
	runErr  error // set before doneCh is closed
}

func (g *goroutine) ready() <-chan struct{} { return g.readyCh }
func (g *goroutine) done() <-chan struct{}  { return g.doneCh }
func (g *goroutine) err() error             { return g.runErr }
func (g *goroutine) describe() string       { return fmt.Sprintf("in pid %d", os.Getpid()) }

// stop waits without a limit of its own: a service stops within its
// shutdown.timeout, and nothing can be done in this process about one that
// does not.
func (g *goroutine) stop(ctx context.Context) {
	g.cancel()
	select {
	case <-g.doneCh:
	case <-ctx.Done():
	}
}

func (g *goroutine) kill() { g.cancel() }

func (s *inProcess) start(in *instance) (life, error) {
	if err := s.folder.forget(in.name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &goroutine{cancel: cancel, readyCh: make(chan struct{}), doneCh: make(chan struct{})}
	run := s.etcd
	if in.kind != kindEtcd {
		prepared, err := s.service(ctx, in)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("start %s: %w", in.name, err)
		}
		run = prepared
	}
	go func() {
		err := run(ctx, in, func() { close(g.readyCh) })
		g.runErr = errors.Join(err, s.folder.forget(in.name))
		cancel()
		close(g.doneCh)
	}()
	return g, nil
}

func (s *inProcess) etcd(ctx context.Context, in *instance, ready func()) error {
	return RunEtcd(ctx, EtcdConfig{
		Name: in.name, Dir: s.folder.instance(in.name), Listen: in.listen, Peer: in.peer, InitialCluster: s.plan.initialCluster(),
		Source: in.settings[etcdSource], Log: s.folder.log(in.name), AddrFile: s.folder.addr(in.name),
	}, ready)
}

// service makes a service and gives the function that runs it.
func (s *inProcess) service(ctx context.Context, in *instance) (run func(context.Context, *instance, func()) error, err error) {
	var cleanup []func() error
	defer func() {
		if err != nil {
			for _, c := range cleanup {
				err = errors.Join(err, c())
			}
		}
	}()
	kind := s.kinds[in.kind]
	common, err := kind.common(in.settings)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.folder.log(in.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cleanup = append(cleanup, log.Close)
	incarnation := service.NewIncarnation()
	deps := service.Deps{
		Logger:      obs.NewLogger(log, common.LogLevel, common.LogFormat, in.kind, common.NodeID, incarnation),
		Registry:    obs.NewRegistry(in.kind, version.String()),
		Incarnation: incarnation,
	}
	provider, flush, err := obs.NewTracerProvider(ctx, obs.TraceConfig{
		Endpoint: common.OTLPEndpoint, SampleRatio: common.TraceSampleRatio, Kind: in.kind, ID: common.NodeID,
		Incarnation: incarnation, Version: version.String(), Logger: deps.Logger,
	})
	if err != nil {
		return nil, err
	}
	cleanup = append(cleanup, func() error {
		// Spans that nobody takes are no reason to fail, nor to wait for long.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
		defer cancel()
		if err := flush(last); err != nil {
			deps.Logger.Debug("the last spans could not be delivered", "error", err)
		}
		return nil
	})
	deps.TracerProvider = provider
	listener, err := service.Listen(common)
	if err != nil {
		return nil, err
	}
	cleanup = append(cleanup, func() error { return closeListener(listener) })
	svc, err := kind.build(in.settings, func(c *service.Common) { c.Listener = listener }, deps)
	if err != nil {
		return nil, err
	}
	if err := writeWhole(s.folder.addr(in.name), listener.Addr().String()+"\n"); err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ *instance, ready func()) error {
		err := runService(ctx, svc, common.OpsListen, deps, ready)
		for i := len(cleanup) - 1; i >= 0; i-- {
			err = errors.Join(err, cleanup[i]())
		}
		return err
	}, nil
}

// runService runs a service beside its operations HTTP.
func runService(ctx context.Context, svc service.Service, opsListen string, deps service.Deps, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	running := 1
	if opsListen != "" {
		listener, err := net.Listen("tcp", opsListen)
		if err != nil {
			return fmt.Errorf("listen for operations HTTP: %w", err)
		}
		running++
		ops := obs.NewOpsServer(listener, deps.Registry, func() bool {
			select {
			case <-svc.Ready():
				return ctx.Err() == nil
			default:
				return false
			}
		})
		go func() { ended <- ops.Run(ctx) }()
	}
	go func() { ended <- svc.Run(ctx) }()
	isReady := svc.Ready()
	var errs []error
	for running > 0 {
		select {
		case <-isReady:
			isReady = nil
			ready()
		case err := <-ended:
			running--
			if err == nil && ctx.Err() == nil {
				err = errors.New("the service ended without being asked to")
			}
			if !errors.Is(err, context.Canceled) {
				errs = append(errs, err)
			}
			cancel()
		}
	}
	return errors.Join(errs...)
}

func closeListener(l net.Listener) error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
