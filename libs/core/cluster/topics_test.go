package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestCreatePlacesRoundRobin(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", Partitions: 4, ReplicationFactor: 2, ID: id, Shift: 1}})
	w.apply(t, plan, err)
	for n, want := range [][]int32{{2, 3}, {3, 1}, {1, 2}, {2, 3}} {
		p := w.Partition(id, int32(n)).Value
		if !slices.Equal(p.Replicas, want) || !p.Leader.IsZero() || p.LeaderEpoch != 0 || p.PartitionEpoch != 1 || !slices.Equal(p.ISR, want) {
			t.Errorf("partition %d: %+v, want replicas %v", n, p, want)
		}
	}
	if top := w.TopicByName("a"); top == nil || top.Value.Partitions != 4 {
		t.Errorf("topic: %+v", top)
	}
}

func TestCreateAvoidsFencedBrokers(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.stop(t, 1)
	id := w.create(t, "a", 3, 1)
	for _, e := range w.Partitions(id) {
		if !slices.Equal(e.Value.Replicas, []int32{2}) {
			t.Errorf("placed on %v", e.Value.Replicas)
		}
	}
}

func TestTopicNames(t *testing.T) {
	for _, name := range []string{"a", "A-b_c.9", strings.Repeat("x", 249)} {
		if err := CheckTopicName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "ä", "a b", strings.Repeat("x", 250), "a\x00"} {
		err := CheckTopicName(name)
		if err == nil || err.Reason != "INVALID_TOPIC_NAME" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// case 16: a.b and a_b would be one topic in metrics.
func TestNamesThatCollide(t *testing.T) {
	w := newWorld(t, 1)
	w.create(t, "a.b", 1, 1)
	_, outcomes, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a_b", ID: w.newID()}, {Name: "a.b", ID: w.newID()}, {Name: "c", ID: w.newID()}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INVALID_TOPIC_NAME")
	wantReason(t, outcomes[1].Rejection, "TOPIC_EXISTS")
	if outcomes[2].Rejection != nil {
		t.Errorf("its neighbour: %v", outcomes[2].Rejection)
	}
	_, outcomes, err = createTopics(w.State, testLimits(), []NewTopic{{Name: "x.y", ID: w.newID()}, {Name: "x_y", ID: w.newID()}})
	if err != nil || outcomes[0].Rejection != nil {
		t.Fatal(err, outcomes[0].Rejection)
	}
	wantReason(t, outcomes[1].Rejection, "INVALID_TOPIC_NAME")
	// The name is free again once the topic is being deleted.
	plan, _, err := DeleteTopics(w.State, []string{"a.b"})
	w.apply(t, plan, err)
	w.create(t, "a_b", 1, 1)
}

// case 17: one request with too many partitions over all is refused whole.
func TestTooManyPartitions(t *testing.T) {
	w := newWorld(t, 1)
	topics := []NewTopic{{Name: "a", Partitions: 3000}, {Name: "b", Partitions: 7000}, {Name: "c"}}
	plan, outcomes, err := createTopics(w.State, testLimits(), topics)
	wantReason(t, err, "INVALID_PARTITIONS")
	if !plan.IsEmpty() || outcomes != nil {
		t.Errorf("something is planned: %d writes", plan.Len())
	}
	topics[2].Partitions = -5
	if _, outcomes, err = createTopics(w.State, testLimits(), topics); err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[2].Rejection, "INVALID_PARTITIONS")
	_, outcomes, err = CreateTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: Unset}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INVALID_PARTITIONS")
	for _, n := range []int32{1_000_000, 10_001} {
		_, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", Partitions: n}})
		wantReason(t, err, "INVALID_PARTITIONS")
	}
}

func TestReplicationFactor(t *testing.T) {
	w := newWorld(t, 1, 2)
	try := func(limits Limits, rf int32) error {
		_, outcomes, err := createTopics(w.State, limits, []NewTopic{{Name: "a", ReplicationFactor: rf, ID: w.newID()}})
		if err == nil && outcomes[0].Rejection != nil {
			return outcomes[0].Rejection
		}
		return err
	}
	wantReason(t, try(testLimits(), 3), "INVALID_REPLICATION_FACTOR")
	wantReason(t, try(testLimits(), -2), "INVALID_REPLICATION_FACTOR")
	if err := try(testLimits(), 2); err != nil {
		t.Error(err)
	}
	w.stop(t, 1)
	w.stop(t, 2)
	wantReason(t, try(testLimits(), 1), "STARTING")
}

func TestConfigsAreChecked(t *testing.T) {
	w := newWorld(t, 1)
	for _, c := range []map[string]string{
		{"retention.msec": "1"},
		{"replica.lag.max.messages": "4000"},
		{"segment.bytes": "x"},
		{"flush.ms": "1"},
		{"min.insync.replicas": "2"},
	} {
		_, outcomes, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", Configs: c, ID: w.newID()}})
		if err != nil {
			t.Fatal(err)
		}
		wantReason(t, outcomes[0].Rejection, "INVALID_CONFIG")
	}
}

func TestLeaderEpochsNeverGoDownForAName(t *testing.T) {
	w := newWorld(t, 1)
	first := w.create(t, "a", 2, 1)
	for range 3 {
		w.stop(t, 1)
		w.start(t, 1, w.vouchAll(1, Intact))
	}
	last := w.Partition(first, 0).Value.LeaderEpoch
	if last != 4 {
		t.Fatalf("leader epoch %d after three restarts", last)
	}
	plan, _, err := DeleteTopics(w.State, []string{"a"})
	w.apply(t, plan, err)
	second := w.create(t, "a", 1, 1)
	if got := w.Partition(second, 0).Value.LeaderEpoch; got != last+1 {
		t.Errorf("the next topic starts in epoch %d, want %d", got, last+1)
	}
	plan, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", Partitions: 2})
	w.apply(t, plan, err)
	w.makeFolders(t)
	if got := w.Partition(second, 1).Value.LeaderEpoch; got != last+1 {
		t.Errorf("a partition added starts in epoch %d, want %d", got, last+1)
	}
}

func TestDeletionEndsWhenAllConfirm(t *testing.T) {
	w := newWorld(t, 1, 2)
	id := w.create(t, "a", 2, 1)
	plan, outcomes, err := DeleteTopics(w.State, []string{"a", "nope", "a"})
	w.apply(t, plan, err)
	wantReason(t, outcomes[1].Rejection, "UNKNOWN_TOPIC")
	wantReason(t, outcomes[2].Rejection, "INVALID_REQUEST")
	if w.TopicByName("a") != nil || !w.Topic(id).Value.Deleting {
		t.Error("the topic is still there for clients")
	}
	w.settle(t)
	if w.Topic(id) != nil || len(w.Partitions(id)) != 0 {
		t.Error("records are left")
	}
	confirm := func(b int32) {
		plan, err := ConfirmDeletion(w.State, w.Broker(b).Value.Process, [][16]byte{id, id})
		w.apply(t, plan, err)
		w.settle(t)
	}
	confirm(1)
	if d := w.Deletion(id); d == nil || !slices.Equal(d.Value.Pending, []int32{2}) {
		t.Fatalf("after the first: %+v", d)
	}
	_, err = ConfirmDeletion(w.State, Process{ID: 2, Incarnation: 999}, [][16]byte{id})
	wantReason(t, err, "STALE_INCARNATION")
	confirm(2)
	if w.Deletion(id) != nil {
		t.Error("the deletion record is left")
	}
}

func TestAlterTopic(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 2, 1)
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"retention.ms": "5"}, Partitions: 4})
	w.apply(t, plan, err)
	if p := w.Partition(id, 2).Value; !slices.Equal(p.Replicas, []int32{3}) {
		t.Errorf("placement does not go on: %v", p.Replicas)
	}
	if top := w.Topic(id).Value; top.Partitions != 4 || top.Configs["retention.ms"] != "5" {
		t.Errorf("topic: %+v", top)
	}
	plan, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", DeleteConfigs: []string{"retention.ms"}})
	w.apply(t, plan, err)
	if len(w.Topic(id).Value.Configs) != 0 {
		t.Errorf("configs: %v", w.Topic(id).Value.Configs)
	}
	if plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a"}); err != nil || !plan.IsEmpty() {
		t.Errorf("no change: %d writes, %v", plan.Len(), err)
	}
	for reason, c := range map[string]AlterTopicCommand{
		"UNKNOWN_TOPIC":      {Name: "b"},
		"INVALID_PARTITIONS": {Name: "a", Partitions: 3},
		"INVALID_CONFIG":     {Name: "a", SetConfigs: map[string]string{"durability": "os"}},
	} {
		_, err := AlterTopic(w.State, c)
		wantReason(t, err, reason)
	}
	for _, c := range []AlterTopicCommand{
		{Name: "a", DeleteConfigs: []string{"nonsense"}},
		{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": "2"}},
		{Name: "a", SetConfigs: map[string]string{"retention.ms": "1"}, DeleteConfigs: []string{"retention.ms"}},
	} {
		_, err := AlterTopic(w.State, c)
		wantReason(t, err, "INVALID_CONFIG")
	}
	_, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", Partitions: MaxPartitions + 1})
	wantReason(t, err, "INVALID_PARTITIONS")
}

func TestHalfMadeTopicsAreSwept(t *testing.T) {
	w := newWorld(t, 1)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", Partitions: 5, ID: id}})
	if err != nil || len(plan.Stages) != 2 {
		t.Fatalf("%d stages, %v", len(plan.Stages), err)
	}
	w.applyStages(t, plan.Stages[:1])
	w.settle(t)
	if n := len(w.Partitions(id)); n != 0 {
		t.Errorf("%d partitions of no topic are left", n)
	}
}

func TestInternalTopic(t *testing.T) {
	w := newWorld(t, 1, 2)
	_, outcomes, err := createTopics(w.State, testLimits(), []NewTopic{{Name: OffsetsTopic, ID: w.newID()}})
	if err != nil {
		t.Fatal(err)
	}
	wantReason(t, outcomes[0].Rejection, "INTERNAL_TOPIC")
	id := w.newID()
	plan, outcome, err := EnsureInternalTopic(w.State, testLimits(), OffsetsTopic, id, 0)
	w.apply(t, plan, err)
	if outcome.ID != id || len(w.Partitions(id)) != 8 || !maps.Equal(w.Topic(id).Value.Configs, map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "67108864", "min.cleanable.dirty.ratio": "0.1",
	}) {
		t.Errorf("made: %+v", outcome)
	}
	plan, outcome, err = EnsureInternalTopic(w.State, testLimits(), OffsetsTopic, w.newID(), 0)
	if err != nil || !plan.IsEmpty() || outcome.ID != id {
		t.Errorf("again: %+v, %v", outcome, err)
	}
	_, _, err = EnsureInternalTopic(w.State, testLimits(), "__else", w.newID(), 0)
	wantReason(t, err, "INVALID_TOPIC_NAME")
	_, outcomes, _ = DeleteTopics(w.State, []string{OffsetsTopic})
	wantReason(t, outcomes[0].Rejection, "INTERNAL_TOPIC")
	_, err = AlterTopic(w.State, AlterTopicCommand{Name: OffsetsTopic, Partitions: 99})
	wantReason(t, err, "INTERNAL_TOPIC")
}

func TestProducerIDBlocksNeverRepeat(t *testing.T) {
	w := newWorld(t)
	plan, first, err := AllocateProducerIDs(w.State)
	w.apply(t, plan, err)
	plan, second, err := AllocateProducerIDs(w.State)
	w.apply(t, plan, err)
	if first != 1<<40 || second != first+ProducerIDBlock {
		t.Errorf("blocks begin at %d and %d", first, second)
	}
	c := w.Cluster()
	c.Generation = 2
	w.Set(c, 1, 99)
	if _, third, _ := AllocateProducerIDs(w.State); third != 2<<40 {
		t.Errorf("the next generation begins at %d", third)
	}
}
