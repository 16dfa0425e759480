package cluster

import "maps"

const (
	// ProducerIDBlock is how many producer ids are handed out at once.
	ProducerIDBlock = 1000
	// producerIDBits is how many bits of a producer id count within a generation.
	producerIDBits = 40
)

// AllocateProducerIDs plans that a block of producer ids is handed out, and
// returns its first id. The generation is in the high bits, so that ids stay
// unique after a restore from a backup. The error is a *Rejection or an
// *InvariantError.
func AllocateProducerIDs(s *State) (Plan, int64, error) {
	generation := s.Cluster().Generation
	first := max(value(s.producerIDs).Next, generation<<producerIDBits)
	if first+ProducerIDBlock > (generation+1)<<producerIDBits {
		return Plan{}, 0, reject("LIMIT_EXCEEDED", "the producer ids of generation %d of the metadata are used up; please report this", generation)
	}
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
