package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
)

func TestTopicLifeCycle(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1)
	w := m.gateway()
	b1, b2 := m.broker(1, 11), m.broker(2, 21)
	m.awaitUnfenced(w, b1)
	m.awaitUnfenced(w, b2)
	admin := m.controllers(w)
	topic := m.create(w, admin, "orders", 4)
	if topic.NumPartitions() != 4 {
		t.Fatalf("%d partitions", topic.NumPartitions())
	}
	leaders := map[int32]int{}
	for n, p := range topic.Partitions() {
		leaders[p.GetLeader().GetId()]++
		if p.GetLeaderEpoch() != 1 || p.GetPartitionEpoch() != 0 {
			t.Errorf("partition %d: %v; a gateway gets no partition epochs", n, p)
		}
	}
	if leaders[1] != 2 || leaders[2] != 2 {
		t.Errorf("leaders: %v", leaders)
	}
	// The broker that holds it gets the whole record.
	eventually(t, "the broker sees its partition", func() bool {
		topic := b1.watch.Image().TopicByName("orders")
		if topic == nil {
			return false
		}
		for _, p := range topic.Partitions() {
			if p.GetReplicas()[0] == 1 && p.GetPartitionEpoch() > 0 && p.GetMinIsr() == 1 {
				return true
			}
		}
		return false
	})
	alter := &controllerv1.AlterTopicRequest{Topic: "orders", SetConfigs: map[string]string{"segment.bytes": "4096"}, Partitions: proto32(6)}
	resp, err := admin.AlterTopic(m.ctx(), alter)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(m.ctx(), metadata.PositionOf(resp.GetPosition())); err != nil {
		t.Fatal(err)
	}
	topic = w.Image().TopicByName("orders")
	if topic.NumPartitions() != 6 || topic.Config.SegmentBytes != 4096 {
		t.Errorf("altered: %+v", topic)
	}
	eventually(t, "the new partitions are led", func() bool {
		topic = w.Image().TopicByName("orders")
		return topic.Partition(4).GetLeader() != nil && topic.Partition(5).GetLeader() != nil
	})
	gone, err := admin.DeleteTopics(m.ctx(), &controllerv1.DeleteTopicsRequest{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(m.ctx(), metadata.PositionOf(gone.GetPosition())); err != nil {
		t.Fatal(err)
	}
	if w.Image().TopicByName("orders") != nil {
		t.Error("the topic is still there")
	}
	eventually(t, "the records are gone and the deletion is told", func() bool {
		return w.Image().TopicByID(topic.ID) == nil && len(w.Image().Deletions()) == 1
	})
	for _, b := range []*fake{b1, b2} {
		if _, err := admin.ConfirmDeletion(m.ctx(), &controllerv1.ConfirmDeletionRequest{Broker: b.process, TopicIds: [][]byte{topic.ID.Bytes()}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the deletion has ended", func() bool { return len(w.Image().Deletions()) == 0 })
	c.stop()
	if c.err != nil {
		t.Errorf("the controller ended with %v", c.err)
	}
}

func proto32(n int32) *int32 { return &n }

func TestAdminErrors(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	m.awaitUnfenced(w, m.broker(1, 11))
	admin := m.controllers(w)
	m.create(w, admin, "a.b", 1)
	for name, tc := range map[string]struct {
		topic  *controllerv1.NewTopic
		reason typev1.ErrorReason
	}{
		"exists":   {&controllerv1.NewTopic{Name: "a.b"}, typev1.ErrorReason_ERROR_REASON_TOPIC_EXISTS},
		"empty":    {&controllerv1.NewTopic{}, typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME},
		"dots":     {&controllerv1.NewTopic{Name: ".."}, typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME},
		"collides": {&controllerv1.NewTopic{Name: "a_b"}, typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME}, // case 16
		"none":     {&controllerv1.NewTopic{Name: "x", Partitions: proto32(0)}, typev1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS},
		"rf":       {&controllerv1.NewTopic{Name: "x", ReplicationFactor: proto32(3)}, typev1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR},
		"config":   {&controllerv1.NewTopic{Name: "x", Configs: map[string]string{"replica.lag.max.messages": "1"}}, typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG},
		"internal": {&controllerv1.NewTopic{Name: "__consumer_offsets"}, typev1.ErrorReason_ERROR_REASON_INTERNAL_TOPIC},
	} {
		resp, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{tc.topic}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e := resp.GetResults()[0].GetError(); e.GetReason() != tc.reason || e.GetMessage() == "" {
			t.Errorf("%s: %v, want %v", name, e, tc.reason)
		}
	}
	// case 17
	_, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{
		{Name: "x", Partitions: proto32(5000)}, {Name: "y", Partitions: proto32(5000)}, {Name: "z", Partitions: proto32(1)},
	}})
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS) {
		t.Errorf("too many partitions: %v", err)
	}
	if w.Image().TopicByName("x") != nil {
		t.Error("something of a refused request was made")
	}
	_, err = admin.AlterTopic(m.ctx(), &controllerv1.AlterTopicRequest{Topic: "nope"})
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC) {
		t.Errorf("alter an unknown topic: %v", err)
	}
	resp, err := admin.DeleteTopics(m.ctx(), &controllerv1.DeleteTopicsRequest{Topics: []string{"nope"}})
	if err != nil || resp.GetResults()[0].GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC {
		t.Errorf("delete an unknown topic: %v, %v", resp, err)
	}
}

func TestRequestsAreRemembered(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	m.awaitUnfenced(w, m.broker(1, 11))
	admin := m.controllers(w)
	req := &controllerv1.CreateTopicsRequest{RequestId: "r1", Topics: []*controllerv1.NewTopic{{Name: "a"}}}
	first, err := admin.CreateTopics(m.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := admin.CreateTopics(m.ctx(), req)
	if err != nil || again.GetResults()[0].GetError() != nil || string(again.GetResults()[0].GetTopicId()) != string(first.GetResults()[0].GetTopicId()) {
		t.Errorf("repeated: %v, %v", again, err)
	}
	check := &controllerv1.CreateTopicsRequest{RequestId: "r2", ValidateOnly: true, Topics: []*controllerv1.NewTopic{{Name: "b"}}}
	if resp, err := admin.CreateTopics(m.ctx(), check); err != nil || resp.GetResults()[0].GetError() != nil {
		t.Errorf("checked: %v, %v", resp, err)
	}
	if w.Image().TopicByName("b") != nil {
		t.Error("a check made a topic")
	}
}

func TestManyPartitionsInOneRequest(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	m.awaitUnfenced(w, m.broker(1, 11))
	m.awaitUnfenced(w, m.broker(2, 21))
	topic := m.create(w, m.controllers(w), "wide", 3000)
	for n, p := range topic.Partitions() {
		if p.GetLeader() == nil || p.GetPartition() != int32(n) {
			t.Fatalf("partition %d: %v", n, p)
		}
	}
}

func TestBrokerFailsAndComesBack(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	topic := m.create(w, m.controllers(w), "a", 1)
	b.kill()
	eventually(t, "the partition has no leader", func() bool {
		return w.Image().Partition(topic.ID, 0).GetLeader() == nil && w.Image().Broker(1).GetFenced()
	})
	back := m.broker(1, 12, &controllerv1.ReplicaVouch{TopicId: topic.ID.Bytes(), Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT})
	m.awaitUnfenced(w, back)
	eventually(t, "the new life leads in a higher epoch", func() bool {
		p := w.Image().Partition(topic.ID, 0)
		return p.GetLeader().GetIncarnation() == 12 && p.GetLeaderEpoch() == 2
	})
}

// A hiccup of a lease alone fences nobody.
func TestLostLeaseDoesNotFence(t *testing.T) {
	undisturbed(t, func(m *mesh) error { return loseLease(t, m) })
}

func loseLease(t *testing.T, m *mesh) error {
	c := m.controller(1)
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	topic := m.create(w, m.controllers(w), "a", 1)
	first := b.reg.Revision()
	m.revokeAll(c)
	eventually(t, "the broker is registered anew", func() bool { return b.reg.Revision() > first && b.reg.FirstRevision() == first })
	eventually(t, "a controller leads", c.IsLeading)
	m.create(w, m.controllers(w), "b", 1)
	if p := w.Image().Partition(topic.ID, 0); p.GetLeaderEpoch() != 1 || p.GetLeader().GetIncarnation() != 11 || w.Image().Broker(1).GetFenced() {
		return fmt.Errorf("the broker was fenced: %v, %v", p, w.Image().Broker(1))
	}
	return nil
}

// A broker that falls silent is fenced when its lease has run out, and not
// before; when the same life answers again it comes back without a new vouch.
func TestSilentBrokerIsFencedAndComesBack(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	topic := m.create(w, m.controllers(w), "a", 1)
	b.silent.Store(true)
	for !w.Image().Broker(1).GetFenced() {
		image, changed := w.Watch()
		if image.Broker(1).GetFenced() && image.Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, 1) != nil {
			t.Fatal("fenced while its lease held")
		}
		select {
		case <-changed:
		case <-m.ctx().Done():
			t.Fatal("never fenced")
		}
	}
	if p := w.Image().Partition(topic.ID, 0); p.GetLeader() != nil {
		t.Errorf("it still leads: %v", p)
	}
	b.silent.Store(false)
	eventually(t, "it leads again in a higher epoch", func() bool {
		p := w.Image().Partition(topic.ID, 0)
		return !w.Image().Broker(1).GetFenced() && p.GetLeader().GetIncarnation() == 11 && p.GetLeaderEpoch() == 2
	})
}

func TestShardsMoveWithTheirCoordinator(t *testing.T) {
	m := newMesh(t)
	m.controller(1, func(c *Config) { c.OffsetsTopicNumPartitions = 6 })
	w := m.gateway()
	m.awaitUnfenced(w, m.broker(1, 11))
	kind := controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR
	one := m.fake(kind, 1, 101)
	m.fake(kind, 2, 201)
	admin := m.controllers(w)
	eventually(t, "both are registered", func() bool { return len(w.Image().Registrations(kind)) == 2 })
	resp, err := admin.EnsureInternalTopic(m.ctx(), &controllerv1.EnsureInternalTopicRequest{Name: "__consumer_offsets"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(m.ctx(), metadata.PositionOf(resp.GetPosition())); err != nil {
		t.Fatal(err)
	}
	count := func(incarnation uint64) (n int) {
		for _, p := range w.Image().TopicByName("__consumer_offsets").Partitions() {
			if p.GetShardOwner().GetIncarnation() == incarnation && p.GetShardEpoch() > 0 {
				n++
			}
		}
		return n
	}
	eventually(t, "the shards are balanced", func() bool { return count(101) == 3 && count(201) == 3 })
	one.kill()
	eventually(t, "the shards have moved", func() bool { return count(201) == 6 })
	again, err := admin.EnsureInternalTopic(m.ctx(), &controllerv1.EnsureInternalTopicRequest{Name: "__consumer_offsets"})
	if err != nil || string(again.GetTopicId()) != string(resp.GetTopicId()) {
		t.Errorf("ensured again: %v, %v", again, err)
	}
}

func TestDescribeClusterAndProducerIDs(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1, func(c *Config) { c.RetentionMs = "1234" })
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	admin := m.controllers(w)
	m.create(w, admin, "a", 2)
	d, err := admin.DescribeCluster(m.ctx(), &controllerv1.DescribeClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d.GetClusterId() == "" || d.GetTopics() != 1 || d.GetPartitions() != 2 || d.GetOfflinePartitions() != 0 || len(d.GetBrokers()) != 1 ||
		len(d.GetRegistrations()) != 2 || d.GetLeader().GetAddress() != c.Addr() || d.GetDefaultConfigs()["retention.ms"] != "1234" {
		t.Errorf("described: %v", d)
	}
	if w.Image().TopicByName("a").Config.RetentionMs != 1234 {
		t.Error("the mesh's default is not in force")
	}
	seen := map[int64]bool{}
	for range 3 {
		ids, err := admin.AllocateProducerIds(m.ctx(), &controllerv1.AllocateProducerIdsRequest{Process: b.process})
		if err != nil || ids.GetCount() < 1 || seen[ids.GetFirstProducerId()] {
			t.Fatalf("ids: %v, %v", ids, err)
		}
		seen[ids.GetFirstProducerId()] = true
	}
}

func TestMetrics(t *testing.T) {
	m := newMesh(t)
	registry := prometheus.NewRegistry()
	c := m.controllerWith(service.Deps{Logger: m.logger("controller"), Registry: registry}, 1)
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	m.create(w, m.controllers(w), "a", 3)
	b.kill()
	want := map[string]float64{"leading": 1, "topics": 1, "partitions": 3, "offline_partitions": 3, "fenced_brokers": 1, "brokers": 1}
	eventually(t, "the metrics tell it", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, f := range families {
			if v, ok := want[strings.TrimPrefix(f.GetName(), "leat_controller_")]; ok && f.GetMetric()[0].GetGauge().GetValue() == v {
				found++
			}
		}
		return found == len(want)
	})
	c.stop()
}

// Topics asked for before any broker is there are made once one is.
func TestCreateBeforeBrokers(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	admin := m.controllers(w)
	made := make(chan error, 1)
	go func() {
		resp, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{{Name: "early"}}})
		if e := rpc.FromProto(resp.GetResults()[0].GetError()); err == nil && e != nil {
			err = e
		}
		made <- err
	}()
	m.awaitUnfenced(w, m.broker(1, 11))
	if err := <-made; err != nil {
		t.Fatal(err)
	}
}
