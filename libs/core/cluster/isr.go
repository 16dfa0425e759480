package cluster

import "slices"

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
// are a *Rejection: a record that settles the proposal exists already.
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
	case e.Value.Leader != c.Leader || c.Leader.IsZero():
		return Plan{}, reject("STALE_INCARNATION", "broker %d does not lead the partition under that incarnation", c.Leader.ID)
	case e.Value.PartitionEpoch != c.PartitionEpoch:
		return Plan{}, reject("STALE_PARTITION_EPOCH", "the proposal builds on partition epoch %d and the record has %d", c.PartitionEpoch, e.Value.PartitionEpoch)
	}
	next := e.Value
	if granted(s, e.Value, c) {
		setISR(&next, ids(c.ISR))
	}
	p := newPlanner(s)
	p.put(next)
	return p.done()
}

// setISR gives a partition another in-sync set. Who leaves an insufficient one had
// every committed record when it left, and stays eligible unless it is barred; who
// is added has agreed with the leader on every record, which ends its bar.
func setISR(p *Partition, isr []int32) {
	old := p.ISR
	added := func(b int32) bool { return slices.Contains(isr, b) && !slices.Contains(old, b) }
	p.Barred = keep(p.Barred, func(b int32) bool { return !added(b) })
	left := keep(old, func(b int32) bool { return !slices.Contains(p.Barred, b) })
	p.ISR = isr
	p.ELR = keep(union(p.ELR, left), func(b int32) bool { return !slices.Contains(isr, b) })
	trim(p)
}

// granted tells whether a proposed set may be: replicas only, the leader among
// them and not fenced, and whoever is added unfenced under the incarnation that the
// leader saw. A fenced leader's word is not taken: another will be elected from the
// set that it would make smaller.
func granted(s *State, p Partition, c ISRProposal) bool {
	isr := ids(c.ISR)
	view := brokerView{state: s}
	if !distinct(isr) || !subset(isr, p.Replicas) || !slices.Contains(isr, c.Leader.ID) || !view.leads(&p) {
		return false
	}
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
