package cluster

import (
	"slices"
	"testing"
)

// probeAll is an answer of every unfenced broker, sent at the newest revision.
func (w *world) probeAll() Probes {
	probes := Probes{}
	for _, b := range w.Brokers() {
		if !b.Value.Fenced {
			probes[b.Value.Process] = w.revision
		}
	}
	return probes
}

func (w *world) life(id int32) Process { return w.Broker(id).Value.Process }

func TestLeave(t *testing.T) {
	w, p := minTwo(t)
	if got, want := LeaveProbes(w.State, p.Leader), []Process{w.life(2), w.life(3)}; !slices.Equal(got, want) {
		t.Errorf("to probe: %v, want %v", got, want)
	}
	plan, blockers, err := Leave(w.State, p.Leader, w.probeAll(), false)
	if len(blockers) > 0 || len(plan.Stages) != 2 || len(plan.Stages[1]) != 1 {
		t.Fatalf("%v, %+v", blockers, plan)
	}
	w.apply(t, plan, err)
	q := w.now(p)
	if b := w.Broker(1).Value; !b.Fenced || !b.Draining {
		t.Errorf("%+v", b)
	}
	if q.Leader.ID == 1 || q.LeaderEpoch != 2 || !slices.Equal(q.ISR, []int32{2, 3}) || len(q.ELR) != 0 {
		t.Errorf("%+v", q)
	}
	plan, blockers, err = Leave(w.State, p.Leader, nil, false)
	if err != nil || len(blockers) > 0 || !plan.IsEmpty() {
		t.Errorf("again: %v, %d writes, %v", blockers, plan.Len(), err)
	}
	if plan, _ := UnfenceBroker(w.State, p.Leader); !plan.IsEmpty() {
		t.Error("a leaving broker is unfenced")
	}
	// Two drains serialise: the second would leave one.
	_, blockers, err = Leave(w.State, w.life(2), w.probeAll(), false)
	if err != nil || len(blockers) != 1 || blockers[0].Name != "a" || blockers[0].Rejection.Reason != "NOT_ENOUGH_REPLICAS" {
		t.Errorf("the second: %+v, %v", blockers, err)
	}
	// A new controller, to which it says that it lives, lets it back.
	r := BrokerRegistration{Process: p.Leader, Address: "h1:1"}
	w.SetVouches(r)
	plan, err = RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	if b := w.Broker(1).Value; b.Fenced || b.Draining {
		t.Errorf("%+v", b)
	}
}

func TestLeaveTable(t *testing.T) {
	type before struct {
		min              int32
		isr, elr, barred []int32
		leader           int32
		fenced           []int32
	}
	for name, c := range map[string]struct {
		before
		leaver  int32
		probes  func(*world) Probes // nil: all answer
		want    []int32             // the ISR; nil: blocked
		wantELR []int32
	}{
		"a follower":                       {before: before{min: 2, isr: []int32{1, 2, 3}, leader: 1}, leaver: 3, want: []int32{1, 2}},
		"would leave too few":              {before: before{min: 2, isr: []int32{1, 2}, leader: 1}, leaver: 2},
		"is no member":                     {before: before{min: 2, isr: []int32{1, 2}, leader: 1}, leaver: 3, want: []int32{1, 2}},
		"is no member of too few":          {before: before{min: 2, isr: []int32{1}, elr: []int32{2}, leader: 1}, leaver: 3, want: []int32{1}, wantELR: []int32{2}},
		"is eligible":                      {before: before{min: 2, isr: []int32{1}, elr: []int32{2}, leader: 1}, leaver: 2},
		"one left is barred":               {before: before{min: 2, isr: []int32{1, 2, 3}, barred: []int32{2}, leader: 1}, leaver: 3},
		"one left is fenced":               {before: before{min: 2, isr: []int32{1, 2, 3}, leader: 1, fenced: []int32{2}}, leaver: 3},
		"min 1, to one that answers":       {before: before{min: 1, isr: []int32{1, 2}, leader: 1}, leaver: 1, want: []int32{2}},
		"the last one, others not in sync": {before: before{min: 1, isr: []int32{1}, leader: 1}, leaver: 1},
		"nobody answers": {
			before: before{min: 1, isr: []int32{1, 2, 3}, leader: 1}, leaver: 1,
			probes: func(*world) Probes { return nil },
		},
		"probed before the record was written": {
			before: before{min: 1, isr: []int32{1, 2, 3}, leader: 1}, leaver: 1,
			probes: func(w *world) Probes { return Probes{w.life(2): 76, w.life(3): 76} },
		},
		"another life answered": {
			before: before{min: 1, isr: []int32{1, 2}, leader: 1}, leaver: 1,
			probes: func(*world) Probes { return Probes{{ID: 2, Incarnation: 999}: 1000} },
		},
		"one of two answered, one is enough": {
			before: before{min: 1, isr: []int32{1, 2, 3}, leader: 1}, leaver: 1,
			probes: func(w *world) Probes { return Probes{w.life(3): 77} }, want: []int32{2, 3},
		},
		"one of two answered, two are needed": {
			before: before{min: 2, isr: []int32{1, 2, 3}, leader: 1}, leaver: 1,
			probes: func(w *world) Probes { return Probes{w.life(3): 77} },
		},
		"nobody leads": {before: before{min: 2, isr: []int32{3}, elr: []int32{2}, fenced: []int32{2}}, leaver: 3},
	} {
		w, p := minTwo(t)
		p = w.now(p)
		leader := p.Leader
		p.MinISR, p.ISR, p.ELR, p.Barred, p.Leader = c.min, c.isr, c.elr, c.barred, Process{}
		if c.leader != 0 {
			p.Leader = leader
		}
		for _, b := range c.fenced {
			w.set(b, true)
		}
		w.Set(p, 1, 77)
		w.revision = 77
		probes := w.probeAll()
		if c.probes != nil {
			probes = c.probes(w)
		}
		plan, blockers, err := Leave(w.State, w.life(c.leaver), probes, false)
		if c.want == nil {
			if err != nil || len(blockers) != 1 || !plan.IsEmpty() || blockers[0].Rejection.Reason != "NOT_ENOUGH_REPLICAS" {
				t.Errorf("%s: %+v, %d writes, %v", name, blockers, plan.Len(), err)
			}
			continue
		}
		w.apply(t, plan, err)
		q := w.now(p)
		if len(blockers) > 0 || !slices.Equal(q.ISR, c.want) || !slices.Equal(q.ELR, c.wantELR) || q.Leader.ID == c.leaver || !w.Broker(c.leaver).Value.Fenced {
			t.Errorf("%s: %+v, %+v", name, blockers, q)
		}
		if q.Leader != p.Leader && probes[q.Leader] == 0 {
			t.Errorf("%s: led by one that did not answer: %+v", name, q)
		}
	}
}

// Partitions with no other replica hold up a decommission only.
func TestLeaveWithTheOnlyReplica(t *testing.T) {
	w := newWorld(t, 1, 2)
	id := w.create(t, "a", 1, 1)
	holder := w.Partition(id, 0).Value.Leader
	_, blockers, err := Leave(w.State, holder, w.probeAll(), true)
	if err != nil || len(blockers) != 1 || blockers[0].Topic != id {
		t.Fatalf("decommission: %+v, %v", blockers, err)
	}
	plan, blockers, err := Leave(w.State, holder, w.probeAll(), false)
	w.apply(t, plan, err)
	w.settle(t)
	p := w.Partition(id, 0).Value
	if len(blockers) > 0 || !p.Leader.IsZero() || !slices.Equal(p.ISR, []int32{holder.ID}) {
		t.Fatalf("restart: %+v, %+v", blockers, p)
	}
	w.start(t, holder.ID, w.vouchAll(holder.ID, Intact))
	if p = w.Partition(id, 0).Value; p.Leader.ID != holder.ID {
		t.Errorf("%+v", p)
	}
	// One that holds nothing is decommissioned at once.
	plan, blockers, err = Leave(w.State, w.life(3-holder.ID), nil, true)
	w.apply(t, plan, err)
	if len(blockers) > 0 {
		t.Errorf("%+v", blockers)
	}
}

func TestLeaveOfThousands(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 500, 3)
	plan, blockers, err := Leave(w.State, w.life(1), w.probeAll(), false)
	if err != nil || len(blockers) > 0 || len(plan.Stages) != 2 || len(plan.Stages[0]) != 500 {
		t.Fatalf("%+v, %d stages, %v", blockers, len(plan.Stages), err)
	}
	// The controller dies before the last stage: nothing is lost by that.
	w.applyStages(t, plan.Stages[:1])
	w.settle(t)
	plan, _, err = Leave(w.State, w.life(1), w.probeAll(), false)
	w.apply(t, plan, err)
	w.settle(t)
	for _, e := range w.Partitions(id) {
		if p := e.Value; p.Leader.ID == 1 || !slices.Equal(keep(p.ISR, func(b int32) bool { return b != 1 }), p.ISR) || len(p.ISR) != 2 {
			t.Fatalf("%+v", p)
		}
	}
	// What blocks is named, up to a limit.
	_, blockers, err = Leave(w.State, w.life(2), w.probeAll(), false)
	if err != nil || len(blockers) != maxBlockers {
		t.Errorf("%d blockers, %v", len(blockers), err)
	}
}

// Leaderships go to members that answered, and to no others.
func TestLeaveHandsOverToThoseThatAnswer(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", Partitions: 60, ReplicationFactor: 3, ID: id, Configs: map[string]string{"min.insync.replicas": "1"}}})
	w.apply(t, plan, err)
	w.makeFolders(t)
	plan, blockers, err := Leave(w.State, w.life(1), Probes{w.life(3): w.revision}, false)
	if len(blockers) > 0 {
		t.Fatalf("%+v", blockers)
	}
	for _, c := range LeaderChanges(w.State, plan) {
		if c.To.ID != 3 {
			t.Fatalf("%+v", c)
		}
	}
	w.apply(t, plan, err)
}
