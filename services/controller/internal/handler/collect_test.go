package handler

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/topicid"
)

const (
	asBroker      = controllerv1.ServiceKind_SERVICE_KIND_BROKER
	asCoordinator = controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR
	asGateway     = controllerv1.ServiceKind_SERVICE_KIND_GATEWAY
)

func wideState(topics, partitions int32) *cluster.State {
	s := cluster.NewState()
	for i := range topics {
		id := topicid.ID{1, byte(i >> 8), byte(i)}
		s.Set(cluster.Topic{ID: id, Name: fmt.Sprintf("topic-%d", i), Partitions: partitions}, 1, 1)
		for n := range partitions {
			s.Set(cluster.Partition{
				Topic: id, Number: n, Leader: cluster.Process{ID: n%3 + 1, Incarnation: 1 << 60}, LeaderEpoch: 5,
				Replicas: []int32{n%3 + 1}, ISR: []int32{n%3 + 1}, MinISR: 1, PartitionEpoch: 7,
			}, 1, 1)
		}
	}
	return s
}

func TestSnapshotsStayUnderTheLimitOfStubs(t *testing.T) {
	c := newCollector(wideState(20, 5000), asGateway, 0)
	c.everything()
	parts := c.parts()
	if len(parts) < 2 {
		t.Fatalf("%d parts: the state is too small for this test", len(parts))
	}
	topics, partitions := 0, 0
	for i, p := range parts {
		if n := proto.Size(p); n >= 4<<20 {
			t.Errorf("part %d has %d bytes", i, n)
		}
		topics += len(p.GetTopics())
		partitions += len(p.GetPartitions())
	}
	if topics != 20 || partitions != 100_000 {
		t.Errorf("%d topics and %d partitions", topics, partitions)
	}
}

func TestWhoGetsWholeRecords(t *testing.T) {
	s := wideState(1, 3)
	for name, tc := range map[string]struct {
		kind   controllerv1.ServiceKind
		broker int32
		whole  int
	}{
		"a gateway": {asGateway, 1, 0}, "a coordinator": {asCoordinator, 1, 3}, "a broker that holds one": {asBroker, 2, 1}, "another broker": {asBroker, 9, 0},
	} {
		c := newCollector(s, tc.kind, tc.broker)
		c.everything()
		whole := 0
		for _, p := range c.parts()[0].GetPartitions() {
			if p.GetPartitionEpoch() == 7 && p.GetMinIsr() == 1 {
				whole++
			} else if p.GetPartitionEpoch() != 0 || p.GetMinIsr() != 0 {
				t.Errorf("%s gets half a record: %v", name, p)
			}
			if p.GetLeaderEpoch() != 5 || len(p.GetIsr()) != 1 {
				t.Errorf("%s lacks something: %v", name, p)
			}
		}
		if whole != tc.whole {
			t.Errorf("%s gets %d whole records, want %d", name, whole, tc.whole)
		}
	}
}

func TestPartitionsComeWithTheirTopic(t *testing.T) {
	id := topicid.ID{7}
	s := cluster.NewState()
	for n := range int32(4) {
		s.Set(cluster.Partition{Topic: id, Number: n, Replicas: []int32{1}}, 1, 1)
	}
	collect := func(keys ...cluster.Key) *controllerv1.MetadataChanges {
		dirty := map[cluster.Key]struct{}{}
		for _, k := range keys {
			dirty[k] = struct{}{}
		}
		c := newCollector(s, asGateway, 0)
		c.keys(dirty)
		if parts := c.parts(); len(parts) > 0 {
			return parts[0]
		}
		return nil
	}
	partition := func(n int32) cluster.Key { return cluster.Key{Type: cluster.KeyPartition, Topic: id, ID: n} }
	topic := cluster.Key{Type: cluster.KeyTopic, Topic: id}
	if got := collect(partition(0), partition(1)); got != nil {
		t.Errorf("partitions of no topic are told: %v", got)
	}
	s.Set(cluster.Topic{ID: id, Name: "t", Partitions: 3}, 1, 1)
	if got := collect(topic, partition(0)); len(got.GetPartitions()) != 3 || len(got.GetTopics()) != 1 {
		t.Errorf("a new topic: %v", got)
	}
	if got := collect(partition(2), partition(3)); len(got.GetPartitions()) != 1 {
		t.Errorf("partitions beyond the topic's number are told: %v", got)
	}
	s.Delete(topic)
	s.Delete(partition(0))
	if got := collect(topic, partition(0), cluster.Key{Type: cluster.KeyDeletion, Topic: id}); len(got.GetRemovedTopics()) != 1 ||
		len(got.GetPartitions()) != 0 || len(got.GetRemovedDeletions()) != 1 {
		t.Errorf("a topic that is gone: %v", got)
	}
	if got := collect(cluster.Key{Type: cluster.KeyProducerIDs}, cluster.Key{Type: cluster.KeyTopicName, Name: "t"}); got != nil {
		t.Errorf("what concerns nobody is told: %v", got)
	}
}
