package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	meshv1 "github.com/leat-io/leat/gen/go/leat/mesh/v1"
	"github.com/leat-io/leat/libs/obs"
	"github.com/leat-io/leat/libs/rpc"
)

// Common holds the settings that every service has. A service's Config embeds it.
type Common struct {
	NodeID              int32         `config:"node.id" default:"1" help:"Numeric id, from 1, unique among the processes of this kind. 0 (not for brokers): draw one at random."`
	Listen              string        `config:"listen" help:"Address to serve gRPC on, host:port. Port 0 takes a free one."`
	AdvertisedAddress   string        `config:"advertised.address" help:"Address that others are told, host:port. Empty: the one listened on, or the host's name where that is a wildcard."`
	DialSource          string        `config:"dial.source.address" help:"Local IP address to dial other processes from. Empty: the system's choice."`
	EtcdEndpoints       []string      `config:"etcd.endpoints" default:"127.0.0.1:2379" help:"Addresses of etcd, separated by commas."`
	EtcdPrefix          string        `config:"etcd.prefix" default:"/leat" help:"Prefix of this mesh's keys in etcd."`
	ControllerAddresses []string      `config:"controller.addresses" help:"Controllers to ask before etcd has named any, separated by commas."`
	Rack                string        `config:"rack" help:"Rack or zone of this process; replicas are spread over racks."`
	OpsListen           string        `config:"ops.listen" help:"Address of the operations HTTP (metrics, health, pprof), host:port. Empty: off."`
	OTLPEndpoint        string        `config:"otlp.endpoint" help:"OTLP gRPC receiver of traces, host:port. Empty: no tracing."`
	TraceSampleRatio    float64       `config:"trace.sample.ratio" default:"1" help:"Share of traces begun here that are kept, 0 to 1."`
	LogLevel            string        `config:"log.level" default:"info" help:"debug, info, warn or error."`
	LogFormat           string        `config:"log.format" default:"text" help:"text or json."`
	AddrFile            string        `config:"addr.file" help:"File to write the bound address to, once the process listens."`
	LeaseTTL            time.Duration `config:"lease.ttl" default:"5s" help:"How long etcd keeps the registration of a process that has fallen silent."`
	ShutdownTimeout     time.Duration `config:"shutdown.timeout" default:"10s" help:"How long an orderly stop may take before what is left is cut off."`
	AllowInsecure       bool          `config:"allow.insecure" default:"false" help:"Allow serving without TLS on addresses that other hosts can reach."`

	// Listener, if set, is used instead of listening on Listen. Listen hands it out.
	Listener net.Listener
}

// Base is the Common within a config, for Main.
func (c *Common) Base() *Common { return c }

// Deps are what a service is given beside its config. Nil members are allowed:
// silence, no traces, no metrics.
type Deps struct {
	Logger         *slog.Logger
	TracerProvider trace.TracerProvider
	Registry       *prometheus.Registry
	// Incarnation is this life of the process as its log lines name it; 0: the
	// service draws its own with NewIncarnation.
	Incarnation uint64
}

// Validate reports everything that is wrong with the common settings, joined.
func (c *Common) Validate() error {
	var errs []error
	wrong := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if c.NodeID < 0 {
		wrong("node.id", "%d is not allowed; ids count from 1, and 0 draws one at random", c.NodeID)
	}
	if c.Listener == nil {
		if err := checkListen(c.Listen); err != nil {
			wrong("listen", "%v", err)
		} else if !isLoopback(c.Listen) && !c.AllowInsecure {
			wrong("listen", "%s can be reached from other hosts and there is no TLS: listen on a loopback address, or say allow.insecure=true if the network is trusted", c.Listen)
		}
	}
	if c.OpsListen != "" {
		if err := checkListen(c.OpsListen); err != nil {
			wrong("ops.listen", "%v", err)
		} else if !isLoopback(c.OpsListen) && !c.AllowInsecure {
			wrong("ops.listen", "%s can be reached from other hosts: use a loopback address, or say allow.insecure=true if the network is trusted", c.OpsListen)
		}
	}
	checkPeer := func(key, addr string) {
		if host, _, err := net.SplitHostPort(addr); err != nil || host == "" {
			wrong(key, "%q is not host:port", addr)
		}
	}
	if c.AdvertisedAddress != "" {
		checkPeer("advertised.address", c.AdvertisedAddress)
	}
	if c.OTLPEndpoint != "" {
		checkPeer("otlp.endpoint", c.OTLPEndpoint)
	}
	for _, addr := range c.ControllerAddresses {
		checkPeer("controller.addresses", addr)
	}
	if c.DialSource != "" && net.ParseIP(c.DialSource) == nil {
		wrong("dial.source.address", "%q is no IP address", c.DialSource)
	}
	if len(c.EtcdEndpoints) == 0 {
		wrong("etcd.endpoints", "name at least one etcd, host:port")
	}
	if c.EtcdPrefix == "" || c.EtcdPrefix[0] != '/' || c.EtcdPrefix[len(c.EtcdPrefix)-1] == '/' {
		wrong("etcd.prefix", "%q must begin with / and not end with it", c.EtcdPrefix)
	}
	if !(c.TraceSampleRatio >= 0 && c.TraceSampleRatio <= 1) {
		wrong("trace.sample.ratio", "%v is not between 0 and 1", c.TraceSampleRatio)
	}
	if _, err := obs.ParseLevel(c.LogLevel); err != nil {
		wrong("log.level", "%v", err)
	}
	if err := obs.CheckFormat(c.LogFormat); err != nil {
		wrong("log.format", "%v", err)
	}
	if c.LeaseTTL < time.Second || c.LeaseTTL > 10*time.Minute {
		wrong("lease.ttl", "%v is not between 1s and 10m", c.LeaseTTL)
	}
	if c.ShutdownTimeout <= 0 || c.ShutdownTimeout > time.Hour {
		wrong("shutdown.timeout", "%v is not above 0 and at most 1h", c.ShutdownTimeout)
	}
	return errors.Join(errs...)
}

// checkListen wants [host]:port with a numeric port.
func checkListen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %q of %q is not between 0 and 65535", port, addr)
	}
	return nil
}

// isLoopback reports whether only this host can reach the address.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// ListenError is an address that cannot be listened on.
type ListenError struct {
	// Addr is the address, Setting the key that names it.
	Addr, Setting string
	// Err is the system's.
	Err error
}

func (e *ListenError) Error() string {
	if errors.Is(e.Err, syscall.EADDRINUSE) {
		_, port, _ := net.SplitHostPort(e.Addr)
		return fmt.Sprintf("port %s is taken (%s): stop what listens there, or choose another one with --%s=host:port", port, e.Addr, e.Setting)
	}
	return fmt.Sprintf("cannot listen on %s: %v; set another address with --%s=host:port", e.Addr, e.Err, e.Setting)
}

// Unwrap gives the system's error.
func (e *ListenError) Unwrap() error { return e.Err }

// Listen gives the listener of a service: the one that is set, else one on the
// address of the setting listen. Errors are *ListenError.
func Listen(c *Common) (net.Listener, error) {
	if c.Listener != nil {
		return c.Listener, nil
	}
	return listen(c.Listen, "listen")
}

func listen(addr, setting string) (net.Listener, error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, &ListenError{Addr: addr, Setting: setting, Err: err}
	}
	return lis, nil
}

// Advertise tells the address that others are to use: the configured one, else
// the one bound, with the host's name in place of a wildcard.
func (c *Common) Advertise(lis net.Listener) string {
	bound := lis.Addr().String()
	host, port, err := net.SplitHostPort(bound)
	if c.AdvertisedAddress != "" {
		if h, p, err := net.SplitHostPort(c.AdvertisedAddress); err == nil && p == "0" {
			return net.JoinHostPort(h, port)
		}
		return c.AdvertisedAddress
	}
	if err != nil {
		return bound
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return bound
}

// DialConfig is how the service dials other processes.
func (c *Common) DialConfig(deps Deps) rpc.DialConfig {
	return rpc.DialConfig{SourceAddress: c.DialSource, TracerProvider: deps.TracerProvider, Logger: deps.Logger}
}

// ServerConfig is how the service serves.
func (c *Common) ServerConfig(deps Deps, identity func() *meshv1.GetIdentityResponse) rpc.ServerConfig {
	cfg := rpc.ServerConfig{Logger: deps.Logger, TracerProvider: deps.TracerProvider, Identity: identity}
	if deps.Registry != nil {
		cfg.Registry = deps.Registry
	}
	return cfg
}
