package controller

import (
	"slices"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// strand creates a topic of one partition and kills every broker that is eligible to
// lead it. It returns the one that lives.
func strand(t *testing.T, m *mesh, w *metadata.Watcher, c *metadata.Controllers, configs map[string]string) *fake {
	t.Helper()
	three := m.three(w)
	brokers := three[:]
	resp, err := c.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{{Name: "a", Configs: configs}}})
	if err != nil || resp.GetResults()[0].GetError() != nil {
		t.Fatal(resp, err)
	}
	now := func() *controllerv1.Partition {
		topic := w.Image().TopicByName("a")
		if topic == nil {
			return nil
		}
		return topic.Partition(0)
	}
	eventually(t, "a is led", func() bool { return now().GetLeader() != nil })
	leader := leaderOf(brokers, now())
	eventually(t, "the leader sees its record", func() bool {
		return leader.record("a", 0).GetPartitionEpoch() > 0 && leader.record("a", 0).GetLeader() != nil
	})
	// The in-sync set shrinks to the leader and another; min is 2, so that the third
	// is not eligible. Then both die.
	others := slices.DeleteFunc(brokers, func(f *fake) bool { return f == leader })
	if _, err := leader.propose(c, leader.record("a", 0), leader.process, others[0].process); err != nil {
		t.Fatal(err)
	}
	others[0].kill()
	eventually(t, "the leader is alone", func() bool { return slices.Equal(now().GetIsr(), []int32{leader.process.GetId()}) })
	leader.kill()
	eventually(t, "nobody leads", func() bool { return now().GetLeader() == nil })
	if p := now(); !slices.Equal(p.GetIsr(), []int32{leader.process.GetId()}) || !slices.Equal(p.GetElr(), []int32{others[0].process.GetId()}) {
		t.Errorf("ISR and ELR changed with nobody live: %v", p)
	}
	return others[1]
}

func TestUncleanElectionByAnOperator(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1)
	w := m.gateway()
	admin := m.controllers(w)
	third := strand(t, m, w, admin, nil)
	if _, err := admin.ElectLeaders(m.ctx(), &controllerv1.ElectLeadersRequest{Type: controllerv1.ElectionType_ELECTION_TYPE_UNCLEAN}); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) {
		t.Errorf("unclean elections everywhere: %v", err)
	}
	resp, err := admin.ElectLeaders(m.ctx(), &controllerv1.ElectLeadersRequest{
		Type: controllerv1.ElectionType_ELECTION_TYPE_UNCLEAN, Partitions: []*controllerv1.PartitionName{{Topic: "a"}, {Topic: "b"}},
	})
	if err != nil || len(resp.GetResults()) != 2 || !resp.GetResults()[0].GetChanged() || resp.GetResults()[0].GetLeader() != third.process.GetId() ||
		resp.GetResults()[1].GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC {
		t.Fatalf("by name: %v, %v", resp, err)
	}
	eventually(t, "the third leads alone", func() bool {
		p := w.Image().TopicByName("a").Partition(0)
		return p.GetLeader().GetId() == third.process.GetId() && len(p.GetIsr()) == 1 && len(p.GetElr()) == 0
	})
	if n := c.loop.Counts().Elections["unclean"]; n != 1 {
		t.Errorf("%d unclean elections counted", n)
	}
}

// Where the topic allows it, an unclean election takes place by itself, once no
// earlier leader can commit on its own any more.
func TestUncleanElectionByConfig(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1, func(c *Config) { c.LeaseTTL = time.Second })
	w := m.gateway()
	third := strand(t, m, w, m.controllers(w), map[string]string{"unclean.leader.election.enable": "true"})
	eventually(t, "the third leads alone", func() bool {
		p := w.Image().TopicByName("a").Partition(0)
		return p.GetLeader().GetId() == third.process.GetId() && len(p.GetIsr()) == 1
	})
	eventually(t, "it is counted", func() bool { return c.loop.Counts().Elections["unclean"] == 1 })
}

// With durability=os, every replica's host went down: the longest leads once all have
// told what they lost, also if the controller that heard the first of them has died.
//
// They are fenced one after the other, in any order, and each but the last leaves the
// in-sync set by that. All three are needed, so that all three stay eligible.
func TestLongestLeadsAfterAPowerCut(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	m.leader(one)
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	resp, err := c.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{
		{Name: "a", Configs: map[string]string{"durability": "os", "min.insync.replicas": "3"}},
	}})
	if err != nil || resp.GetResults()[0].GetError() != nil {
		t.Fatal(resp, err)
	}
	now := func() *controllerv1.Partition { return w.Image().TopicByName("a").Partition(0) }
	eventually(t, "a is led", func() bool { return w.Image().TopicByName("a") != nil && now().GetLeader() != nil })
	for _, b := range brokers {
		b.silent.Store(true) // the host's power fails: nothing is refused
	}
	for _, b := range brokers {
		b.kill()
	}
	eventually(t, "nobody leads", func() bool { return now().GetLeader() == nil })
	members := slices.Sorted(slices.Values(slices.Concat(now().GetIsr(), now().GetElr())))
	if !slices.Equal(members, []int32{1, 2, 3}) {
		t.Fatalf("%v are waited for: %v", members, now())
	}
	vouch := func(end int64) *controllerv1.ReplicaVouch {
		return &controllerv1.ReplicaVouch{
			TopicId: resp.GetResults()[0].GetTopicId(), LastEpoch: 1, EndOffset: end, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_UNCLEAN_OS,
		}
	}
	first, second := m.broker(1, 12, vouch(5)), m.broker(2, 22, vouch(9))
	m.awaitUnfenced(w, first)
	m.awaitUnfenced(w, second)
	if p := now(); p.GetLeader() != nil {
		t.Fatalf("led before all have told: %v", p)
	}
	two := m.controller(2)
	<-two.Ready()
	one.kill()
	m.leader(two)
	m.awaitUnfenced(w, m.broker(3, 32, vouch(7)))
	eventually(t, "the longest leads", func() bool { return now().GetLeader().GetId() == 2 })
	eventually(t, "it is counted", func() bool { return two.loop.Counts().Elections["longest"] == 1 })
}
