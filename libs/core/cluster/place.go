package cluster

import (
	"cmp"
	"slices"
)

// ring is the order in which brokers take replicas: by id, with racks alternating
// where they are known.
type ring struct {
	brokers []int32
	racks   map[int32]string
}

// newRing makes the ring of some brokers, which are sorted.
func (s *State) newRing(brokers []int32) ring {
	r := ring{racks: make(map[int32]string, len(brokers))}
	byRack := map[string][]int32{}
	var racks []string
	for _, b := range brokers {
		rack := s.brokers[b].Value.Rack
		r.racks[b] = rack
		if byRack[rack] == nil {
			racks = append(racks, rack)
		}
		byRack[rack] = append(byRack[rack], b)
	}
	slices.Sort(racks)
	for len(r.brokers) < len(brokers) {
		for _, rack := range racks {
			if left := byRack[rack]; len(left) > 0 {
				r.brokers = append(r.brokers, left[0])
				byRack[rack] = left[1:]
			}
		}
	}
	return r
}

// place lists the replicas of a partition: the first on the broker at a position of
// the ring, each other one on the next broker whose rack has the fewest so far. With
// one rack, or none known, these are the brokers that follow.
func (r ring) place(first int, replicationFactor int32) []int32 {
	n := len(r.brokers)
	replicas := make([]int32, 0, replicationFactor)
	inRack := make(map[string]int, replicationFactor)
	for len(replicas) < int(replicationFactor) {
		best := int32(-1)
		for j := range n {
			b := r.brokers[(first+j)%n]
			if !slices.Contains(replicas, b) && (best < 0 || inRack[r.racks[b]] < inRack[r.racks[best]]) {
				best = b
			}
		}
		inRack[r.racks[best]]++
		replicas = append(replicas, best)
	}
	return replicas
}

// position is where on the ring a broker is; 0 if it is not.
func (r ring) position(broker int32) int { return max(slices.Index(r.brokers, broker), 0) }

// loads counts replicas by broker, and how many of them are preferred leaders.
type loads struct {
	replicas, preferred map[int32]int
}

// pickBroker chooses who gets one more replica beside others: a broker of the rack
// that has the fewest of them, there the one with the fewest replicas, of these the
// one with the lowest id.
func (s *State) pickBroker(candidates, beside []int32, load map[int32]int) int32 {
	crowd := func(b int32) int {
		n := 0
		for _, other := range beside {
			if s.rack(other) == s.rack(b) {
				n++
			}
		}
		return n
	}
	return slices.MinFunc(candidates, func(a, b int32) int {
		return cmp.Or(cmp.Compare(crowd(a), crowd(b)), cmp.Compare(load[a], load[b]), cmp.Compare(a, b))
	})
}

func (s *State) rack(broker int32) string { return value(s.brokers[broker]).Rack }

// placeable lists the brokers that take new replicas, sorted.
func (s *State) placeable() []int32 {
	var live []int32
	for _, b := range s.Brokers() {
		if !b.Value.Fenced && !b.Value.Draining {
			live = append(live, b.Value.Process.ID)
		}
	}
	return live
}

// checkPlaceable tells whether a replication factor can be met by brokers that live.
func checkPlaceable(live []int32, replicationFactor int32) *Rejection {
	switch {
	case replicationFactor < 1:
		return reject("INVALID_REPLICATION_FACTOR", "a replication factor of %d is not possible; give 1 or more", replicationFactor)
	case len(live) == 0:
		return reject("STARTING", "no broker is ready to hold a topic; start one, or wait until it is")
	case int(replicationFactor) > len(live):
		return reject("INVALID_REPLICATION_FACTOR", "a replication factor of %d needs as many brokers, and there are %d; start more, or ask for less",
			replicationFactor, len(live))
	}
	return nil
}

// hosts lists the brokers that take the replicas of a new partition, sorted: those
// that live and, where these are too few, others on record. A broker that is away
// for a restart then does not cost a topic a copy for good: its replicas leave the
// ISR at the first election, and join when it is back.
func (s *State) hosts(replicationFactor int32) ([]int32, *Rejection) {
	hosts := s.placeable()
	if len(hosts) == 0 {
		return nil, checkPlaceable(nil, max(replicationFactor, 1))
	}
	for _, b := range s.Brokers() {
		if id := b.Value.Process.ID; len(hosts) < int(replicationFactor) && b.Value.Fenced {
			hosts = append(hosts, id)
		}
	}
	slices.Sort(hosts)
	return hosts, checkPlaceable(hosts, replicationFactor)
}

// automaticReplicas is the number of replicas where none is asked for or set: 3, or
// as many as there are brokers on record.
func (s *State) automaticReplicas() int32 {
	return max(min(automaticReplicationFactor, int32(len(s.brokers))), 1)
}
