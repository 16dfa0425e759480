package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// A process that is killed is fenced long before its lease runs out.
func TestKilledBrokerIsFencedAtOnce(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 3, 3)
	lease := brokers[0].reg.Revision()
	begun := time.Now()
	brokers[0].kill()
	for !w.Image().Broker(1).GetFenced() {
		image, changed := w.Watch()
		if image.Broker(1).GetFenced() {
			break
		}
		if r := image.Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, 1); r == nil {
			t.Fatal("its registration went before it was fenced: it was the lease that told")
		}
		select {
		case <-changed:
		case <-m.ctx().Done():
			t.Fatal("never fenced")
		}
	}
	t.Logf("fenced after %v", time.Since(begun))
	eventually(t, "it leads nothing", func() bool {
		for n := range int32(3) {
			if p := w.Image().Partition(topic.ID, n); p.GetLeader() == nil || p.GetLeader().GetId() == 1 || slices.Contains(p.GetIsr(), 1) {
				return false
			}
		}
		return w.Image().Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, 1).GetRevision() != lease
	})
}

// A broker whose disk hangs answers, and is replaced all the same once its key goes.
func TestBadDisksDoNotCount(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 3, 3)
	brokers[0].badDisks.Store(true)
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
	eventually(t, "it leads nothing", func() bool {
		for n := range int32(3) {
			if p := w.Image().Partition(topic.ID, n); p.GetLeader() == nil || p.GetLeader().GetId() == 1 {
				return false
			}
		}
		return true
	})
	brokers[0].badDisks.Store(false)
	eventually(t, "it is unfenced when its disks answer again", func() bool { return !w.Image().Broker(1).GetFenced() })
}

// case 39: every lease is revoked at once, as an etcd that comes back after a stall
// may do: the processes register again, nobody is fenced, and no leader moves.
func TestAllLeasesRevokedAtOnce(t *testing.T) {
	undisturbed(t, func(m *mesh) error { return loseAllLeases(t, m) })
}

func loseAllLeases(t *testing.T, m *mesh) error {
	c := m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 6, 3)
	var first []int64
	for _, b := range brokers {
		first = append(first, b.reg.Revision())
	}
	m.revokeAll(c)
	for i, b := range brokers {
		eventually(t, "the broker is registered anew", func() bool { return b.reg.Revision() > first[i] })
	}
	eventually(t, "a controller leads", c.IsLeading)
	m.create(w, m.controllers(w), "b", 1)
	for n := range int32(6) {
		if p := w.Image().Partition(topic.ID, n); p.GetLeaderEpoch() != 1 || len(p.GetIsr()) != 3 {
			return fmt.Errorf("partition %d moved: %v", n, p)
		}
	}
	for _, b := range w.Image().Brokers() {
		if b.GetFenced() {
			return fmt.Errorf("fenced: %v", b)
		}
	}
	return nil
}

// case 34: what an earlier life of a broker still says changes nothing.
func TestEarlierLifesWordIsRefused(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	topic := m.createReplicated(w, c, "a", 3, 3)
	var n int32
	for n = range topic.NumPartitions() {
		if topic.Partition(n).GetLeader().GetId() == 1 {
			break
		}
	}
	old := brokers[0].process
	eventually(t, "the broker sees its record", func() bool { return brokers[0].record("a", n).GetLeader().GetId() == 1 })
	p := brokers[0].record("a", n)
	brokers[0].kill()
	var whole []*controllerv1.ReplicaVouch
	for i := range topic.NumPartitions() {
		whole = append(whole, &controllerv1.ReplicaVouch{TopicId: topic.ID.Bytes(), Partition: i, LastEpoch: 1, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT})
	}
	m.awaitUnfenced(w, m.broker(1, 12, whole...))
	// Delayed commands of the life before.
	stale := typev1.ErrorReason_ERROR_REASON_STALE_INCARNATION
	if _, err := c.RegisterBroker(m.ctx(), &controllerv1.RegisterBrokerRequest{
		Handshake: rpc.LocalHandshake(), Broker: old, Address: brokers[0].addr,
	}); !rpc.IsReason(err, stale) {
		t.Errorf("its registration: %v", err)
	}
	bad := &controllerv1.ReplicaVouch{TopicId: topic.ID.Bytes(), Partition: n, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT}
	if _, err := c.ReportReplicas(m.ctx(), &controllerv1.ReportReplicasRequest{Broker: old, Vouches: []*controllerv1.ReplicaVouch{bad}}); !rpc.IsReason(err, stale) {
		t.Errorf("its report: %v", err)
	}
	if _, err := c.ConfirmDeletion(m.ctx(), &controllerv1.ConfirmDeletionRequest{Broker: old, TopicIds: [][]byte{topic.ID.Bytes()}}); !rpc.IsReason(err, stale) {
		t.Errorf("its confirmation: %v", err)
	}
	before := w.Image().Partition(topic.ID, n)
	if _, err := brokers[0].propose(c, p, old); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH) {
		t.Errorf("its proposal: %v", err)
	}
	// Epochs that are current do not help it.
	eventually(t, "another broker has seen the return", func() bool {
		return !brokers[1].watch.Image().Position().Before(w.Image().Position())
	})
	now := brokers[1].record("a", n)
	if _, err := brokers[0].propose(c, now, old); !rpc.IsReason(err, stale, typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH) {
		t.Errorf("its proposal under current epochs: %v", err)
	}
	resp, err := c.RequestLeave(m.ctx(), &controllerv1.RequestLeaveRequest{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: old, Deadline: durationpb.New(time.Second),
	})
	if w.Image().Broker(1).GetFenced() {
		t.Errorf("its leave fenced the present life: %v, %v", resp, err)
	}
	if after := w.Image().Partition(topic.ID, n); after.GetLeaderEpoch() != before.GetLeaderEpoch() || !slices.Equal(after.GetIsr(), before.GetIsr()) {
		t.Errorf("it changed %v to %v", before, after)
	}
}

// A leader that all its followers miss for a second is replaced, although it answers
// the controller.
func TestUnreachableLeaderIsReplaced(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 3, 3)
	leads := func(id int32) (n int) {
		for _, p := range w.Image().TopicByName("a").Partitions() {
			if p.GetLeader().GetId() == id {
				n++
			}
		}
		return n
	}
	if leads(1) != 1 {
		t.Fatalf("broker 1 leads %d", leads(1))
	}
	before := w.Image().TopicByName("a").Partitions()
	// One of two followers is not enough.
	brokers[1].reportUnreachable(1)
	heard := brokers[1].answers.Load() + 5
	eventually(t, "the report is heard", func() bool { return brokers[1].answers.Load() >= heard })
	if leads(1) != 1 {
		t.Error("one follower's word replaced a leader")
	}
	brokers[2].reportUnreachable(1)
	eventually(t, "broker 1 leads nothing", func() bool { return leads(1) == 0 })
	for n, p := range w.Image().TopicByName("a").Partitions() {
		// Where it led it leaves the in-sync set, so that commits do not wait for it;
		// elsewhere nothing is known against it.
		if led := before[n].GetLeader().GetId() == 1; slices.Contains(before[n].GetIsr(), 1) && slices.Contains(p.GetIsr(), 1) == led {
			t.Errorf("from %v to %v", before[n], p)
		}
	}
	if w.Image().Broker(1).GetFenced() || w.Image().Partition(topic.ID, 0).GetLeader() == nil {
		t.Error("it was fenced")
	}
}

// Leave moves leadership in the transaction that fences, needs enough members that
// answer, and two of them come one after the other.
func TestLeaveKeepsEnoughMembers(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	topic := m.createReplicated(w, c, "a", 3, 3) // min.insync.replicas is 2
	leave := func(f *fake, decommission bool) *controllerv1.RequestLeaveResponse {
		t.Helper()
		f.leaving.Store(true)
		resp, err := c.RequestLeave(m.ctx(), &controllerv1.RequestLeaveRequest{
			Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: f.process, Deadline: durationpb.New(time.Second), Decommission: decommission,
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	// A member that does not answer is not counted on, although its lease holds.
	brokers[2].deaf.Store(true)
	resp := leave(brokers[0], false)
	if resp.GetGranted() || len(resp.GetBlockers()) != 3 || resp.GetBlockers()[0].GetTopic() != "a" || resp.GetBlockers()[0].GetError().GetMessage() == "" {
		t.Fatalf("with a silent member: %v", resp)
	}
	if w.Image().Broker(1).GetFenced() {
		t.Error("it was fenced")
	}
	brokers[2].deaf.Store(false)
	// Both of them ask at once, and again where the others did not answer in time.
	atOnce := func(fs ...*fake) (one, two *controllerv1.RequestLeaveResponse) {
		results := make(chan *controllerv1.RequestLeaveResponse, 2)
		for _, f := range fs {
			go func() { results <- leave(f, false) }()
		}
		return <-results, <-results
	}
	eventually(t, "one of two drains at once is granted", func() bool {
		one, two := atOnce(brokers[0], brokers[1])
		if one.GetGranted() && two.GetGranted() {
			t.Fatalf("of two drains at once: %v, %v", one, two)
		}
		return one.GetGranted() || two.GetGranted()
	})
	var left int32
	eventually(t, "one of them is fenced and leads nothing", func() bool {
		for _, b := range w.Image().Brokers() {
			if b.GetFenced() && b.GetDraining() {
				left = b.GetBroker().GetId()
			}
		}
		return left != 0
	})
	for n := range int32(3) {
		if p := w.Image().Partition(topic.ID, n); p.GetLeader() == nil || p.GetLeader().GetId() == left || slices.Contains(p.GetIsr(), left) || len(p.GetIsr()) != 2 {
			t.Errorf("partition %d after the leave of broker %d: %v", n, left, p)
		}
	}
	// Where those that are left ask, too, there is nothing to wait for.
	rest := slices.DeleteFunc(slices.Clone(brokers[:]), func(f *fake) bool { return f.process.GetId() == left })
	eventually(t, "they are told that every broker leaves", func() bool {
		one, two := atOnce(rest...)
		if one.GetGranted() || two.GetGranted() {
			t.Fatalf("where every broker leaves: %v, %v", one, two)
		}
		return one.GetAllLeaving() || two.GetAllLeaving()
	})
}

// case 33: a preferred leader that comes back leads again once it is in sync, and a
// batch at a time.
func TestPreferredLeadersComeBack(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1, func(c *Config) { c.LeaderImbalanceCheckIntervalSeconds = 1 })
	w := m.gateway()
	brokers := m.three(w)
	admin := m.controllers(w)
	const partitions = 360
	topic := m.createReplicated(w, admin, "a", partitions, 3)
	count := func(check func(*controllerv1.Partition) bool) (n int) {
		for _, p := range w.Image().TopicByName("a").Partitions() {
			if check(p) {
				n++
			}
		}
		return n
	}
	leads := func(p *controllerv1.Partition) bool { return p.GetLeader().GetId() == 1 }
	preferred := count(func(p *controllerv1.Partition) bool { return p.GetReplicas()[0] == 1 })
	if count(leads) != preferred || preferred != partitions/3 {
		t.Fatalf("broker 1 leads %d and is preferred for %d", count(leads), preferred)
	}
	brokers[0].kill()
	eventually(t, "broker 1 leads nothing and is out of sync", func() bool {
		return count(func(p *controllerv1.Partition) bool {
			return p.GetLeader() == nil || leads(p) || slices.Contains(p.GetIsr(), 1)
		}) == 0
	})
	var whole []*controllerv1.ReplicaVouch
	for n := range int32(partitions) {
		whole = append(whole, &controllerv1.ReplicaVouch{TopicId: topic.ID.Bytes(), Partition: n, LastEpoch: 1, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT})
	}
	back := m.broker(1, 12, whole...)
	m.awaitUnfenced(w, back)
	if n := count(leads); n != 0 {
		t.Errorf("it leads %d before it is in sync", n)
	}
	before := c.loop.Counts().Elections["preferred"]
	if before != 0 {
		t.Errorf("%d preferred leaders elected before it is in sync", before)
	}
	growAll(t, w, admin, "a", brokers[1:], back)
	eventually(t, "the first of them are led by it", func() bool { return count(leads) > 0 })
	eventually(t, "it leads again what it is preferred for", func() bool { return count(leads) == preferred })
	eventually(t, "they are counted", func() bool { return c.loop.Counts().Elections["preferred"] == int64(preferred) })
}

// growAll has every leader propose that a follower is in sync again.
func growAll(t *testing.T, w *metadata.Watcher, c *metadata.Controllers, topic string, leaders []*fake, back *fake) {
	t.Helper()
	lives := map[int32]*typev1.Process{back.process.GetId(): back.process}
	for _, f := range leaders {
		lives[f.process.GetId()] = f.process
	}
	errs := make(chan error, 10_000)
	n := 0
	for _, f := range leaders {
		eventually(t, "the leader has seen the return", func() bool {
			return !f.watch.Image().Position().Before(w.Image().Position())
		})
		for _, p := range f.watch.Image().TopicByName(topic).Partitions() {
			if p.GetLeader().GetId() != f.process.GetId() {
				continue
			}
			var isr []*typev1.Process
			for _, id := range p.GetReplicas() {
				isr = append(isr, lives[id])
			}
			n++
			go func() {
				// Thousands of them wait for each other.
				_, err := f.proposeFor(4*patience, c, p, isr...)
				errs <- err
			}()
		}
	}
	for range n {
		// Stale: it was tried again, because the answer to the first attempt was late.
		if err := <-errs; err != nil && !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_PARTITION_EPOCH) {
			t.Error(err)
		}
	}
}
