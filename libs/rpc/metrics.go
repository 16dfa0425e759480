package rpc

import (
	"errors"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// serverMetrics registers the usual grpc_server_* metrics; a second server on
// the same registry shares those of the first. Durations are counted for all
// calls; a stream's is its life.
func serverMetrics(reg prometheus.Registerer) (*grpcprom.ServerMetrics, error) {
	m := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
		grpcprom.WithHistogramBuckets([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60})))
	if err := reg.Register(m); err != nil {
		var already prometheus.AlreadyRegisteredError
		if errors.As(err, &already) {
			if other, ok := already.ExistingCollector.(*grpcprom.ServerMetrics); ok {
				return other, nil
			}
		}
		return nil, err
	}
	return m, nil
}
