package simulation

import (
	"fmt"

	"github.com/leat-io/leat/libs/core/cluster"
)

// sayWrite tells a write to etcd.
func (e *etcd) sayWrite(t *txn, wr cluster.Write) {
	w := e.w
	if !w.tracing {
		return
	}
	what := fmt.Sprintf("%s deleted", keyName(wr.Key))
	switch r := wr.Record.(type) {
	case cluster.Partition:
		what = fmt.Sprintf("%s: pe=%d leader=%d#%d epoch=%d isr=%v elr=%v barred=%v replicas=%v min=%d", w.name(cluster.PartitionID{Topic: r.Topic, Number: r.Number}),
			r.PartitionEpoch, r.Leader.ID, r.Leader.Incarnation, r.LeaderEpoch, r.ISR, r.ELR, r.Barred, r.Replicas, r.MinISR)
		if r.IsReassigning() {
			what += fmt.Sprintf(" target=%v", r.TargetReplicas)
		}
	case cluster.Broker:
		what = fmt.Sprintf("broker record %d#%d fenced=%v draining=%v", r.Process.ID, r.Process.Incarnation, r.Fenced, r.Draining)
	case cluster.Registration, cluster.Election:
		return
	default:
		if wr.Record != nil {
			what = fmt.Sprintf("%T", wr.Record)
		}
	}
	w.say("  etcd r%d (%v, %s): %s", e.rev, t.from, t.why, what)
}
