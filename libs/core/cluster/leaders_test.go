package cluster

import (
	"slices"
	"testing"
)

func TestLeadersUnreachable(t *testing.T) {
	for name, c := range map[string]struct {
		reports func(w *world) map[Process][]Process
		prepare func(w *world, p *Partition)
		moves   bool
		isr     []int32 // nil: as before
	}{
		"all others say so": {reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(1)}}
		}, moves: true, isr: []int32{2, 3}},
		"one does not": {reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(2)}}
		}},
		"one that does not is fenced": {prepare: func(w *world, _ *Partition) { w.set(3, true) }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}}
		}, moves: true},
		"one that does not is not in sync": {prepare: func(_ *world, p *Partition) { p.ISR = []int32{1, 2} }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}}
		}, moves: true},
		"an earlier life said so": {reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{{ID: 2, Incarnation: 99}: {w.life(1)}, w.life(3): {w.life(1)}}
		}},
		"it is of an earlier life": {reports: func(w *world) map[Process][]Process {
			old := Process{ID: 1, Incarnation: 99}
			return map[Process][]Process{w.life(2): {old}, w.life(3): {old}}
		}},
		"all others are barred": {prepare: func(_ *world, p *Partition) { p.Barred = []int32{2, 3} }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(1)}}
		}},
		"there are others in the ELR only": {prepare: func(_ *world, p *Partition) { p.ISR, p.ELR = []int32{1}, []int32{2} }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(1)}}
		}, moves: true, isr: []int32{2}},
		"one in the ELR does not": {prepare: func(_ *world, p *Partition) { p.ISR, p.ELR = []int32{1}, []int32{2, 3} }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(3): {w.life(1)}}
		}},
		"there are no others": {prepare: func(_ *world, p *Partition) { p.ISR, p.MinISR = []int32{1}, 1 }, reports: func(w *world) map[Process][]Process {
			return map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(1)}}
		}},
		"nobody says anything": {reports: func(*world) map[Process][]Process { return nil }},
	} {
		w, p := minTwo(t)
		if c.prepare != nil {
			c.prepare(w, &p)
			w.Set(p, 1, 77)
		}
		plan, err := LeadersUnreachable(w.State, c.reports(w))
		w.apply(t, plan, err)
		q := w.now(p)
		if c.isr == nil {
			c.isr = p.ISR
		}
		if (q.Leader != p.Leader) != c.moves || !slices.Equal(q.ISR, c.isr) || c.moves && (q.LeaderEpoch != p.LeaderEpoch+1 || q.Leader.ID == 1) {
			t.Errorf("%s: %+v", name, q)
		}
	}
}

// Those who do not keep up with the metadata lead only where nobody else could.
func TestLeadersThatHear(t *testing.T) {
	for name, c := range map[string]struct {
		deaf   []int32
		isr    []int32
		leader int32
	}{
		"everybody hears":              {nil, []int32{1, 2, 3}, 2},
		"the next in turn does not":    {[]int32{2}, []int32{1, 2, 3}, 3},
		"nobody does":                  {[]int32{1, 2, 3}, []int32{1, 2, 3}, 2},
		"only one outside of the ISR":  {[]int32{2}, []int32{1, 2}, 2},
		"the preferred one does not":   {[]int32{1}, []int32{1, 2, 3}, 2},
		"one that is away hears still": {[]int32{2, 3}, []int32{1, 2, 3}, 2},
	} {
		w, p := minTwo(t)
		// By its hash this partition would go to broker 2 once broker 1 is gone.
		for pick(&p, []int32{2, 3}) != 2 {
			id := w.create(t, "b"+itoa(int32(w.ids)), 1, 3)
			p = w.Partition(id, 0).Value
		}
		p.ISR, p.Replicas = c.isr, []int32{1, 2, 3}
		p.Leader = w.life(1)
		w.Set(p, 1, 77)
		w.PreferHearing(func(life Process) bool { return !slices.Contains(c.deaf, life.ID) })
		w.stop(t, 1)
		if q := w.now(p); q.Leader != w.life(c.leader) {
			t.Errorf("%s: %+v", name, q)
		}
	}
	w, p := minTwo(t)
	w.PreferHearing(func(life Process) bool { return life.ID != 2 })
	plan, err := LeadersUnreachable(w.State, map[Process][]Process{w.life(2): {w.life(1)}, w.life(3): {w.life(1)}})
	w.apply(t, plan, err)
	if q := w.now(p); q.Leader != w.life(3) {
		t.Errorf("unreachable, and 2 does not hear: %+v", q)
	}
}

// case 33: the preferred leader of many partitions restarts. It leads again only
// where it is back in the ISR, and only so many at once.
func TestPreferredLeadersReturn(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 5000, 3)
	w.stop(t, 1)
	w.start(t, 1, w.vouchAll(1, Intact))
	led := func() (n int) {
		for _, e := range w.Partitions(id) {
			if e.Value.Leader.ID == 1 {
				n++
			}
		}
		return n
	}
	if plan, err := PreferredMoves(w.State, 1000, nil); err != nil || !plan.IsEmpty() || led() != 0 {
		t.Fatalf("out of the ISR: %d moves, %d led, %v", plan.Len(), led(), err)
	}
	for n := range int32(90) { // 30 of them prefer broker 1
		p := w.Partition(id, n).Value
		plan, err := ProposeISR(w.State, w.proposal(p, 1, 2, 3))
		w.apply(t, plan, err)
	}
	w.settle(t)
	if led() != 0 {
		t.Fatalf("leads %d without being asked", led())
	}
	plan, err := PreferredMoves(w.State, 20, nil)
	if changes := LeaderChanges(w.State, plan); len(changes) != 20 || changes[0].Unclean || changes[0].From.IsZero() {
		t.Fatalf("%d changes: %+v", len(changes), changes)
	}
	w.apply(t, plan, err)
	if led() != 20 {
		t.Fatalf("leads %d", led())
	}
	if plan, err := PreferredMoves(w.State, 20, func(life Process) bool { return life == w.life(1) }); err != nil || !plan.IsEmpty() {
		t.Errorf("to be avoided: %d moves, %v", plan.Len(), err)
	}
	plan, err = PreferredMoves(w.State, 20, nil)
	w.apply(t, plan, err)
	if plan, err := PreferredMoves(w.State, 20, nil); err != nil || !plan.IsEmpty() || led() != 30 {
		t.Errorf("%d more moves, %d led, %v", plan.Len(), led(), err)
	}
	for _, e := range w.Partitions(id) {
		if p := e.Value; p.Leader.ID == 1 && (!slices.Contains(p.ISR, 1) || p.Replicas[0] != 1) {
			t.Fatalf("%+v", p)
		}
	}
}

func TestElectPreferredLeaders(t *testing.T) {
	w, p := minTwo(t)
	w.create(t, "b", 1, 1)
	w.stop(t, 1)
	check := func(reason string) {
		t.Helper()
		plan, outcomes, err := ElectLeaders(w.State, ElectPreferred, []PartitionName{{"a", 0}, {"a", 0}})
		w.apply(t, plan, err)
		if len(outcomes) != 1 || outcomes[0].Changed || outcomes[0].Leader != w.now(p).Leader {
			t.Fatalf("%+v", outcomes)
		}
		wantReason(t, outcomes[0].Rejection, reason)
	}
	check("LEADER_NOT_AVAILABLE") // not running
	w.start(t, 1, w.vouchAll(1, Intact))
	check("LEADER_NOT_AVAILABLE") // not in sync
	plan, err := ProposeISR(w.State, w.proposal(w.now(p), 1, 2, 3))
	w.apply(t, plan, err)
	// Without names: what changes, and what cannot.
	plan, outcomes, err := ElectLeaders(w.State, ElectPreferred, nil)
	w.apply(t, plan, err)
	if len(outcomes) != 1 || !outcomes[0].Changed || outcomes[0].Topic != "a" || outcomes[0].Leader != w.life(1) || w.now(p).Leader != w.life(1) {
		t.Fatalf("%+v", outcomes)
	}
	if plan, outcomes, err = ElectLeaders(w.State, ElectPreferred, nil); err != nil || !plan.IsEmpty() || len(outcomes) != 0 {
		t.Errorf("again: %+v, %v", outcomes, err)
	}
	_, outcomes, err = ElectLeaders(w.State, ElectPreferred, []PartitionName{{"a", 1}, {"nope", 0}, {"a", 0}, {"a", -1}})
	if err != nil || len(outcomes) != 4 {
		t.Fatal(outcomes, err)
	}
	wantReason(t, outcomes[0].Rejection, "UNKNOWN_PARTITION")
	wantReason(t, outcomes[1].Rejection, "UNKNOWN_TOPIC")
	wantReason(t, outcomes[3].Rejection, "UNKNOWN_PARTITION")
	if o := outcomes[2]; o.Rejection != nil || o.Changed || o.Leader != w.life(1) {
		t.Errorf("leads already: %+v", o)
	}
}

func TestElectUncleanLeaders(t *testing.T) {
	w, p := minTwo(t)
	_, _, err := ElectLeaders(w.State, ElectUnclean, nil)
	wantReason(t, err, "INVALID_REQUEST")
	_, _, err = ElectLeaders(w.State, 0, []PartitionName{{"a", 0}})
	wantReason(t, err, "INVALID_REQUEST")
	_, _, err = ElectLeaders(w.State, ElectUnclean, make([]PartitionName, MaxPartitions+1))
	wantReason(t, err, "INVALID_REQUEST")
	elect := func() ElectionOutcome {
		t.Helper()
		plan, outcomes, err := ElectLeaders(w.State, ElectUnclean, []PartitionName{{"a", 0}})
		w.apply(t, plan, err)
		return outcomes[0]
	}
	if o := elect(); o.Changed || o.Rejection != nil || o.Leader != p.Leader {
		t.Errorf("with a leader: %+v", o)
	}
	w.powerCut(t, 3)
	wantReason(t, elect().Rejection, "LEADER_NOT_AVAILABLE") // nobody lives
	q := w.now(p)
	outsider := 3 - q.ELR[0]
	w.start(t, outsider, as(p, Intact, 1, 3))
	before := w.now(p)
	if o := elect(); !o.Changed || o.Leader.ID != outsider {
		t.Errorf("%+v", o)
	}
	q = w.now(p)
	if !slices.Equal(q.ISR, []int32{outsider}) || len(q.ELR) != 0 || q.LeaderEpoch != before.LeaderEpoch+1 {
		t.Errorf("%+v", q)
	}
	// One that is whole comes back: it is a follower like any other.
	w.start(t, 3, as(p, Intact, 1, 9))
	if r := w.now(p); r.PartitionEpoch != q.PartitionEpoch {
		t.Errorf("%+v", r)
	}
}

// Where somebody can be elected cleanly, an unclean election is a clean one.
func TestElectUncleanWhereCleanIsPossible(t *testing.T) {
	w, p := minTwo(t)
	w.set(1, true) // not reconciled yet
	plan, outcomes, err := ElectLeaders(w.State, ElectUnclean, []PartitionName{{"a", 0}})
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || changes[0].Unclean {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
	if q := w.now(p); !slices.Equal(q.ISR, []int32{2, 3}) || outcomes[0].Leader != q.Leader {
		t.Errorf("%+v, %+v", outcomes, q)
	}
	// Of a topic that is being made nobody can have a record: no loss either.
	w, e := fresh(t)
	_, outcomes, _ = ElectLeaders(w.State, ElectUnclean, []PartitionName{{"a", 0}})
	wantReason(t, outcomes[0].Rejection, "LEADER_NOT_AVAILABLE")
	_, outcomes, _ = ElectLeaders(w.State, ElectPreferred, []PartitionName{{"a", 0}})
	wantReason(t, outcomes[0].Rejection, "LEADER_NOT_AVAILABLE")
	w.tell(t, e.Value, 3, Intact) // fewer than min.insync.replicas: only because it is asked for
	plan, _, err = ElectLeaders(w.State, ElectUnclean, []PartitionName{{"a", 0}})
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || changes[0].Unclean || !changes[0].First || changes[0].To.ID != 3 {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
}

func TestUncleanByConfigTakesTheLongest(t *testing.T) {
	w, p := minTwo(t)
	plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"unclean.leader.election.enable": "true"}})
	w.apply(t, plan, err)
	w.powerCut(t, 3)
	w.start(t, 3, as(p, Cut, 1, 8))
	outsider := 3 - w.now(p).ELR[0]
	w.start(t, outsider, as(p, Intact, 1, 7))
	waits := Waiting(w.State)
	if len(waits) != 1 || waits[0].Kind != WaitUnclean {
		t.Fatalf("waiting: %+v", waits)
	}
	// Overdue for folders is not overdue for this.
	if plan, err := Reconcile(w.State, overdue(WaitFolders)); err != nil || !plan.IsEmpty() {
		t.Fatalf("%d writes, %v", plan.Len(), err)
	}
	plan, err = Reconcile(w.State, overdue(WaitUnclean))
	w.apply(t, plan, err)
	if q := w.now(p); q.Leader.ID != 3 || !slices.Equal(q.ISR, []int32{3}) || len(q.ELR)+len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
	// A wait that a clean election ended is no wait.
	w, p = minTwo(t)
	plan, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"unclean.leader.election.enable": "true"}})
	w.apply(t, plan, err)
	w.powerCut(t, 3)
	w.start(t, 3, as(p, Intact, 1, 8))
	if waits := Waiting(w.State); len(waits) != 0 || w.now(p).Leader.ID != 3 {
		t.Errorf("waiting: %+v, %+v", waits, w.now(p))
	}
}

// With more to write than one plan takes, those without a leader come first.
func TestLeaderlessFirst(t *testing.T) {
	w := full(t, 1, 5000)
	plan, err := FenceBroker(w.State, w.life(1))
	w.apply(t, plan, err)
	plan, err = Reconcile(w.State, Hints{})
	if err != nil || plan.Len() != reconcileWrites || len(plan.Stages[0]) != 1667 || len(LeaderChanges(w.State, plan)) != 1667 {
		t.Fatalf("%d writes, %d changes, %v", plan.Len(), len(LeaderChanges(w.State, plan)), err)
	}
	w.apply(t, plan, nil)
	w.settle(t)
	for _, e := range w.held(1) {
		if p := e.Value; len(p.ISR) != 2 || p.Leader.ID == 1 || p.Leader.IsZero() {
			t.Fatalf("%+v", p)
		}
	}
}
