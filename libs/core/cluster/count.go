package cluster

// Count is the state in figures.
type Count struct {
	Topics          int // without those being deleted
	Partitions      int // of these topics
	Offline         int // partitions without a leader
	UnderReplicated int // partitions whose ISR is smaller than their replica set
	Brokers         int // broker records
	Fenced          int // broker records that are fenced
	Deletions       int // topics whose deletion has not ended
}

// Count looks at every record once.
func (s *State) Count() Count {
	c := Count{Brokers: len(s.brokers), Deletions: len(s.deletions)}
	for _, b := range s.brokers {
		if b.Value.Fenced {
			c.Fenced++
		}
	}
	for id, t := range s.topics {
		if t.Value.Deleting {
			continue
		}
		c.Topics++
		for n, p := range s.partitions[id] {
			if n >= t.Value.Partitions {
				continue
			}
			c.Partitions++
			if p.Value.Leader.IsZero() {
				c.Offline++
			}
			if len(p.Value.ISR) < len(p.Value.Replicas) {
				c.UnderReplicated++
			}
		}
	}
	return c
}
