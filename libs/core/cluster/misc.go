package cluster

import (
	"maps"
	"slices"
)

const (
	// ProducerIDBlock is how many producer ids are handed out at once.
	ProducerIDBlock = 1000
	// producerIDBits is how many bits of a producer id count within a generation.
	producerIDBits = 40
)

// AllocateProducerIDs plans that a block of producer ids is handed out, and
// returns its first id. The generation is in the high bits, so that ids stay
// unique after a restore from a backup.
func AllocateProducerIDs(s *State) (Plan, int64, error) {
	first := max(value(s.producerIDs).Next, s.Cluster().Generation<<producerIDBits)
	p := newPlanner(s)
	p.put(ProducerIDs{Next: first + ProducerIDBlock})
	plan, err := p.done()
	return plan, first, err
}

// EnsureCluster plans the cluster record: made by the first controller, its
// defaults brought in line with the leading controller's configuration.
func EnsureCluster(s *State, newID string, defaults map[string]string) (Plan, error) {
	c := s.Cluster()
	if c.ID == "" {
		c.ID, c.Generation = newID, 1
	} else if maps.Equal(c.DefaultConfigs, defaults) {
		return Plan{}, nil
	}
	c.DefaultConfigs = defaults
	p := newPlanner(s)
	p.put(c)
	return p.done()
}

// ISRProposal is a leader's proposal of an in-sync set.
type ISRProposal struct {
	Leader         Process
	Topic          [16]byte
	Partition      int32
	LeaderEpoch    int32
	PartitionEpoch int64
	ISR            []Process
}

// ProposeISR plans what a proposal brings: the new set; or, if its epochs are
// current but it cannot be granted, the unchanged record under a new partition
// epoch, because only a record with a higher one settles a proposal. Stale epochs
// are a *Rejection.
func ProposeISR(s *State, c ISRProposal) (Plan, error) {
	t := s.Topic(c.Topic)
	e := s.Partition(c.Topic, c.Partition)
	switch {
	case t == nil || e == nil:
		return Plan{}, reject("UNKNOWN_TOPIC", "there is no such topic or partition; it may have been deleted")
	case t.Value.Deleting:
		return Plan{}, reject("TOPIC_DELETED", "topic %q is being deleted", t.Value.Name)
	case e.Value.LeaderEpoch != c.LeaderEpoch:
		return Plan{}, reject("STALE_LEADER_EPOCH", "the proposal is of leader epoch %d and the record of %d", c.LeaderEpoch, e.Value.LeaderEpoch)
	case e.Value.Leader != c.Leader:
		return Plan{}, reject("STALE_INCARNATION", "broker %d does not lead the partition under that incarnation", c.Leader.ID)
	case e.Value.PartitionEpoch != c.PartitionEpoch:
		return Plan{}, reject("STALE_PARTITION_EPOCH", "the proposal builds on partition epoch %d and the record has %d", c.PartitionEpoch, e.Value.PartitionEpoch)
	}
	next := e.Value
	if granted(s, e.Value, c) {
		old := next.ISR
		next.ISR = ids(c.ISR)
		next.ELR = keep(next.ELR, func(b int32) bool { return !slices.Contains(next.ISR, b) })
		added := func(b int32) bool { return slices.Contains(next.ISR, b) && !slices.Contains(old, b) }
		next.Barred = keep(next.Barred, func(b int32) bool { return !added(b) })
		if int32(len(next.ISR)) >= next.MinISR {
			next.ELR = nil
		} else {
			next.ELR = union(next.ELR, keep(old, func(b int32) bool {
				return !slices.Contains(next.ISR, b) && !slices.Contains(next.Barred, b)
			}))
		}
		next.Barred = keep(next.Barred, func(b int32) bool { return slices.Contains(next.ISR, b) || slices.Contains(next.ELR, b) })
	}
	p := newPlanner(s)
	p.put(next)
	return p.done()
}

// granted tells whether a proposed set may be: replicas only, the leader among
// them, and whoever is added unfenced under the incarnation that the leader saw.
func granted(s *State, p Partition, c ISRProposal) bool {
	isr := ids(c.ISR)
	if !distinct(isr) || !subset(isr, p.Replicas) || !slices.Contains(isr, c.Leader.ID) {
		return false
	}
	view := brokerView{state: s}
	for _, member := range c.ISR {
		if slices.Contains(p.ISR, member.ID) {
			continue
		}
		if life, ok := view.unfenced(member.ID); !ok || life != member {
			return false
		}
	}
	return true
}

func ids(processes []Process) []int32 {
	list := make([]int32, 0, len(processes))
	for _, p := range processes {
		list = append(list, p.ID)
	}
	return list
}
