package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
)

// Move is what becomes of one partition in a reassignment.
type Move struct {
	PartitionName
	From, To []int32 // replicas before and after; the first is preferred as leader
	InSync   int32   // members of To that are in sync already
}

// ReassignmentRequest says what is wanted: one of Assignments, DrainBrokers, Balance
// and ReplicationFactor.
type ReassignmentRequest struct {
	Assignments       []Move   // by hand: PartitionName and To
	DrainBrokers      []int32  // these are to hold nothing any more
	Balance           bool     // the load is to be even
	ReplicationFactor int32    // of every partition of Topics; 0: unchanged
	Topics            []string // to look at; empty: all
}

// ReassignmentPlan is a plan, to be applied by its id.
type ReassignmentPlan struct {
	ID    string
	Moves []Move // sorted by name; what stays as it is is left out
}

// PlanReassignment says what a reassignment would move. The same state and request
// give the same plan. It changes nothing. The error is a *Rejection.
func PlanReassignment(s *State, r ReassignmentRequest) (ReassignmentPlan, error) {
	wanted := 0
	for _, asked := range []bool{len(r.Assignments) > 0, len(r.DrainBrokers) > 0, r.Balance, r.ReplicationFactor != 0} {
		if asked {
			wanted++
		}
	}
	if wanted != 1 {
		return ReassignmentPlan{}, reject("INVALID_REQUEST", "a reassignment needs one of: new replicas by hand, brokers to drain, a balance, or a replication factor")
	}
	d, rejection := newDraft(s, r)
	if rejection == nil {
		switch {
		case len(r.Assignments) > 0:
			rejection = d.byHand(r.Assignments)
		case len(r.DrainBrokers) > 0:
			rejection = d.drain(r.DrainBrokers)
		case r.Balance:
			d.balance()
		default:
			rejection = d.resize(r.ReplicationFactor)
		}
	}
	if rejection != nil {
		return ReassignmentPlan{}, rejection
	}
	return d.plan()
}

// draft is a plan in the making.
type draft struct {
	state   *State
	entries []*Entry[Partition] // by name
	result  map[PartitionID][]int32
	live    []int32
	load    loads
}

// newDraft collects what a request is about.
func newDraft(s *State, r ReassignmentRequest) (*draft, *Rejection) {
	d := &draft{state: s, result: map[PartitionID][]int32{}, live: s.placeable()}
	if len(d.live) == 0 {
		return nil, reject("STARTING", "no broker is ready to take a replica; start one, or wait until it is")
	}
	if r.ReplicationFactor != 0 && len(r.Topics) == 0 {
		return nil, reject("INVALID_REQUEST", "name the topics that get another replication factor")
	}
	for _, name := range r.Topics {
		if s.TopicByName(name) == nil {
			return nil, reject("UNKNOWN_TOPIC", "there is no topic %q; check the name, or list the topics", name).with("topic", name)
		}
	}
	var all []*Entry[Partition]
	for _, name := range s.partitionNames() {
		e, rejection := s.byName(name)
		if rejection != nil {
			return nil, rejection
		}
		all = append(all, e)
		if len(r.Topics) == 0 || slices.Contains(r.Topics, name.Topic) {
			d.entries = append(d.entries, e)
		}
	}
	d.load = countLoads(all)
	return d, nil
}

// free tells whether a partition may be planned for: nothing moves it already.
func (d *draft) free(e *Entry[Partition]) bool {
	return !e.Value.IsReassigning() && !d.state.isPending(e.Value.id())
}

// replicas are a partition's as the draft has them so far.
func (d *draft) replicas(e *Entry[Partition]) []int32 {
	if r, ok := d.result[e.Value.id()]; ok {
		return r
	}
	return e.Value.Replicas
}

// set gives a partition its result and keeps the loads.
func (d *draft) set(e *Entry[Partition], result []int32) {
	before := d.replicas(e)
	for _, b := range before {
		d.load.replicas[b]--
	}
	for _, b := range result {
		d.load.replicas[b]++
	}
	d.load.preferred[before[0]]--
	d.load.preferred[result[0]]++
	d.result[e.Value.id()] = result
}

// byHand takes assignments as they are.
func (d *draft) byHand(assignments []Move) *Rejection {
	for _, m := range assignments {
		e, rejection := d.state.byName(m.PartitionName)
		if rejection != nil {
			return rejection
		}
		if _, twice := d.result[e.Value.id()]; twice {
			return reject("INVALID_REQUEST", "partition %d of topic %q is named twice", m.Partition, m.Topic).with("topic", m.Topic)
		}
		if !slices.Contains(d.entries, e) {
			return reject("INVALID_REQUEST", "partition %d of topic %q is assigned, and the topic is not among those to look at", m.Partition, m.Topic).with("topic", m.Topic)
		}
		if rejection := d.state.checkTarget(e, m); rejection != nil {
			return rejection
		}
		d.set(e, slices.Clone(m.To))
	}
	return nil
}

// checkTarget tells whether a partition may get some replicas.
func (s *State) checkTarget(e *Entry[Partition], m Move) *Rejection {
	// The record's, or a higher one that is on its way there.
	minISR := e.Value.MinISR
	if config := s.configs[e.Value.Topic]; config.MinInsyncReplicas != 0 {
		minISR = max(minISR, config.MinISR(e.Value.ReplicationFactor()))
	}
	named := func(r *Rejection) *Rejection { return r.with("topic", m.Topic).with("partition", itoa(m.Partition)) }
	switch {
	case len(m.To) == 0:
		return named(reject("INVALID_REPLICATION_FACTOR", "partition %d of topic %q is assigned to no broker; name at least one", m.Partition, m.Topic))
	case !distinct(m.To):
		return named(reject("INVALID_REQUEST", "partition %d of topic %q is assigned to a broker twice: %v", m.Partition, m.Topic, m.To))
	case int32(len(m.To)) < minISR:
		return named(reject("INVALID_REPLICATION_FACTOR", "partition %d of topic %q would have %d replicas, fewer than its min.insync.replicas of %d; lower that first, or keep more",
			m.Partition, m.Topic, len(m.To), minISR))
	}
	for _, b := range m.To {
		record := s.Broker(b)
		switch {
		case record == nil:
			return named(reject("INVALID_REQUEST", "partition %d of topic %q is assigned to broker %d, which there is not; list the brokers", m.Partition, m.Topic, b))
		case slices.Contains(e.Value.Replicas, b):
		case record.Value.Fenced || record.Value.Draining:
			return named(reject("INVALID_REQUEST", "partition %d of topic %q is assigned to broker %d, which is not running or is leaving; start it first", m.Partition, m.Topic, b))
		}
	}
	return nil
}

// drain moves what some brokers hold to the others.
func (d *draft) drain(brokers []int32) *Rejection {
	for _, b := range brokers {
		if d.state.Broker(b) == nil {
			return reject("INVALID_REQUEST", "there is no broker %d to drain; list the brokers", b)
		}
	}
	d.live = keep(d.live, func(b int32) bool { return !slices.Contains(brokers, b) })
	for _, e := range d.entries {
		if !d.free(e) || !slices.ContainsFunc(e.Value.Replicas, in(brokers)) {
			continue
		}
		result := slices.Clone(e.Value.Replicas)
		for i, b := range result {
			if !slices.Contains(brokers, b) {
				continue
			}
			beside := keep(result, func(x int32) bool { return !slices.Contains(brokers, x) })
			candidates := keep(d.live, func(x int32) bool { return !slices.Contains(result, x) })
			if len(candidates) == 0 {
				name := d.state.nameOf(e.Value.id())
				return reject("INVALID_REPLICATION_FACTOR", "without %v there are too few brokers for the %d replicas of partition %d of topic %q; start more, or lower its replication factor",
					brokers, len(result), name.Partition, name.Topic).with("topic", name.Topic)
			}
			result[i] = d.state.pickBroker(candidates, beside, d.load.replicas)
		}
		d.set(e, result)
	}
	return nil
}

// resize gives partitions more or fewer replicas.
func (d *draft) resize(replicationFactor int32) *Rejection {
	if rejection := checkPlaceable(d.live, replicationFactor); rejection != nil {
		return rejection
	}
	for _, e := range d.entries {
		if !d.free(e) {
			continue
		}
		result := slices.Clone(e.Value.Replicas)
		for len(result) > int(replicationFactor) {
			result = d.without(e, result)
		}
		for len(result) < int(replicationFactor) {
			candidates := keep(d.live, func(b int32) bool { return !slices.Contains(result, b) })
			if len(candidates) == 0 {
				return checkPlaceable(d.live, int32(len(result))+1)
			}
			result = append(result, d.state.pickBroker(candidates, result, d.load.replicas))
		}
		move := Move{PartitionName: d.state.nameOf(e.Value.id()), To: result}
		if rejection := d.state.checkTarget(e, move); rejection != nil {
			return rejection
		}
		d.set(e, result)
	}
	return nil
}

// without drops one replica: one that is not in sync before one that is, one that
// shares its rack before one that does not, and the preferred leader last.
func (d *draft) without(e *Entry[Partition], replicas []int32) []int32 {
	worth := func(i int) int {
		b := replicas[i]
		w := 0
		if slices.Contains(e.Value.ISR, b) {
			w += 4
		}
		if rack := d.state.rack(b); len(keep(replicas, func(x int32) bool { return d.state.rack(x) == rack })) == 1 {
			w += 2
		}
		if i == 0 {
			w++
		}
		return w
	}
	least := len(replicas) - 1
	for i := len(replicas) - 1; i >= 0; i-- {
		if worth(i) < worth(least) {
			least = i
		}
	}
	return slices.Delete(replicas, least, least+1)
}

// balance evens out how many replicas the living brokers hold, then how many
// partitions each leads by preference, with as few moves as it takes.
func (d *draft) balance() {
	on := map[int32][]*Entry[Partition]{}
	for _, e := range d.entries {
		if d.free(e) {
			for _, b := range e.Value.Replicas {
				on[b] = append(on[b], e)
			}
		}
	}
	even(d.live, d.load.replicas, func(from, to int32) bool { return d.moveOne(on, from, to) })
	even(d.live, d.load.preferred, func(from, to int32) bool { return d.preferOne(on, from, to) })
}

// even takes from who has most and gives to who has least until they differ by at
// most one or nothing more can be done.
func even(brokers []int32, load map[int32]int, move func(from, to int32) bool) {
	for {
		moved := false
		ascending := slices.Clone(brokers)
		slices.SortStableFunc(ascending, func(a, b int32) int { return load[a] - load[b] })
	pairs:
		for i := len(ascending) - 1; i > 0; i-- {
			for j := range i {
				if from, to := ascending[i], ascending[j]; load[from]-load[to] > 1 && move(from, to) {
					moved = true
					break pairs
				}
			}
		}
		if !moved {
			return
		}
	}
}

// moveOne moves one replica from a broker to another, without crowding a rack; a
// preferred leader only if nothing else is there.
func (d *draft) moveOne(on map[int32][]*Entry[Partition], from, to int32) bool {
	best := -1
	for i, e := range on[from] {
		replicas := d.replicas(e)
		if !slices.Contains(replicas, from) || slices.Contains(replicas, to) || !d.spreads(replicas, from, to) {
			continue
		}
		if best = i; replicas[0] != from {
			break
		}
	}
	if best < 0 {
		return false
	}
	e := on[from][best]
	result := slices.Clone(d.replicas(e))
	result[slices.Index(result, from)] = to
	d.set(e, result)
	on[from] = slices.Delete(on[from], best, best+1)
	on[to] = append(on[to], e)
	return true
}

// spreads tells whether replacing a broker leaves its partition on as many racks.
func (d *draft) spreads(replicas []int32, from, to int32) bool {
	shares := func(b int32) bool {
		return slices.ContainsFunc(replicas, func(x int32) bool { return x != from && d.state.rack(x) == d.state.rack(b) })
	}
	return !shares(to) || shares(from)
}

// preferOne makes another of a partition's brokers its preferred leader.
func (d *draft) preferOne(on map[int32][]*Entry[Partition], from, to int32) bool {
	for _, e := range on[from] {
		replicas := d.replicas(e)
		at := slices.Index(replicas, to)
		if replicas[0] != from || at < 0 {
			continue
		}
		result := slices.Clone(replicas)
		result[0], result[at] = result[at], result[0]
		d.set(e, result)
		return true
	}
	return false
}

// plan turns the draft into moves.
func (d *draft) plan() (ReassignmentPlan, error) {
	var moves []Move
	var entries []*Entry[Partition]
	for _, e := range d.entries {
		result, ok := d.result[e.Value.id()]
		if !ok || slices.Equal(result, e.Value.Replicas) {
			continue
		}
		if !d.free(e) {
			name := d.state.nameOf(e.Value.id())
			return ReassignmentPlan{}, reject("INVALID_REQUEST", "partition %d of topic %q is being reassigned already; wait, or cancel that first", name.Partition, name.Topic).
				with("topic", name.Topic)
		}
		moves = append(moves, Move{PartitionName: d.state.nameOf(e.Value.id()), From: e.Value.Replicas, To: result, InSync: inSync(e.Value, result)})
		entries = append(entries, e)
	}
	if len(moves) > MaxPartitions {
		return ReassignmentPlan{}, reject("INVALID_REQUEST", "the plan would move %d partitions, and one plan moves at most %d; name fewer topics", len(moves), MaxPartitions).
			with("limit", strconv.Itoa(MaxPartitions))
	}
	return ReassignmentPlan{ID: d.state.planID(entries, moves), Moves: moves}, nil
}

// planID names moves: the same moves of the same partitions give the same id.
func (s *State) planID(entries []*Entry[Partition], moves []Move) string {
	h := sha256.New()
	number := func(n int32) { h.Write(binary.BigEndian.AppendUint32(nil, uint32(n))) }
	for i, m := range moves {
		h.Write(entries[i].Value.Topic[:])
		number(m.Partition)
		for _, list := range [][]int32{m.From, m.To} {
			number(int32(len(list)))
			for _, b := range list {
				number(b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
