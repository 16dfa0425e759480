package cluster

import (
	"maps"
	"slices"
	"strconv"
)

// maxReassigning bounds how many partitions are reassigned at once, over all plans.
const maxReassigning = 100

// ReassignmentAction is what to do with a running plan, numbered as in the protos.
type ReassignmentAction int32

// The actions.
const (
	PauseReassignment  ReassignmentAction = 1
	ResumeReassignment ReassignmentAction = 2
	CancelReassignment ReassignmentAction = 3
)

// ApplyReassignment plans that a reassignment begins: its record, and, in a later
// stage, as many partitions as may run at once; AdvanceReassignments does the rest.
// The moves are those that PlanReassignment gave under the id; a plan whose
// partitions have changed since is stale. A plan that runs, or is done, is there
// already: the plan of writes is empty. The error is a *Rejection or an
// *InvariantError.
func ApplyReassignment(s *State, planID string, moves []Move) (Plan, error) {
	if len(moves) == 0 || len(moves) > MaxPartitions {
		return Plan{}, reject("INVALID_REQUEST", "a reassignment of %d partitions; give 1 to %d", len(moves), MaxPartitions).with("limit", strconv.Itoa(MaxPartitions))
	}
	if s.Reassignment(planID) != nil {
		return Plan{}, nil
	}
	entries := make([]*Entry[Partition], 0, len(moves))
	done := true
	for _, m := range moves {
		e, rejection := s.byName(m.PartitionName)
		if rejection != nil {
			return Plan{}, rejection
		}
		entries = append(entries, e)
		done = done && !e.Value.IsReassigning() && slices.Equal(e.Value.Replicas, m.To)
	}
	if s.planID(entries, moves) != planID {
		return Plan{}, reject("INVALID_REQUEST", "plan %q is not of these moves; make the plan anew", planID)
	}
	if done {
		return Plan{}, nil
	}
	record := Reassignment{PlanID: planID}
	mine := map[PartitionID]bool{}
	for i, m := range moves {
		if rejection := s.checkMove(entries[i], m, mine); rejection != nil {
			return Plan{}, rejection
		}
		mine[entries[i].Value.id()] = true
		record.Partitions = append(record.Partitions, ReassignedPartition{entries[i].Value.Topic, entries[i].Value.Number, m.To})
	}
	p := newPlanner(s)
	releaseDone(p, mine)
	p.put(record)
	p.next()
	begin(p, record, maxReassigning-len(s.index.running))
	return p.done()
}

// checkMove tells whether a planned move still holds.
func (s *State) checkMove(e *Entry[Partition], m Move, mine map[PartitionID]bool) *Rejection {
	stale := func(why string) *Rejection {
		return reject("STALE_PARTITION_EPOCH", "the plan is stale: partition %d of topic %q %s; make the plan anew", m.Partition, m.Topic, why).
			with("topic", m.Topic).with("partition", itoa(m.Partition))
	}
	id := e.Value.id()
	switch {
	case mine[id]:
		return reject("INVALID_REQUEST", "partition %d of topic %q is named twice", m.Partition, m.Topic).with("topic", m.Topic)
	case e.Value.IsReassigning() || s.isPending(id):
		return stale("is being reassigned")
	case !slices.Equal(e.Value.Replicas, m.From):
		return stale("has other replicas now")
	}
	return s.checkTarget(e, m)
}

// pending is what a running plan still has to do for a partition.
func (s *State) pending(id PartitionID) (ReassignedPartition, bool) {
	m, ok := s.index.planOf[id]
	if !ok || s.planMoving(id).Cancelling || s.isDone(m.move) {
		return ReassignedPartition{}, false
	}
	return m.move, true
}

// isPending tells whether a running plan still has something to do for a partition.
func (s *State) isPending(id PartitionID) bool {
	_, ok := s.pending(id)
	return ok
}

// plannedFactor is how many replicas a partition has once its reassignment, running or
// to come, has completed.
func (s *State) plannedFactor(e *Entry[Partition]) int32 {
	if e.Value.IsReassigning() {
		return int32(len(e.Value.TargetReplicas))
	}
	if m, ok := s.pending(e.Value.id()); ok {
		return int32(len(m.Target))
	}
	return int32(len(e.Value.Replicas))
}

// isDone tells whether nothing is left to do for a partition of a plan.
func (s *State) isDone(m ReassignedPartition) bool {
	e := s.living(PartitionID{m.Topic, m.Number})
	return e == nil || !e.Value.IsReassigning() && slices.Equal(e.Value.Replicas, m.Target)
}

// releaseDone takes partitions out of plans that are through with them, so that
// these do not take what another plan does next for something that is left to do.
func releaseDone(p *planner, taken map[PartitionID]bool) {
	for _, e := range p.state.Reassignments() {
		next := e.Value
		next.Partitions = slices.DeleteFunc(slices.Clone(next.Partitions), func(m ReassignedPartition) bool { return taken[PartitionID{m.Topic, m.Number}] })
		if len(next.Partitions) < len(e.Value.Partitions) {
			p.put(next)
		}
	}
}

// begin plans that at most limit more partitions of a plan get the union of their
// replicas, and returns how many do. The result comes first, so that its preferred
// leader is preferred.
func begin(p *planner, r Reassignment, limit int) int {
	begun := 0
	for _, m := range r.Partitions {
		if begun >= limit {
			break
		}
		e := p.state.living(PartitionID{m.Topic, m.Number})
		if e == nil || e.Value.IsReassigning() || slices.Equal(e.Value.Replicas, m.Target) || p.state.neverLed(&e.Value) {
			continue
		}
		next := e.Value
		next.TargetReplicas, next.FormerReplicas = m.Target, next.Replicas
		next.Replicas = union(m.Target, next.FormerReplicas)
		p.put(next)
		begun++
	}
	return begun
}

// ControlReassignment plans that a running plan rests, goes on or is taken back. What
// is taken back is what has not completed: those partitions keep their former
// replicas. The plan of writes is empty if it is so already. The error is a
// *Rejection or an *InvariantError.
func ControlReassignment(s *State, planID string, action ReassignmentAction) (Plan, error) {
	e := s.Reassignment(planID)
	if e == nil {
		return Plan{}, reject("INVALID_REQUEST", "no reassignment %q is under way; list those that are", planID)
	}
	next := e.Value
	switch action {
	case PauseReassignment:
		next.Paused = true
	case ResumeReassignment:
		next.Paused = false
	case CancelReassignment:
		next.Cancelling, next.Paused = true, false
	default:
		return Plan{}, reject("INVALID_REQUEST", "%d is nothing to do with a reassignment; pause, resume or cancel it", action)
	}
	if next.Paused == e.Value.Paused && next.Cancelling == e.Value.Cancelling {
		return Plan{}, nil
	}
	p := newPlanner(s)
	p.put(next)
	return p.done()
}

// AdvanceReassignments plans what running reassignments do next: partitions that can
// complete, or be taken back, do; others begin; plans that are through go. It also
// lists the lives that must answer a probe so that more can complete: the caller
// notes the revision of the state, probes them, and calls again with who answered.
// The error is an *InvariantError.
func AdvanceReassignments(s *State, probes Probes) (Plan, []Process, error) {
	p := newPlanner(s)
	need := map[Process]struct{}{}
	for _, id := range sortedIDs(s.index.running) {
		e := s.living(id)
		if e == nil {
			continue
		}
		r := s.planMoving(id)
		if r.Paused {
			continue
		}
		if next, ok := s.end(e, r.Cancelling, probes, need); ok {
			p.put(next)
		}
	}
	room := maxReassigning - len(s.index.running)
	for _, e := range s.Reassignments() {
		if !e.Value.Paused && !e.Value.Cancelling {
			room -= begin(p, e.Value, room)
		}
	}
	for _, e := range s.Reassignments() {
		if s.isThrough(e.Value) {
			p.delete(e.Value.Key())
		}
	}
	plan, err := p.done()
	return plan, sortedProcesses(need), err
}

// planMoving is the plan that moves a partition; zero for one that runs without.
func (s *State) planMoving(id PartitionID) Reassignment {
	return value(s.reassignments[s.index.planOf[id].planID])
}

// isThrough tells whether nothing of a plan is left to do.
func (s *State) isThrough(r Reassignment) bool {
	return !slices.ContainsFunc(r.Partitions, func(m ReassignedPartition) bool {
		if r.Cancelling {
			e := s.living(PartitionID{m.Topic, m.Number})
			return e != nil && e.Value.IsReassigning()
		}
		return !s.isDone(m)
	})
}

// end is a partition's record once its reassignment has completed, or was taken
// back, if that may be now: enough members of both the ISR and the result are
// trusted and answered a probe, and nobody is lost for whom the result still has to
// catch up. Lives that have not answered yet, and would be enough, are added to need.
func (s *State) end(e *Entry[Partition], back bool, probes Probes, need map[Process]struct{}) (Partition, bool) {
	p := e.Value
	result := p.TargetReplicas
	if back {
		result = p.FormerReplicas
	}
	view := brokerView{state: s}
	both := keep(result, in(p.ISR))
	if !back && len(both) < len(result) {
		return p, false
	}
	trusted := keep(both, func(b int32) bool { return view.trusted(&p, b) })
	if int32(len(trusted)) < max(p.MinISR, 1) {
		return p, false
	}
	counted := keep(trusted, func(b int32) bool { return view.answered(e, b, probes) })
	if int32(len(counted)) < max(p.MinISR, 1) {
		for _, b := range trusted {
			life, _ := view.unfenced(b)
			need[life] = struct{}{}
		}
		return p, false
	}
	p.Replicas, p.TargetReplicas, p.FormerReplicas = result, nil, nil
	p.ISR, p.ELR = keep(p.ISR, in(result)), nil
	p.MinISR = minISR(&p, s.configs[p.Topic])
	trim(&p)
	if !view.leads(&p) {
		view.lead(&p, view.pick(&p, counted))
	}
	return p, true
}

// ReassignmentStatus is a running plan with what is left to do.
type ReassignmentStatus struct {
	PlanID             string
	Moves              []Move // From: the replicas before
	Paused, Cancelling bool
}

// RunningReassignments lists the plans under way by id.
func RunningReassignments(s *State) []ReassignmentStatus {
	var all []ReassignmentStatus
	for _, e := range s.Reassignments() {
		status := ReassignmentStatus{PlanID: e.Value.PlanID, Paused: e.Value.Paused, Cancelling: e.Value.Cancelling}
		for _, m := range e.Value.Partitions {
			p := s.living(PartitionID{m.Topic, m.Number})
			if p == nil || s.isDone(m) || e.Value.Cancelling && !p.Value.IsReassigning() {
				continue
			}
			move := Move{PartitionName: s.nameOf(p.Value.id()), From: p.Value.Replicas, To: m.Target, InSync: inSync(p.Value, m.Target)}
			if p.Value.IsReassigning() {
				move.From = p.Value.FormerReplicas
			}
			status.Moves = append(status.Moves, move)
		}
		slices.SortFunc(status.Moves, func(a, b Move) int { return compareNames(a.PartitionName, b.PartitionName) })
		all = append(all, status)
	}
	return all
}

// inSync counts the members of a result that are in the ISR.
func inSync(p Partition, result []int32) int32 { return int32(len(keep(result, in(p.ISR)))) }

// RemoveBroker plans that a broker is forgotten that holds no replica any more and
// does not run. Deletions wait for it no longer. The error is a *Rejection or an
// *InvariantError.
func RemoveBroker(s *State, id int32) (Plan, error) {
	b := s.Broker(id)
	if b == nil {
		return Plan{}, reject("INVALID_REQUEST", "there is no broker %d; list the brokers", id)
	}
	if s.Registration(KindBroker, id) != nil || !b.Value.Fenced {
		return Plan{}, reject("INVALID_REQUEST", "broker %d is running; stop it first", id)
	}
	if held := s.index.held[id]; len(held) > 0 {
		name := s.nameOf(slices.MinFunc(slices.Collect(maps.Keys(held)), compareIDs))
		return Plan{}, reject("INVALID_REQUEST", "broker %d still holds %d replicas, of partition %d of topic %q among others; move them to other brokers first",
			id, len(held), name.Partition, name.Topic).with("topic", name.Topic)
	}
	for _, r := range s.Reassignments() {
		if slices.ContainsFunc(r.Value.Partitions, func(m ReassignedPartition) bool { return slices.Contains(m.Target, id) && !s.isDone(m) }) {
			return Plan{}, reject("INVALID_REQUEST", "the reassignment %q moves replicas to broker %d; cancel it first", r.Value.PlanID, id)
		}
	}
	p := newPlanner(s)
	for _, d := range s.Deletions() {
		if slices.Contains(d.Value.Pending, id) {
			next := d.Value
			next.Pending = keep(next.Pending, func(x int32) bool { return x != id })
			p.put(next)
		}
	}
	p.next()
	p.delete(b.Value.Key())
	return p.done()
}
