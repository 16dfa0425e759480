package cluster

// reconcileWrites bounds one plan of Reconcile, so that commands come between.
const reconcileWrites = 2000

// Reconcile plans what follows from the state itself: leaders for partitions
// whose leader is gone, then smaller in-sync sets, owners for shards, copies of
// min.insync.replicas, and the ends of deletions and of topics that a controller
// left half made. Call it until the plan is empty. The error is an
// *InvariantError.
func Reconcile(s *State) (Plan, error) {
	p := newPlanner(s)
	shards := assignShards(s)
	var later []Partition
	view := brokerView{state: s}
	for _, t := range s.Topics() {
		if t.Value.Deleting {
			continue
		}
		config := s.config(t.Value)
		for _, e := range s.Partitions(t.Value.ID) {
			if e.Value.Number >= t.Value.Partitions {
				continue // left over; removed below
			}
			next := e.Value
			if min := min(config.MinInsyncReplicas, int32(len(next.Replicas))); min != next.MinISR {
				next.MinISR = min
			}
			view.elect(&next, config)
			if int32(len(next.ISR)) >= next.MinISR {
				next.ELR = nil
				next.Barred = keep(next.Barred, func(b int32) bool { return contains(next.ISR, b) })
			}
			if owner, ok := shards[partitionKey{next.Topic, next.Number}]; ok {
				next.ShardOwner, next.ShardEpoch = owner, next.ShardEpoch+1
			}
			switch {
			case samePartition(e.Value, next):
			case next.Leader != e.Value.Leader:
				p.put(next)
			default:
				later = append(later, next)
			}
		}
	}
	p.next()
	for _, next := range later {
		p.put(next)
	}
	sweep(p)
	plan, err := p.done()
	return bound(plan), err
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

func contains(list []int32, b int32) bool {
	for _, x := range list {
		if x == b {
			return true
		}
	}
	return false
}

// sweep plans the removal of what nothing needs any more: the partitions of a
// topic that is being deleted and then the topic, partitions of no topic or
// beyond their topic's number, and deletions that all have confirmed.
func sweep(p *planner) {
	p.next()
	for _, id := range sortedTopicIDs(p.state) {
		t := p.state.Topic(id)
		for _, e := range p.state.Partitions(id) {
			if t == nil || t.Value.Deleting || e.Value.Number >= t.Value.Partitions {
				p.delete(e.Value.Key())
			}
		}
	}
	p.next()
	for _, t := range p.state.Topics() {
		if t.Value.Deleting {
			p.delete(t.Value.Key())
		}
	}
	for _, d := range p.state.Deletions() {
		if len(d.Value.Pending) == 0 && p.state.Topic(d.Value.Topic) == nil {
			p.delete(d.Value.Key())
		}
	}
}
