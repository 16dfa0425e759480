package replica

import (
	"context"
	"slices"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/partition"
)

// lagInterval is how often the lag of replicas is measured.
const lagInterval = time.Second

// isrSeen is what the metrics know of a partition that is led here.
type isrSeen struct {
	leads     bool
	epoch     int32
	partEpoch int64
	isr       []int32
	under     bool // fewer in sync than there are replicas
}

// countISR keeps the metrics of in-sync sets. Growth and shrinkage are counted by
// whoever leads, within one leadership. The caller holds mu.
func (r *Replica) countISR(p *controllerv1.Partition) {
	m, was := r.m.cfg.Metrics, r.isr
	leads := p.GetLeader().GetId() == r.m.cfg.Self.Broker && p.GetLeader().GetIncarnation() == r.m.cfg.Self.Incarnation
	if p.GetPartitionEpoch() < was.partEpoch {
		return
	}
	now := isrSeen{leads: leads, epoch: p.GetLeaderEpoch(), partEpoch: p.GetPartitionEpoch(), isr: p.GetIsr(), under: leads && len(p.GetIsr()) < len(p.GetReplicas())}
	if was.leads && leads && was.epoch == now.epoch {
		lacks := func(in []int32) func(int32) bool { return func(id int32) bool { return !slices.Contains(in, id) } }
		if slices.ContainsFunc(was.isr, lacks(now.isr)) {
			m.isrShrinks.Inc()
		}
		if slices.ContainsFunc(now.isr, lacks(was.isr)) {
			m.isrExpands.Inc()
		}
	}
	m.setUnder(was.under, now.under)
	r.isr = now
}

// forget takes a replica out of the metrics.
func (s *isrSeen) forget(m *Metrics) {
	m.setUnder(s.under, false)
	*s = isrSeen{}
}

func (m *Metrics) setUnder(was, is bool) {
	switch {
	case is && !was:
		m.underReplicated.Inc()
	case was && !is:
		m.underReplicated.Dec()
	}
}

// lagLoop measures how far replicas are behind their leaders until ctx ends.
func (m *Manager) lagLoop(ctx context.Context) {
	tick := time.NewTicker(lagInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		most := int64(0)
		for _, r := range m.all() {
			r.mu.Lock()
			if leader, _ := r.core.Leader(); leader != m.cfg.Self && leader != (partition.Replica{}) && r.core.Down() == partition.ReasonNone {
				most = max(most, r.leaderHW-r.core.End())
			}
			r.mu.Unlock()
		}
		m.cfg.Metrics.replicaLagMax.Set(float64(most))
	}
}
