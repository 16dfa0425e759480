package replication

import (
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// A copy that turns out to be damaged when it is to be cut is fetched anew: its leader
// has all that it should have.
func TestDamageMetByATruncation(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.ctl.OnReport(func(c *brokertest.Controller, req *controllerv1.ReportReplicasRequest) error {
		for _, v := range req.GetVouches() {
			if v.GetVerdict() == controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT {
				c.Record(id, 0, func(r *controllerv1.Partition) { r.Barred = []int32{req.GetBroker().GetId()} })
			}
		}
		return nil
	})
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "common")
	m.awaitSame(id, 0, 1, 1, 2)
	m.kill(1)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	if res := m.nodes[2].produce(id, 0, partition.AcksLeader, "b1", "b2"); res.Err != nil || res.Base != 1 {
		t.Fatalf("b1: %+v", res)
	}
	n := m.nodes[2]
	n.manager.Checkpoint(true) // the start does not look below
	m.kill(2)
	damageHeader(t, n)
	m.restart(1)
	m.ctl.Elect(id, 0, 1)
	m.awaitLeads(1, id, 0)
	m.restart(2)
	m.awaitSame(id, 0, 1, 1, 2)
}

// damageHeader makes the first batch of a node's replica one of an unknown format.
func damageHeader(t *testing.T, n *node) {
	t.Helper()
	f, err := n.fs.Open("/broker2/t-0/00000000000000000000.log")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{7}, 16); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
