package replication

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

const acksAll = partition.AcksAll

// A follower whose log ends below the leader's start begins anew there.
func TestBeginsAnewAboveItsEnd(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: time.Second})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.awaitSame(id, 0, 1, 1, 2)
	m.kill(2)
	m.awaitISR(id, 0, 1)
	for i := range 5 {
		m.nodes[1].mustStore(id, 0, fmt.Sprint("b", i))
	}
	deleteTo(t, m.nodes[1], id, 4)
	m.restart(2)
	m.awaitSame(id, 0, 6, 1, 2)
	if start := m.nodes[2].describe(id, 0).GetLogStartOffset(); start != 4 {
		t.Errorf("the follower begins at %d", start)
	}
	m.awaitISR(id, 0, 2)
}

// Deleted records may leave the log start in the middle of a batch; who begins anew
// there gets the whole batch, and shows only what is left of it.
func TestBeginsAnewWithinABatch(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: time.Second})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.awaitSame(id, 0, 1, 1, 2)
	m.kill(2)
	m.awaitISR(id, 0, 1)
	m.nodes[1].mustStore(id, 0, "b", "c", "d")
	deleteTo(t, m.nodes[1], id, 3)
	m.nodes[1].mustStore(id, 0, "e")
	m.restart(2)
	m.awaitISR(id, 0, 2)
	brokertest.Await(t, "the follower has all that is left", func() bool {
		d := m.nodes[2].describe(id, 0)
		return d.GetLogStartOffset() == 3 && d.GetLogEndOffset() == 5 && d.GetHighWatermark() == 5
	})
	m.kill(2) // what it has on disk is whole
	m.restart(2)
	m.awaitISR(id, 0, 2)
	if v := m.nodes[2].store.Verdict(store.Key{Topic: id}); v != store.Intact {
		t.Errorf("the follower's replica is %v", v)
	}
}

// A follower that cannot keep up leaves the in-sync set, so that the others go on,
// and comes back when it has caught up.
func TestSlowFollowerLeavesAndJoins(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	m := newMesh(t, 3, meshOptions{lag: time.Second, fs: func(id int32) vfs.FS {
		if id == 3 {
			return gate
		}
		return memfs.New()
	}})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	gate.Hold("t-0/")
	done := m.nodes[1].begin(id, 0, acksAll, "b")
	m.awaitISR(id, 0, 2)
	if res := <-done; res.Err != nil {
		t.Fatalf("the batch ended with %v", res.Err)
	}
	m.nodes[1].mustStore(id, 0, "c")
	shrinks := counter(t, m.nodes[1], "leat_broker_isr_shrinks_total")
	if shrinks < 1 {
		t.Errorf("%v shrinks", shrinks)
	}
	if got := counter(t, m.nodes[1], "leat_broker_under_replicated_partitions"); got != 1 {
		t.Errorf("%v under-replicated", got)
	}
	gate.Release()
	m.awaitISR(id, 0, 3)
	m.awaitSame(id, 0, 3, 1, 2, 3)
	brokertest.Await(t, "the metrics tell of it", func() bool {
		return counter(t, m.nodes[1], "leat_broker_isr_expands_total") >= 1 && counter(t, m.nodes[1], "leat_broker_under_replicated_partitions") == 0
	})
}

// While the controller is away nobody leaves and nothing is acknowledged that the
// whole set does not have; when it is back the same proposal settles it.
func TestProposalsOutliveTheController(t *testing.T) {
	m := newMesh(t, 3, meshOptions{lag: time.Second})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	answer := m.freezeISR(id, 3, func() func() {
		m.ctl.RefuseProposals(refusedByTest)
		return func() { m.ctl.RefuseProposals(nil) }
	})
	m.kill(3)
	done := m.nodes[1].begin(id, 0, acksAll, "b")
	brokertest.Await(t, "the shrinkage was proposed", func() bool { return m.ctl.RefusedProposals() > 2 })
	select {
	case res := <-done:
		t.Fatalf("the batch ended with %+v while a member of the in-sync set lacks it", res)
	default:
	}
	answer()
	if res := <-done; res.Err != nil {
		t.Fatalf("the batch ended with %v", res.Err)
	}
	m.awaitISR(id, 0, 2)
}

// freezeISR has a partition's in-sync set stay as it is, with so many members, until what
// it returns is called: freeze keeps the leader from changing it. Where the lag allowed is
// short, a member may have fallen out of it just before, and gets the time to come back.
func (m *mesh) freezeISR(id topicid.ID, size int, freeze func() (thaw func())) (thaw func()) {
	m.t.Helper()
	brokertest.Await(m.t, fmt.Sprintf("the in-sync set stands still with %d members", size), func() bool {
		thaw = freeze()
		if len(m.ctl.Partition(id, 0).GetIsr()) == size {
			return true
		}
		thaw()
		return false
	})
	return thaw
}

// A batch that waits in vain for a member that is away, while nobody can put that on
// record, ends unknown and says what has to be brought back.
func TestAMemberIsAwayAndSoIsTheMetadata(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: 200 * time.Millisecond})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	refuse := func() (end func()) {
		m.ctl.RefuseProposals(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "refused by the test"))
		return func() { m.ctl.RefuseProposals(nil) }
	}
	answer := m.freezeISR(id, 2, refuse)
	m.kill(2)
	first := m.nodes[1].begin(id, 0, acksAll, "b")
	brokertest.Await(t, "the shrinkage was proposed", func() bool { return m.ctl.RefusedProposals() > 1 })
	batch := encode(t, "c")
	h, err := record.ParseHeader(batch)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan replica.Result, 1)
	m.nodes[1].replica(id, 0).Produce(&replica.Batch{
		Payload: rpc.NewPayload(batch), Header: h, Acks: acksAll, LeaderEpoch: -1, Timeout: 2 * time.Second,
		Done: func(res replica.Result) { done <- res },
	})
	if res := <-done; res.Err == nil || res.Err.Reason != typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE || res.Err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("the batch ended with %v", res.Err)
	}
	answer()
	if res := <-first; res.Err != nil {
		t.Errorf("once there is a controller the batch that still waits ends with %v", res.Err)
	}
}

// A controller that does not even answer is told of as soon as it has been silent for a
// while, not only when the call to it has ended.
func TestAMemberIsAwayAndNoControllerAnswers(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: 200 * time.Millisecond})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	answer := m.freezeISR(id, 2, m.ctl.HoldProposals)
	m.kill(2)
	first := m.nodes[1].begin(id, 0, acksAll, "b")
	brokertest.Await(t, "the shrinkage was proposed", func() bool { return m.ctl.RefusedProposals() > 0 })
	// It ends before the call does, which takes 5 s.
	res := <-m.nodes[1].beginWithin(2500*time.Millisecond, id, 0, acksAll, "c")
	if res.Err == nil || res.Err.Reason != typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE || res.Err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("the batch ended with %v", res.Err)
	}
	answer()
	if res := <-first; res.Err != nil {
		t.Errorf("once the controller answers the batch that still waits ends with %v", res.Err)
	}
}

// Below min.insync.replicas acks=all is refused before it is appended; acks=1 is
// stored and invisible.
func TestTooFewInSync(t *testing.T) {
	m := newMesh(t, 3, meshOptions{})
	id := m.ctl.CreateReplicated("t", 1, 2, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.kill(2)
	m.kill(3)
	m.ctl.SetISR(id, 0, 1)
	brokertest.Await(t, "the leader hears that it is alone", func() bool {
		return m.nodes[1].watcher.Image().Partition(id, 0).GetPartitionEpoch() == m.ctl.Partition(id, 0).GetPartitionEpoch()
	})
	brokertest.Await(t, "acks=all is refused", func() bool {
		res := m.nodes[1].produce(id, 0, acksAll, "b")
		return res.Err != nil && res.Err.Reason == typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS && res.Err.Outcome == typev1.Outcome_OUTCOME_NOT_DONE
	})
	res := m.nodes[1].produce(id, 0, partition.AcksLeader, "c")
	if res.Err != nil {
		t.Fatalf("acks=1: %+v", res)
	}
	if hw := m.nodes[1].describe(id, 0).GetHighWatermark(); hw != 1 {
		t.Errorf("the high watermark is %d", hw)
	}
	m.restart(2)
	m.awaitISR(id, 0, 2)
	m.awaitSame(id, 0, res.Base+1, 1, 2)
}

// A replica that went missing on a living disk is made anew and filled, under its own
// verdict until it is in sync.
func TestMissingReplicaIsFetched(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: time.Second})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a", "b")
	m.awaitSame(id, 0, 2, 1, 2)
	n := m.nodes[2]
	n.stop(true)
	key := store.Key{Topic: id}
	if err := n.fs.RemoveAll("/broker2/t-0"); err != nil {
		t.Fatal(err)
	}
	m.ctl.SetISR(id, 0, 1)
	m.restart(2)
	m.awaitSame(id, 0, 2, 1, 2)
	m.awaitISR(id, 0, 2)
	brokertest.Await(t, "the verdict is gone", func() bool { return m.nodes[2].store.Verdict(key) == store.Intact })
}

// A damaged replica is kept aside, fetched anew, and its bad copy goes when the new
// one is in sync.
func TestDamagedReplicaIsFetched(t *testing.T) {
	m := newMesh(t, 2, meshOptions{lag: time.Second})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, strings.Repeat("a", 1000))
	m.nodes[1].mustStore(id, 0, strings.Repeat("b", 1000))
	m.awaitSame(id, 0, 2, 1, 2)
	brokertest.Await(t, "the recovery point is on record", func() bool { return m.nodes[2].store.Replica(store.Key{Topic: id}).HighWatermark() == 2 })
	n := m.nodes[2]
	n.manager.Checkpoint(true)
	m.kill(2)
	f, err := n.fs.Open("/broker2/t-0/00000000000000000000.log")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(900); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m.ctl.SetISR(id, 0, 1)
	m.restart(2)
	m.awaitSame(id, 0, 2, 1, 2)
	m.awaitISR(id, 0, 2)
	brokertest.Await(t, "the verdict and the bad copy are gone", func() bool {
		k := store.Key{Topic: id}
		return m.nodes[2].store.Verdict(k) == store.Intact && !m.nodes[2].store.HasReplaced(k)
	})
}

// Large batches go alone, small windows go on: nothing waits for ever.
func TestSmallWindow(t *testing.T) {
	m := newMesh(t, 2, meshOptions{window: 2000})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2)
	m.awaitLeads(1, id, 0)
	for i := range 30 {
		m.nodes[1].mustStore(id, 0, strings.Repeat("x", 1+i*i*20))
	}
	m.awaitSame(id, 0, 30, 1, 2)
}

// counter is the value of a metric without labels.
func counter(t testing.TB, n *node, name string) float64 {
	t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			v := f.GetMetric()[0]
			return v.GetCounter().GetValue() + v.GetGauge().GetValue()
		}
	}
	return math.NaN()
}

// deleteTo has a leader delete the records below an offset.
func deleteTo(t testing.TB, n *node, id topicid.ID, before int64) {
	t.Helper()
	done := make(chan *rpc.Error, 1)
	n.replica(id, 0).DeleteRecords(before, -1, brokertest.Patience, func(_ int64, err *rpc.Error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

var refusedByTest = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION, "refused by the test")
