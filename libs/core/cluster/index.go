package cluster

import (
	"cmp"
	"maps"
	"slices"

	"github.com/leat-io/leat/libs/topicid"
)

// index is what a State keeps beside the records so that nobody has to look at
// all of them after each change.
type index struct {
	// held lists the partitions on each broker.
	held map[int32]map[PartitionID]struct{}
	// attention lists the partitions that Reconcile has to look at: what it depends
	// on has changed since they were last found in order, or they wait.
	attention map[PartitionID]struct{}
	// untidy lists the topics under which there may be records to remove.
	untidy map[topicid.ID]struct{}
	// internal lists the internal topics.
	internal map[topicid.ID]struct{}
	// running lists the partitions that are being reassigned.
	running map[PartitionID]struct{}
	// planOf tells which plan moves a partition, and to where.
	planOf map[PartitionID]planned
}

// planned is a partition's place in a plan.
type planned struct {
	planID string
	move   ReassignedPartition
}

func newIndex() index {
	return index{
		held:      map[int32]map[PartitionID]struct{}{},
		attention: map[PartitionID]struct{}{},
		untidy:    map[topicid.ID]struct{}{},
		internal:  map[topicid.ID]struct{}{},
		running:   map[PartitionID]struct{}{},
		planOf:    map[PartitionID]planned{},
	}
}

// id is a partition's id.
func (p *Partition) id() PartitionID { return PartitionID{p.Topic, p.Number} }

// noteTopic follows a topic's record.
func (s *State) noteTopic(t Topic) {
	s.index.untidy[t.ID] = struct{}{}
	if t.Internal {
		s.index.internal[t.ID] = struct{}{}
	}
	s.noteTopicPartitions(t.ID)
}

// noteTopicPartitions has Reconcile look at every partition of a topic.
func (s *State) noteTopicPartitions(id topicid.ID) {
	for n := range s.partitions[id] {
		s.index.attention[PartitionID{id, n}] = struct{}{}
	}
}

// noteBroker follows a broker's record; nil: it is gone.
func (s *State) noteBroker(id int32, before, after *Broker) {
	if before != nil && after != nil && before.Process == after.Process && before.Fenced == after.Fenced && before.Draining == after.Draining {
		return
	}
	if after == nil {
		s.forgetVouches(id, Process{})
	}
	for key := range s.index.held[id] {
		s.index.attention[key] = struct{}{}
	}
}

// notePartition follows a partition's record; nil: there was, or is, none.
func (s *State) notePartition(id PartitionID, before, after *Partition) {
	s.index.untidy[id.Topic] = struct{}{}
	if before != nil {
		for _, b := range before.Replicas {
			if after == nil || !slices.Contains(after.Replicas, b) {
				delete(s.index.held[b], id)
			}
		}
	}
	if after == nil {
		delete(s.index.attention, id)
		delete(s.index.running, id)
		for _, vouches := range s.vouches {
			delete(vouches, id)
		}
		return
	}
	s.index.attention[id] = struct{}{}
	for _, b := range after.Replicas {
		if s.index.held[b] == nil {
			s.index.held[b] = map[PartitionID]struct{}{}
		}
		s.index.held[b][id] = struct{}{}
	}
	if after.IsReassigning() {
		s.index.running[id] = struct{}{}
	} else {
		delete(s.index.running, id)
	}
}

// noteReassignment follows a plan's record; nil: there was, or is, none.
func (s *State) noteReassignment(planID string, before, after *Reassignment) {
	if before != nil {
		for _, m := range before.Partitions {
			if id := (PartitionID{m.Topic, m.Number}); s.index.planOf[id].planID == planID {
				delete(s.index.planOf, id)
			}
		}
	}
	if after != nil {
		for _, m := range after.Partitions {
			s.index.planOf[PartitionID{m.Topic, m.Number}] = planned{planID, m}
		}
	}
}

// living returns a partition of a topic that is there for clients, nil otherwise:
// not one of a topic that is being deleted, half made or half altered.
func (s *State) living(id PartitionID) *Entry[Partition] {
	t := s.topics[id.Topic]
	if t == nil || t.Value.Deleting || id.Number >= t.Value.Partitions {
		return nil
	}
	return s.partitions[id.Topic][id.Number]
}

// held lists the partitions of living topics that a broker holds, sorted.
func (s *State) held(broker int32) []*Entry[Partition] {
	held := make([]*Entry[Partition], 0, len(s.index.held[broker]))
	for id := range s.index.held[broker] {
		if e := s.living(id); e != nil {
			held = append(held, e)
		}
	}
	slices.SortFunc(held, compareEntries)
	return held
}

func compareEntries(a, b *Entry[Partition]) int {
	return cmp.Or(a.Value.Topic.Compare(b.Value.Topic), cmp.Compare(a.Value.Number, b.Value.Number))
}

func compareIDs(a, b PartitionID) int {
	return cmp.Or(a.Topic.Compare(b.Topic), cmp.Compare(a.Number, b.Number))
}

// sortedIDs lists the members of a set in order.
func sortedIDs(set map[PartitionID]struct{}) []PartitionID {
	return slices.SortedFunc(maps.Keys(set), compareIDs)
}

// neverLed tells whether a partition has not had a leader yet: its leader epoch is
// still the floor that its topic's name had, which the first leader's is above.
// There can be no record in it.
func (s *State) neverLed(p *Partition) bool {
	if !p.Leader.IsZero() {
		return false
	}
	t := s.topics[p.Topic]
	if t == nil {
		return false
	}
	name := s.names[t.Value.Name]
	return name != nil && name.Value.Topic == p.Topic && p.LeaderEpoch == name.Value.LeaderEpochFloor
}
