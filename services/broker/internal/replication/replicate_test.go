package replication

import (
	"fmt"
	"testing"

	"github.com/leat-io/leat/libs/core/partition"
)

// Records reach all replicas, are committed, and the logs are byte-identical.
func TestReplicates(t *testing.T) {
	m := newMesh(t, 3, meshOptions{})
	id := m.ctl.CreateReplicated("t", 3, 2, nil, 1, 2, 3)
	for p := range int32(3) {
		leader := p + 1
		m.awaitLeads(leader, id, p)
		for i := range 20 {
			if base := m.nodes[leader].mustStore(id, p, fmt.Sprintf("record %d", i)); base != int64(i) {
				t.Fatalf("record %d is at offset %d", i, base)
			}
		}
		m.awaitSame(id, p, 20, 1, 2, 3)
	}
}

// The next leader has everything that was acknowledged and goes on; what the old one
// had appended and nobody had is cut off there.
func TestLeaderIsKilled(t *testing.T) {
	m := newMesh(t, 3, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a", "b")
	m.kill(1)
	m.ctl.SetISR(id, 0, 2, 3)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	if base := m.nodes[2].mustStore(id, 0, "c"); base != 2 {
		t.Errorf("the new leader goes on at %d", base)
	}
	m.restart(1)
	m.awaitSame(id, 0, 3, 1, 2, 3)
	m.awaitISR(id, 0, 3)
	if res := m.nodes[1].produce(id, 0, partition.AcksAll, "x"); res.Err == nil {
		t.Error("the old leader took a batch")
	}
}
