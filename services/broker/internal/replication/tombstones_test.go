package replication

import (
	"testing"
	"time"

	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// put produces one record with a key, a tombstone without a value.
func (n *node) put(id topicid.ID, key, value string) {
	t := n.m.t
	t.Helper()
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	r := &record.Record{Timestamp: 1000, Key: []byte(key)}
	if value != "" {
		r.Value = []byte(value)
	}
	if ok, err := b.Append(r); !ok || err != nil {
		t.Fatal(ok, err)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(batch)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan replica.Result, 1)
	n.replica(id, 0).Produce(&replica.Batch{
		Payload: rpc.NewPayload(batch), Header: h, Acks: partition.AcksAll, LeaderEpoch: -1, Timeout: brokertest.Patience,
		Done: func(res replica.Result) { done <- res },
	})
	if res := <-done; res.Err != nil {
		t.Fatal(res.Err)
	}
}

// A tombstone that a follower in session has not copied yet stays at its leader, or what
// it deletes would live on in the follower.
func TestTombstonesWaitForFollowers(t *testing.T) {
	m := newMesh(t, 2, meshOptions{upkeep: replica.Upkeep{CleanerBackoff: 10 * time.Millisecond}})
	m.nodes[2].stop(true)
	id := m.ctl.CreateReplicated("t", 1, 1, map[string]string{
		"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0", "segment.ms": "1",
	}, 1, 2)
	m.ctl.SetISR(id, 0, 1)
	m.awaitLeads(1, id, 0)
	leader := m.nodes[1]
	log := leader.store.Replica(store.Key{Topic: id}).Log
	leader.put(id, "k", "lives")
	p, err := m.connect(1, 2, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.hello(1, id, 1, -1, 0)
	if e := p.epochEnd(); !e.GetAgreed() {
		t.Fatalf("the follower is answered with %v", e)
	}
	p.position(1, 1, 2, 1) // it has the record, and not what deletes it
	leader.put(id, "k", "")
	cleaned := func(times float64) func() bool {
		return func() bool {
			leader.put(id, "traffic", "x") // seals the segment before it
			return counter(t, leader, "leat_broker_cleanings_total") >= times
		}
	}
	brokertest.Await(t, "the log is cleaned again and again", cleaned(4))
	if below := log.TombstonesBelow(); below != 0 {
		t.Errorf("tombstones below %d are gone, and a follower has come to 1", below)
	}
}
