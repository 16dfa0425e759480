package cluster

import (
	"slices"

	"github.com/leat-io/leat/libs/topicid"
)

// maxBlockers bounds how many partitions are named that hold a leave up.
const maxBlockers = 100

// Blocker is a partition that holds a leave up.
type Blocker struct {
	Topic     topicid.ID
	Name      string // the topic's
	Partition int32
	Rejection *Rejection // why
}

// LeaveProbes lists the lives that must answer a probe before a broker's leave can be
// granted: those that would be counted on in its place, sorted by id. The caller
// notes the revision of the state, probes them, and calls Leave with who answered.
func LeaveProbes(s *State, leaver Process) []Process {
	view := brokerView{state: s}
	set := map[Process]struct{}{}
	for _, e := range s.held(leaver.ID) {
		p := e.Value
		if !member(&p, leaver.ID) {
			continue
		}
		for _, b := range p.ISR {
			if b != leaver.ID && view.trusted(&p, b) {
				life, _ := view.unfenced(b)
				set[life] = struct{}{}
			}
		}
	}
	return sortedProcesses(set)
}

// Leave plans the grant of a broker's leave: it goes out of ISR and ELR, its
// leaderships go to members that answered a probe, and its record is fenced and
// marked as leaving, in the last stage. With blockers nothing is planned: somewhere
// fewer than min.insync.replicas members of the ISR would be left that are trusted
// and answered; the caller asks again until the leaver's deadline. Partitions that
// have no other replica hold up only a decommission. The plan is empty if there is
// nothing to do, as for a life that is not on record. The error is an
// *InvariantError.
func Leave(s *State, leaver Process, probes Probes, decommission bool) (Plan, []Blocker, error) {
	old := s.Broker(leaver.ID)
	if old == nil || old.Value.Process != leaver || old.Value.Fenced && old.Value.Draining {
		return Plan{}, nil, nil
	}
	view := brokerView{state: s}
	p := newPlanner(s)
	var blockers []Blocker
	for _, e := range s.held(leaver.ID) {
		next, rejection := view.without(e, leaver, probes, decommission)
		switch {
		case rejection != nil && len(blockers) < maxBlockers:
			name := s.topics[next.Topic].Value.Name
			blockers = append(blockers, Blocker{
				Topic: next.Topic, Name: name, Partition: next.Number,
				Rejection: rejection.with("topic", name).with("partition", itoa(next.Number)),
			})
		case rejection == nil && !samePartition(&e.Value, &next):
			p.put(next)
		}
	}
	if len(blockers) > 0 {
		return Plan{}, blockers, nil
	}
	// The stages before are safe by themselves, and the broker that writes them is
	// the only one that could let the leaver back in between.
	p.next()
	record := old.Value
	record.Fenced, record.Draining = true, true
	p.put(record)
	plan, err := p.done()
	return plan, nil, err
}

// without is a partition's record once a broker has left, or why it may not leave.
func (v brokerView) without(e *Entry[Partition], leaver Process, probes Probes, decommission bool) (Partition, *Rejection) {
	p := e.Value
	if len(p.Replicas) == 1 {
		if decommission {
			return p, reject("NOT_ENOUGH_REPLICAS", "broker %d holds the only replica; move it to another broker first", leaver.ID)
		}
		if p.Leader == leaver {
			p.Leader = Process{}
		}
		return p, nil
	}
	if v.state.neverLed(&p) || !member(&p, leaver.ID) {
		return p, nil
	}
	rest := keep(p.ISR, func(b int32) bool { return b != leaver.ID })
	counted := keep(rest, func(b int32) bool { return v.answered(e, b, probes) })
	if int32(len(counted)) < max(p.MinISR, 1) {
		return p, reject("NOT_ENOUGH_REPLICAS", "without broker %d, %d in-sync replicas that answer would be left, and min.insync.replicas is %d; bring brokers back, or wait until they have caught up",
			leaver.ID, len(counted), p.MinISR)
	}
	p.ISR, p.ELR = rest, nil
	if p.Leader.ID == leaver.ID || !v.leads(&p) {
		inOrder := keep(p.Replicas, in(counted))
		v.lead(&p, v.pick(&p, inOrder))
	}
	trim(&p)
	return p, nil
}

// answered tells whether a member of a partition may be handed something to: it is
// trusted, and answered a probe under its life on record that was sent when the
// partition's record was known already.
func (v brokerView) answered(e *Entry[Partition], b int32, probes Probes) bool {
	if !v.trusted(&e.Value, b) {
		return false
	}
	life, _ := v.unfenced(b)
	sent, ok := probes[life]
	return ok && sent >= e.Mod
}

// member tells whether a broker is in a partition's ISR or ELR.
func member(p *Partition, b int32) bool {
	return slices.Contains(p.ISR, b) || slices.Contains(p.ELR, b)
}
