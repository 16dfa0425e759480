package rpc

import (
	"strings"
	"sync"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// traces reports whether the provider may record anything at all; if not, calls
// go without a stats handler, and tracing costs nothing.
func traces(tp trace.TracerProvider) bool {
	if tp == nil {
		return false
	}
	_, noop := tp.(tracenoop.TracerProvider)
	return !noop
}

// traceOptions are those of both sides: unary calls only. A stream's span would
// last for hours and tell nothing; streams are traced per message.
func traceOptions(tp trace.TracerProvider) []otelgrpc.Option {
	var unary unaryMethods
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tp),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(unary.traced),
	}
}

// unaryMethods remembers which methods are traced.
type unaryMethods struct {
	known sync.Map // full method name -> bool; bounded by the methods in the binary
}

// traced reports whether a call is a unary one of Leat's own services, probes
// aside.
func (u *unaryMethods) traced(info *stats.RPCTagInfo) bool {
	if v, ok := u.known.Load(info.FullMethodName); ok {
		return v.(bool)
	}
	service, method, ok := strings.Cut(strings.TrimPrefix(info.FullMethodName, "/"), "/")
	if !ok || !strings.HasPrefix(service, "leat.") || service == identityService {
		return false
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return false
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	traced := ok && !md.IsStreamingClient() && !md.IsStreamingServer()
	u.known.Store(info.FullMethodName, traced)
	return traced
}
