package producerid

import "github.com/prometheus/client_golang/prometheus"

// Register shows how many ids the pool holds; reg may be nil.
func (p *Pool) Register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	return reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "leat", Subsystem: "broker", Name: "producer_ids", Help: "Producer ids held for idempotent producers; with none left and etcd away no new one can start.",
	}, func() float64 { return float64(p.Held()) }))
}
