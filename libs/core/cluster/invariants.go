package cluster

import (
	"math"
	"slices"
)

// checkPartition tells whether a partition record may follow another one; before
// is nil for a new partition. The fault is an *InvariantError.
func checkPartition(before, next *Partition) error {
	broken := func(rule string) error { return &InvariantError{Key: next.Key(), Rule: rule} }
	switch {
	case len(next.Replicas) == 0:
		return broken("a partition has replicas")
	case !distinct(next.Replicas) || !distinct(next.ISR) || !distinct(next.ELR) || !distinct(next.Barred):
		return broken("nobody is listed twice")
	case !subset(next.ISR, next.Replicas) || !subset(next.ELR, next.Replicas):
		return broken("members of ISR and ELR are replicas")
	case len(next.ISR)+len(next.ELR) == 0:
		return broken("the last member of ISR and ELR is never removed")
	case slices.ContainsFunc(next.ELR, func(b int32) bool { return slices.Contains(next.ISR, b) }):
		return broken("nobody is in ISR and ELR at once")
	case int32(len(next.ISR)) >= next.MinISR && len(next.ELR) > 0:
		return broken("with a sufficient ISR the ELR is empty")
	case !next.Leader.IsZero() && !slices.Contains(next.ISR, next.Leader.ID):
		return broken("the leader is in the ISR")
	case !next.Leader.IsZero() && slices.Contains(next.Barred, next.Leader.ID):
		return broken("a barred replica does not lead")
	case slices.ContainsFunc(next.Barred, func(b int32) bool { return !slices.Contains(next.ISR, b) && !slices.Contains(next.ELR, b) }):
		return broken("only members of ISR and ELR are barred")
	case len(next.TargetReplicas) == 0 != (len(next.FormerReplicas) == 0):
		return broken("a reassignment has replicas that it ends with and replicas that it began with")
	case len(next.TargetReplicas) > 0 && !reassigns(next):
		return broken("while a partition is reassigned its replicas are those before and after")
	case next.MinISR < 1:
		return broken("the smallest sufficient ISR has at least one member")
	case next.LeaderEpoch < 0 || next.LeaderEpoch == math.MaxInt32:
		return broken("leader epochs fit in 31 bits")
	case next.PartitionEpoch < 1:
		return broken("partition epochs begin at 1")
	}
	if before == nil {
		return nil
	}
	switch {
	case next.PartitionEpoch <= before.PartitionEpoch:
		return broken("a partition epoch never repeats")
	case next.LeaderEpoch < before.LeaderEpoch:
		return broken("a leader epoch never goes down")
	case !next.Leader.IsZero() && next.Leader != before.Leader && next.LeaderEpoch == before.LeaderEpoch:
		return broken("another leader has a higher leader epoch")
	case next.ShardEpoch < before.ShardEpoch:
		return broken("a shard epoch never goes down")
	case !next.ShardOwner.IsZero() && next.ShardOwner != before.ShardOwner && next.ShardEpoch == before.ShardEpoch:
		return broken("another owner has a higher shard epoch")
	}
	return nil
}

// reassigns tells whether a partition's replicas are the union that they must be.
func reassigns(p *Partition) bool {
	return distinct(p.TargetReplicas) && distinct(p.FormerReplicas) &&
		subset(p.TargetReplicas, p.Replicas) && subset(p.FormerReplicas, p.Replicas) &&
		len(union(p.TargetReplicas, p.FormerReplicas)) == len(p.Replicas)
}

func distinct(list []int32) bool {
	for i, b := range list {
		if slices.Contains(list[:i], b) {
			return false
		}
	}
	return true
}

func subset(list, of []int32) bool {
	return !slices.ContainsFunc(list, func(b int32) bool { return !slices.Contains(of, b) })
}

// union lists a, then what only b has.
func union(a, b []int32) []int32 {
	all := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	return all
}

// keep lists what passes.
func keep(list []int32, pass func(int32) bool) []int32 {
	var kept []int32
	for _, b := range list {
		if pass(b) {
			kept = append(kept, b)
		}
	}
	return kept
}
