package cluster

import (
	"cmp"
	"maps"
	"slices"
)

// assignShards tells which shards get another owner. Owners that are registered
// keep theirs, up to an even share; with no coordinator registered nothing moves,
// since nobody could do better.
func assignShards(s *State) map[PartitionID]Process {
	moves := map[PartitionID]Process{}
	owned := map[Process]int{}
	for _, r := range s.Registrations(KindCoordinator) {
		owned[r.Value.Process] = 0
	}
	if len(owned) == 0 {
		return moves
	}
	for _, t := range s.topics {
		if t.Value.Internal && !t.Value.Deleting {
			clearCounts(owned)
			assignTopic(s, t.Value, owned, moves)
		}
	}
	return moves
}

func clearCounts(owned map[Process]int) {
	for c := range owned {
		owned[c] = 0
	}
}

// assignTopic spreads the shards of one internal topic over the coordinators,
// which are the keys of owned.
func assignTopic(s *State, t Topic, owned map[Process]int, moves map[PartitionID]Process) {
	most := (int(t.Partitions) + len(owned) - 1) / len(owned)
	least := int(t.Partitions) / len(owned)
	homeless := make([]bool, t.Partitions)
	free := 0
	release := func(n int32) {
		homeless[n] = true
		free++
	}
	for n := range t.Partitions {
		e := s.Partition(t.ID, n)
		if e == nil {
			continue
		}
		owner := e.Value.ShardOwner
		if count, live := owned[owner]; !live || count >= most {
			release(n)
			continue
		}
		owned[owner]++
	}
	// An owner within its share may still have to give one up so that everybody
	// gets the least share.
	short := 0
	for _, count := range owned {
		short += max(least-count, 0)
	}
	for n := t.Partitions - 1; n >= 0 && short > free; n-- {
		e := s.Partition(t.ID, n)
		if e != nil && !homeless[n] && owned[e.Value.ShardOwner] > least {
			owned[e.Value.ShardOwner]--
			release(n)
		}
	}
	for n := range t.Partitions {
		if homeless[n] {
			owner := poorest(owned)
			owned[owner]++
			moves[PartitionID{t.ID, n}] = owner
		}
	}
}

// poorest is the coordinator with the fewest shards; the lowest id of several.
func poorest(owned map[Process]int) Process {
	return slices.MinFunc(slices.Collect(maps.Keys(owned)), func(a, b Process) int {
		return cmp.Or(cmp.Compare(owned[a], owned[b]), cmp.Compare(a.ID, b.ID))
	})
}
