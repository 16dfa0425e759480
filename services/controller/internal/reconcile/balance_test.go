package reconcile

import (
	"testing"

	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/topicid"
)

// case 33: however many leaderships a broker that came back is preferred for, one
// look moves a batch of them, from within the ISR only, and to nobody who is silent.
func TestPreferredLeadersMoveInBatches(t *testing.T) {
	s := cluster.NewState()
	id := topicid.ID{1}
	for b := range int32(2) {
		s.Set(cluster.Broker{Process: cluster.Process{ID: b + 1, Incarnation: 1}, Address: "h:1"}, 1, 1)
	}
	s.Set(cluster.Topic{ID: id, Name: "a", Partitions: 5000}, 1, 1)
	s.Set(cluster.TopicName{Name: "a", Topic: id}, 1, 1)
	for n := range int32(5000) {
		p := cluster.Partition{
			Topic: id, Number: n, Replicas: []int32{1, 2}, ISR: []int32{2, 1}, MinISR: 1, PartitionEpoch: 3,
			Leader: cluster.Process{ID: 2, Incarnation: 1}, LeaderEpoch: 2,
		}
		if n < 4700 {
			p.ISR = []int32{2} // not in sync yet
		}
		s.Set(p, 1, 1)
	}
	all := cluster.Probes{{ID: 1, Incarnation: 1}: 1, {ID: 2, Incarnation: 1}: 1}
	plan, err := planPreferred(s, all)
	if err != nil || plan.Len() != preferredBatch {
		t.Fatalf("%d moves, %v", plan.Len(), err)
	}
	for _, w := range plan.Stages[0] {
		p := w.Record.(cluster.Partition)
		if p.Number < 4700 || p.Leader.ID != 1 || p.LeaderEpoch != 3 {
			t.Errorf("moved: %+v", p)
		}
	}
	if plan, err := planPreferred(s, cluster.Probes{{ID: 2, Incarnation: 1}: 1}); err != nil || !plan.IsEmpty() {
		t.Errorf("moved to a silent broker: %d, %v", plan.Len(), err)
	}
}
