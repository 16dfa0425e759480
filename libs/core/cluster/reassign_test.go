package cluster

import (
	"errors"
	"slices"
	"testing"
)

// reassigned is a topic of one partition on brokers 1, 2 and 3, planned to go to
// others, and begun.
func reassigned(t *testing.T, to ...int32) (*world, Partition, string) {
	t.Helper()
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 1, 3)
	for _, b := range []int32{4, 5} {
		w.start(t, b, nil)
	}
	return w, w.Partition(id, 0).Value, w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: to})
}

// begin plans and applies a reassignment by hand.
func (w *world) begin(t *testing.T, moves ...Move) string {
	t.Helper()
	plan, err := PlanReassignment(w.State, ReassignmentRequest{Assignments: moves})
	if err != nil {
		t.Fatal(err)
	}
	writes, err := ApplyReassignment(w.State, plan.ID, plan.Moves)
	w.apply(t, writes, err)
	return plan.ID
}

// advance probes and advances until nothing happens any more.
func (w *world) advance(t fataler) {
	t.Helper()
	for range 200 {
		plan, need, err := AdvanceReassignments(w.State, nil)
		w.apply(t, plan, err)
		probes := Probes{}
		for _, life := range need {
			probes[life] = w.revision
		}
		again, _, err := AdvanceReassignments(w.State, probes)
		w.apply(t, again, err)
		if plan.IsEmpty() && again.IsEmpty() {
			return
		}
		w.settle(t)
	}
	t.Fatalf("reassignments do not come to an end")
}

// join has a partition's leader propose a set.
func (w *world) join(t fataler, p Partition, isr ...int32) {
	t.Helper()
	plan, err := ProposeISR(w.State, w.proposal(w.now(p), isr...))
	w.apply(t, plan, err)
	w.settle(t)
}

func TestReassignment(t *testing.T) {
	w, p, planID := reassigned(t, 4, 5, 2)
	q := w.now(p)
	if !slices.Equal(q.Replicas, []int32{4, 5, 2, 1, 3}) || !slices.Equal(q.ISR, []int32{1, 2, 3}) || q.Leader != p.Leader || q.MinISR != 2 ||
		!slices.Equal(q.TargetReplicas, []int32{4, 5, 2}) || !slices.Equal(q.FormerReplicas, []int32{1, 2, 3}) {
		t.Fatalf("begun: %+v", q)
	}
	w.advance(t)
	if q = w.now(p); !q.IsReassigning() {
		t.Fatalf("completed with nobody caught up: %+v", q)
	}
	w.join(t, p, 1, 2, 3, 4)
	w.advance(t)
	if q = w.now(p); !q.IsReassigning() {
		t.Fatalf("completed before all have caught up: %+v", q)
	}
	status := RunningReassignments(w.State)
	if len(status) != 1 || status[0].PlanID != planID || len(status[0].Moves) != 1 || status[0].Moves[0].InSync != 2 || !slices.Equal(status[0].Moves[0].From, []int32{1, 2, 3}) {
		t.Errorf("status: %+v", status)
	}
	w.join(t, p, 1, 2, 3, 4, 5)
	plan, need, err := AdvanceReassignments(w.State, nil)
	if err != nil || !plan.IsEmpty() || !slices.Equal(need, []Process{w.life(2), w.life(4), w.life(5)}) {
		t.Fatalf("unprobed: %d writes, to probe %v, %v", plan.Len(), need, err)
	}
	stale := w.now(p)
	if plan, _, _ := AdvanceReassignments(w.State, Probes{w.life(4): w.revision - 1, w.life(2): w.revision - 1}); !plan.IsEmpty() {
		t.Fatalf("probed before the record was written: %+v", stale)
	}
	plan, _, err = AdvanceReassignments(w.State, Probes{w.life(4): w.revision, w.life(2): w.revision})
	w.apply(t, plan, err)
	q = w.now(p)
	if q.IsReassigning() || !slices.Equal(q.Replicas, []int32{4, 5, 2}) || !slices.Equal(q.ISR, []int32{2, 4, 5}) || q.Leader != w.life(4) || q.LeaderEpoch != p.LeaderEpoch+1 {
		t.Fatalf("completed: %+v", q)
	}
	w.advance(t)
	if w.Reassignment(planID) != nil || len(RunningReassignments(w.State)) != 0 {
		t.Error("the plan is still there")
	}
	// Asked again it is done already.
	if plan, err := ApplyReassignment(w.State, planID, []Move{{PartitionName: PartitionName{"a", 0}, From: []int32{1, 2, 3}, To: []int32{4, 5, 2}}}); err != nil || !plan.IsEmpty() {
		t.Errorf("again: %d writes, %v", plan.Len(), err)
	}
}

func TestReassignmentNeedsTrustedMembers(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *world, p *Partition)
		ends    bool
	}{
		"all well":                  {func(*world, *Partition) {}, true},
		"one of the result fenced":  {func(w *world, _ *Partition) { w.set(4, true) }, true},
		"two of the result fenced":  {func(w *world, _ *Partition) { w.set(4, true); w.set(5, true) }, false},
		"two of the result barred":  {func(_ *world, p *Partition) { p.Barred = []int32{4, 5} }, false},
		"one of the result is away": {func(_ *world, p *Partition) { p.ISR = []int32{1, 2, 3, 4} }, false},
	} {
		w, p, _ := reassigned(t, 4, 5, 2)
		w.join(t, p, 1, 2, 3, 4, 5)
		q := w.now(p)
		c.prepare(w, &q)
		w.revision++
		w.Set(q, 1, w.revision)
		plan, _, err := AdvanceReassignments(w.State, w.probeAll())
		w.apply(t, plan, err)
		if r := w.now(p); r.IsReassigning() == c.ends {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestReassignmentIsTakenBack(t *testing.T) {
	w, p, planID := reassigned(t, 4, 5, 2)
	control := func(action ReassignmentAction) {
		t.Helper()
		plan, err := ControlReassignment(w.State, planID, action)
		w.apply(t, plan, err)
		if plan, err := ControlReassignment(w.State, planID, action); err != nil || !plan.IsEmpty() {
			t.Errorf("action %d again: %d writes, %v", action, plan.Len(), err)
		}
	}
	w.join(t, p, 1, 2, 3, 4, 5)
	control(PauseReassignment)
	w.advance(t)
	if q := w.now(p); !q.IsReassigning() || !RunningReassignments(w.State)[0].Paused {
		t.Fatalf("paused: %+v", q)
	}
	// The new ones lead, the former ones but one fall behind.
	q := w.now(p)
	q.Leader, q.LeaderEpoch, q.ISR = w.life(4), q.LeaderEpoch+1, []int32{1, 4, 5}
	w.revision++
	w.Set(q, 1, w.revision)
	control(CancelReassignment)
	w.advance(t)
	if q = w.now(p); !q.IsReassigning() || w.Reassignment(planID) == nil {
		t.Fatalf("taken back with one of the former in sync: %+v", q)
	}
	w.join(t, p, 1, 2, 4, 5)
	w.advance(t)
	q = w.now(p)
	if q.IsReassigning() || !slices.Equal(q.Replicas, []int32{1, 2, 3}) || !slices.Equal(q.ISR, []int32{1, 2}) || q.Leader.ID > 2 || w.Reassignment(planID) != nil {
		t.Fatalf("taken back: %+v", q)
	}
	_, err := ControlReassignment(w.State, planID, PauseReassignment)
	wantReason(t, err, "INVALID_REQUEST")
	w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: []int32{2, 1, 3}})
	for _, e := range w.Reassignments() {
		_, err = ControlReassignment(w.State, e.Value.PlanID, 0)
		wantReason(t, err, "INVALID_REQUEST")
	}
	// Another order moves nothing, and is done as soon as it is probed.
	w.join(t, p, 1, 2, 3)
	w.advance(t)
	if q = w.now(p); q.IsReassigning() || !slices.Equal(q.Replicas, []int32{2, 1, 3}) {
		t.Errorf("%+v", q)
	}
}

func TestReassignmentResumes(t *testing.T) {
	w, p, planID := reassigned(t, 4, 2, 3)
	for _, action := range []ReassignmentAction{PauseReassignment, ResumeReassignment} {
		plan, err := ControlReassignment(w.State, planID, action)
		w.apply(t, plan, err)
	}
	w.join(t, p, 1, 2, 3, 4)
	w.advance(t)
	if q := w.now(p); q.IsReassigning() {
		t.Errorf("%+v", q)
	}
}

func TestReassignmentOfThousands(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 1000, 2)
	w.start(t, 4, nil)
	plan, err := PlanReassignment(w.State, ReassignmentRequest{DrainBrokers: []int32{3}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := PlanReassignment(w.State, ReassignmentRequest{DrainBrokers: []int32{3}})
	if err != nil || again.ID != plan.ID || len(plan.Moves) < 600 {
		t.Fatalf("another plan of %d moves, %v", len(again.Moves), err)
	}
	writes, err := ApplyReassignment(w.State, plan.ID, plan.Moves)
	if err != nil || writes.Len() != 1+maxReassigning || len(writes.Stages) != 2 {
		t.Fatal(writes.Len(), err)
	}
	w.apply(t, writes, err)
	if writes, err := ApplyReassignment(w.State, plan.ID, plan.Moves); err != nil || !writes.IsEmpty() {
		t.Errorf("again: %d writes, %v", writes.Len(), err)
	}
	for range 20 {
		for _, e := range w.Partitions(id) {
			if e.Value.IsReassigning() {
				writes, err := ProposeISR(w.State, w.proposal(e.Value, e.Value.Replicas...))
				w.apply(t, writes, err)
			}
		}
		w.advance(t)
		if n := len(w.index.running); n > maxReassigning {
			t.Fatalf("%d at once", n)
		}
	}
	if len(w.held(3)) != 0 || len(w.Reassignments()) != 0 {
		t.Errorf("broker 3 holds %d, %d plans are left", len(w.held(3)), len(w.Reassignments()))
	}
	// Then it can go.
	_, err = RemoveBroker(w.State, 3)
	wantReason(t, err, "INVALID_REQUEST") // it runs
	writes, blockers, err := Leave(w.State, w.life(3), nil, true)
	if len(blockers) > 0 {
		t.Fatalf("%+v", blockers)
	}
	w.apply(t, writes, err)
	w.Delete(Key{Type: KeyRegistration, Kind: KindBroker, ID: 3})
	writes, err = RemoveBroker(w.State, 3)
	w.apply(t, writes, err)
	if w.Broker(3) != nil {
		t.Error("still there")
	}
	_, err = RemoveBroker(w.State, 3)
	wantReason(t, err, "INVALID_REQUEST")
}

func TestStalePlans(t *testing.T) {
	name := PartitionName{"a", 0}
	for what, c := range map[string]struct {
		reason string
		change func(t *testing.T, w *world, plan *ReassignmentPlan)
	}{
		"no moves":      {"INVALID_REQUEST", func(_ *testing.T, _ *world, plan *ReassignmentPlan) { plan.Moves = nil }},
		"another id":    {"INVALID_REQUEST", func(_ *testing.T, _ *world, plan *ReassignmentPlan) { plan.ID = "x" }},
		"other moves":   {"INVALID_REQUEST", func(_ *testing.T, _ *world, plan *ReassignmentPlan) { plan.Moves[0].To = []int32{3, 2, 1} }},
		"a broker left": {"INVALID_REQUEST", func(_ *testing.T, w *world, _ *ReassignmentPlan) { w.set(4, true) }},
		"the topic is gone": {"UNKNOWN_TOPIC", func(t *testing.T, w *world, _ *ReassignmentPlan) {
			plan, _, err := DeleteTopics(w.State, []string{"a"})
			w.apply(t, plan, err)
		}},
		"the topic is another one": {"INVALID_REQUEST", func(t *testing.T, w *world, _ *ReassignmentPlan) {
			plan, _, err := DeleteTopics(w.State, []string{"a"})
			w.apply(t, plan, err)
			w.create(t, "a", 1, 3)
		}},
		"another plan runs": {"STALE_PARTITION_EPOCH", func(t *testing.T, w *world, _ *ReassignmentPlan) {
			w.begin(t, Move{PartitionName: name, To: []int32{5, 2, 3}})
		}},
		"another plan has run": {"STALE_PARTITION_EPOCH", func(t *testing.T, w *world, _ *ReassignmentPlan) {
			w.begin(t, Move{PartitionName: name, To: []int32{3, 2, 1}})
			w.advance(t)
		}},
	} {
		w := newWorld(t, 1, 2, 3)
		w.create(t, "a", 1, 3)
		w.start(t, 4, nil)
		w.start(t, 5, nil)
		plan, err := PlanReassignment(w.State, ReassignmentRequest{Assignments: []Move{{PartitionName: name, To: []int32{4, 2, 3}}}})
		if err != nil {
			t.Fatal(err)
		}
		c.change(t, w, &plan)
		_, err = ApplyReassignment(w.State, plan.ID, plan.Moves)
		var rejection *Rejection
		if !errors.As(err, &rejection) || rejection.Reason != c.reason {
			t.Errorf("%s: %v, want %s", what, err, c.reason)
		}
	}
}

// What a plan is through with, another plan may move while the first still runs.
func TestPlansBesideEachOther(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 2, 3)
	w.start(t, 4, nil)
	first := w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: []int32{4, 2, 3}}, Move{PartitionName: PartitionName{"a", 1}, To: []int32{4, 2, 3}})
	p := w.Partition(id, 0).Value
	w.join(t, p, 1, 2, 3, 4)
	w.advance(t)
	if q := w.now(p); q.IsReassigning() {
		t.Fatalf("%+v", q)
	}
	second := w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: []int32{1, 2, 3}})
	w.join(t, p, 1, 2, 3, 4)
	w.advance(t)
	if q := w.now(p); !slices.Equal(q.Replicas, []int32{1, 2, 3}) || w.Reassignment(first) == nil || w.Reassignment(second) != nil {
		t.Fatalf("%+v", q)
	}
	plan, _, err := DeleteTopics(w.State, []string{"a"})
	w.apply(t, plan, err)
	w.settle(t)
	w.advance(t)
	if len(w.Reassignments()) != 0 {
		t.Error("a plan outlives its topic")
	}
}

func TestRemoveBroker(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	w.create(t, "a", 1, 3)
	plan, _, err := DeleteTopics(w.State, []string{"a"})
	w.apply(t, plan, err)
	w.settle(t)
	for _, b := range []int32{1, 2} {
		plan, err := ConfirmDeletion(w.State, w.life(b), [][16]byte{w.Deletions()[0].Value.Topic})
		w.apply(t, plan, err)
	}
	_, err = RemoveBroker(w.State, 3)
	wantReason(t, err, "INVALID_REQUEST")
	w.stop(t, 3)
	if len(w.Deletions()) != 1 {
		t.Fatal("the deletion does not wait for a broker that is down")
	}
	plan, err = RemoveBroker(w.State, 3)
	w.apply(t, plan, err)
	w.settle(t)
	if w.Broker(3) != nil || len(w.Deletions()) != 0 || len(w.vouches) != 2 {
		t.Errorf("broker %+v, deletions %+v", w.Broker(3), w.Deletions())
	}
	w.create(t, "b", 1, 2)
	w.stop(t, 1)
	r := wantReason(t, func() error { _, err := RemoveBroker(w.State, 1); return err }(), "INVALID_REQUEST")
	if r.Metadata["topic"] != "b" {
		t.Errorf("%+v", r)
	}
	// A deletion that names a broker of which there is no record waits for nobody.
	w = newWorld(t, 1)
	id := w.newID()
	w.Set(Deletion{Topic: id, Name: "gone", Pending: []int32{1, 7}}, 1, 1)
	w.settle(t)
	if d := w.Deletion(id); d == nil || !slices.Equal(d.Value.Pending, []int32{1}) {
		t.Errorf("%+v", d)
	}
}

func TestAlterWhileReassigning(t *testing.T) {
	w, p, _ := reassigned(t, 4, 5)
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", Partitions: 2})
	w.apply(t, plan, err)
	w.makeFolders(t)
	if q := w.Partition(p.Topic, 1).Value; len(q.Replicas) != 3 {
		t.Errorf("%+v", q)
	}
	_, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": "3"}})
	wantReason(t, err, "INVALID_CONFIG")
}

func TestReassignmentHandsOverToThoseThatAnswer(t *testing.T) {
	for n := range int32(20) {
		w := newWorld(t, 1, 2, 3)
		for range n {
			w.newID() // another id, another order of succession
		}
		id := w.create(t, "a", 1, 3)
		for _, b := range []int32{4, 5, 6} {
			w.start(t, b, nil)
		}
		p := w.Partition(id, 0).Value
		w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: []int32{4, 5, 6}})
		w.join(t, p, 1, 2, 3, 4, 5, 6)
		if plan, _, err := AdvanceReassignments(w.State, Probes{w.life(6): w.revision}); err != nil || !plan.IsEmpty() {
			t.Fatalf("one of two answered: %d writes, %v", plan.Len(), err)
		}
		plan, _, err := AdvanceReassignments(w.State, Probes{w.life(5): w.revision, w.life(6): w.revision})
		w.apply(t, plan, err)
		if q := w.now(p); q.IsReassigning() || q.Leader.ID < 5 {
			t.Fatalf("%+v", q)
		}
	}
}

func TestReassignmentWaitsForTheFirstLeader(t *testing.T) {
	w, e := fresh(t)
	w.start(t, 4, nil)
	w.begin(t, Move{PartitionName: PartitionName{"a", 0}, To: []int32{4, 2, 3}})
	w.advance(t)
	if q := w.now(e.Value); q.IsReassigning() {
		t.Fatalf("nobody has led: %+v", q)
	}
	w.makeFolders(t)
	w.advance(t)
	if q := w.now(e.Value); !q.IsReassigning() {
		t.Fatalf("%+v", q)
	}
}
