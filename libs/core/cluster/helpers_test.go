package cluster

import (
	"errors"
	"fmt"
	"testing"

	"github.com/leat-io/leat/libs/topicid"
)

// fatalf is what tests and properties share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a State with the revisions that etcd would give.
type world struct {
	*State
	revision int64
	lives    uint64
	ids      uint16
}

func newWorld(t fataler, brokers ...int32) *world {
	w := &world{State: NewState(), revision: 1}
	plan, err := EnsureCluster(w.State, "mesh", nil)
	w.apply(t, plan, err)
	for _, id := range brokers {
		w.start(t, id, nil)
	}
	return w
}

func testLimits() Limits {
	return Limits{DefaultPartitions: 1, DefaultReplicationFactor: 1, OffsetsPartitions: 8}
}

// apply does what the controller and etcd do with a plan.
func (w *world) apply(t fataler, plan Plan, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("no plan: %v", err)
	}
	w.applyStages(t, plan.Stages)
}

func (w *world) applyStages(t fataler, stages [][]Write) {
	t.Helper()
	seen := map[Key]bool{}
	for _, stage := range stages {
		w.revision++
		for _, write := range stage {
			if seen[write.Key] {
				t.Fatalf("key %+v is written twice in one plan", write.Key)
			}
			seen[write.Key] = true
			if have := w.State.revision(write.Key); have != write.Expect {
				t.Fatalf("key %+v expects revision %d and has %d", write.Key, write.Expect, have)
			}
			switch {
			case write.Record == nil:
				w.Delete(write.Key)
			case write.Expect == 0:
				w.Set(write.Record, w.revision, w.revision)
			default:
				w.Set(write.Record, 1, w.revision)
			}
		}
	}
}

// settle reconciles until there is nothing to do.
func (w *world) settle(t fataler) {
	t.Helper()
	for range 50 {
		plan, err := Reconcile(w.State, Hints{})
		if err != nil {
			t.Fatalf("reconcile: %v", err)
		}
		if plan.IsEmpty() {
			return
		}
		w.apply(t, plan, nil)
	}
	t.Fatalf("reconcile does not come to an end")
}

// register puts a registration key for a new life.
func (w *world) register(kind ServiceKind, id int32) Process {
	w.lives++
	w.revision++
	life := Process{ID: id, Incarnation: w.lives}
	w.Set(Registration{Kind: kind, Process: life, Address: fmt.Sprintf("h%d:1", id)}, w.revision, w.revision)
	return life
}

// vouchAll is what a broker whose disks are whole says.
func (w *world) vouchAll(id int32, verdict Verdict) []Vouch {
	var vouches []Vouch
	for _, e := range w.held(id) {
		vouches = append(vouches, Vouch{Topic: e.Value.Topic, Partition: e.Value.Number, LastEpoch: e.Value.LeaderEpoch, Verdict: verdict})
	}
	return vouches
}

// start starts a broker with what it says of its replicas, up to the end of the
// elections that follow.
func (w *world) start(t fataler, id int32, vouches []Vouch) Process {
	t.Helper()
	rack := value(w.Broker(id)).Rack
	life := w.register(KindBroker, id)
	r := BrokerRegistration{Process: life, Address: fmt.Sprintf("h%d:1", id), Rack: rack, Vouches: vouches}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	w.settle(t)
	return life
}

// startIn starts a new broker in a rack.
func (w *world) startIn(t fataler, id int32, rack string) Process {
	t.Helper()
	life := w.register(KindBroker, id)
	r := BrokerRegistration{Process: life, Address: fmt.Sprintf("h%d:1", id), Rack: rack}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	w.settle(t)
	return life
}

// makeFolders has every living broker make what it has not, and tell.
func (w *world) makeFolders(t fataler) {
	t.Helper()
	for _, b := range w.Brokers() {
		if !b.Value.Fenced {
			w.makeFoldersOf(t, b.Value.Process)
		}
	}
	w.settle(t)
}

func (w *world) makeFoldersOf(t fataler, life Process) {
	t.Helper()
	var vouches []Vouch
	for _, e := range w.held(life.ID) {
		if w.neverLed(&e.Value) {
			vouches = append(vouches, Vouch{Topic: e.Value.Topic, Partition: e.Value.Number, LastEpoch: -1, Verdict: Intact})
		}
	}
	w.report(t, life, vouches)
}

// report brings a living broker's news.
func (w *world) report(t fataler, life Process, vouches []Vouch) {
	t.Helper()
	w.NoteReplicas(life, vouches)
	plan, err := ReportReplicas(w.State, life, vouches)
	w.apply(t, plan, err)
}

// stop fences a broker whose key has gone.
func (w *world) stop(t fataler, id int32) {
	t.Helper()
	w.Delete(Key{Type: KeyRegistration, Kind: KindBroker, ID: id})
	plan, err := FenceBroker(w.State, w.Broker(id).Value.Process)
	w.apply(t, plan, err)
	w.settle(t)
}

func (w *world) newID() topicid.ID {
	w.ids++
	return topicid.ID{0: 1, 14: byte(w.ids >> 8), 15: byte(w.ids)}
}

// create makes one topic that must succeed.
func (w *world) create(t fataler, name string, partitions, replicas int32) topicid.ID {
	t.Helper()
	id := w.newID()
	plan, outcomes, err := createTopics(w.State, testLimits(), []NewTopic{{Name: name, Partitions: partitions, ReplicationFactor: replicas, ID: id}})
	if err == nil && outcomes[0].Rejection != nil {
		err = outcomes[0].Rejection
	}
	w.apply(t, plan, err)
	w.settle(t)
	w.makeFolders(t)
	return id
}

// wantReason checks a rejection.
func wantReason(t *testing.T, err error, reason string) *Rejection {
	t.Helper()
	var r *Rejection
	if !errors.As(err, &r) || r.Reason != reason {
		t.Fatalf("got %v, want a rejection with %s", err, reason)
	}
	if r.Message == "" {
		t.Fatalf("%s says nothing", reason)
	}
	return r
}

// createTopics is CreateTopics with the defaults of the mesh for what is not given.
func createTopics(s *State, limits Limits, topics []NewTopic) (Plan, []TopicOutcome, error) {
	for i := range topics {
		if topics[i].Partitions == 0 {
			topics[i].Partitions = Unset
		}
		if topics[i].ReplicationFactor == 0 {
			topics[i].ReplicationFactor = Unset
		}
	}
	return CreateTopics(s, limits, topics)
}
