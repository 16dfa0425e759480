package cluster

import (
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// OffsetsTopic keeps committed offsets and group membership.
const OffsetsTopic = "__consumer_offsets"

// EnsureInternalTopic plans an internal topic unless it exists, with as many
// replicas as there are live brokers, up to three; Reconcile adds the others as
// brokers come. The outcome names it either way.
func EnsureInternalTopic(s *State, limits Limits, name string, id topicid.ID, shift int) (Plan, TopicOutcome, error) {
	if name != OffsetsTopic {
		return Plan{}, TopicOutcome{Name: name}, reject("INVALID_TOPIC_NAME", "%q is no internal topic of this release", name).with("topic", name)
	}
	if t := s.TopicByName(name); t != nil {
		outcome := TopicOutcome{Name: name, ID: t.Value.ID, Partitions: t.Value.Partitions}
		if e := s.Partition(t.Value.ID, 0); e != nil {
			outcome.ReplicationFactor = e.Value.ReplicationFactor()
		}
		return Plan{}, outcome, nil
	}
	p := newPlanner(s)
	outcome, rejection := layOut(p, limits, NewTopic{
		Name: name, ID: id, Shift: shift, Partitions: limits.OffsetsPartitions,
		ReplicationFactor: max(min(automaticReplicationFactor, int32(len(s.placeable()))), 1),
		Configs:           offsetsConfigs(),
	}, true)
	if rejection != nil {
		return Plan{}, outcome, rejection
	}
	plan, err := p.done()
	return plan, outcome, err
}

// offsetsConfigs keep a shard small, so that its next owner loads it soon: it is compacted
// once a tenth of it is out of date, but for the 64 MiB that are written to.
func offsetsConfigs() map[string]string {
	return map[string]string{
		topicconfig.CleanupPolicy:          "compact",
		topicconfig.SegmentBytes:           "67108864",
		topicconfig.MinCleanableDirtyRatio: "0.1",
	}
}

// raiseInternal gives internal topics that were made with few brokers more replicas,
// up to three; min.insync.replicas follows once enough are in sync. The preferred
// leaders are spread over the brokers that come, to lead once they are in sync.
func raiseInternal(s *State) map[PartitionID][]int32 {
	raised := map[PartitionID][]int32{}
	if len(s.index.internal) == 0 {
		return raised
	}
	live := s.placeable()
	want := min(automaticReplicationFactor, len(live))
	for topic := range s.index.internal {
		entries := s.Partitions(topic)
		if !slices.ContainsFunc(entries, func(e *Entry[Partition]) bool { return canRaise(s, e, want) }) {
			continue
		}
		load := countLoads(entries)
		for _, e := range entries {
			if !canRaise(s, e, want) {
				continue
			}
			replicas := slices.Clone(e.Value.Replicas)
			for len(replicas) < want {
				free := keep(live, func(b int32) bool { return !slices.Contains(replicas, b) })
				if len(free) == 0 {
					break
				}
				b := s.pickBroker(free, replicas, load.replicas)
				load.replicas[b]++
				replicas = append(replicas, b)
			}
			load.preferred[replicas[0]]--
			first := s.pickBroker(keep(replicas, in(live)), nil, load.preferred)
			load.preferred[first]++
			raised[e.Value.id()] = union([]int32{first}, replicas)
		}
	}
	return raised
}

// canRaise tells whether a partition of an internal topic lacks replicas that the
// live brokers could hold, and no plan moves it, which would take it back.
func canRaise(s *State, e *Entry[Partition], want int) bool {
	id := e.Value.id()
	_, planned := s.index.planOf[id]
	return len(e.Value.Replicas) < want && !planned && !e.Value.IsReassigning() && s.living(id) != nil
}

// countLoads counts over some partitions, as their reassignments will leave them.
func countLoads(entries []*Entry[Partition]) loads {
	l := loads{replicas: map[int32]int{}, preferred: map[int32]int{}}
	for _, e := range entries {
		result := e.Value.Replicas
		if e.Value.IsReassigning() {
			result = e.Value.TargetReplicas
		}
		for i, b := range result {
			l.replicas[b]++
			if i == 0 {
				l.preferred[b]++
			}
		}
	}
	return l
}
