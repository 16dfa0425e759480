package replication

import (
	"fmt"
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// idempotent produces one batch of n records of a producer.
func (n *node) idempotent(id topicid.ID, producer int64, sequence int32, records int) replica.Result {
	t := n.m.t
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = producer, 0, sequence
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if ok, err := b.Append(&record.Record{Timestamp: 1000, Value: fmt.Append(nil, sequence, i)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
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
		Payload: rpc.NewPayload(batch), Header: h, Acks: acksAll, LeaderEpoch: -1, Timeout: brokertest.Patience,
		Done: func(res replica.Result) { done <- res },
	})
	return <-done
}

// case 22: a producer's first batch is deleted, and leadership goes to a replica that
// began anew above it: a retry is a duplicate there too.
func TestADeletedFirstBatchIsKnownToANewReplica(t *testing.T) {
	for name, c := range map[string]struct {
		before int64 // DeleteRecords
		more   bool  // records follow
	}{
		"everything is deleted":      {3, false},
		"records follow":             {3, true},
		"a batch is deleted in part": {2, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t, 3, meshOptions{})
			id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
			m.awaitLeads(1, id, 0)
			store := func(b int32, producer int64, sequence int32, records int, base int64) {
				t.Helper()
				if res := m.nodes[b].idempotent(id, producer, sequence, records); res.Err != nil || res.Base != base {
					t.Fatalf("broker %d stored a batch of producer %d at %d, want %d: %v", b, producer, res.Base, base, res.Err)
				}
			}
			store(1, 7, 0, 1, 0)
			store(1, 8, 0, 2, 1)
			end := int64(3)
			if c.more {
				store(1, 8, 2, 1, 3)
				end++
			}
			deleteTo(t, m.nodes[1], id, c.before)
			m.ctl.SetPartition(id, 0, func(p *controllerv1.Partition) { p.Replicas = []int32{1, 2, 3} })
			m.awaitISR(id, 0, 3)
			m.ctl.Elect(id, 0, 3)
			m.awaitLeads(3, id, 0)
			store(3, 7, 0, 1, 0)
			store(3, 8, 0, 2, 1)
			if got := m.nodes[3].describe(id, 0).GetLogEndOffset(); got != end {
				t.Errorf("the log ends at %d, want %d", got, end)
			}
			if res := m.nodes[3].produce(id, 0, partition.AcksAll, "x"); res.Err != nil || res.Base != end {
				t.Errorf("the next batch is stored at %d, want %d: %v", res.Base, end, res.Err)
			}
		})
	}
}
