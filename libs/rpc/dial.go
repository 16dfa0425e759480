package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// DialConfig says how connections are made. The zero value is a plain-text
// connection from any local address.
type DialConfig struct {
	// SourceAddress is the local IP address to dial from; empty: the system's choice.
	SourceAddress string
	// TLS is the client's; nil: plain text.
	TLS *tls.Config
	// TracerProvider traces unary calls and carries their context; nil: neither.
	TracerProvider trace.TracerProvider
	// Logger takes nothing but the making of connections, at debug; may be nil.
	Logger *slog.Logger
	// MaxMessageBytes limits a message in each direction; 0: MaxMessageBytes of
	// this package.
	MaxMessageBytes int
	// Keepalive of the connection; zero: DefaultKeepalive.
	Keepalive Keepalive
	// Dialer replaces the making of TCP connections, for tests; may be nil.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)

	pool mem.BufferPool // for tests that count
}

// Dial makes a connection to addr (host:port). It returns at once and connects
// at the first call; calls fail as UNREACHABLE while nobody answers, and the
// next one after 50 ms to 1 s tries again. All errors of calls and streams are
// *Error, io.EOF aside. Errors of Dial itself are INVALID_CONFIG or
// INVALID_REQUEST. The caller closes the connection.
func Dial(addr string, cfg DialConfig) (*grpc.ClientConn, error) {
	if err := checkAddress(addr); err != nil {
		return nil, err
	}
	if err := checkMessageLimit(cfg.MaxMessageBytes); err != nil {
		return nil, err
	}
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = MaxMessageBytes
	}
	if cfg.Keepalive == (Keepalive{}) {
		cfg.Keepalive = DefaultKeepalive()
	}
	if err := CheckKeepalive(cfg.Keepalive, DefaultKeepalivePolicy()); err != nil {
		return nil, err
	}
	if cfg.pool == nil {
		cfg.pool = sharedPool
	}
	dialer, err := cfg.dialer()
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dialer),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{pool: cfg.pool}),
			grpc.MaxCallRecvMsgSize(cfg.MaxMessageBytes),
			grpc.MaxCallSendMsgSize(cfg.MaxMessageBytes),
		),
		experimental.WithBufferPool(cfg.pool),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: cfg.Keepalive.Time, Timeout: cfg.Keepalive.Timeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(dialErrorUnary(addr)),
		grpc.WithChainStreamInterceptor(dialErrorStream(addr)),
	}
	if traces(cfg.TracerProvider) {
		opts = append(opts, grpc.WithStatsHandler(otelgrpc.NewClientHandler(traceOptions(cfg.TracerProvider)...)))
	}
	// The name is resolved anew at every attempt, by the dialer: a pod that came
	// back under another IP address is found.
	conn, err := grpc.NewClient("passthrough:///"+addr, opts...)
	if err != nil {
		return nil, Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG, "cannot dial %s: %w", addr, err)
	}
	return conn, nil
}

// checkAddress wants host:port.
func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && host != "" && port != "" && !strings.ContainsAny(addr, "/ ") {
		return nil
	}
	return Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
		"%q is no address: give host:port, for example 127.0.0.1:5328", addr).With("address", addr)
}

// dialer gives the function that makes TCP connections.
func (cfg *DialConfig) dialer() (func(context.Context, string) (net.Conn, error), error) {
	if cfg.Dialer != nil {
		return cfg.Dialer, nil
	}
	d := &net.Dialer{KeepAlive: 15 * time.Second}
	if cfg.SourceAddress != "" {
		ip := net.ParseIP(cfg.SourceAddress)
		if ip == nil {
			return nil, Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG,
				"dial.source.address %q is no IP address: give one of this host, or leave it empty", cfg.SourceAddress).With("setting", "dial.source.address")
		}
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	logger := cfg.Logger
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if logger != nil && logger.Enabled(ctx, slog.LevelDebug) {
			logger.DebugContext(ctx, "dialed", "address", addr, "error", err)
		}
		return conn, err
	}, nil
}

// maxPooledConns bounds a pool against a caller that dials what it is told by
// strangers.
const maxPooledConns = 10_000

// ConnPool shares connections between the callers of one process. Safe for
// concurrent use.
type ConnPool struct {
	cfg DialConfig

	mu     sync.Mutex
	conns  map[lane]*grpc.ClientConn
	closed bool
}

// lane names one connection: several to one address keep apart what should not
// wait for each other.
type lane struct {
	addr, name string
}

// NewConnPool makes an empty pool.
func NewConnPool(cfg DialConfig) *ConnPool {
	return &ConnPool{cfg: cfg, conns: make(map[lane]*grpc.ClientConn)}
}

// Get gives the shared connection to addr, which the caller must not close.
func (p *ConnPool) Get(addr string) (*grpc.ClientConn, error) { return p.GetLane(addr, "") }

// GetLane gives the shared connection of that name to addr: control beside data,
// or a second one for more throughput. The caller must not close it.
func (p *ConnPool) GetLane(addr, name string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, Errorf(typev1.ErrorReason_ERROR_REASON_CANCELLED, "the connections of this process are closed, it is stopping")
	}
	key := lane{addr, name}
	if c := p.conns[key]; c != nil {
		return c, nil
	}
	if len(p.conns) >= maxPooledConns {
		return nil, Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "this process has %d connections open, the most it allows: drop some", len(p.conns)).
			With("limit", "connections", "limit_value", fmt.Sprint(maxPooledConns))
	}
	c, err := Dial(addr, p.cfg)
	if err != nil {
		return nil, err
	}
	p.conns[key] = c
	return c, nil
}

// Drop closes and forgets all connections to addr, of a process that is known
// to be gone for good. Calls on them fail.
func (p *ConnPool) Drop(addr string) error {
	p.mu.Lock()
	var gone []*grpc.ClientConn
	for key, c := range p.conns {
		if key.addr == addr {
			gone = append(gone, c)
			delete(p.conns, key)
		}
	}
	p.mu.Unlock()
	return closeAll(gone)
}

// Close closes all connections; Get fails from then on.
func (p *ConnPool) Close() error {
	p.mu.Lock()
	p.closed = true
	all := make([]*grpc.ClientConn, 0, len(p.conns))
	for _, c := range p.conns {
		all = append(all, c)
	}
	clear(p.conns)
	p.mu.Unlock()
	return closeAll(all)
}

func closeAll(conns []*grpc.ClientConn) error {
	var errs []error
	for _, c := range conns {
		if err := c.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
