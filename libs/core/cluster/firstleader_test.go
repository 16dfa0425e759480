package cluster

import (
	"slices"
	"testing"
)

// fresh is a topic of one partition of three replicas of which nobody has told yet.
func fresh(t *testing.T) (*world, Entry[Partition]) {
	w := newWorld(t, 1, 2, 3)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: 3, ID: id}})
	w.apply(t, plan, err)
	w.settle(t)
	return w, *w.Partition(id, 0)
}

// tell reports one replica of a broker.
func (w *world) tell(t fataler, p Partition, b int32, verdict Verdict) {
	t.Helper()
	w.report(t, w.Broker(b).Value.Process, []Vouch{{Topic: p.Topic, Partition: p.Number, LastEpoch: -1, Verdict: verdict}})
	w.settle(t)
}

func (w *world) now(p Partition) Partition { return w.Partition(p.Topic, p.Number).Value }

func overdue(kind WaitKind) Hints {
	return Hints{Overdue: func(w Wait) bool { return w.Kind == kind }}
}

func TestFirstLeaderWaitsForAllFolders(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	for _, b := range []int32{2, 3} {
		w.tell(t, p, b, Intact)
		if q := w.now(p); !q.Leader.IsZero() || q.PartitionEpoch != p.PartitionEpoch {
			t.Fatalf("after %d told: %+v", b, q)
		}
	}
	if want := []Wait{{PartitionID{p.Topic, 0}, 0, WaitFolders}}; !slices.Equal(Waiting(w.State), want) {
		t.Fatalf("waiting: %+v", Waiting(w.State))
	}
	w.NoteReplicas(w.Broker(1).Value.Process, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Intact}})
	plan, err := ReportReplicas(w.State, w.Broker(1).Value.Process, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Intact}})
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || !changes[0].First || changes[0].Unclean || changes[0].To.ID != 1 || changes[0].Epoch != 1 {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
	q := w.now(p)
	if q.Leader.ID != 1 || q.LeaderEpoch != 1 || !slices.Equal(q.ISR, []int32{1, 2, 3}) || q.MinISR != 2 {
		t.Errorf("all told: %+v", q)
	}
	w.settle(t)
	if len(Waiting(w.State)) != 0 {
		t.Errorf("still waiting: %+v", Waiting(w.State))
	}
}

func TestFirstLeaderWithoutTheSilent(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	w.tell(t, p, 3, Intact)
	w.tell(t, p, 2, Intact)
	plan, err := Reconcile(w.State, overdue(WaitFolders))
	w.apply(t, plan, err)
	q := w.now(p)
	if q.Leader.ID != 2 || !slices.Equal(q.ISR, []int32{2, 3}) || len(q.ELR) != 0 || len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
	w.settle(t)
	if w.now(p).PartitionEpoch != q.PartitionEpoch {
		t.Errorf("changed again: %+v", w.now(p))
	}
	// Nobody told: waiting longer does not help.
	w, e = fresh(t)
	if plan, err := Reconcile(w.State, overdue(WaitFolders)); err != nil || !plan.IsEmpty() {
		t.Errorf("%d writes, %v", plan.Len(), err)
	}
}

func TestFirstLeaderWithoutTheDead(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	w.tell(t, p, 2, Intact)
	w.stop(t, 3)
	if q := w.now(p); !q.Leader.IsZero() {
		t.Fatalf("1 has not told: %+v", q)
	}
	w.tell(t, p, 1, Intact) // nobody is left to wait for
	q := w.now(p)
	if q.Leader.ID != 1 || !slices.Equal(q.ISR, []int32{1, 2}) || len(q.ELR) != 0 || q.MinISR != 2 {
		t.Fatalf("%+v", q)
	}
	// It comes back with nothing, is not barred, and follows.
	w.start(t, 3, nil)
	if q = w.now(p); len(q.Barred) != 0 || !slices.Equal(q.ISR, []int32{1, 2}) {
		t.Errorf("%+v", q)
	}
}

// Alone in sync, with nobody beside it, a first leader would be all that there is: its
// disk would take with it everybody who may lead (simulation seed 9000335).
func TestFirstLeaderWaitsForEnough(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	w.tell(t, p, 2, Intact)
	w.stop(t, 3)
	w.stop(t, 1)
	plan, err := Reconcile(w.State, overdue(WaitFolders))
	w.apply(t, plan, err)
	if q := w.now(p); !q.Leader.IsZero() || !slices.Equal(q.ISR, []int32{1, 2, 3}) {
		t.Fatalf("one of two that are needed has told: %+v", q)
	}
	if waits := Waiting(w.State); len(waits) != 1 || waits[0].Kind != WaitFolders {
		t.Errorf("waiting: %+v", waits)
	}
	// Its disk is lost meanwhile, which costs nothing.
	w.start(t, 2, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Missing}})
	w.tell(t, p, 2, Intact)
	w.start(t, 1, nil)
	w.tell(t, p, 1, Intact)
	if q := w.now(p); q.Leader.ID != 1 || !slices.Equal(q.ISR, []int32{1, 2}) || len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
}

// Who lowers min.insync.replicas asks for fewer, also of a partition that nobody has led.
func TestFirstLeaderWithALowerMin(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	w.tell(t, p, 2, Intact)
	w.stop(t, 3)
	w.stop(t, 1)
	if q := w.now(p); !q.Leader.IsZero() {
		t.Fatalf("%+v", q)
	}
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": "1"}})
	w.apply(t, plan, err)
	w.settle(t)
	if q := w.now(p); q.Leader.ID != 2 || !slices.Equal(q.ISR, []int32{2}) || q.MinISR != 1 {
		t.Errorf("%+v", q)
	}
}

func TestFirstLeaderAfterRestart(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	for _, b := range []int32{1, 2, 3} {
		if b != 1 {
			w.tell(t, p, b, Intact)
		}
	}
	// 2 told and was wiped before anybody led: its word is of an earlier life.
	w.start(t, 2, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Missing}})
	w.tell(t, p, 1, Intact)
	if q := w.now(p); !q.Leader.IsZero() || len(q.Barred) != 0 {
		t.Fatalf("%+v", q)
	}
	w.tell(t, p, 2, Intact)
	if q := w.now(p); q.Leader.ID != 1 || !slices.Equal(q.ISR, []int32{1, 2, 3}) {
		t.Fatalf("%+v", q)
	}
	// From now on missing is missing.
	w.start(t, 2, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Missing}})
	if q := w.now(p); q.Leader.ID != 1 || !slices.Equal(q.ISR, []int32{1, 3}) {
		t.Errorf("%+v", q)
	}
}

func TestFirstLeaderWithAFailedDisk(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	w.tell(t, p, 1, Corrupt)
	if q := w.now(p); q.PartitionEpoch != p.PartitionEpoch {
		t.Errorf("changed by it alone: %+v", q)
	}
	w.tell(t, p, 2, Intact)
	// The registration comes again, to another controller: what was told since stays.
	r := BrokerRegistration{Process: w.Broker(2).Value.Process, Address: "h2:1", Vouches: as(p, Missing, -1, 0)}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	w.tell(t, p, 3, Intact)
	if q := w.now(p); q.Leader.ID != 2 || !slices.Equal(q.ISR, []int32{2, 3}) || len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
}

// A folder that was made anew is whole and empty: it ends no bar.
func TestMadeAnewEndsNoBar(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	life := w.start(t, 1, nil) // wiped
	p := w.Partition(id, 0).Value
	if !p.Leader.IsZero() || !slices.Equal(p.Barred, []int32{1}) {
		t.Fatalf("%+v", p)
	}
	w.report(t, life, []Vouch{{Topic: id, LastEpoch: -1, Verdict: Intact}})
	w.settle(t)
	if q := w.now(p); !q.Leader.IsZero() || !slices.Equal(q.Barred, []int32{1}) {
		t.Errorf("%+v", q)
	}
	// Neither does the same registration, repeated to another controller.
	r := BrokerRegistration{Process: life, Address: "h1:1", Vouches: nil}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	w.settle(t)
	if q := w.now(p); !q.Leader.IsZero() || !slices.Equal(q.Barred, []int32{1}) {
		t.Errorf("%+v", q)
	}
}

func TestReportsAreOfTheLifeOnRecord(t *testing.T) {
	w, e := fresh(t)
	p := e.Value
	old := Process{ID: 1, Incarnation: 99}
	w.NoteReplicas(old, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Intact}})
	_, err := ReportReplicas(w.State, old, []Vouch{{Topic: p.Topic, LastEpoch: -1, Verdict: Intact}})
	wantReason(t, err, "STALE_INCARNATION")
	if len(w.vouches[old]) != 0 {
		t.Error("what a stranger says is remembered")
	}
	// What is said of a topic that is gone is not kept either.
	life := w.Broker(1).Value.Process
	w.report(t, life, []Vouch{{Topic: w.newID(), LastEpoch: -1, Verdict: Intact}})
	w.tell(t, p, 1, Intact)
	if n := len(w.vouches[life]); n != 1 {
		t.Errorf("%d words kept", n)
	}
	w.Delete(p.Key())
	if n := len(w.vouches[life]); n != 0 {
		t.Errorf("%d words kept of a partition that is gone", n)
	}
}

func TestManyFirstLeaders(t *testing.T) {
	w := full(t, 1, 5000)
	id := w.TopicByName("t0").Value.ID
	led := map[int32]int{}
	for _, e := range w.Partitions(id) {
		if e.Value.Leader.IsZero() || len(e.Value.ISR) != 3 {
			t.Fatalf("%+v", e.Value)
		}
		led[e.Value.Leader.ID]++
	}
	if led[1] != 1667 || led[2] != 1667 || led[3] != 1666 {
		t.Errorf("they lead %v", led)
	}
}
