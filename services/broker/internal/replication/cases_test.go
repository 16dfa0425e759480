package replication

import (
	"fmt"
	"testing"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Two leaders have appended at the same offset and neither knew of the other: the
// follower goes back to the last common epoch and offset, not to a high watermark.
func TestTruncatesToTheLastCommonEpoch(t *testing.T) {
	// case 1
	m := newMesh(t, 2, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "common")
	m.awaitSame(id, 0, 1, 1, 2)

	m.kill(2)
	if res := m.nodes[1].produce(id, 0, partition.AcksLeader, "a1"); res.Err != nil || res.Base != 1 {
		t.Fatalf("a1: %+v", res)
	}
	m.kill(1)
	m.restart(2)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	if res := m.nodes[2].produce(id, 0, partition.AcksLeader, "b1", "b2"); res.Err != nil || res.Base != 1 {
		t.Fatalf("b1: %+v", res)
	}
	m.kill(2)
	m.restart(1)
	m.ctl.Elect(id, 0, 1)
	m.awaitLeads(1, id, 0)
	if res := m.nodes[1].produce(id, 0, partition.AcksLeader, "a2"); res.Err != nil || res.Base != 2 {
		t.Fatalf("a2: %+v", res)
	}
	m.restart(2)
	m.awaitSame(id, 0, 3, 1, 2)
	if epochs := m.nodes[2].store.Replica(store.Key{Topic: id}).Log.Epochs(); len(epochs) != 2 || epochs[1].Epoch != 3 {
		t.Errorf("the epochs of the follower are %v", epochs)
	}
}

// What a client has seen to be committed is never taken back, and a leader that does
// not know yet says that it is to be asked again.
func TestVisibleEndNeverGoesBack(t *testing.T) {
	// case 2
	m := newMesh(t, 3, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	leader, seen, epoch := int32(1), int64(0), int32(1)
	for round := range 6 {
		m.awaitLeads(leader, id, 0)
		m.nodes[leader].mustStore(id, 0, fmt.Sprint("round ", round))
		// The reader stands at the end that it has seen, on every leader.
		brokertest.Await(t, "the reader sees the new record", func() bool {
			chunk, err := m.nodes[leader].replica(id, 0).Read(replica.Position{Offset: seen, LeaderEpoch: epoch, LastEpoch: -1, Seen: seen}, 1<<20)
			if err != nil {
				if err.Action != typev1.Action_ACTION_RETRY {
					t.Fatalf("the reader at %d is told %v", seen, err)
				}
				return false
			}
			chunk.Payload.Free()
			if hw := chunk.Visible.GetHighWatermark(); hw < seen {
				t.Fatalf("the visible end went from %d to %d", seen, hw)
			}
			seen, epoch = max(seen, chunk.Visible.GetHighWatermark()), max(epoch, chunk.Visible.GetLeaderEpoch())
			return seen == int64(round)+1
		})
		m.kill(leader)
		next := leader%3 + 1
		m.ctl.SetISR(id, 0, next, next%3+1)
		m.ctl.Elect(id, 0, next)
		m.restart(leader)
		m.awaitISR(id, 0, 3)
		leader = next
	}
	m.awaitSame(id, 0, 6, 1, 2, 3)
}

// A batch whose offset does not fit 31 bits above the follower's segment begins a
// segment of its own there.
func TestCopiesGapsBeyond31Bits(t *testing.T) {
	// case 5
	m := newMesh(t, 2, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 1, map[string]string{"cleanup.policy": "compact"}, 1)
	m.awaitLeads(1, id, 0)
	const far = int64(1)<<31 + 1<<30
	log := m.nodes[1].store.Replica(store.Key{Topic: id}).Log
	for _, at := range []int64{0, 10, far} {
		batch := encode(t, fmt.Sprint("at ", at))
		record.PatchBaseOffset(batch, at)
		record.PatchPartitionLeaderEpoch(batch, 1)
		if _, err := log.AppendAt([][]byte{batch}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Sync(); err != nil {
		t.Fatal(err)
	}
	m.kill(1)
	m.restart(1)
	m.ctl.SetPartition(id, 0, func(p *controllerPartition) { p.Replicas = []int32{1, 2} })
	m.ctl.Elect(id, 0, 1)
	m.awaitSame(id, 0, far+1, 1, 2)
	m.awaitISR(id, 0, 2)
	if n := m.nodes[2].store.Replica(store.Key{Topic: id}).Log.Segments(); n != 2 {
		t.Errorf("the follower has %d segments", n)
	}
}
