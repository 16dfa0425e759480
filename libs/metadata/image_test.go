package metadata

import (
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/topicid"
)

var (
	idA = topicid.ID{1}
	idB = topicid.ID{2}
)

func topicMsg(id topicid.ID, name string, partitions int32) *controllerv1.Topic {
	return &controllerv1.Topic{TopicId: id.Bytes(), Name: name, Partitions: partitions}
}

func partitionMsg(id topicid.ID, n, leader int32) *controllerv1.Partition {
	return &controllerv1.Partition{TopicId: id.Bytes(), Partition: n, Leader: &typev1.Process{Id: leader, Incarnation: 1}, Replicas: []int32{leader}}
}

func TestDraftLeavesTheBaseAlone(t *testing.T) {
	d := edit(newImage())
	d.apply(&controllerv1.MetadataChanges{
		Topics:     []*controllerv1.Topic{topicMsg(idA, "a", 2), topicMsg(idB, "b", 1)},
		Partitions: []*controllerv1.Partition{partitionMsg(idA, 0, 1), partitionMsg(idA, 1, 2), partitionMsg(idB, 0, 3)},
		Brokers:    []*controllerv1.Broker{{Broker: &typev1.Process{Id: 1}}},
	})
	first := d.done(Position{1, 5})
	d = edit(first)
	d.apply(&controllerv1.MetadataChanges{Partitions: []*controllerv1.Partition{partitionMsg(idA, 1, 9)}, RemovedBrokers: []int32{1}})
	second := d.done(Position{1, 6})
	if first.Partition(idA, 1).GetLeader().GetId() != 2 || second.Partition(idA, 1).GetLeader().GetId() != 9 {
		t.Error("the change shows in the wrong image")
	}
	if first.Broker(1) == nil || second.Broker(1) != nil || len(second.Brokers()) != 0 {
		t.Error("the broker's end shows in the wrong image")
	}
	if first.TopicByID(idB) != second.TopicByID(idB) {
		t.Error("a topic that did not change was copied")
	}
	if second.TopicByName("a") != second.TopicByID(idA) || second.TopicByName("a") == first.TopicByName("a") {
		t.Error("the name leads to another copy")
	}
	if second.Position() != (Position{1, 6}) || len(second.Topics()) != 2 || second.Topics()[0].Name != "a" {
		t.Errorf("second: %v, %v", second.Position(), second.Topics())
	}
}

func TestNamesThroughDeletionAndRecreation(t *testing.T) {
	step := func(base *Image, c *controllerv1.MetadataChanges) *Image {
		d := edit(base)
		d.apply(c)
		return d.done(Position{1, base.Position().Revision + 1})
	}
	i := step(newImage(), &controllerv1.MetadataChanges{Topics: []*controllerv1.Topic{topicMsg(idA, "x", 1)}})
	deleting := topicMsg(idA, "x", 1)
	deleting.Deleting = true
	i = step(i, &controllerv1.MetadataChanges{
		Topics:    []*controllerv1.Topic{deleting},
		Deletions: []*controllerv1.Deletion{{TopicId: idA.Bytes(), Name: "x", PendingBrokers: []int32{1}}},
	})
	if i.TopicByName("x") != nil || i.TopicByID(idA) == nil || len(i.Deletions()) != 1 {
		t.Fatal("a topic that is being deleted is found by name")
	}
	i = step(i, &controllerv1.MetadataChanges{Topics: []*controllerv1.Topic{topicMsg(idB, "x", 1)}})
	i = step(i, &controllerv1.MetadataChanges{RemovedTopics: [][]byte{idA.Bytes()}, RemovedDeletions: [][]byte{idA.Bytes()}})
	if got := i.TopicByName("x"); got == nil || got.ID != idB || i.TopicByID(idA) != nil || i.Deletion(idA) != nil {
		t.Fatalf("the second life was taken away with the first: %+v", got)
	}
}

func TestDefaultsReachEveryTopic(t *testing.T) {
	d := edit(newImage())
	own := topicMsg(idB, "b", 1)
	own.Configs = map[string]string{"retention.ms": "7"}
	d.apply(&controllerv1.MetadataChanges{Topics: []*controllerv1.Topic{topicMsg(idA, "a", 1), own}})
	first := d.done(Position{1, 1})
	d = edit(first)
	d.apply(&controllerv1.MetadataChanges{DefaultConfigs: &controllerv1.DefaultConfigs{Configs: map[string]string{"retention.ms": "5"}}})
	second := d.done(Position{1, 2})
	if first.TopicByName("a").Config.RetentionMs == 5 || second.TopicByName("a").Config.RetentionMs != 5 || second.TopicByName("b").Config.RetentionMs != 7 {
		t.Error("defaults are not in force")
	}
}

func TestNonsenseIsLeftAside(t *testing.T) {
	d := edit(newImage())
	d.apply(&controllerv1.MetadataChanges{
		Topics: []*controllerv1.Topic{{TopicId: []byte{1}, Name: "short"}, topicMsg(idA, "a", 1), {TopicId: idB.Bytes(), Name: "neg", Partitions: -5}},
		Partitions: []*controllerv1.Partition{
			partitionMsg(idA, 1, 1), partitionMsg(idA, -1, 1), partitionMsg(topicid.ID{9}, 0, 1),
			{TopicId: []byte{2}},
		},
		RemovedTopics: [][]byte{{1, 2}}, RemovedDeletions: [][]byte{nil}, Deletions: []*controllerv1.Deletion{{}},
	})
	i := d.done(Position{1, 1})
	if i.TopicByName("short") != nil || i.Partition(idA, 0) != nil || i.Partition(idA, 1) != nil || i.TopicByName("neg").NumPartitions() != 0 {
		t.Errorf("nonsense got in: %+v", i.Topics())
	}
}
