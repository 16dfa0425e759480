package handler

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
	"github.com/leat-io/leat/services/controller/internal/store"
)

// Config says what a Handler works with.
type Config struct {
	Store  *store.Store
	Loop   *reconcile.Loop
	Prober *registry.Prober
	// Liveness asks brokers whether they live.
	Liveness Liveness
	Limits   cluster.Limits
	Self     cluster.Process
	// Conns gives connections to other controllers.
	Conns metadata.Conns
	// Draining is closed when the server begins to drain; streams end then.
	Draining <-chan struct{}
	Logger   *slog.Logger
}

// Liveness asks brokers for signs of life; *liveness.Monitor does.
type Liveness interface {
	// Probe returns the lives that answered questions sent after the call, and waits
	// a moment for those that are wanted.
	Probe(ctx context.Context, wanted []cluster.Process) cluster.Probes
	// Reach is Probe of all with less patience, for another controller's question.
	Reach(ctx context.Context) cluster.Probes
}

// Handler serves all services of a controller.
type Handler struct {
	cfg    Config
	memory *memory
}

// New makes a handler.
func New(cfg Config) *Handler { return &Handler{cfg: cfg, memory: newMemory()} }

// Register adds the services to a server.
func (h *Handler) Register(s grpc.ServiceRegistrar) {
	controllerv1.RegisterMetadataServiceServer(s, &metadataServer{h: h})
	controllerv1.RegisterControllerServiceServer(s, &relay{local: &controllerServer{h: h}})
	controllerv1.RegisterAdminServiceServer(s, &adminServer{h: h})
}

// do carries a command out and gives the position at which it took place.
func (h *Handler) do(ctx context.Context, name string, plan func(*cluster.State, int) (cluster.Plan, error), done func(int64)) (*controllerv1.Position, error) {
	return h.command(ctx, reconcile.Command{Name: name, Plan: plan, Done: done})
}

// command is do for a command with more to say.
func (h *Handler) command(ctx context.Context, c reconcile.Command) (*controllerv1.Position, error) {
	revision, err := h.cfg.Loop.Do(ctx, c)
	if err != nil {
		return nil, err
	}
	return h.position(revision), nil
}

// position is a revision in the present generation.
func (h *Handler) position(revision int64) *controllerv1.Position {
	p := &controllerv1.Position{Revision: revision}
	h.cfg.Store.View(func(state *cluster.State, _ int64) { p.Generation = state.Cluster().Generation })
	return p
}

// invalid is INVALID_REQUEST.
func invalid(format string, args ...any) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, format, args...)
}

// life reads a process that must be named.
func life(p *typev1.Process, what string) (cluster.Process, error) {
	if p.GetId() < 1 || p.GetIncarnation() == 0 {
		return cluster.Process{}, invalid("%s is not named: give its id, from 1, and its incarnation", what)
	}
	return cluster.Process{ID: p.GetId(), Incarnation: p.GetIncarnation()}, nil
}
