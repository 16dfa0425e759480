package cluster

import (
	"cmp"
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// reconcileWrites bounds one plan of Reconcile, so that commands come between.
const reconcileWrites = 2000

// Reconcile plans what follows from the state itself: leaders for partitions
// whose leader is gone, then smaller in-sync sets, owners for shards, copies of
// min.insync.replicas, and the ends of deletions and of topics that a controller
// left half made. Call it until the plan is empty. The error is an
// *InvariantError.
func Reconcile(s *State, hints Hints) (Plan, error) {
	_ = hints
	p := newPlanner(s)
	leaders, others := s.outOfLine(assignShards(s))
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

// outOfLine lists the partition records that must change: first those that get
// or lose a leader, then the others. It looks at every partition after every
// change, so it goes through the maps as they are and sorts only what it found.
func (s *State) outOfLine(shards map[PartitionID]Process) (leaders, others []Partition) {
	view := brokerView{state: s}
	for id, t := range s.topics {
		if t.Value.Deleting {
			continue
		}
		config := s.config(t.Value)
		for n, e := range s.partitions[id] {
			if n >= t.Value.Partitions {
				continue // left over; swept
			}
			next := s.inLine(view, e.Value, config, shards)
			switch {
			case samePartition(e.Value, next):
			case next.Leader != e.Value.Leader:
				leaders = append(leaders, next)
			default:
				others = append(others, next)
			}
		}
	}
	slices.SortFunc(leaders, comparePartitions)
	slices.SortFunc(others, comparePartitions)
	return leaders, others
}

func comparePartitions(a, b Partition) int {
	return cmp.Or(a.Topic.Compare(b.Topic), cmp.Compare(a.Number, b.Number))
}

// inLine is a partition's record as it should be.
func (s *State) inLine(view brokerView, p Partition, config topicconfig.Config, shards map[PartitionID]Process) Partition {
	p.MinISR = config.MinISR(p.ReplicationFactor())
	view.elect(&p, config)
	if len(p.ELR) > 0 && int32(len(p.ISR)) >= p.MinISR {
		p.ELR = nil
		isr := p.ISR
		p.Barred = keep(p.Barred, func(b int32) bool { return slices.Contains(isr, b) })
	}
	if len(shards) > 0 {
		if owner, ok := shards[PartitionID{p.Topic, p.Number}]; ok {
			p.ShardOwner, p.ShardEpoch = owner, p.ShardEpoch+1
		}
	}
	return p
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
// beyond their topic's number, and deletions that all have confirmed.
func sweep(p *planner) {
	p.next()
	for _, id := range p.state.litter() {
		t := p.state.Topic(id)
		for _, e := range p.state.Partitions(id) {
			if t == nil || t.Value.Deleting || e.Value.Number >= t.Value.Partitions {
				p.delete(e.Value.Key())
			}
		}
	}
	p.next()
	for _, id := range p.state.deletingTopics() {
		p.delete(Key{Type: KeyTopic, Topic: id})
	}
	for _, d := range p.state.Deletions() {
		if len(d.Value.Pending) == 0 && p.state.Topic(d.Value.Topic) == nil {
			p.delete(d.Value.Key())
		}
	}
}

// litter lists the topic ids under which there are partition records to remove.
func (s *State) litter() []topicid.ID {
	var ids []topicid.ID
	for id, of := range s.partitions {
		if t := s.topics[id]; t == nil || t.Value.Deleting || len(of) > int(t.Value.Partitions) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, topicid.ID.Compare)
	return ids
}

func (s *State) deletingTopics() []topicid.ID {
	var ids []topicid.ID
	for id, t := range s.topics {
		if t.Value.Deleting {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, topicid.ID.Compare)
	return ids
}
