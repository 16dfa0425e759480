package replication

import (
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// keyed encodes a batch of one record; without a value it is a tombstone.
func keyed(t testing.TB, key, value string) []byte {
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
	return batch
}

// put produces one record with a key, a tombstone without a value.
func (n *node) put(id topicid.ID, key, value string) {
	t := n.m.t
	t.Helper()
	batch := keyed(t, key, value)
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
	m.ctl.RefuseProposals(refusedByTest) // in the set, the follower would have every batch wait for it
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

// Where tombstones went all the same, a follower that lags holds what they deleted: its
// session ends, it says hello again, and hears that it has to begin anew. One that had
// come past them goes on.
func TestTombstonesRemovedUnderASession(t *testing.T) {
	for _, c := range []struct {
		name string
		end  int64 // where the follower has come to
		ends bool
	}{
		{"below them", 1, true},
		{"past them", 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh(t, 2, meshOptions{})
			m.nodes[2].stop(true)
			id := m.ctl.CreateReplicated("t", 1, 1, map[string]string{"cleanup.policy": "compact", "segment.ms": "1"}, 1)
			m.awaitLeads(1, id, 0)
			log := m.nodes[1].store.Replica(store.Key{Topic: id}).Log
			if err := log.SetConfig(commitlog.Config{SegmentAge: 1, Cleanup: commitlog.CleanupCompact}); err != nil {
				t.Fatal(err)
			}
			for _, batch := range [][]byte{keyed(t, "k", "lives"), keyed(t, "x", "1"), keyed(t, "k", ""), keyed(t, "y", "2"), keyed(t, "z", "3")} {
				if _, err := log.Append([][]byte{batch}, 1); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := log.Sync(); err != nil {
				t.Fatal(err)
			}
			m.kill(1)
			leader := m.restart(1)
			m.ctl.SetPartition(id, 0, func(p *controllerPartition) { p.Replicas = []int32{1, 2} })
			m.ctl.Elect(id, 0, 1)
			m.awaitLeads(1, id, 0)

			follower, err := m.connect(1, 2, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			epoch := leader.describe(id, 0).GetLeaderEpoch()
			follower.window = 1 // a batch at a time
			follower.hello(1, id, epoch, 1, c.end)
			if e := follower.epochEnd(); !e.GetAgreed() || e.GetTombstonesRemovedBelow() != 0 {
				t.Fatalf("the hello is answered with %v", e)
			}
			if _, err := follower.recv(func(r *brokerv1.ReplicateResponse) bool { return r.GetBatches() != nil }); err != nil {
				t.Fatal(err)
			}
			clean(t, leader.store.Replica(store.Key{Topic: id}).Log)

			follower.position(1, epoch, 1, c.end+1)
			next, err := follower.recv(func(r *brokerv1.ReplicateResponse) bool { return r.GetBatches() != nil || r.GetPartitionError() != nil })
			if err != nil {
				t.Fatal(err)
			}
			if refused := next.GetPartitionError(); (refused != nil) != c.ends {
				t.Fatalf("the session goes on with %v", next)
			} else if refused == nil {
				return
			}
			if err := rpc.FromProto(next.GetPartitionError().GetError()); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE) {
				t.Errorf("the session ends with %v", err)
			}
			follower.hello(2, id, epoch, 1, c.end+1)
			if e := follower.epochEnd(); e.GetTombstonesRemovedBelow() != 3 {
				t.Errorf("the next hello is answered with %v", e)
			}
		})
	}
}

// Compaction and a cut have left a leader's log that ends in a gap, and too few are in
// sync for anything to be appended behind it: its follower comes to its end all the same,
// and into the in-sync set (simulation seed 60008211).
func TestALogThatEndsInAGap(t *testing.T) {
	m := newMesh(t, 2, meshOptions{})
	m.nodes[2].stop(true)
	id := m.ctl.CreateReplicated("t", 1, 2, map[string]string{"cleanup.policy": "compact"}, 1)
	m.awaitLeads(1, id, 0)
	log := m.nodes[1].store.Replica(store.Key{Topic: id}).Log
	if err := log.SetConfig(commitlog.Config{SegmentAge: 1, Cleanup: commitlog.CleanupCompact}); err != nil {
		t.Fatal(err)
	}
	for _, batch := range [][]byte{keyed(t, "x", "1"), keyed(t, "y", "1"), keyed(t, "k", ""), keyed(t, "z", "1")} {
		if _, err := log.Append([][]byte{batch}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Sync(); err != nil {
		t.Fatal(err)
	}
	clean(t, log)
	if end, err := log.TruncateTo(3); end != 3 || err != nil {
		t.Fatal(end, err)
	}
	if res, err := log.Read(2, 3, 1, func(n int) []byte { return make([]byte, n) }); len(res.Data) > 0 || res.NextOffset != 3 || err != nil {
		t.Fatalf("the log does not end in a gap: %+v, %v", res, err)
	}
	m.kill(1)
	m.restart(1)
	m.restart(2)
	m.ctl.SetPartition(id, 0, func(p *controllerPartition) { p.Replicas = []int32{1, 2} })
	m.ctl.Elect(id, 0, 1)
	m.awaitLeads(1, id, 0)
	m.awaitISR(id, 0, 2)
	if offset := m.nodes[1].mustStore(id, 0, "goes on"); offset != 3 {
		t.Errorf("the next record is at %d", offset)
	}
}

// clean has a log compacted until its tombstones are gone.
func clean(t *testing.T, log *commitlog.Log) {
	t.Helper()
	o := commitlog.DefaultCleanOptions(5)
	o.DeleteRetention, o.Force = 0, true
	for range 2 {
		if _, err := log.Clean(o); err != nil {
			t.Fatal(err)
		}
	}
	if below := log.TombstonesBelow(); below != 3 {
		t.Fatalf("tombstones are removed below %d", below)
	}
}
