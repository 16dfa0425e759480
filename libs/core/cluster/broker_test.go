package cluster

import (
	"errors"
	"slices"
	"testing"

	"github.com/leat-io/leat/libs/topicid"
)

func TestSingleReplicaFollowsItsBroker(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	before := w.Partition(id, 0).Value
	w.stop(t, 1)
	p := w.Partition(id, 0).Value
	if !p.Leader.IsZero() || !slices.Equal(p.ISR, []int32{1}) || p.LeaderEpoch != before.LeaderEpoch || p.PartitionEpoch <= before.PartitionEpoch {
		t.Errorf("with its broker dead: %+v", p)
	}
	life := w.start(t, 1, w.vouchAll(1, Intact))
	p = w.Partition(id, 0).Value
	if p.Leader != life || p.LeaderEpoch != before.LeaderEpoch+1 {
		t.Errorf("with its broker back: %+v", p)
	}
}

func TestRestartWithinTheLease(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	old := w.Partition(id, 0).Value.Leader
	life := w.start(t, 1, w.vouchAll(1, Intact)) // never seen dead
	if p := w.Partition(id, 0).Value; p.Leader != life || p.Leader == old || p.LeaderEpoch != 2 {
		t.Errorf("%+v", p)
	}
}

func TestVerdictsBar(t *testing.T) {
	for verdict, wantLeader := range map[Verdict]bool{Intact: true, UncleanOS: true, Cut: false, Missing: false, Corrupt: false} {
		w := newWorld(t, 1)
		id := w.create(t, "a", 1, 1)
		w.start(t, 1, w.vouchAll(1, Intact)) // out of the first epoch
		w.stop(t, 1)
		w.start(t, 1, w.vouchAll(1, verdict))
		p := w.Partition(id, 0).Value
		if !p.Leader.IsZero() != wantLeader || !slices.Equal(p.ISR, []int32{1}) {
			t.Errorf("verdict %d: %+v", verdict, p)
		}
		if !wantLeader && !slices.Equal(p.Barred, []int32{1}) {
			t.Errorf("verdict %d does not bar: %+v", verdict, p)
		}
		// A life that vouches intact ends the bar.
		life := w.start(t, 1, w.vouchAll(1, Intact))
		if p := w.Partition(id, 0).Value; p.Leader != life || len(p.Barred) != 0 {
			t.Errorf("verdict %d, then intact: %+v", verdict, p)
		}
	}
}

func TestUncleanOnlyWhereAllowed(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	w.start(t, 1, w.vouchAll(1, Intact))
	w.start(t, 1, w.vouchAll(1, Corrupt))
	if p := w.Partition(id, 0).Value; !p.Leader.IsZero() {
		t.Fatalf("%+v", p)
	}
	// However long it lasts: nobody has allowed it.
	w.NoteReplicas(w.Broker(1).Value.Process, []Vouch{{Topic: id, Verdict: Corrupt}}) // has the partition looked at again
	plan, err := Reconcile(w.State, Hints{Overdue: func(Wait) bool { return true }})
	if err != nil || !plan.IsEmpty() || len(Waiting(w.State)) != 0 {
		t.Fatalf("where nothing is allowed: %+v, %v, waiting: %+v", plan, err, Waiting(w.State))
	}
	plan, err = AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"unclean.leader.election.enable": "true"}})
	w.apply(t, plan, err)
	w.settle(t)
	// An earlier leader may still commit on its own for a while.
	p := w.Partition(id, 0).Value
	if want := []Wait{{PartitionID{id, 0}, p.LeaderEpoch, WaitUnclean}}; !p.Leader.IsZero() || !slices.Equal(Waiting(w.State), want) {
		t.Fatalf("%+v, waiting: %+v", p, Waiting(w.State))
	}
	plan, err = Reconcile(w.State, Hints{Overdue: func(w Wait) bool { return w.Kind == WaitUnclean }})
	if changes := LeaderChanges(w.State, plan); len(changes) != 1 || !changes[0].Unclean || changes[0].Topic != "a" {
		t.Errorf("changes: %+v", changes)
	}
	w.apply(t, plan, err)
	if p := w.Partition(id, 0).Value; p.Leader.ID != 1 || len(p.Barred) != 0 {
		t.Errorf("%+v", p)
	}
	w.settle(t)
	if waits := Waiting(w.State); len(waits) != 0 {
		t.Errorf("waiting still: %+v", waits)
	}
}

func TestFailoverShrinksAndELR(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.newID()
	plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: "a", ReplicationFactor: 3, ID: id, Configs: map[string]string{"min.insync.replicas": "2"}}})
	w.apply(t, plan, err)
	w.makeFolders(t)
	w.stop(t, 1)
	p := w.Partition(id, 0).Value
	if !slices.Equal(p.ISR, []int32{2, 3}) || len(p.ELR) != 0 || p.Leader.ID == 1 || p.MinISR != 2 {
		t.Fatalf("one down: %+v", p)
	}
	second, third := p.Leader.ID, 5-p.Leader.ID
	w.stop(t, second)
	p = w.Partition(id, 0).Value
	if p.Leader.ID != third || !slices.Equal(p.ISR, []int32{third}) || !slices.Equal(p.ELR, []int32{second}) {
		t.Fatalf("two down: %+v", p)
	}
	w.stop(t, third)
	p = w.Partition(id, 0).Value
	if !p.Leader.IsZero() || !slices.Equal(p.ISR, []int32{third}) || !slices.Equal(p.ELR, []int32{second}) {
		t.Fatalf("all down: %+v", p)
	}
	// 1 left while the ISR sufficed: it may lack records and must wait.
	w.start(t, 1, w.vouchAll(1, Intact))
	if p = w.Partition(id, 0).Value; !p.Leader.IsZero() {
		t.Fatalf("elected from outside: %+v", p)
	}
	w.start(t, second, w.vouchAll(second, Intact))
	p = w.Partition(id, 0).Value
	if p.Leader.ID != second || !slices.Equal(p.ISR, []int32{second}) || !slices.Equal(p.ELR, []int32{third}) {
		t.Fatalf("from the ELR: %+v", p)
	}
}

func TestRegistrationIsChecked(t *testing.T) {
	w := newWorld(t, 1)
	_, err := RegisterBroker(w.State, BrokerRegistration{Process: Process{ID: 1, Incarnation: 77}})
	wantReason(t, err, "STALE_INCARNATION")
	_, err = RegisterBroker(w.State, BrokerRegistration{Process: Process{ID: 2, Incarnation: 77}})
	wantReason(t, err, "METADATA_BEHIND") // worth another try: the lease may have been lost
	_, err = RegisterBroker(w.State, BrokerRegistration{Process: w.Broker(1).Value.Process, ClusterID: "other"})
	wantReason(t, err, "WRONG_CLUSTER")
	plan, err := RegisterBroker(w.State, BrokerRegistration{Process: w.Broker(1).Value.Process, Address: "h1:1", ClusterID: "mesh"})
	if err != nil || !plan.IsEmpty() {
		t.Errorf("again: %d writes, %v", plan.Len(), err)
	}
}

func TestHiccup(t *testing.T) {
	w := newWorld(t, 1)
	id := w.create(t, "a", 1, 1)
	life := w.Broker(1).Value.Process
	plan, err := FenceBroker(w.State, life)
	w.apply(t, plan, err)
	plan, err = UnfenceBroker(w.State, life)
	w.apply(t, plan, err)
	if p := w.Partition(id, 0).Value; w.Broker(1).Value.Fenced || p.Leader != life || p.LeaderEpoch != 2 {
		t.Errorf("%+v", p)
	}
	// Another life's news changes nothing.
	plan, err = FenceBroker(w.State, Process{ID: 1, Incarnation: 99})
	if err != nil || !plan.IsEmpty() {
		t.Errorf("fenced by an older life's news: %v", err)
	}
}

func TestLeaveFencesUntilTheNextLife(t *testing.T) {
	w := newWorld(t, 1, 2)
	plan, _, err := Leave(w.State, w.life(1), nil, false)
	w.apply(t, plan, err)
	if plan, _ := UnfenceBroker(w.State, w.life(1)); !plan.IsEmpty() {
		t.Error("a leaving broker is unfenced")
	}
	w.start(t, 1, nil)
	if b := w.Broker(1).Value; b.Fenced || b.Draining {
		t.Errorf("%+v", b)
	}
}

func TestProposals(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 1, 3)
	p := w.Partition(id, 0).Value
	base := ISRProposal{
		Leader: p.Leader, Topic: id, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		ISR: []Process{p.Leader, w.Broker(2).Value.Process},
	}
	for reason, change := range map[string]func(*ISRProposal){
		"STALE_LEADER_EPOCH":    func(c *ISRProposal) { c.LeaderEpoch-- },
		"STALE_INCARNATION":     func(c *ISRProposal) { c.Leader.Incarnation++ },
		"STALE_PARTITION_EPOCH": func(c *ISRProposal) { c.PartitionEpoch-- },
		"UNKNOWN_TOPIC":         func(c *ISRProposal) { c.Topic = topicid.ID{9} },
	} {
		c := base
		change(&c)
		_, err := ProposeISR(w.State, c)
		wantReason(t, err, reason)
	}
	plan, err := ProposeISR(w.State, base)
	w.apply(t, plan, err)
	p = w.Partition(id, 0).Value
	if !slices.Equal(p.ISR, []int32{1, 2}) {
		t.Fatalf("shrunk: %+v", p)
	}
	// Adding a member under an incarnation that is not on record only raises the
	// partition epoch.
	refused := base
	refused.PartitionEpoch = p.PartitionEpoch
	refused.ISR = []Process{p.Leader, {ID: 3, Incarnation: 12345}}
	plan, err = ProposeISR(w.State, refused)
	w.apply(t, plan, err)
	if q := w.Partition(id, 0).Value; !slices.Equal(q.ISR, p.ISR) || q.PartitionEpoch != p.PartitionEpoch+1 {
		t.Fatalf("refused: %+v", q)
	}
}

func TestShardsAreBalancedAndMove(t *testing.T) {
	w := newWorld(t, 1)
	a := w.register(KindCoordinator, 1)
	plan, outcome, err := EnsureInternalTopic(w.State, testLimits(), OffsetsTopic, w.newID(), 0)
	w.apply(t, plan, err)
	w.settle(t)
	count := func() map[Process]int {
		n := map[Process]int{}
		for _, e := range w.Partitions(outcome.ID) {
			n[e.Value.ShardOwner]++
		}
		return n
	}
	if got := count(); got[a] != 8 {
		t.Fatalf("alone: %v", got)
	}
	b, c := w.register(KindCoordinator, 2), w.register(KindCoordinator, 3)
	w.settle(t)
	if got := count(); got[a] != 3 || got[b]+got[c] != 5 || got[b] < 2 || got[c] < 2 {
		t.Fatalf("three: %v", got)
	}
	epochs := map[int32]int64{}
	for _, e := range w.Partitions(outcome.ID) {
		epochs[e.Value.Number] = e.Value.ShardEpoch
	}
	d := w.register(KindCoordinator, 2) // another life of 2
	w.settle(t)
	for _, e := range w.Partitions(outcome.ID) {
		if e.Value.ShardOwner == b || e.Value.ShardOwner == d && e.Value.ShardEpoch <= epochs[e.Value.Number] {
			t.Errorf("shard %d: %+v", e.Value.Number, e.Value)
		}
	}
	if got := count(); got[a] != 3 {
		t.Errorf("shards of others moved: %v", got)
	}
	for _, id := range []int32{1, 2, 3} {
		w.Delete(Key{Type: KeyRegistration, Kind: KindCoordinator, ID: id})
	}
	before := count()
	w.settle(t)
	if got := count(); got[a] != before[a] {
		t.Errorf("with nobody registered shards moved: %v", got)
	}
}

func TestMinISRFollowsTheConfig(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	id := w.create(t, "a", 1, 3)
	set := func(v string) {
		plan, err := AlterTopic(w.State, AlterTopicCommand{Name: "a", SetConfigs: map[string]string{"min.insync.replicas": v}})
		w.apply(t, plan, err)
		w.settle(t)
	}
	set("3")
	w.stop(t, 3)
	p := w.Partition(id, 0).Value
	if p.MinISR != 3 || !slices.Equal(p.ELR, []int32{3}) {
		t.Fatalf("raised: %+v", p)
	}
	set("2")
	if p = w.Partition(id, 0).Value; p.MinISR != 2 || len(p.ELR) != 0 {
		t.Fatalf("lowered: %+v", p)
	}
}

func TestInvariants(t *testing.T) {
	good := Partition{Topic: topicid.ID{1}, Leader: Process{1, 1}, LeaderEpoch: 1, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, MinISR: 1, PartitionEpoch: 1}
	if err := checkPartition(nil, &good); err != nil {
		t.Fatal(err)
	}
	for rule, change := range map[string]func(*Partition){
		"no replicas":             func(p *Partition) { p.Replicas = nil },
		"a stranger in the ISR":   func(p *Partition) { p.ISR = []int32{1, 3} },
		"twice in the ISR":        func(p *Partition) { p.ISR = []int32{1, 1} },
		"nobody left":             func(p *Partition) { p.ISR, p.Leader = nil, Process{} },
		"the leader is outside":   func(p *Partition) { p.ISR = []int32{2} },
		"ELR beside enough ISR":   func(p *Partition) { p.ISR, p.ELR = []int32{1}, []int32{2} },
		"ISR and ELR at once":     func(p *Partition) { p.ELR, p.MinISR = []int32{2}, 3 },
		"a barred leader":         func(p *Partition) { p.Barred = []int32{1} },
		"barred but no member":    func(p *Partition) { p.ISR, p.Barred = []int32{1}, []int32{2} },
		"no minimum":              func(p *Partition) { p.MinISR = 0 },
		"no partition epoch":      func(p *Partition) { p.PartitionEpoch = 0 },
		"leader epoch overflowed": func(p *Partition) { p.LeaderEpoch = -1 },
	} {
		p := good
		change(&p)
		var broken *InvariantError
		if err := checkPartition(nil, &p); !errors.As(err, &broken) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	for rule, change := range map[string]func(*Partition){
		"partition epoch repeats":    func(p *Partition) { p.PartitionEpoch = 1 },
		"leader epoch goes down":     func(p *Partition) { p.LeaderEpoch = 0 },
		"leader without a new epoch": func(p *Partition) { p.Leader = Process{2, 1} },
		"shard epoch goes down":      func(p *Partition) { p.ShardEpoch = -1 },
		"owner without a new epoch":  func(p *Partition) { p.ShardOwner = Process{1, 1} },
	} {
		p := good
		p.PartitionEpoch = 2
		change(&p)
		var broken *InvariantError
		if err := checkPartition(&good, &p); !errors.As(err, &broken) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
