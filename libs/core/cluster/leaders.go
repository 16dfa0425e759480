package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
)

// PartitionName names a partition by its topic's name.
type PartitionName struct {
	Topic     string
	Partition int32
}

// LeadersUnreachable plans that leadership moves where all other live members of the
// ISR report that they cannot reach the leader; where it is the only member, those of
// the ELR, who have all that is committed: it could commit nothing more without them,
// ever. It leaves the ISR if enough members are left, or commits would wait until its
// successor finds that it lags. reports lists for each reporting life the leaders that
// it misses; the caller has seen to it that it was for long enough. The plan is
// bounded; what is left comes with the next reports. The error is an *InvariantError.
func LeadersUnreachable(s *State, reports map[Process][]Process) (Plan, error) {
	missed := map[Process][]Process{} // leader → who misses it
	for reporter, leaders := range reports {
		for _, l := range leaders {
			missed[l] = append(missed[l], reporter)
		}
	}
	view := brokerView{state: s}
	p := newPlanner(s)
	for _, leader := range sortedProcesses(missed) {
		reporters := missed[leader]
		for _, e := range s.held(leader.ID) {
			next := e.Value
			if next.Leader != leader || p.plan.Len() >= reconcileWrites {
				continue
			}
			members := next.ISR
			alone := len(next.ISR) == 1 && len(next.ELR) > 0
			if alone {
				members = next.ELR
			}
			live := keep(members, func(b int32) bool { _, ok := view.unfenced(b); return ok && b != leader.ID })
			all := !slices.ContainsFunc(live, func(b int32) bool {
				life, _ := view.unfenced(b)
				return !slices.Contains(reporters, life)
			})
			candidates := keep(next.Replicas, func(b int32) bool { return slices.Contains(live, b) && view.trusted(&next, b) })
			if all && len(candidates) > 0 {
				b := view.pick(&next, candidates)
				switch {
				case alone:
					next.ELR = union(keep(next.ELR, func(x int32) bool { return x != b }), next.ISR)
					next.ISR = []int32{b}
				case int32(len(candidates)) >= next.MinISR:
					next.ISR = keep(next.ISR, func(x int32) bool { return x != leader.ID })
				}
				view.lead(&next, b)
				p.put(next)
			}
		}
	}
	return p.done()
}

// PreferredMoves plans that the preferred leaders of at most limit partitions lead
// again, from within the ISR only. avoid, if not nil, tells of lives that are to lead
// nothing more for now, as they could not be reached. The error is an
// *InvariantError.
func PreferredMoves(s *State, limit int, avoid func(Process) bool) (Plan, error) {
	view := brokerView{state: s}
	var moves []*Entry[Partition]
	for id := range s.topics {
		for n := range s.partitions[id] {
			e := s.living(PartitionID{id, n})
			if e == nil || e.Value.Leader.ID == e.Value.Replicas[0] {
				continue
			}
			life, rejection := view.preferred(&e.Value)
			if rejection == nil && view.leads(&e.Value) && (avoid == nil || !avoid(life)) {
				moves = append(moves, e)
			}
		}
	}
	slices.SortFunc(moves, compareEntries)
	p := newPlanner(s)
	for _, e := range moves[:min(len(moves), max(limit, 0))] {
		next := e.Value
		view.lead(&next, next.Replicas[0])
		p.put(next)
	}
	return p.done()
}

// preferred returns the preferred leader's life, or why it cannot lead.
func (v brokerView) preferred(p *Partition) (Process, *Rejection) {
	b := p.Replicas[0]
	life, ok := v.unfenced(b)
	switch {
	case !ok:
		return life, reject("LEADER_NOT_AVAILABLE", "the preferred leader, broker %d, is not running; start it", b)
	case !slices.Contains(p.ISR, b):
		return life, reject("LEADER_NOT_AVAILABLE", "the preferred leader, broker %d, is not in sync yet; try again once it is in the ISR", b)
	case slices.Contains(p.Barred, b):
		return life, reject("LEADER_NOT_AVAILABLE", "the preferred leader, broker %d, has a damaged replica and may not lead until it is fetched again", b)
	}
	return life, nil
}

// ElectionType is a kind of election, numbered as in the protos.
type ElectionType int32

// The kinds of elections.
const (
	ElectPreferred ElectionType = 1
	ElectUnclean   ElectionType = 2
)

// ElectionOutcome is what becomes of one election.
type ElectionOutcome struct {
	PartitionName
	Leader    Process    // once the plan is written; zero: none
	Changed   bool       // by this plan
	Rejection *Rejection // set if the asked leader cannot be elected
}

// ElectLeaders plans elections that an operator asked for: of preferred leaders,
// where no partitions are named everywhere; or unclean ones, by name only, which
// lose records and take place only where nobody can be elected without that. The
// outcomes are in the order of the request or, where none were named, of those that
// change or cannot. A rejection of the whole request is returned as the error; else
// the error is an *InvariantError.
func ElectLeaders(s *State, kind ElectionType, partitions []PartitionName) (Plan, []ElectionOutcome, error) {
	if kind != ElectPreferred && kind != ElectUnclean {
		return Plan{}, nil, reject("INVALID_REQUEST", "%d is no kind of election; ask for preferred or unclean leaders", kind)
	}
	named := len(partitions) > 0
	if !named {
		if kind == ElectUnclean {
			return Plan{}, nil, reject("INVALID_REQUEST", "an unclean election loses records: name each partition that should have one")
		}
		partitions = s.partitionNames()
	}
	if len(partitions) > MaxPartitions && named {
		return Plan{}, nil, reject("INVALID_REQUEST", "%d partitions named; at most %d", len(partitions), MaxPartitions).with("limit", strconv.Itoa(MaxPartitions))
	}
	view := brokerView{state: s}
	p := newPlanner(s)
	var outcomes []ElectionOutcome
	seen := map[PartitionName]bool{}
	for _, name := range partitions {
		if seen[name] {
			continue
		}
		seen[name] = true
		o := ElectionOutcome{PartitionName: name}
		e, rejection := s.byName(name)
		if rejection != nil {
			o.Rejection = rejection
			outcomes = append(outcomes, o)
			continue
		}
		next := e.Value
		if kind == ElectPreferred {
			o.Rejection = view.electPreferred(&next)
		} else {
			o.Rejection = view.electUnclean(&next, s)
		}
		if o.Changed = !samePartition(&e.Value, &next); o.Changed {
			p.put(next)
		}
		o.Leader = next.Leader
		if named || o.Changed || o.Rejection != nil {
			outcomes = append(outcomes, o)
		}
	}
	plan, err := p.done()
	return plan, outcomes, err
}

func (v brokerView) electPreferred(p *Partition) *Rejection {
	if v.leads(p) && p.Leader.ID == p.Replicas[0] {
		return nil
	}
	if v.state.neverLed(p) {
		return reject("LEADER_NOT_AVAILABLE", "the partition is being made; its first leader follows once min.insync.replicas (%d) of the brokers %v have made their folders", p.MinISR, p.Replicas)
	}
	if _, rejection := v.preferred(p); rejection != nil {
		return rejection
	}
	v.lead(p, p.Replicas[0])
	return nil
}

// electUnclean elects cleanly where that is possible, and else whoever lives and has
// the longest copy.
func (v brokerView) electUnclean(p *Partition, s *State) *Rejection {
	now := Hints{Forced: true, Overdue: func(w Wait) bool { return w.Kind == WaitFolders }}
	if v.leads(p) {
		return nil
	}
	v.elect(p, s.configs[p.Topic], now)
	if !p.Leader.IsZero() {
		return nil
	}
	if s.neverLed(p) {
		return reject("LEADER_NOT_AVAILABLE", "none of the partition's replicas has been made yet; start one of the brokers %v", p.Replicas)
	}
	b, ok := v.longest(p, p.Replicas)
	if !ok {
		return reject("LEADER_NOT_AVAILABLE", "none of the partition's replicas lives; start one of the brokers %v", p.Replicas)
	}
	v.leadAlone(p, b)
	return nil
}

// byName finds a partition that is there for clients.
func (s *State) byName(name PartitionName) (*Entry[Partition], *Rejection) {
	t := s.TopicByName(name.Topic)
	if t == nil {
		return nil, reject("UNKNOWN_TOPIC", "there is no topic %q; check the name, or list the topics", name.Topic).with("topic", name.Topic)
	}
	e := s.living(PartitionID{t.Value.ID, name.Partition})
	if e == nil {
		return nil, reject("UNKNOWN_PARTITION", "the topic %q has %d partitions, and none of number %d", name.Topic, t.Value.Partitions, name.Partition).
			with("topic", name.Topic).with("partition", itoa(name.Partition))
	}
	return e, nil
}

// nameOf is a partition's name, the topic's being empty for one that is gone.
func (s *State) nameOf(id PartitionID) PartitionName {
	return PartitionName{value(s.topics[id.Topic]).Name, id.Number}
}

// partitionNames lists every partition that is there for clients, by topic and number.
func (s *State) partitionNames() []PartitionName {
	var names []PartitionName
	for id := range s.topics {
		for n := range s.partitions[id] {
			if e := s.living(PartitionID{id, n}); e != nil {
				names = append(names, s.nameOf(e.Value.id()))
			}
		}
	}
	slices.SortFunc(names, compareNames)
	return names
}

func compareNames(a, b PartitionName) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// LeaderChange is a change of leader in a plan.
type LeaderChange struct {
	PartitionName
	ID       PartitionID
	From, To Process // zero: none
	Epoch    int32   // leader epoch of To
	First    bool    // the partition's first leader
	Unclean  bool    // To may lack acknowledged records
	Longest  bool    // every member had lost what the page cache had; To has the longest copy
}

// LeaderChanges lists the changes of leaders that a plan brings, for logs and
// metrics. Call it with the state that the plan was made from.
func LeaderChanges(s *State, plan Plan) []LeaderChange {
	var changes []LeaderChange
	for _, stage := range plan.Stages {
		for _, w := range stage {
			next, ok := w.Record.(Partition)
			if !ok {
				continue
			}
			e := s.Partition(next.Topic, next.Number)
			if e == nil || e.Value.Leader == next.Leader {
				continue
			}
			c := LeaderChange{PartitionName: s.nameOf(next.id()), ID: next.id(), From: e.Value.Leader, To: next.Leader, Epoch: next.LeaderEpoch}
			if !c.To.IsZero() {
				c.First = s.neverLed(&e.Value)
				c.Longest, c.Unclean = s.quality(&e.Value, next.Leader)
			}
			changes = append(changes, c)
		}
	}
	return changes
}

// quality tells whether an elected leader is the longest of those that lost their
// page cache, and whether it may lack records for another reason.
func (s *State) quality(before *Partition, leader Process) (longest, unclean bool) {
	if s.neverLed(before) {
		return false, false
	}
	// In the transaction that unfences it, its bar is in no record.
	barred := slices.Contains(before.Barred, leader.ID) || value(s.brokers[leader.ID]).Process != leader && s.verdict(leader.ID, before.id()) == UncleanOS
	longest = barred && !slices.ContainsFunc(union(before.ISR, before.ELR), func(b int32) bool {
		return s.verdict(b, before.id()) != UncleanOS
	})
	return longest, !longest && (barred || !member(before, leader.ID))
}

// verdict is what the newest life known of a broker said of a replica; 0: nothing.
func (s *State) verdict(broker int32, id PartitionID) Verdict {
	for life, vouches := range s.vouches {
		if life.ID == broker {
			return vouches[id].Verdict
		}
	}
	return 0
}

// sortedProcesses lists the keys of a map by id and incarnation.
func sortedProcesses[V any](set map[Process]V) []Process {
	return slices.SortedFunc(maps.Keys(set), func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Incarnation, b.Incarnation))
	})
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }
