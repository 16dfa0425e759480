package cluster

import (
	"maps"
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// reconcileWrites bounds one plan of Reconcile, so that commands come between.
const reconcileWrites = 2000

// Reconcile plans what follows from the state itself: leaders for partitions
// whose leader is gone, then smaller in-sync sets, owners for shards, copies of
// min.insync.replicas, more replicas for internal topics that have few, and the
// ends of deletions and of topics that a controller left half made. Call it until
// the plan is empty, and again when a wait is overdue. It notes in the state which
// partitions it found in order, and looks at them no more until something changes
// for them; so one goroutine at a time may call it, while others read. The error is
// an *InvariantError.
func Reconcile(s *State, hints Hints) (Plan, error) {
	p := newPlanner(s)
	leaders, others := s.outOfLine(hints)
	for _, next := range leaders {
		p.put(next)
	}
	p.next()
	for _, next := range others {
		p.put(next)
	}
	sweep(p)
	plan, err := p.done()
	return bound(plan), err
}

// Waiting lists the partitions that have no leader and wait for something that only
// time can bring, sorted. Call it once Reconcile's plan is empty, and tell
// Reconcile by Hints which have waited long enough.
func Waiting(s *State) []Wait {
	var waits []Wait
	view := brokerView{state: s}
	for id := range s.index.attention {
		e := s.living(id)
		if e == nil || !e.Value.Leader.IsZero() {
			continue
		}
		p := e.Value
		if kind := view.elect(&p, s.configs[id.Topic], Hints{}); kind != 0 {
			waits = append(waits, Wait{id, e.Value.LeaderEpoch, kind})
		}
	}
	slices.SortFunc(waits, func(a, b Wait) int { return compareIDs(a.Partition, b.Partition) })
	return waits
}

// outOfLine lists the partition records that must change: first those that get
// or lose a leader, then the others.
func (s *State) outOfLine(hints Hints) (leaders, others []Partition) {
	view := brokerView{state: s}
	shards, raised := assignShards(s), raiseInternal(s)
	look := func(id PartitionID) {
		e := s.living(id)
		if e == nil {
			delete(s.index.attention, id) // looked at again when its topic is there
			return
		}
		if len(leaders)+len(others) >= reconcileWrites && view.leads(&e.Value) {
			return // its turn comes; those without a leader first
		}
		next, wait := s.inLine(view, e.Value, s.configs[id.Topic], hints)
		if replicas, ok := raised[id]; ok {
			next.Replicas = replicas
		}
		if owner, ok := shards[id]; ok {
			next.ShardOwner, next.ShardEpoch = owner, next.ShardEpoch+1
		}
		switch {
		case samePartition(&e.Value, &next):
			if wait == 0 {
				delete(s.index.attention, id)
			}
		case next.Leader != e.Value.Leader:
			leaders = append(leaders, next)
		default:
			others = append(others, next)
		}
	}
	for id := range shards {
		s.index.attention[id] = struct{}{}
	}
	for id := range raised {
		s.index.attention[id] = struct{}{}
	}
	for _, id := range sortedIDs(s.index.attention) {
		look(id)
	}
	return leaders, others
}

// inLine is a partition's record as it should be, and what it waits for. A lower
// min.insync.replicas waits for a leader: it may end the eligibility of the only
// replica that is whole, and with nobody to lead it helps nobody.
func (s *State) inLine(view brokerView, p Partition, config *topicconfig.Config, hints Hints) (Partition, WaitKind) {
	want := minISR(&p, config)
	p.MinISR = max(p.MinISR, want)
	wait := view.elect(&p, config, hints)
	if want < p.MinISR && !p.Leader.IsZero() {
		p.MinISR = want
		trim(&p)
	}
	return p, wait
}

// minISR is the smallest sufficient ISR that a partition should have. Where nobody
// set one it is not raised above what is in sync: nobody asked for writes to stop.
func minISR(p *Partition, config *topicconfig.Config) int32 {
	want := config.MinISR(p.ReplicationFactor())
	if config.MinInsyncReplicas == 0 && want > p.MinISR && int32(len(p.ISR)) < want {
		return p.MinISR
	}
	return want
}

// bound cuts a plan after a number of writes; what is cut comes again next time.
func bound(plan Plan) Plan {
	left := reconcileWrites
	for i, stage := range plan.Stages {
		if len(stage) > left {
			plan.Stages[i] = stage[:left]
			plan.Stages = plan.Stages[:i+1]
			return plan
		}
		left -= len(stage)
	}
	return plan
}

// sweep plans the removal of what nothing needs any more: the partitions of a
// topic that is being deleted and then the topic, partitions of no topic or
// beyond their topic's number, and deletions that all have confirmed who are still
// there to confirm.
func sweep(p *planner) {
	s := p.state
	p.next()
	var deleting []topicid.ID
	for _, id := range slices.SortedFunc(maps.Keys(s.index.untidy), topicid.ID.Compare) {
		t := s.Topic(id)
		if t != nil && t.Value.Deleting {
			deleting = append(deleting, id)
		} else if len(s.partitions[id]) == 0 || t != nil && len(s.partitions[id]) <= int(t.Value.Partitions) {
			delete(s.index.untidy, id)
			continue
		}
		for _, e := range s.Partitions(id) {
			if t == nil || t.Value.Deleting || e.Value.Number >= t.Value.Partitions {
				p.delete(e.Value.Key())
			}
		}
	}
	p.next()
	for _, id := range deleting {
		p.delete(Key{Type: KeyTopic, Topic: id})
	}
	for _, d := range s.Deletions() {
		next := d.Value
		next.Pending = keep(next.Pending, func(b int32) bool { return s.brokers[b] != nil })
		switch {
		case len(next.Pending) == 0 && s.Topic(next.Topic) == nil:
			p.delete(next.Key())
		case len(next.Pending) < len(d.Value.Pending):
			p.put(next)
		}
	}
}
