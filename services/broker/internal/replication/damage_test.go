package replication

import (
	"testing"

	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// A copy that turns out to be damaged when it is to be cut is condemned, durably, to be
// fetched anew: its leader has all that it should have.
func TestDamageMetByATruncation(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "common")
	m.awaitSame(id, 0, 1, 1, 2)
	m.kill(1)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	if res := m.nodes[2].produce(id, 0, partition.AcksLeader, "b1", "b2"); res.Err != nil || res.Base != 1 {
		t.Fatalf("b1: %+v", res)
	}
	m.ctl.Elect(id, 0, 1) // it is away, so that nothing is cut yet
	damageHeader(t, m.nodes[2])
	m.restart(1)
	m.ctl.Elect(id, 0, 1)
	brokertest.Await(t, "the copy is condemned", func() bool { return m.nodes[2].store.Verdict(store.Key{Topic: id}) == store.Corrupt })
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
