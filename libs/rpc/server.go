package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"

	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
)

// ServerConfig says how a server is made. Only Logger has no useful zero value,
// and even that may be nil for silence.
type ServerConfig struct {
	// Logger takes one line per call: at debug, or at warn for what an operator
	// should see.
	Logger *slog.Logger
	// TracerProvider traces unary calls; nil: none.
	TracerProvider trace.TracerProvider
	// Registry takes the grpc_server_* metrics; nil: none are kept.
	Registry prometheus.Registerer
	// TLS is the server's; nil: plain text.
	TLS *tls.Config
	// Identity answers IdentityService; nil: the service is not there.
	Identity func() *meshv1.GetIdentityResponse
	// MaxMessageBytes limits a message in each direction; 0: MaxMessageBytes of
	// this package.
	MaxMessageBytes int
	// MaxStreams limits the calls and streams open at a time on one connection;
	// further ones wait at the client. 0: 10,000.
	MaxStreams uint32
	// Keepalive is the policy towards clients; zero: DefaultKeepalivePolicy.
	Keepalive KeepalivePolicy
	// PingAfter is the silence on a connection after which the server pings its
	// client; at least 1 s; 0: 15 s.
	PingAfter time.Duration
	// PingTimeout is how long the client has to answer before it is cut off; 0: as
	// long as PingAfter.
	PingTimeout time.Duration
	// NoteReads has each connection note when bytes of its client came, for LastRead.
	NoteReads bool
	// StreamGrace is how long streams may go on once a shutdown has begun and no
	// unary call is left; 0: 1 s.
	StreamGrace time.Duration
	// UnaryInterceptors and StreamInterceptors run inside those of this package.
	UnaryInterceptors  []grpc.UnaryServerInterceptor
	StreamInterceptors []grpc.StreamServerInterceptor

	pool mem.BufferPool // for tests that count
}

// Server is a gRPC server with Leat's interceptors, codec, health, reflection
// and identity. It is a grpc.ServiceRegistrar.
type Server struct {
	grpc     *grpc.Server
	health   *health.Server
	grace    time.Duration
	active   *activity
	draining chan struct{}
	once     sync.Once
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer makes a server; Serve starts it. Until SetServing(true), health says
// NOT_SERVING. Errors are INVALID_CONFIG, or a registry that refuses.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := checkMessageLimit(cfg.MaxMessageBytes); err != nil {
		return nil, err
	}
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = MaxMessageBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Keepalive == (KeepalivePolicy{}) {
		cfg.Keepalive = DefaultKeepalivePolicy()
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 10_000
	}
	if cfg.PingAfter <= 0 {
		cfg.PingAfter = 15 * time.Second
	}
	if cfg.PingTimeout <= 0 {
		cfg.PingTimeout = cfg.PingAfter
	}
	if cfg.StreamGrace <= 0 {
		cfg.StreamGrace = time.Second
	}
	if cfg.pool == nil {
		cfg.pool = sharedPool
	}
	s := &Server{health: health.NewServer(), grace: cfg.StreamGrace, active: new(activity), draining: make(chan struct{})}
	unary, stream, err := serverInterceptors(&cfg, s.active)
	if err != nil {
		return nil, err
	}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{pool: cfg.pool}),
		experimental.BufferPool(cfg.pool),
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.MaxSendMsgSize(cfg.MaxMessageBytes),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.PingAfter, Timeout: cfg.PingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: cfg.Keepalive.MinTime, PermitWithoutStream: cfg.Keepalive.PermitWithoutStream,
		}),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
	}
	if creds := serverCredentials(&cfg); creds != nil {
		opts = append(opts, grpc.Creds(creds))
	}
	if traces(cfg.TracerProvider) {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(traceOptions(cfg.TracerProvider)...)))
	}
	s.grpc = grpc.NewServer(opts...)
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	if cfg.Identity != nil {
		meshv1.RegisterIdentityServiceServer(s, &identityServer{identity: cfg.Identity})
	}
	return s, nil
}

// RegisterService adds a service; the generated Register functions call it.
// Before Serve only.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(typedMethods(desc), impl)
}

// GetServiceInfo tells the services, for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// SetServing sets what health says of the whole server; before a shutdown only.
func (s *Server) SetServing(serving bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
}

// Serve accepts connections until Shutdown or Stop, then returns nil; an error
// means that the listener failed. It closes the listener.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(lis)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Run serves until ctx ends, then shuts down within the timeout.
func (s *Server) Run(ctx context.Context, lis net.Listener, timeout time.Duration) error {
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	s.Shutdown(drain)
	return <-served
}

// Draining is closed when a shutdown begins. Handlers of streams finish what
// they have begun and return a DRAINING error, or end within StreamGrace anyway.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Shutdown ends the server in order: health says NOT_SERVING, Draining is
// closed, no new connection or call is taken, unary calls finish, streams get
// StreamGrace. What is left then, or when ctx ends, is cut off. It returns when
// every handler has returned.
func (s *Server) Shutdown(ctx context.Context) {
	s.once.Do(func() {
		s.health.Shutdown()
		close(s.draining)
	})
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	s.awaitDrain(ctx, graceful)
	s.grpc.Stop()
	<-graceful
}

// answerGrace is how long the answer of a call that has ended may take to leave:
// cutting a connection off drops what waits in it.
const answerGrace = 100 * time.Millisecond

// awaitDrain returns once all has ended, or the grace of streams is over and no
// unary call is left, or ctx has ended.
func (s *Server) awaitDrain(ctx context.Context, graceful <-chan struct{}) {
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-graceful:
		return
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	select {
	case <-graceful:
		return
	case <-ctx.Done():
		return
	case <-s.active.idle():
	}
	timer.Reset(answerGrace)
	select {
	case <-graceful:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Stop cuts everything off at once and returns when every handler has returned.
func (s *Server) Stop() {
	s.once.Do(func() {
		s.health.Shutdown()
		close(s.draining)
	})
	s.grpc.Stop()
}

// activity counts unary calls in progress, so that a shutdown waits for them and
// not for streams, which have no end of their own.
type activity struct {
	unaryCalls atomic.Int64
	mu         sync.Mutex
	waiting    chan struct{} // closed once no unary call is left; nil while nobody waits
}

// idle gives a channel that is closed once no unary call is in progress.
func (a *activity) idle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = make(chan struct{})
	}
	ch := a.waiting
	if a.unaryCalls.Load() == 0 {
		close(ch)
		a.waiting = nil
	}
	return ch
}

func (a *activity) end() {
	if a.unaryCalls.Add(-1) > 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting != nil && a.unaryCalls.Load() == 0 {
		close(a.waiting)
		a.waiting = nil
	}
}

func (a *activity) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	a.unaryCalls.Add(1)
	defer a.end()
	return handler(ctx, req)
}

// identityServer answers who this is.
type identityServer struct {
	meshv1.UnimplementedIdentityServiceServer
	identity func() *meshv1.GetIdentityResponse
}

func (s *identityServer) GetIdentity(context.Context, *meshv1.GetIdentityRequest) (*meshv1.GetIdentityResponse, error) {
	resp := s.identity()
	if resp.Handshake == nil {
		resp.Handshake = LocalHandshake()
	}
	return resp, nil
}
