package obs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewRegistry makes the registry of one component, with the metrics of the Go
// runtime, of the process, and leat_build_info.
func NewRegistry(kind, version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "leat_build_info",
		Help:        "Always 1; the labels tell kind and release.",
		ConstLabels: prometheus.Labels{"kind": kind, "version": version},
	})
	info.Set(1)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info)
	return reg
}

// OpsServer serves /metrics, /healthz, /readyz and /debug/pprof/ over HTTP, for
// operators only: it is never to be reachable by strangers.
type OpsServer struct {
	lis    net.Listener
	server *http.Server
}

// NewOpsServer makes a server on a listener, which it takes over. ready tells
// /readyz whether the component serves; /healthz says OK as long as it answers.
func NewOpsServer(lis net.Listener, gatherer prometheus.Gatherer, ready func() bool) *OpsServer {
	return &OpsServer{lis: lis, server: &http.Server{
		Handler:           opsHandler(gatherer, ready),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
	}}
}

func opsHandler(gatherer prometheus.Gatherer, ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	addFailpoints(mux)
	return mux
}

// Addr is the bound address, host:port.
func (s *OpsServer) Addr() string { return s.lis.Addr().String() }

// Run serves until ctx ends, then closes at once: probes and scrapes are not
// worth waiting for. An error means that the listener failed.
func (s *OpsServer) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.lis) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve operations HTTP on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	err := s.server.Close()
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
