package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// The interceptors of a server, from the outside in:
//
//	metrics   count the code that really leaves
//	logging   sees the same code, and the cause that does not leave
//	mapping   makes an Error of whatever the handler returned
//	recovery  makes an error of a panic
//	those of the config, then the handler

// panicError is what recovery makes of a panic; the stack goes to the log only.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// fromPanic is the recovery handler.
func fromPanic(p any) error {
	return withCause(
		Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "the handler of this call panicked: %v; the server's log has the stack", p),
		&panicError{value: p, stack: debug.Stack()})
}

// mapped gives the error that leaves the server for what a handler returned.
func mapped(err error) error {
	if err == nil {
		return nil
	}
	return FromError(err)
}

func mapUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, mapped(err)
	}
	return resp, nil
}

func mapStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return mapped(handler(srv, &typedStream{stream}))
}

// typedStream makes malformed messages INVALID_REQUEST: it hands grpc an
// envelope, which brings the codec's complaint back here instead of to the
// client as a bare INTERNAL.
type typedStream struct {
	grpc.ServerStream
}

func (s *typedStream) RecvMsg(v any) error {
	return recvTyped(s.ServerStream.RecvMsg, v)
}

// recvTyped receives into v, which may be an envelope already.
func recvTyped(recv func(any) error, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return recv(v)
	}
	env := envelope{msg: m}
	if err := recv(&env); err != nil {
		return err
	}
	if env.err != nil {
		return env.err
	}
	return nil
}

// typedMethods gives the methods of a service with the same care for the request
// of unary calls, which grpc decodes before any interceptor runs. The mapping
// is there as well, since such a failure never reaches the interceptors.
func typedMethods(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	d := *desc
	d.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		inner := m.Handler
		m.Handler = func(srv any, ctx context.Context, dec func(any) error, ic grpc.UnaryServerInterceptor) (any, error) {
			return inner(srv, ctx, func(v any) error { return recvTyped(dec, v) }, ic)
		}
		d.Methods[i] = m
	}
	return &d
}

// serverInterceptors builds the chains.
func serverInterceptors(cfg *ServerConfig, active *activity) ([]grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor, error) {
	unary := []grpc.UnaryServerInterceptor{active.unary}
	var stream []grpc.StreamServerInterceptor
	if cfg.Registry != nil {
		m, err := serverMetrics(cfg.Registry)
		if err != nil {
			return nil, nil, err
		}
		unary = append(unary, m.UnaryServerInterceptor())
		stream = append(stream, m.StreamServerInterceptor())
	}
	logger, opts := callLogger(cfg.Logger), logOptions()
	quiet := selector.MatchFunc(loggedCall)
	unary = append(unary, selector.UnaryServerInterceptor(logging.UnaryServerInterceptor(logger, opts...), quiet), mapUnary)
	stream = append(stream, selector.StreamServerInterceptor(logging.StreamServerInterceptor(logger, opts...), quiet), mapStream)
	rec := recovery.WithRecoveryHandler(fromPanic)
	unary = append(append(unary, recovery.UnaryServerInterceptor(rec)), cfg.UnaryInterceptors...)
	stream = append(append(stream, recovery.StreamServerInterceptor(rec)), cfg.StreamInterceptors...)
	return unary, stream, nil
}

// Services of the house whose calls nobody wants in a log.
const (
	healthService   = "grpc.health.v1.Health"
	identityService = "leat.mesh.v1.IdentityService"
)

func loggedCall(_ context.Context, call interceptors.CallMeta) bool {
	return call.Service != healthService && call.Service != identityService
}

// callLogger adapts slog to the middleware.
func callLogger(l *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		l.Log(ctx, slog.Level(level), msg, fields...)
	})
}

// logOptions: one line per finished call, at debug where the call went as calls
// may go, at warn where an operator should look. The cause of an error that is
// not the client's doing is logged here and nowhere else.
func logOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithCodes(func(err error) codes.Code {
			if err == nil {
				return codes.OK
			}
			return FromError(err).Code
		}),
		logging.WithLevels(func(c codes.Code) logging.Level {
			switch c {
			case codes.Internal, codes.DataLoss, codes.Unknown:
				return logging.LevelWarn
			default:
				return logging.LevelDebug
			}
		}),
		logging.WithErrorFields(errorFields),
	}
}

// errorFields adds what an operator wants to know beyond code and message.
func errorFields(err error) logging.Fields {
	e := FromError(err)
	fields := logging.Fields{"reason", ReasonName(e.Reason)}
	if e.Cause != nil {
		fields = append(fields, "cause", e.Cause.Error())
	}
	var p *panicError
	if errors.As(err, &p) {
		fields = append(fields, "stack", string(p.stack))
	}
	return fields
}

// dialErrorUnary makes typed errors of whatever a unary call on a client
// connection came back with, and names the address that was asked.
func dialErrorUnary(addr string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return fromPeer(invoker(ctx, method, req, reply, cc, opts...), addr)
	}
}

// dialErrorStream does the same for streams.
func dialErrorStream(addr string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, fromPeer(err, addr)
		}
		return &peerStream{ClientStream: s, addr: addr}, nil
	}
}

// peerStream is a client stream whose errors are typed.
type peerStream struct {
	grpc.ClientStream
	addr string
}

func (s *peerStream) SendMsg(m any) error { return fromPeer(s.ClientStream.SendMsg(m), s.addr) }

func (s *peerStream) RecvMsg(m any) error { return fromPeer(s.ClientStream.RecvMsg(m), s.addr) }

func (s *peerStream) CloseSend() error { return fromPeer(s.ClientStream.CloseSend(), s.addr) }

// fromPeer makes an Error of what grpc returned; nil and io.EOF stay as they are.
// Where nobody answered, the message says at which address.
func fromPeer(err error, addr string) error {
	if err == nil || err == io.EOF { // grpc promises the bare value
		return err
	}
	e := FromError(err)
	if e.Reason == typev1.ErrorReason_ERROR_REASON_UNREACHABLE && e.Metadata["address"] == "" && bare(err) {
		e = e.With("address", addr)
		e.Message = fmt.Sprintf("%s cannot be reached: %s", addr, e.Message)
	}
	return e
}

// bare reports whether a status came from this side's grpc, not from a server of
// ours.
func bare(err error) bool {
	st, ok := status.FromError(err)
	return ok && len(st.Details()) == 0
}
