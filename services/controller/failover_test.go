package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
	"github.com/leat-io/leat/services/controller/internal/store"
)

func TestKilledLeaderIsReplaced(t *testing.T) {
	m := newMesh(t)
	// A lease far longer than the test's patience: only the refused dials can
	// bring another leader.
	long := func(c *Config) { c.LeaseTTL = 10 * time.Minute }
	all := []*proc{m.controller(1, long), m.controller(2, long), m.controller(3, long)}
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	admin := m.controllers(w)
	m.create(w, admin, "before", 1)
	old := m.leader(all...)
	election := w.Image().ControllerLeader().GetElectionRevision()
	begun := time.Now()
	old.kill()
	var rest []*proc
	for _, p := range all {
		if p != old {
			rest = append(rest, p)
		}
	}
	m.leader(rest...)
	t.Logf("replaced after %v", time.Since(begun))
	m.create(w, admin, "after", 1)
	if got := w.Image().ControllerLeader().GetElectionRevision(); got <= election {
		t.Errorf("election revision %d after %d", got, election)
	}
	if w.Image().TopicByName("before") == nil {
		t.Error("a topic is gone")
	}
	if p := w.Image().TopicByName("before").Partition(0); p.GetLeaderEpoch() != 1 {
		t.Errorf("the change of controllers moved a leader: %v", p)
	}
}

// A request whose answer was lost with its controller is recognised by the next
// one.
func TestRepeatedAtAnotherController(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	m.leader(one)
	w := m.gateway()
	m.awaitUnfenced(w, m.broker(1, 11))
	admin := m.controllers(w)
	req := &controllerv1.CreateTopicsRequest{RequestId: "r", Topics: []*controllerv1.NewTopic{{Name: "a", Partitions: proto32(2)}}}
	first, err := admin.CreateTopics(m.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	two := m.controller(2)
	<-two.Ready()
	one.kill()
	m.leader(two)
	again, err := admin.CreateTopics(m.ctx(), req)
	if err != nil || again.GetResults()[0].GetError() != nil || again.GetResults()[0].GetPartitions() != 2 ||
		string(again.GetResults()[0].GetTopicId()) != string(first.GetResults()[0].GetTopicId()) {
		t.Fatalf("repeated: %v, %v", again, err)
	}
	// Another request for the same name is another matter, and so is the same id
	// after the topic's deletion.
	other, err := admin.CreateTopics(m.ctx(), &controllerv1.CreateTopicsRequest{RequestId: "s", Topics: req.GetTopics()})
	if err != nil || other.GetResults()[0].GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_TOPIC_EXISTS {
		t.Errorf("another request: %v, %v", other, err)
	}
	if _, err := admin.DeleteTopics(m.ctx(), &controllerv1.DeleteTopicsRequest{Topics: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	three := m.controller(3) // it remembers nothing
	<-three.Ready()
	two.kill()
	m.leader(three)
	anew, err := admin.CreateTopics(m.ctx(), req)
	if err != nil || anew.GetResults()[0].GetError() != nil || string(anew.GetResults()[0].GetTopicId()) == string(first.GetResults()[0].GetTopicId()) {
		t.Errorf("the next topic of the name: %v, %v", anew, err)
	}
}

func TestWatcherChangesController(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	m.leader(one)
	w := m.gateway()
	eventually(t, "a first image", func() bool { return w.Image().Position().Generation == 1 })
	two := m.controller(2)
	eventually(t, "the second is known", func() bool {
		return len(w.Image().Registrations(controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER)) == 2
	})
	before := w.Image().Position()
	one.kill()
	m.leader(two)
	eventually(t, "the image follows the second", func() bool {
		return w.Image().ControllerLeader().GetController().GetId() == 2 && before.Before(w.Image().Position())
	})
}

func TestStandbySaysWhoLeads(t *testing.T) {
	m := newMesh(t)
	leader := m.controller(1)
	m.leader(leader)
	standby := m.controller(2)
	<-standby.Ready()
	conn, err := m.pool.Get(standby.Addr())
	if err != nil {
		t.Fatal(err)
	}
	_, err = controllerv1.NewAdminServiceClient(conn).DescribeCluster(m.ctx(), &controllerv1.DescribeClusterRequest{})
	e := rpc.FromError(err)
	if e == nil || e.Reason != typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER || e.Leader.GetAddress() != leader.Addr() || e.Leader.GetId() != 1 {
		t.Fatalf("got %v with hint %v", err, e.Leader)
	}
}

// case 35: a leader that is stopped between deciding and writing, past its
// election, fails to write when it goes on.
func TestDeposedLeaderCannotWrite(t *testing.T) {
	m := newMesh(t)
	old := m.controller(1)
	m.leader(old)
	stopped, goOn := make(chan struct{}), make(chan struct{})
	late := make(chan error, 1)
	go func() {
		_, err := old.loop.Do(m.ctx(), reconcile.Command{Name: "late", Plan: func(state *cluster.State, _ int) (cluster.Plan, error) {
			close(stopped)
			<-goOn // what it has decided on is what it knew then
			plan, _, err := cluster.AllocateProducerIDs(state)
			return plan, err
		}})
		late <- err
	}()
	<-stopped
	// Its lease runs out, and another one is elected.
	if _, err := old.etcd.Delete(m.ctx(), "/leat/election"); err != nil {
		t.Fatal(err)
	}
	m.leader(m.controller(2))
	close(goOn)
	err := <-late
	e := rpc.FromError(err)
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_NOT_CONTROLLER, typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE) ||
		e.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
		t.Errorf("the late write: %v", err)
	}
	got, err := old.etcd.Get(m.ctx(), "/leat/producer-ids")
	if err != nil || len(got.Kvs) != 0 {
		t.Errorf("it took place: %v, %v", got, err)
	}
	if old.IsLeading() {
		t.Error("it still takes itself for the leader")
	}
}

// case 37: what was missed beyond a compaction is found by a list and a
// comparison, without a hot loop.
func TestCompactionWhileCutOff(t *testing.T) {
	m := newMesh(t)
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("etcd"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	keys := registry.NewKeys("/leat")
	put := func(id int32) int64 {
		t.Helper()
		v, err := proto.Marshal(&storagev1.BrokerRecord{FormatVersion: 1, Broker: &storagev1.ProcessRef{Id: id, Incarnation: 1}})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Put(m.ctx(), keys.Broker(id), string(v))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	put(1)
	put(2)
	run := func(s *store.Store, until int64) {
		t.Helper()
		ctx, cancel := context.WithCancel(m.ctx())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		if err := s.WaitRevision(ctx, until); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	s := store.New(client, keys, m.logger("store"))
	run(s, put(3))
	// Cut off: keys change and go, and history is compacted away.
	if _, err := client.Delete(m.ctx(), keys.Broker(1)); err != nil {
		t.Fatal(err)
	}
	last := put(4)
	if _, err := client.Compact(m.ctx(), last); err != nil {
		t.Fatal(err)
	}
	lists := s.Lists()
	run(s, last)
	brokers := map[int32]bool{}
	s.View(func(state *cluster.State, _ int64) {
		for _, b := range state.Brokers() {
			brokers[b.Value.Process.ID] = true
		}
	})
	if brokers[1] || !brokers[2] || !brokers[3] || !brokers[4] {
		t.Errorf("after the list: %v", brokers)
	}
	if n := s.Lists() - lists; n != 1 {
		t.Errorf("%d lists", n)
	}
}

func TestEtcdAwayAndBack(t *testing.T) {
	m := newMesh(t)
	c := m.controller(1)
	w := m.gateway()
	b := m.broker(1, 11)
	m.awaitUnfenced(w, b)
	admin := m.controllers(w)
	topic := m.create(w, admin, "a", 1)
	m.etcd.Stop()
	// What needs etcd says so; nobody is fenced.
	eventually(t, "a request is refused by name", func() bool {
		_, err := admin.CreateTopics(m.ctxFor(5*time.Second), &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.NewTopic{{Name: "b"}}})
		if err == nil {
			t.Fatal("a topic was made with etcd away")
		}
		// The caller's time may be up before the controller has given etcd up.
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE)
	})
	m.etcd.Restart()
	m.create(w, admin, "c", 1)
	if p := w.Image().Partition(topic.ID, 0); p.GetLeader().GetIncarnation() != 11 || p.GetLeaderEpoch() != 1 || w.Image().Broker(1).GetFenced() {
		t.Errorf("etcd's absence moved something: %v", p)
	}
	select {
	case <-c.ended:
		t.Errorf("the controller ended with %v", c.err)
	default:
	}
}

func TestControllerBeforeEtcd(t *testing.T) {
	m := newMesh(t)
	m.etcd.Stop()
	c := m.controller(1)
	select {
	case <-c.Ready():
		t.Error("ready without etcd")
	case <-c.ended:
		t.Fatalf("ended without etcd: %v", c.err)
	case <-time.After(500 * time.Millisecond):
	}
	m.etcd.Restart()
	m.leader(c)
	<-c.Ready()
}

func TestTwoControllersWithOneID(t *testing.T) {
	m := newMesh(t)
	one := m.controller(1)
	<-one.Ready()
	two := m.controller(1)
	<-two.ended
	if !rpc.IsReason(two.err, typev1.ErrorReason_ERROR_REASON_DUPLICATE_ID) {
		t.Errorf("the second ended with %v", two.err)
	}
	select {
	case <-one.ended:
		t.Errorf("the first ended with %v", one.err)
	default:
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	m := newMesh(t)
	client, err := registry.NewEtcd(m.etcd.Endpoints, "", m.logger("etcd"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	value, err := proto.Marshal(&storagev1.ClusterRecord{FormatVersion: 2, ClusterId: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(m.ctx(), "/leat/cluster", string(value)); err != nil {
		t.Fatal(err)
	}
	c := m.controller(1)
	<-c.ended
	var format *registry.FormatError
	if !errors.As(c.err, &format) || format.Key != "/leat/cluster" || format.Version != 2 {
		t.Errorf("ended with %v", c.err)
	}
}
