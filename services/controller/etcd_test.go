package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// No producer id is handed out twice, whatever becomes of the transactions that
// etcd's absence and the change of controllers leave unknown.
func TestProducerIDsAreNeverHandedOutTwice(t *testing.T) {
	m := newMesh(t)
	one, two := m.controller(1), m.controller(2)
	w := m.gateway()
	broker := m.broker(1, 11)
	m.awaitUnfenced(w, broker)
	c := m.controllers(w)
	var mu sync.Mutex
	var blocks []*controllerv1.AllocateProducerIdsResponse
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				block, err := c.AllocateProducerIds(m.ctx(), &controllerv1.AllocateProducerIdsRequest{Process: broker.process})
				if err != nil {
					continue // etcd was away for long; nothing was handed out
				}
				mu.Lock()
				blocks = append(blocks, block)
				mu.Unlock()
			}
		})
	}
	more := func(what string) {
		t.Helper()
		mu.Lock()
		n := len(blocks)
		mu.Unlock()
		eventually(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(blocks) > n+50
		})
	}
	more("blocks are handed out")
	for range 2 {
		m.etcd.Stop()
		m.etcd.Restart()
		more("blocks are handed out again")
	}
	m.leader(one, two).kill()
	more("blocks are handed out by the next controller")
	close(stop)
	wg.Wait()
	slices.SortFunc(blocks, func(a, b *controllerv1.AllocateProducerIdsResponse) int {
		return int(a.GetFirstProducerId() - b.GetFirstProducerId())
	})
	for i, b := range blocks {
		if b.GetFirstProducerId()>>40 != 1 || b.GetCount() < 1 {
			t.Errorf("block %v is not of generation 1", b)
		}
		if i > 0 && b.GetFirstProducerId() < blocks[i-1].GetFirstProducerId()+int64(blocks[i-1].GetCount()) {
			t.Errorf("blocks %v and %v overlap", blocks[i-1], b)
		}
	}
}

// case 38: with etcd away nothing moves and what needs it says so; when it is back,
// what happened meanwhile is seen to, and nothing else.
func TestEtcdAwayWhileABrokerDies(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	m.controller(2)
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	topic := m.createReplicated(w, c, "a", 6, 3)
	before := map[int32]*controllerv1.Partition{}
	for n := range int32(6) {
		before[n] = w.Image().Partition(topic.ID, n)
	}
	m.etcd.Stop()
	brokers[0].kill()
	// Longer than any lease.
	past := time.NewTimer(fakeTTL + 2*time.Second)
	defer past.Stop()
	leader := brokers[1].process
	eventually(t, "a proposal is refused by name", func() bool {
		_, err := c.ProposeIsr(m.ctxFor(3*time.Second), &controllerv1.ProposeIsrRequest{
			Leader: leader, TopicId: topic.ID.Bytes(), LeaderEpoch: 1, PartitionEpoch: 99, Isr: []*typev1.Process{leader},
		})
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE)
	})
	<-past.C
	for n, p := range before {
		if now := w.Image().Partition(topic.ID, n); now.GetLeader().GetId() != p.GetLeader().GetId() || now.GetLeaderEpoch() != p.GetLeaderEpoch() || len(now.GetIsr()) != 3 {
			t.Errorf("partition %d moved with etcd away: %v", n, now)
		}
	}
	m.etcd.Restart()
	begun := time.Now()
	eventually(t, "the dead broker leads nothing", func() bool {
		for n := range int32(6) {
			if p := w.Image().Partition(topic.ID, n); p.GetLeader() == nil || p.GetLeader().GetId() == 1 || slices.Contains(p.GetIsr(), 1) {
				return false
			}
		}
		return true
	})
	t.Logf("in order %v after etcd was back", time.Since(begun))
	for n, p := range before {
		if now := w.Image().Partition(topic.ID, n); p.GetLeader().GetId() != 1 && (now.GetLeaderEpoch() != p.GetLeaderEpoch() || len(now.GetIsr()) != 2) {
			t.Errorf("partition %d of a living leader moved from %v to %v", n, p, now)
		}
	}
	for _, b := range w.Image().Brokers() {
		if b.GetFenced() != (b.GetBroker().GetId() == 1) {
			t.Errorf("fenced: %v", b)
		}
	}
}

// etcd goes back in time: whoever has seen more refuses, and is refused.
func TestRegressedMetadataIsRefused(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	brokers := m.three(w)
	c := m.controllers(w)
	topic := m.createReplicated(w, c, "a", 1, 3)
	if w.Image().EtcdClusterID() == 0 {
		t.Error("the stream does not tell the etcd cluster")
	}
	revision := brokers[0].reg.Revision()
	regressed := typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED
	for name, change := range map[string]func(*controllerv1.RegisterBrokerRequest){
		"a later revision": func(r *controllerv1.RegisterBrokerRequest) {
			r.HighestPosition = &controllerv1.Position{Generation: 1, Revision: 1 << 40}
		},
		"a later generation": func(r *controllerv1.RegisterBrokerRequest) {
			r.HighestPosition = &controllerv1.Position{Generation: 2, Revision: 1}
		},
		"a later leader epoch": func(r *controllerv1.RegisterBrokerRequest) {
			r.Vouches = []*controllerv1.ReplicaVouch{{TopicId: topic.ID.Bytes(), LastEpoch: 7, Verdict: controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT}}
		},
	} {
		req := &controllerv1.RegisterBrokerRequest{Handshake: rpc.LocalHandshake(), Broker: brokers[0].process, Address: brokers[0].addr, RegistrationRevision: revision}
		change(req)
		if _, err := c.RegisterBroker(m.ctx(), req); !rpc.IsReason(err, regressed) || !strings.Contains(err.Error(), "restore") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A process whose earlier life followed another etcd of the same generation.
	other := metadata.NewWatcher(metadata.Options{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: &typev1.Process{Id: 9, Incarnation: 9}, Pool: m.pool, Logger: m.logger("other"),
		Discover: m.discover(), Generation: 1, EtcdClusterID: w.Image().EtcdClusterID() + 1,
	})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- other.Run(ctx) }()
	eventually(t, "it refuses", func() bool { return rpc.IsReason(other.Regressed(), regressed) })
	if other.Image().Position().Generation != 0 {
		t.Error("it shows an image all the same")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the watcher ended with %v", err)
	}
}

// A controller that is cut off from the brokers gives way to one that is not,
// instead of fencing them.
func TestLeaderThatReachesNobodyGivesWay(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	m.leader(one)
	two := m.controller(2)
	<-two.Ready()
	w := m.gateway()
	brokers := m.three(w)
	topic := m.createReplicated(w, m.controllers(w), "a", 3, 3)
	// Their leases run out, and the leader hears nothing of them.
	for _, b := range brokers {
		b.deafTo.Store(1)
		b.unregistered.Store(true)
	}
	eventually(t, "the standby leads", two.IsLeading)
	for _, b := range brokers {
		b.unregistered.Store(false)
	}
	eventually(t, "they are registered again", func() bool {
		return !slices.ContainsFunc(brokers[:], func(b *fake) bool { return b.reg.Revision() == 0 })
	})
	for n := range int32(3) {
		if p := w.Image().Partition(topic.ID, n); p.GetLeaderEpoch() != 1 || len(p.GetIsr()) != 3 {
			t.Errorf("partition %d moved: %v", n, p)
		}
	}
	if n := one.loop.Counts().Fencings + two.loop.Counts().Fencings; n != 0 {
		t.Errorf("%d brokers fenced", n)
	}
	if one.IsLeading() {
		t.Error("both lead")
	}
}

// etcd is put back to an earlier state under a running mesh: controllers stop, and
// whoever has seen more refuses what their successors tell.
func TestEtcdRestoredUnderARunningMesh(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	w := m.gateway()
	broker := m.broker(1, 11)
	m.awaitUnfenced(w, broker)
	c := m.controllers(w)
	m.create(w, c, "before", 1)
	backup := m.etcd.Backup()
	for i := range 30 { // more than the next controller writes by itself
		m.create(w, c, fmt.Sprintf("after-%d", i), 1)
	}
	m.etcd.GoBack(backup)
	seen := w.Image().Position()
	eventually(t, "the controller stops", func() bool {
		select {
		case <-one.ended:
			return true
		default:
			return false
		}
	})
	regressed := typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED
	if !rpc.IsReason(one.err, regressed) {
		t.Errorf("the controller ended with %v", one.err)
	}
	two := m.controller(2)
	m.leader(two)
	eventually(t, "the watcher refuses it", func() bool { return rpc.IsReason(w.Regressed(), regressed) })
	if w.Image().Position().Before(seen) || w.Image().TopicByName("after-29") == nil {
		t.Errorf("it shows %v after %v", w.Image().Position(), seen)
	}
	req := &controllerv1.RegisterBrokerRequest{
		Handshake: rpc.LocalHandshake(), Broker: broker.process, Address: broker.addr, HighestPosition: seen.Proto(),
	}
	conn, err := m.pool.Get(two.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := controllerv1.NewControllerServiceClient(conn).RegisterBroker(m.ctx(), req); !rpc.IsReason(err, regressed) {
		t.Errorf("a registration: %v", err)
	}
}
