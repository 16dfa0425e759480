package cluster

import (
	"errors"
	"slices"
	"testing"
)

// minTwo is a led topic of three replicas with min.insync.replicas 2.
func minTwo(t *testing.T) (*world, Partition) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 1, 3)
	return w, w.Partition(id, 0).Value
}

// as vouches for a broker's copy of a partition.
func as(p Partition, verdict Verdict, lastEpoch int32, end int64) []Vouch {
	return []Vouch{{Topic: p.Topic, Partition: p.Number, LastEpoch: lastEpoch, End: end, Verdict: verdict}}
}

// powerCut stops all three brokers, the last of them being the one named.
func (w *world) powerCut(t *testing.T, last int32) {
	t.Helper()
	for _, b := range []int32{1, 2, 3} {
		if b != last {
			w.stop(t, b)
		}
	}
	w.stop(t, last)
}

// case 32: the ISR shrinks to one, which then loses its tail in a power cut. It is
// not elected; the eligible member, which has every committed record, is.
func TestLastReplicaLosesItsTail(t *testing.T) {
	w, p := minTwo(t)
	w.powerCut(t, 3)
	q := w.now(p)
	second := q.ELR[0]
	if !slices.Equal(q.ISR, []int32{3}) || len(q.ELR) != 1 {
		t.Fatalf("before the restart: %+v", q)
	}
	w.start(t, 3, as(p, Cut, 1, 5))
	if q = w.now(p); !q.Leader.IsZero() || !slices.Equal(q.Barred, []int32{3}) {
		t.Fatalf("3 lost its tail: %+v", q)
	}
	other := 3 - second // left while the ISR sufficed
	w.start(t, other, as(p, Intact, 1, 7))
	if q = w.now(p); !q.Leader.IsZero() {
		t.Fatalf("%d may lack records: %+v", other, q)
	}
	w.start(t, second, as(p, Intact, 1, 9))
	q = w.now(p)
	if q.Leader.ID != second || !slices.Equal(q.ISR, []int32{second}) || len(q.ELR) != 0 || len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
}

// case 32, with nobody eligible: unavailable rather than cut in silence, until the
// operator says otherwise.
func TestLastReplicaLosesItsTailAndNobodyIsLeft(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: 3, ID: id, Configs: map[string]string{"min.insync.replicas": "1"}}})
	w.apply(t, plan, err)
	w.makeFolders(t)
	p := w.Partition(id, 0).Value
	w.powerCut(t, 3)
	for _, b := range []int32{1, 2} {
		w.start(t, b, as(p, Intact, 1, 7))
	}
	w.start(t, 3, as(p, Corrupt, 1, 5))
	if q := w.now(p); !q.Leader.IsZero() || !slices.Equal(q.ISR, []int32{3}) || !slices.Equal(q.Barred, []int32{3}) {
		t.Fatalf("%+v", q)
	}
	plan, outcomes, err := ElectLeaders(w.State, ElectUnclean, []PartitionName{{"a", 0}})
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || !changes[0].Unclean {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
	q := w.now(p)
	if !outcomes[0].Changed || outcomes[0].Leader != q.Leader || q.Leader.ID == 3 || !slices.Equal(q.ISR, []int32{q.Leader.ID}) || len(q.Barred) != 0 {
		t.Errorf("%+v, %+v", outcomes, q)
	}
}

func TestAllLostTheirPageCache(t *testing.T) {
	w, p := minTwo(t)
	w.powerCut(t, 3)
	q := w.now(p)
	members := union(q.ISR, q.ELR)
	w.start(t, members[0], as(p, UncleanOS, 1, 40))
	if q = w.now(p); !q.Leader.IsZero() {
		t.Fatalf("one is silent: %+v", q)
	}
	// Another controller takes over and must be told again.
	clear(w.vouches)
	w.start(t, members[1], as(p, UncleanOS, 1, 50))
	if q = w.now(p); !q.Leader.IsZero() || len(q.Barred) != 2 {
		t.Fatalf("one is silent towards this controller: %+v", q)
	}
	life := w.Broker(members[0]).Value.Process
	w.NoteReplicas(life, as(p, UncleanOS, 1, 40))
	w.NoteReplicas(life, as(p, Intact, -1, 0)) // made anew, which unsays nothing
	plan, err := ReportReplicas(w.State, life, as(p, UncleanOS, 1, 40))
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || !changes[0].Longest || changes[0].Unclean {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
	w.settle(t)
	if q = w.now(p); q.Leader.ID != members[1] || !slices.Equal(q.ISR, []int32{members[1]}) || len(q.ELR)+len(q.Barred) != 0 {
		t.Errorf("%+v", q)
	}
	// A later epoch beats a longer log.
	w, p = minTwo(t)
	w.powerCut(t, 3)
	w.start(t, members[0], as(p, UncleanOS, 2, 4))
	w.start(t, members[1], as(p, UncleanOS, 1, 50))
	if q = w.now(p); q.Leader.ID != members[0] {
		t.Errorf("%+v", q)
	}
}

func TestOneOfThemLostMore(t *testing.T) {
	for _, verdict := range []Verdict{Missing, Cut, Corrupt} {
		w, p := minTwo(t)
		w.powerCut(t, 3)
		q := w.now(p)
		members := union(q.ISR, q.ELR)
		w.start(t, members[0], as(p, UncleanOS, 1, 40))
		w.start(t, members[1], as(p, verdict, 1, 50))
		if q = w.now(p); !q.Leader.IsZero() || len(q.Barred) != 2 {
			t.Errorf("verdict %d: %+v", verdict, q)
		}
	}
}

// A member that is not whole leaves ISR and ELR only once a trusted one leads.
func TestBarredLeaveWhenATrustedMemberLeads(t *testing.T) {
	w, p := minTwo(t)
	follower := int32(3)
	w.start(t, follower, as(p, Cut, 1, 2)) // never seen dead
	q := w.now(p)
	if q.Leader.ID != 1 || !slices.Equal(q.ISR, []int32{1, 2}) || len(q.Barred) != 0 {
		t.Fatalf("a trusted leader: %+v", q)
	}
	// The leader's proposal brings it back.
	plan, err := ProposeISR(w.State, w.proposal(q, 1, 2, 3))
	w.apply(t, plan, err)
	if q = w.now(p); !slices.Equal(q.ISR, []int32{1, 2, 3}) || len(q.Barred) != 0 {
		t.Fatalf("proposed: %+v", q)
	}
	// The leader itself: another leads in the same transaction.
	w.start(t, 1, as(p, Missing, -1, 0))
	q = w.now(p)
	if q.Leader.ID == 1 || slices.Contains(q.ISR, 1) || slices.Contains(q.ELR, 1) || len(q.Barred) != 0 || q.LeaderEpoch != 2 {
		t.Errorf("the leader was wiped: %+v", q)
	}
}

func TestBarsSurviveLives(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	p := w.Partition(id, 0).Value
	w.start(t, 1, as(p, Cut, 1, 2))
	w.start(t, 1, nil)
	if q := w.now(p); !slices.Equal(q.Barred, []int32{1}) || !q.Leader.IsZero() {
		t.Fatalf("%+v", q)
	}
	w.start(t, 1, as(p, Intact, 1, 2)) // an offline disk that came back
	if q := w.now(p); len(q.Barred) != 0 || q.Leader.ID != 1 {
		t.Errorf("%+v", q)
	}
}

// Bars for more partitions than fit into a transaction are written before the broker
// is unfenced.
func TestManyBars(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 400, 3)
	life := w.register(KindBroker, 1) // restarted within the lease, with nothing
	r := BrokerRegistration{Process: life, Address: "h1:1"}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	if err != nil || len(plan.Stages) != 2 || len(plan.Stages[0]) != 400 || len(plan.Stages[1]) != 1 {
		t.Fatalf("%d stages, %v", len(plan.Stages), err)
	}
	w.applyStages(t, plan.Stages[:1])
	for _, e := range w.Partitions(id) {
		if p := e.Value; p.Leader.ID == 1 || slices.Contains(p.ISR, 1) {
			t.Fatalf("before the broker is unfenced: %+v", p)
		}
	}
	w.applyStages(t, plan.Stages[1:])
	w.settle(t)
}

func TestManyBarsEnd(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 400, 1)
	w.start(t, 1, nil)
	if p := w.Partition(id, 399).Value; !slices.Equal(p.Barred, []int32{1}) {
		t.Fatalf("%+v", p)
	}
	// Nobody is elected for a bar that ends before the broker is on record again.
	life := w.register(KindBroker, 1)
	r := BrokerRegistration{Process: life, Address: "h1:1", Vouches: w.vouchAll(1, Intact)}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	if changes := LeaderChanges(w.State, plan); len(changes) != 0 || len(plan.Stages) != 2 {
		t.Errorf("%d changes in %d stages", len(changes), len(plan.Stages))
	}
	w.apply(t, plan, err)
	w.settle(t)
	for _, e := range w.Partitions(id) {
		if e.Value.Leader != life || len(e.Value.Barred) != 0 {
			t.Fatalf("%+v", e.Value)
		}
	}
}

// A disk that goes offline under a living broker.
func TestDiskGoesOffline(t *testing.T) {
	w, p := minTwo(t)
	w.tell(t, p, 1, Corrupt)
	q := w.now(p)
	if q.Leader.ID == 1 || q.Leader.IsZero() || !slices.Equal(q.ISR, []int32{2, 3}) || len(q.ELR)+len(q.Barred) != 0 {
		t.Fatalf("the leader's disk: %+v", q)
	}
	before := q
	w.tell(t, p, 1, Corrupt) // repeated until seen; proposals from before add it no more
	if q = w.now(p); q.PartitionEpoch != before.PartitionEpoch+1 || !samePartition(&q, &before) {
		t.Fatalf("told again: %+v", q)
	}
	follower := 5 - q.Leader.ID
	w.tell(t, p, follower, Corrupt)
	if q = w.now(p); len(q.ISR) != 1 || len(q.ELR) != 0 {
		t.Fatalf("a follower's disk: %+v", q)
	}
	// The last one stays a member, barred.
	w.tell(t, p, q.Leader.ID, Corrupt)
	if q = w.now(p); !q.Leader.IsZero() || len(q.ISR) != 1 || !slices.Equal(q.Barred, q.ISR) {
		t.Fatalf("the last disk: %+v", q)
	}
}

func TestManyDisksGoOffline(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	w.create(t, "a", 3000, 3)
	var vouches []Vouch
	for _, v := range w.vouchAll(1, Corrupt) {
		vouches = append(vouches, v, v) // said twice
	}
	plan, err := ReportReplicas(w.State, w.Broker(1).Value.Process, vouches)
	if err != nil || plan.Len() != 3000 {
		t.Fatal(plan.Len(), err)
	}
	w.apply(t, plan, err) // the broker does not tell again
	w.settle(t)
	for _, e := range w.held(1) {
		if slices.Contains(e.Value.ISR, 1) {
			t.Fatalf("%+v", e.Value)
		}
	}
}

func TestLongest(t *testing.T) {
	w, p := minTwo(t)
	for _, c := range []struct {
		vouches [3]Vouch
		want    int32
	}{
		{[3]Vouch{{LastEpoch: 1, End: 5, Verdict: Cut}, {LastEpoch: 1, End: 6, Verdict: Cut}, {LastEpoch: 1, End: 4, Verdict: Intact}}, 2},
		{[3]Vouch{{LastEpoch: 2, End: 5, Verdict: Cut}, {LastEpoch: 1, End: 6, Verdict: Cut}, {LastEpoch: 1, End: 4, Verdict: Intact}}, 1},
		{[3]Vouch{{LastEpoch: 9, End: 99, Verdict: Corrupt}, {LastEpoch: -1, End: 0, Verdict: Missing}, {LastEpoch: 0, End: 1, Verdict: Cut}}, 3},
		{[3]Vouch{{LastEpoch: 9, End: 99, Verdict: Corrupt}, {LastEpoch: -1, End: 0, Verdict: Missing}, {LastEpoch: 9, End: 99, Verdict: Corrupt}}, 1},
		{[3]Vouch{}, 1},
	} {
		clear(w.vouches)
		for i, v := range c.vouches {
			if life := w.Broker(int32(i + 1)).Value.Process; v.Verdict != 0 {
				w.vouches[life] = map[PartitionID]Vouch{p.id(): v}
			}
		}
		if got, ok := (brokerView{state: w.State}).longest(&p, p.Replicas); !ok || got != c.want {
			t.Errorf("%+v: %d, want %d", c.vouches, got, c.want)
		}
	}
	for _, b := range []int32{1, 2, 3} {
		w.stop(t, b)
	}
	if got, ok := (brokerView{state: w.State}).longest(&p, p.Replicas); ok {
		t.Errorf("%d lives", got)
	}
}

// case 34: what an earlier life of a broker says, delayed, changes nothing.
func TestWordsOfAnEarlierLife(t *testing.T) {
	w, p := minTwo(t)
	old := p.Leader
	w.start(t, 1, as(p, Intact, 1, 5))
	q := w.now(p)
	if q.Leader == old || q.Leader.ID != 1 {
		t.Fatalf("%+v", q)
	}
	proposal := w.proposal(q, 1)
	proposal.Leader = old
	_, err := ProposeISR(w.State, proposal)
	wantReason(t, err, "STALE_INCARNATION")
	_, err = ReportReplicas(w.State, old, as(p, Corrupt, 1, 5))
	wantReason(t, err, "STALE_INCARNATION")
	_, err = ConfirmDeletion(w.State, old, [][16]byte{p.Topic})
	wantReason(t, err, "STALE_INCARNATION")
	_, err = RegisterBroker(w.State, BrokerRegistration{Process: old, Address: "h1:1"})
	wantReason(t, err, "STALE_INCARNATION")
	for what, plan := range map[string]func() (Plan, error){
		"fence":   func() (Plan, error) { return FenceBroker(w.State, old) },
		"unfence": func() (Plan, error) { return UnfenceBroker(w.State, old) },
		"drop":    func() (Plan, error) { return DropRegistration(w.State, KindBroker, old) },
		"leave":   func() (Plan, error) { plan, _, err := Leave(w.State, old, nil, false); return plan, err },
		"unreachable": func() (Plan, error) {
			return LeadersUnreachable(w.State, map[Process][]Process{w.Broker(2).Value.Process: {old}, w.Broker(3).Value.Process: {old}})
		},
	} {
		if plan, err := plan(); err != nil || !plan.IsEmpty() {
			t.Errorf("%s: %d writes, %v", what, plan.Len(), err)
		}
	}
}

// A lease that is lost while a broker registers must not cost it its replicas: its
// vouch came when its key was not there, and is not known when the key is back.
func TestWhoseVouchIsNotKnownIsNotBarred(t *testing.T) {
	w, p := minTwo(t)
	w.stop(t, 1)
	life := w.register(KindBroker, 1)
	r := BrokerRegistration{Process: life, Address: "h1:1", Vouches: as(p, Intact, 1, 7)}
	var rejection *Rejection
	if plan, err := RegisterBroker(w.State, r); !errors.As(err, &rejection) || rejection.Reason != "METADATA_BEHIND" || !plan.IsEmpty() {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	w.SetVouches(r)
	plan, err := RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	if q := w.now(p); len(q.Barred) != 0 {
		t.Errorf("barred although it vouched: %+v", q)
	}
}

func TestReplicasThatReturnUnderTheSameLife(t *testing.T) {
	w, p := minTwo(t)
	for _, b := range []int32{1, 2, 3} {
		plan, err := FenceBroker(w.State, w.Broker(b).Value.Process)
		w.apply(t, plan, err)
	}
	w.settle(t)
	q := w.now(p)
	if !q.Leader.IsZero() || len(q.ISR) != 1 {
		t.Fatalf("%+v", q)
	}
	last := q.ISR[0]
	plan, err := UnfenceBroker(w.State, w.Broker(last).Value.Process)
	w.apply(t, plan, err)
	if q = w.now(p); q.Leader != w.Broker(last).Value.Process || q.LeaderEpoch < 3 {
		t.Errorf("%+v", q)
	}
	if b := w.Broker(last).Value; b.Fenced {
		t.Errorf("%+v", b)
	}
}

func TestNobodyIsUnfencedWhileItIsNamedLeader(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	w.create(t, "a", 300, 3) // more elections than fit beside the fencing
	life := w.Broker(1).Value.Process
	plan, err := FenceBroker(w.State, life)
	w.apply(t, plan, err)
	if plan, err := UnfenceBroker(w.State, life); err != nil || !plan.IsEmpty() {
		t.Fatalf("%d writes, %v", plan.Len(), err)
	}
	w.settle(t)
	plan, err = UnfenceBroker(w.State, life)
	w.apply(t, plan, err)
	if w.Broker(1).Value.Fenced {
		t.Error("still fenced")
	}
}

// A disk fails between two attempts of a broker to register: what it vouched for first
// does not stand.
func TestDamageBetweenTwoRegistrationsCounts(t *testing.T) {
	w := newWorld(t, 1, 2)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: 2, ID: id}})
	w.apply(t, plan, err)
	w.makeFolders(t)
	life := Process{ID: 1, Incarnation: 99}
	w.stop(t, 2)
	w.stop(t, 1) // the last member
	w.apply(t, Plan{Stages: [][]Write{{{Key: Key{Type: KeyRegistration, Kind: KindBroker, ID: 1}, Record: Registration{Kind: KindBroker, Process: life, Address: "h:1"}}}}}, nil)
	r := BrokerRegistration{Process: life, Address: "h:1", Vouches: []Vouch{{Topic: id, LastEpoch: 1, Verdict: Intact}}}
	w.SetVouches(r) // and the answer is lost
	r.Vouches[0].Verdict = Corrupt
	w.SetVouches(r)
	plan, err = RegisterBroker(w.State, r)
	w.apply(t, plan, err)
	w.settle(t)
	if p := w.Partition(id, 0).Value; !slices.Equal(p.ISR, []int32{1}) || !slices.Equal(p.Barred, []int32{1}) || !p.Leader.IsZero() {
		t.Errorf("the damaged replica counts: %+v", p)
	}
}
