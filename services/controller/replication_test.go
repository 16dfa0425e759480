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

// three starts three brokers, 1 to 3 under the incarnations 11, 21 and 31.
func (m *mesh) three(w *metadata.Watcher) [3]*fake {
	m.t.Helper()
	var brokers [3]*fake
	for i := range brokers {
		brokers[i] = m.broker(int32(i+1), uint64(i+1)*10+1)
	}
	for _, b := range brokers {
		m.awaitUnfenced(w, b)
	}
	return brokers
}

// record is a partition's record as a broker that holds it sees it.
func (f *fake) record(topic string, n int32) *controllerv1.Partition {
	t := f.watch.Image().TopicByName(topic)
	if t == nil {
		return nil
	}
	return t.Partition(n)
}

// propose has a broker, as leader, propose an in-sync set on the record that it sees.
func (f *fake) propose(c *metadata.Controllers, p *controllerv1.Partition, isr ...*typev1.Process) (*controllerv1.ProposeIsrResponse, error) {
	return f.proposeFor(patience, c, p, isr...)
}

func (f *fake) proposeFor(limit time.Duration, c *metadata.Controllers, p *controllerv1.Partition, isr ...*typev1.Process) (*controllerv1.ProposeIsrResponse, error) {
	return c.ProposeIsr(f.m.ctxFor(limit), &controllerv1.ProposeIsrRequest{
		Leader: f.process, TopicId: p.GetTopicId(), Partition: p.GetPartition(),
		LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: p.GetPartitionEpoch(), Isr: isr,
	})
}

// leaderOf finds the broker that leads a partition.
func leaderOf(brokers []*fake, p *controllerv1.Partition) *fake {
	for _, b := range brokers {
		if b.process.GetId() == p.GetLeader().GetId() {
			return b
		}
	}
	return nil
}

// A topic has its first leader when its replicas are made, and no sooner.
func TestFirstLeaderWaitsForFolders(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	for _, b := range brokers {
		b.lazy.Store(true)
	}
	admin := m.controllers(w)
	resp, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{{Name: "a"}}})
	if err != nil || resp.GetResults()[0].GetError() != nil || resp.GetResults()[0].GetReplicationFactor() != 3 {
		t.Fatalf("created with the defaults of a mesh of three: %v, %v", resp, err)
	}
	eventually(t, "the brokers and the gateway see it", func() bool {
		for _, b := range brokers {
			if p := b.record("a", 0); p.GetPartitionEpoch() == 0 || p.GetMinIsr() != 2 || len(p.GetIsr()) != 3 {
				return false
			}
		}
		return w.Image().TopicByName("a") != nil
	})
	if p := w.Image().TopicByName("a").Partition(0); p.GetLeader() != nil || p.GetLeaderEpoch() != 0 {
		t.Fatalf("led before any replica is made: %v", p)
	}
	// Two tell; the third never does: the first leader is one of the two, and the
	// third is not counted on.
	id := w.Image().TopicByName("a").ID
	made := &controllerv1.ReplicaVouch{TopicId: id.Bytes(), LastEpoch: -1, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT}
	for _, b := range brokers[:2] {
		if _, err := admin.ReportReplicas(m.ctx(), &controllerv1.ReportReplicasRequest{Broker: b.process, Vouches: []*controllerv1.ReplicaVouch{made}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "one that told leads", func() bool {
		p := w.Image().TopicByName("a").Partition(0)
		return p.GetLeader() != nil
	})
	p := w.Image().TopicByName("a").Partition(0)
	if p.GetLeader().GetId() == 3 || slices.Contains(p.GetIsr(), 3) || p.GetLeaderEpoch() != 1 {
		t.Errorf("elected: %v", p)
	}
	if _, err := admin.ReportReplicas(m.ctx(), &controllerv1.ReportReplicasRequest{
		Broker: &typev1.Process{Id: 1, Incarnation: 99}, Vouches: []*controllerv1.ReplicaVouch{made},
	}); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION) {
		t.Errorf("told by another life: %v", err)
	}
}

func TestProposals(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	m.leader(one)
	standby := m.controller(2)
	<-standby.Ready()
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	m.createReplicated(w, c, "a", 1, 3)
	led := func() (leader *fake, p *controllerv1.Partition) {
		eventually(t, "the leader sees its record", func() bool {
			leader = leaderOf(brokers[:], w.Image().TopicByName("a").Partition(0))
			p = leader.record("a", 0)
			return p.GetLeader().GetId() == leader.process.GetId() && p.GetPartitionEpoch() > 0
		})
		return leader, p
	}
	leader, p := led()
	others := slices.DeleteFunc(slices.Clone(brokers[:]), func(f *fake) bool { return f == leader })
	// Smaller, through a standby, which passes it on.
	conn, err := m.pool.Get(standby.Addr())
	if err != nil {
		t.Fatal(err)
	}
	small, err := controllerv1.NewControllerServiceClient(conn).ProposeIsr(m.ctx(), &controllerv1.ProposeIsrRequest{
		Leader: leader.process, TopicId: p.GetTopicId(), LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: p.GetPartitionEpoch(),
		Isr: []*typev1.Process{leader.process, {Id: others[0].process.GetId()}},
	})
	if err != nil || len(small.GetPartition().GetIsr()) != 2 || small.GetPartition().GetPartitionEpoch() != p.GetPartitionEpoch()+1 {
		t.Fatalf("smaller: %v, %v", small, err)
	}
	// The epochs of before are stale in every direction, and change nothing.
	for name, tc := range map[string]struct {
		change func(*controllerv1.ProposeIsrRequest)
		reason typev1.ErrorReason
	}{
		"partition epoch":  {func(*controllerv1.ProposeIsrRequest) {}, typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH},
		"leader epoch":     {func(r *controllerv1.ProposeIsrRequest) { r.LeaderEpoch-- }, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH},
		"a later epoch":    {func(r *controllerv1.ProposeIsrRequest) { r.LeaderEpoch++ }, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH},
		"another life":     {func(r *controllerv1.ProposeIsrRequest) { r.Leader = &typev1.Process{Id: r.Leader.Id, Incarnation: 9} }, typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION},
		"an unknown topic": {func(r *controllerv1.ProposeIsrRequest) { r.TopicId = make([]byte, 16); r.TopicId[3] = 7 }, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC},
	} {
		req := &controllerv1.ProposeIsrRequest{
			Leader: leader.process, TopicId: p.GetTopicId(), LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: p.GetPartitionEpoch(),
			Isr: []*typev1.Process{leader.process},
		}
		tc.change(req)
		if _, err := c.ProposeIsr(m.ctx(), req); !rpc.IsReason(err, tc.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Current epochs, and a member under an incarnation that is not on record: refused
	// with the same set under the next partition epoch, which settles the proposal.
	refused, err := leader.propose(c, small.GetPartition(), leader.process, others[0].process, &typev1.Process{Id: others[1].process.GetId(), Incarnation: 5})
	if err != nil || !slices.Equal(refused.GetPartition().GetIsr(), small.GetPartition().GetIsr()) ||
		refused.GetPartition().GetPartitionEpoch() != small.GetPartition().GetPartitionEpoch()+1 {
		t.Fatalf("refused: %v, %v", refused, err)
	}
	grown, err := leader.propose(c, refused.GetPartition(), leader.process, others[0].process, others[1].process)
	if err != nil || len(grown.GetPartition().GetIsr()) != 3 {
		t.Fatalf("grown: %v, %v", grown, err)
	}
	if n := one.loop.Counts(); n.ISRShrinks != 1 || n.ISRExpands != 1 {
		t.Errorf("counted: %+v", n)
	}
}

// One broker's death moves its leaderships, all of them, in a moment: leaderless
// partitions first, smaller in-sync sets after.
func TestManyLeadershipsMoveAtOnce(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	admin := m.controllers(w)
	begun := time.Now()
	partitions, replicas := int32(widePartitions), int32(3)
	resp, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{
		{Name: "wide", Partitions: &partitions, ReplicationFactor: &replicas},
	}})
	if err != nil || resp.GetResults()[0].GetError() != nil {
		t.Fatal(resp, err)
	}
	created := time.Since(begun)
	count := func(check func(*controllerv1.Partition) bool) int {
		topic := w.Image().TopicByName("wide")
		if topic == nil {
			return 0
		}
		n := 0
		for _, p := range topic.Partitions() {
			if check(p) {
				n++
			}
		}
		return n
	}
	eventually(t, "every partition is led", func() bool {
		return count(func(p *controllerv1.Partition) bool { return p.GetLeader() != nil }) == widePartitions
	})
	elected := time.Since(begun)
	mine := count(func(p *controllerv1.Partition) bool { return p.GetLeader().GetId() == 1 })
	if mine < widePartitions/5 {
		t.Fatalf("broker 1 leads %d", mine)
	}
	before := c.loop.Counts()
	begun = time.Now()
	brokers[0].kill()
	killed := time.Since(begun)
	eventually(t, "broker 1 is fenced", func() bool { return w.Image().Broker(1).GetFenced() })
	fenced := time.Since(begun)
	eventually(t, "it leads nothing", func() bool {
		return count(func(p *controllerv1.Partition) bool { return p.GetLeader() == nil || p.GetLeader().GetId() == 1 }) == 0
	})
	moved := time.Since(begun)
	eventually(t, "it is in no in-sync set", func() bool {
		return count(func(p *controllerv1.Partition) bool { return slices.Contains(p.GetIsr(), 1) }) == 0
	})
	t.Logf("created in %v, all led after %v; killed in %v, fenced after %v, %d leaderships moved after %v, all in-sync sets smaller after %v",
		created, elected, killed, fenced, mine, moved, time.Since(begun))
	eventually(t, "it is counted", func() bool {
		after := c.loop.Counts()
		return after.Elections["isr"]-before.Elections["isr"] == int64(mine) && after.ISRShrinks-before.ISRShrinks == widePartitions && after.Fencings == 1
	})
	// It comes back and catches up everywhere: a proposal for each partition.
	var whole []*controllerv1.ReplicaVouch
	id := w.Image().TopicByName("wide").ID
	for n := range partitions {
		whole = append(whole, &controllerv1.ReplicaVouch{TopicId: id.Bytes(), Partition: n, LastEpoch: 1, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT})
	}
	back := m.broker(1, 12, whole...)
	m.awaitUnfenced(w, back)
	begun = time.Now()
	growAll(t, w, admin, "wide", brokers[1:], back)
	t.Logf("%d proposals answered after %v", partitions, time.Since(begun))
	if n := count(func(p *controllerv1.Partition) bool { return p.GetLeader() == nil }); n != 0 {
		t.Errorf("%d partitions without a leader", n)
	}
}

// An internal topic that was made with one broker gets its replicas as others come,
// and needs more of them in sync once they are.
func TestInternalTopicIsRaised(t *testing.T) {
	m := newMesh(t)
	m.controller(1, func(c *Config) { c.OffsetsTopicNumPartitions = 4 })
	w := m.gateway()
	one := m.broker(1, 11)
	m.awaitUnfenced(w, one)
	c := m.controllers(w)
	if _, err := c.EnsureInternalTopic(m.ctx(), &controllerv1.EnsureInternalTopicRequest{Name: "__consumer_offsets"}); err != nil {
		t.Fatal(err)
	}
	all := func(check func(*controllerv1.Partition) bool) bool {
		topic := w.Image().TopicByName("__consumer_offsets")
		return topic != nil && topic.NumPartitions() == 4 &&
			!slices.ContainsFunc(topic.Partitions(), func(p *controllerv1.Partition) bool { return !check(p) })
	}
	eventually(t, "it is led by the one there is", func() bool {
		return all(func(p *controllerv1.Partition) bool { return p.GetLeader().GetId() == 1 && len(p.GetReplicas()) == 1 })
	})
	two, three := m.broker(2, 21), m.broker(3, 31)
	eventually(t, "every partition has three replicas", func() bool {
		return all(func(p *controllerv1.Partition) bool {
			return p.GetLeader().GetId() == 1 && len(p.GetReplicas()) == 3 && len(p.GetIsr()) == 1
		})
	})
	if p := one.record("__consumer_offsets", 0); p.GetMinIsr() != 1 {
		t.Errorf("it needs %d before they are in sync", p.GetMinIsr())
	}
	for _, back := range []*fake{two, three} {
		eventually(t, "broker 1 sees the newcomer", func() bool {
			p := one.record("__consumer_offsets", 3)
			return len(p.GetReplicas()) == 3 && !one.watch.Image().Broker(back.process.GetId()).GetFenced() && one.watch.Image().Broker(back.process.GetId()) != nil
		})
	}
	for n := range int32(4) {
		eventually(t, "all three are in sync", func() bool {
			_, err := one.propose(c, one.record("__consumer_offsets", n), one.process, two.process, three.process)
			return err == nil && len(w.Image().TopicByName("__consumer_offsets").Partition(n).GetIsr()) == 3
		})
	}
	eventually(t, "it needs two in sync", func() bool {
		for n := range int32(4) {
			if two.record("__consumer_offsets", n).GetMinIsr() != 2 {
				return false
			}
		}
		return true
	})
}

// The controller that leads and a broker die at once: the next one has its verdict
// ready.
func TestControllerAndBrokerDieTogether(t *testing.T) {
	m := newMesh(t)
	long := func(c *Config) { c.LeaseTTL = 10 * time.Minute }
	one := m.controller(1, long)
	m.leader(one)
	two := m.controller(2, long)
	<-two.Ready()
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 3, 3)
	begun := time.Now()
	one.kill()
	brokers[0].kill()
	eventually(t, "every partition is led by another broker", func() bool {
		if !two.IsLeading() || !w.Image().Broker(1).GetFenced() {
			return false
		}
		for n := range int32(3) {
			if p := w.Image().Partition(topic.ID, n); p.GetLeader() == nil || p.GetLeader().GetId() == 1 {
				return false
			}
		}
		return true
	})
	t.Logf("led again after %v", time.Since(begun))
}
