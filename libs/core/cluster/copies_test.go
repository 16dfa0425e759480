package cluster

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// copies is a mesh whose partitions have records: it knows how much of what was
// committed each replica holds, and that nobody is elected who lacks some, but by an
// election that says so.
type copies struct {
	*world
	t         *rapid.T
	running   map[int32]Process // the life of each process that runs
	verdicts  map[copyID]Verdict
	has       map[copyID]int
	committed map[PartitionID]int
	led       map[PartitionID]int32 // highest leader epoch of which the election was checked
	seen      map[PartitionID]Partition
	unclean   int
}

type copyID struct {
	PartitionID
	broker int32
}

func newCopies(t *rapid.T) *copies {
	c := &copies{
		world: newWorld(t), t: t, running: map[int32]Process{}, verdicts: map[copyID]Verdict{}, has: map[copyID]int{},
		committed: map[PartitionID]int{}, led: map[PartitionID]int32{}, seen: map[PartitionID]Partition{},
	}
	for id := range int32(5) {
		c.running[id+1] = c.startIn(t, id+1, []string{"a", "b", ""}[id%3])
	}
	for i, configs := range []map[string]string{nil, {"min.insync.replicas": "1"}, {"unclean.leader.election.enable": "true"}} {
		plan, _, err := createTopics(c.State, testLimits(), []NewTopic{{Name: fmt.Sprint("t", i), ID: c.newID(), Shift: i, Configs: configs, ReplicationFactor: int32(3 - i/2)}})
		c.apply(t, plan, err)
	}
	return c
}

func (c *copies) broker() int32 { return rapid.Int32Range(1, 5).Draw(c.t, "broker") }

func (c *copies) chance(percent int, what string) bool {
	return rapid.IntRange(0, 99).Draw(c.t, what) < percent
}

// partition draws one of those that live, nil if there is none.
func (c *copies) partition() *Entry[Partition] {
	names := c.partitionNames()
	if len(names) == 0 {
		return nil
	}
	e, _ := c.byName(rapid.SampledFrom(names).Draw(c.t, "partition"))
	return e
}

// write applies a plan, or only its first stages, as when the controller dies.
func (c *copies) write(plan Plan, err error) {
	if _, rejected := err.(*Rejection); rejected {
		return
	}
	if err != nil {
		c.t.Fatalf("a plan that breaks a rule: %v", err)
	}
	changes := LeaderChanges(c.State, plan)
	stages := plan.Stages
	if len(stages) > 1 && c.chance(10, "dies") {
		stages = stages[:rapid.IntRange(0, len(stages)-1).Draw(c.t, "stages")]
	}
	c.applyStages(c.t, stages)
	for _, change := range changes {
		e := c.living(change.ID)
		if e == nil || e.Value.LeaderEpoch != change.Epoch || e.Value.Leader != change.To || !change.Unclean && !change.Longest {
			continue
		}
		// It says that records may be lost: what the leader holds is what there is.
		c.unclean++
		c.committed[change.ID] = min(c.committed[change.ID], c.has[copyID{change.ID, change.To.ID}])
		for b := range int32(6) {
			id := copyID{change.ID, b}
			c.has[id] = min(c.has[id], c.committed[change.ID])
		}
	}
	c.check()
}

// check holds after every write.
func (c *copies) check() {
	for topic := range c.partitions {
		for n, e := range c.partitions[topic] {
			id := PartitionID{topic, n}
			p := e.Value
			if old, ok := c.seen[id]; ok && old.PartitionEpoch != p.PartitionEpoch {
				if err := checkPartition(&old, &p); err != nil {
					c.t.Fatalf("%v: %+v → %+v", err, old, p)
				}
			}
			c.seen[id] = p
			if c.living(id) == nil {
				continue
			}
			if !p.Leader.IsZero() && p.LeaderEpoch > c.led[id] {
				c.led[id] = p.LeaderEpoch
				if got := c.has[copyID{id, p.Leader.ID}]; c.isCurrent(p.Leader.ID) && got < c.committed[id] {
					c.t.Fatalf("LOST: elected with %d of %d committed records: %+v", got, c.committed[id], p)
				}
			}
			for _, b := range union(p.ISR, p.ELR) {
				if c.isCurrent(b) && !slices.Contains(p.Barred, b) && c.has[copyID{id, b}] < c.committed[id] {
					c.t.Fatalf("LOST: broker %d may be elected with %d of %d committed records: %+v", b, c.has[copyID{id, b}], c.committed[id], p)
				}
			}
		}
	}
}

// isCurrent tells whether a broker's life on record is the one that runs: only that
// life's word about its disks has been taken.
func (c *copies) isCurrent(b int32) bool {
	record := c.Broker(b)
	return record != nil && !c.running[b].IsZero() && record.Value.Process == c.running[b]
}

// leaderRuns tells whether a partition has a leader that can do something.
func (c *copies) leaderRuns(p Partition) bool {
	return !p.Leader.IsZero() && c.running[p.Leader.ID] == p.Leader
}

func (c *copies) commit(*rapid.T) {
	e := c.partition()
	if e == nil || !c.leaderRuns(e.Value) || int32(len(e.Value.ISR)) < e.Value.MinISR {
		return
	}
	for _, b := range e.Value.ISR {
		if c.running[b].IsZero() {
			return
		}
	}
	id := e.Value.id()
	c.committed[id] += rapid.IntRange(1, 9).Draw(c.t, "records")
	for _, b := range e.Value.ISR {
		c.has[copyID{id, b}] = c.committed[id]
	}
	c.check()
}

func (c *copies) propose(*rapid.T) {
	e := c.partition()
	if e == nil || !c.leaderRuns(e.Value) {
		return
	}
	isr := []int32{e.Value.Leader.ID}
	for _, b := range e.Value.Replicas {
		in := slices.Contains(e.Value.ISR, b)
		switch {
		case b == e.Value.Leader.ID:
		case in && c.chance(70, "stays"):
			isr = append(isr, b)
		case !in && !c.running[b].IsZero() && c.chance(80, "catches up"):
			// It is added under the life that the leader saw, having caught up.
			c.has[copyID{e.Value.id(), b}] = c.committed[e.Value.id()]
			isr = append(isr, b)
		}
	}
	proposal := c.proposal(e.Value, isr...)
	for i := range proposal.ISR {
		if !slices.Contains(e.Value.ISR, proposal.ISR[i].ID) {
			proposal.ISR[i] = c.running[proposal.ISR[i].ID]
		}
	}
	c.write(ProposeISR(c.State, proposal))
}

// crash ends a process, and may hurt its disk; the controller may or may not notice.
func (c *copies) crash(*rapid.T) {
	b := c.broker()
	if c.running[b].IsZero() {
		return
	}
	delete(c.running, b)
	c.Delete(Key{Type: KeyRegistration, Kind: KindBroker, ID: b})
	harm := rapid.SampledFrom([]Verdict{Intact, Intact, Intact, Intact, Cut, UncleanOS, Missing, Corrupt}).Draw(c.t, "harm")
	for _, id := range sortedIDs(c.index.held[b]) {
		if e := c.living(id); harm == Intact || e == nil || c.neverLed(&e.Value) && harm != Missing {
			continue
		}
		key := copyID{id, b}
		if c.verdicts[key] = harm; harm == Missing || harm == Corrupt {
			c.has[key] = 0
		} else {
			c.has[key] = rapid.IntRange(0, c.has[key]).Draw(c.t, "left")
		}
	}
	if c.chance(60, "noticed") {
		c.fence(b)
	}
}

func (c *copies) fence(b int32) {
	if record := c.Broker(b); record != nil {
		c.write(FenceBroker(c.State, record.Value.Process))
	}
}

// registration is what a broker says of itself.
func (c *copies) registration(b int32) BrokerRegistration {
	r := BrokerRegistration{Process: c.running[b], Address: fmt.Sprintf("h%d:1", b), Rack: value(c.Broker(b)).Rack}
	for _, e := range c.held(b) {
		key := copyID{e.Value.id(), b}
		v := Vouch{Topic: key.Topic, Partition: key.Number, LastEpoch: e.Value.LeaderEpoch, End: int64(c.has[key]), Verdict: Intact}
		if sticky := c.verdicts[key]; sticky != 0 {
			v.Verdict = sticky
		}
		r.Vouches = append(r.Vouches, v)
	}
	return r
}

func (c *copies) start(*rapid.T) {
	b := c.broker()
	if !c.running[b].IsZero() {
		return
	}
	c.running[b] = c.register(KindBroker, b)
	c.sendRegistration(b)
}

// sendRegistration brings a registration to the controller.
func (c *copies) sendRegistration(b int32) {
	r := c.registration(b)
	if on := c.Broker(b); on != nil && on.Value.Process != r.Process && !on.Value.Fenced && c.chance(50, "fenced first") {
		c.fence(b)
	}
	c.SetVouches(r)
	c.write(RegisterBroker(c.State, r))
}

// see clears verdicts by records that show the own life, and no bar.
func (c *copies) see(*rapid.T) {
	b := c.broker()
	if !c.isCurrent(b) {
		return
	}
	for _, id := range sortedIDs(c.index.held[b]) {
		e := c.living(id)
		if e == nil || slices.Contains(e.Value.Barred, b) {
			continue
		}
		delete(c.verdicts, copyID{id, b})
		if c.neverLed(&e.Value) && c.chance(80, "made") {
			c.NoteReplicas(c.running[b], as(e.Value, Intact, -1, 0))
			c.write(ReportReplicas(c.State, c.running[b], as(e.Value, Intact, -1, 0)))
		}
	}
}

// newController forgets what brokers told; those that are asked tell again.
func (c *copies) newController(*rapid.T) {
	clear(c.vouches)
	for b := range int32(6) {
		if c.running[b].IsZero() || c.chance(30, "slow") {
			continue
		}
		c.sendRegistration(b)
	}
}

func (c *copies) hiccup(*rapid.T) {
	b := c.broker()
	record := c.Broker(b)
	if record == nil {
		return
	}
	if !record.Value.Fenced {
		c.fence(b)
	} else if c.running[b] == record.Value.Process {
		c.write(UnfenceBroker(c.State, record.Value.Process))
	}
}

func (c *copies) diskFails(*rapid.T) {
	b := c.broker()
	e := c.partition()
	if e == nil || !c.isCurrent(b) || !slices.Contains(e.Value.Replicas, b) || c.neverLed(&e.Value) {
		return
	}
	key := copyID{e.Value.id(), b}
	// The process stops leading and acknowledging by itself; its word follows.
	c.verdicts[key], c.has[key] = Corrupt, 0
	vouch := as(e.Value, Corrupt, -1, 0)
	c.NoteReplicas(c.running[b], vouch)
	plan, err := ReportReplicas(c.State, c.running[b], vouch)
	c.write(plan, err)
}

// probes are the answers of those that run, some of them sent too early.
func (c *copies) probes() Probes {
	probes := Probes{}
	for b := range int32(6) {
		life := c.running[b]
		if life.IsZero() || !c.chance(90, "answers") {
			continue
		}
		probes[life] = c.revision
		if c.chance(10, "early") {
			probes[life] = c.revision - 3
		}
	}
	return probes
}

func (c *copies) leave(*rapid.T) {
	b := c.broker()
	if !c.isCurrent(b) {
		return
	}
	before := map[PartitionID]Partition{}
	for _, e := range c.held(b) {
		before[e.Value.id()] = e.Value
	}
	probes := c.probes()
	plan, blockers, err := Leave(c.State, c.running[b], probes, c.chance(20, "decommission"))
	if len(blockers) > 0 && !plan.IsEmpty() {
		c.t.Fatalf("blocked, and yet %d writes", plan.Len())
	}
	c.write(plan, err)
	if !plan.IsEmpty() && c.Broker(b).Value.Draining {
		for id, old := range before {
			p := c.Partition(id.Topic, id.Number).Value
			left := keep(p.ISR, func(x int32) bool { _, ok := probes[value(c.Broker(x)).Process]; return x != b && ok })
			if len(old.Replicas) > 1 && member(&old, b) && !c.neverLed(&old) && int32(len(left)) < old.MinISR {
				c.t.Fatalf("leave granted with %v left that answer: %+v", left, p)
			}
		}
	}
}

func (c *copies) unreachable(*rapid.T) {
	reports := map[Process][]Process{}
	missed := c.broker()
	for b := range int32(6) {
		if b != missed && c.isCurrent(b) && c.chance(80, "misses") {
			reports[c.running[b]] = []Process{value(c.Broker(missed)).Process}
		}
	}
	c.write(LeadersUnreachable(c.State, reports))
}

func (c *copies) preferred(*rapid.T) { c.write(PreferredMoves(c.State, 2, nil)) }

func (c *copies) operator(*rapid.T) {
	e := c.partition()
	if e == nil {
		return
	}
	kind := rapid.SampledFrom([]ElectionType{ElectPreferred, ElectUnclean}).Draw(c.t, "kind")
	plan, _, err := ElectLeaders(c.State, kind, []PartitionName{c.nameOf(e.Value.id())})
	c.write(plan, err)
}

func (c *copies) alter(*rapid.T) {
	e := c.partition()
	if e == nil {
		return
	}
	n := rapid.Int32Range(1, 3).Draw(c.t, "min")
	c.write(AlterTopic(c.State, AlterTopicCommand{Name: c.nameOf(e.Value.id()).Topic, SetConfigs: map[string]string{"min.insync.replicas": itoa(n)}}))
}

func (c *copies) reassign(*rapid.T) {
	r := ReassignmentRequest{Balance: true}
	switch rapid.IntRange(0, 2).Draw(c.t, "what") {
	case 0:
		r = ReassignmentRequest{DrainBrokers: []int32{c.broker()}}
	case 1:
		if e := c.partition(); e != nil {
			to := rapid.SliceOfNDistinct(rapid.Int32Range(1, 5), 1, 4, rapid.ID).Draw(c.t, "to")
			r = ReassignmentRequest{Assignments: []Move{{PartitionName: c.nameOf(e.Value.id()), To: to}}}
		}
	}
	plan, err := PlanReassignment(c.State, r)
	if err == nil && len(plan.Moves) > 0 {
		c.write(ApplyReassignment(c.State, plan.ID, plan.Moves))
	}
}

func (c *copies) control(*rapid.T) {
	for _, e := range c.Reassignments() {
		action := rapid.SampledFrom([]ReassignmentAction{PauseReassignment, ResumeReassignment, CancelReassignment}).Draw(c.t, "action")
		c.write(ControlReassignment(c.State, e.Value.PlanID, action))
	}
}

func (c *copies) advanceOnce(*rapid.T) {
	held := map[copyID]bool{}
	for b := range int32(6) {
		for _, id := range sortedIDs(c.index.held[b]) {
			held[copyID{id, b}] = true
		}
	}
	plan, _, err := AdvanceReassignments(c.State, c.probes())
	c.write(plan, err)
	for key := range held {
		if e := c.living(key.PartitionID); e != nil && !slices.Contains(e.Value.Replicas, key.broker) {
			c.has[key] = 0 // who is out deletes
			delete(c.verdicts, key)
		}
	}
}

func (c *copies) reconcile(*rapid.T) {
	hints := Hints{}
	if c.chance(30, "overdue") {
		hints.Overdue = func(Wait) bool { return true }
	}
	c.write(Reconcile(c.State, hints))
}

// tidy reconciles until there is nothing to do.
func (c *copies) tidy() {
	for range 50 {
		plan, err := Reconcile(c.State, Hints{})
		if err == nil && plan.IsEmpty() {
			return
		}
		c.write(plan, err)
	}
	c.t.Fatalf("reconcile does not come to an end")
}

// recover ends the faults: everybody comes back as it is, and everything must be in
// order again where somebody may lead.
func (c *copies) recover(t *rapid.T) {
	for b := int32(1); b <= 5; b++ {
		if c.running[b].IsZero() {
			c.running[b] = c.register(KindBroker, b)
		}
		if reg := c.Registration(KindBroker, b); reg == nil || reg.Value.Process != c.running[b] {
			c.Set(Registration{Kind: KindBroker, Process: c.running[b], Address: fmt.Sprintf("h%d:1", b)}, c.revision, c.revision)
		}
		for range 3 {
			r := c.registration(b)
			c.SetVouches(r)
			plan, err := RegisterBroker(c.State, r)
			c.write(plan, err)
			c.tidy()
		}
		if record := c.Broker(b).Value; record.Fenced || record.Process != c.running[b] {
			t.Fatalf("broker %d is not back: %+v", b, record)
		}
	}
	for _, e := range c.Reassignments() {
		plan, err := ControlReassignment(c.State, e.Value.PlanID, ResumeReassignment)
		c.apply(t, plan, err)
	}
	c.makeFolders(t)
	for range 4 {
		for _, name := range c.partitionNames() {
			e, _ := c.byName(name)
			p := e.Value
			if p.Leader.IsZero() {
				if slices.ContainsFunc(union(p.ISR, p.ELR), func(b int32) bool { return !slices.Contains(p.Barred, b) }) {
					t.Fatalf("nobody leads, and somebody could: %+v", p)
				}
				continue
			}
			for _, b := range p.Replicas {
				c.has[copyID{p.id(), b}] = c.committed[p.id()]
			}
			plan, err := ProposeISR(c.State, c.proposal(p, p.Replicas...))
			c.write(plan, err)
		}
		c.tidy()
		c.advance(t)
	}
	for _, name := range c.partitionNames() {
		e, _ := c.byName(name)
		if p := e.Value; !p.Leader.IsZero() && (p.IsReassigning() || len(p.ISR) != len(p.Replicas) || len(p.ELR)+len(p.Barred) > 0) {
			t.Fatalf("not whole again: %+v, plans %+v", p, RunningReassignments(c.State))
		}
	}
}

// Whatever happens, nobody is elected who lacks what was committed unless the
// election says so, the last member of ISR and ELR is never removed, and once all
// are back everything is in order again.
func TestNobodyIsElectedWhoLacksRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCopies(t)
		t.Repeat(map[string]func(*rapid.T){
			"commit": c.commit, "propose": c.propose, "crash": c.crash, "start": c.start, "see": c.see,
			"new controller": c.newController, "hiccup": c.hiccup, "disk fails": c.diskFails, "leave": c.leave,
			"unreachable": c.unreachable, "preferred": c.preferred, "operator": c.operator, "alter": c.alter,
			"reassign": c.reassign, "control": c.control, "advance": c.advanceOnce, "reconcile": c.reconcile,
		})
		c.recover(t)
	})
}
