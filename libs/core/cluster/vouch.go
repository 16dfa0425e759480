package cluster

import (
	"slices"

	"github.com/leat-io/leat/libs/topicid"
)

// Verdict says how whole a replica is, numbered as in the protos.
type Verdict int32

// The verdicts.
const (
	Intact    Verdict = 1
	Cut       Verdict = 2
	UncleanOS Verdict = 3
	Missing   Verdict = 4
	Corrupt   Verdict = 5
)

// Vouch is what a broker says of one of its replicas.
type Vouch struct {
	Topic     topicid.ID
	Partition int32
	LastEpoch int32
	End       int64
	Verdict   Verdict
}

// SetVouches remembers what a broker says of its replicas as it registers, in place
// of what an earlier life said; what the same life told since then stays, unless it is
// damage that is told of now. It is not part of etcd's state; call it before RegisterBroker's plan is made, with each
// registration of the life that holds the registration key.
func (s *State) SetVouches(r BrokerRegistration) {
	s.forgetVouches(r.Process.ID, r.Process)
	known := s.vouches[r.Process]
	if known == nil {
		known = make(map[PartitionID]Vouch, len(r.Vouches))
		s.vouches[r.Process] = known
	}
	for _, v := range r.Vouches {
		// One that went bad before its first registration was accepted is bad.
		if _, told := known[v.id()]; !told || v.Verdict == Corrupt || v.Verdict == Cut {
			known[v.id()] = v
			s.index.attention[v.id()] = struct{}{}
		}
	}
}

// forgetVouches drops what the lives of a broker said, but for one.
func (s *State) forgetVouches(broker int32, but Process) {
	for life := range s.vouches {
		if life.ID == broker && life != but {
			delete(s.vouches, life)
		}
	}
}

// NoteReplicas remembers what the life of a broker on record tells of its replicas
// while it runs: those newly made, or damaged. Like SetVouches it is not part of
// etcd's state; call it before ReportReplicas' plan is made.
func (s *State) NoteReplicas(life Process, vouches []Vouch) {
	if b := s.brokers[life.ID]; b == nil || b.Value.Process != life {
		return
	}
	known := s.vouches[life]
	if known == nil {
		known = make(map[PartitionID]Vouch, len(vouches))
		s.vouches[life] = known
	}
	for _, v := range vouches {
		e := s.Partition(v.Topic, v.Partition)
		if e == nil || v.Verdict == Intact && !s.neverLed(&e.Value) {
			// Deleted meanwhile; or made anew, which says nothing about what it was.
			continue
		}
		known[v.id()] = v
		s.index.attention[v.id()] = struct{}{}
	}
}

// ReportReplicas plans what follows from news of a living broker's replicas: those
// that are damaged, or whose disk failed, are barred, lose leadership, and leave ISR
// and ELR where a trusted member leads; of those that are no members the partition epoch
// rises, so that no proposal from before adds them; where every living replica is made,
// the first leader is elected. A replica that is said to be whole does not lose its bar
// by that: a folder that was made anew is whole and empty. Brokers bound their reports,
// and take what was answered for being on record, so that the plan is not cut. It is empty if
// there is nothing to do. The error is a *Rejection or an *InvariantError.
func ReportReplicas(s *State, life Process, vouches []Vouch) (Plan, error) {
	b := s.Broker(life.ID)
	if b == nil || b.Value.Process != life {
		return Plan{}, reject("STALE_INCARNATION", "broker %d is on record with another incarnation; register first", life.ID)
	}
	p := newPlanner(s)
	view := brokerView{state: s}
	planned := map[PartitionID]bool{}
	for _, v := range vouches {
		e := s.living(v.id())
		if e == nil || planned[v.id()] {
			continue
		}
		next := e.Value
		damaged := v.Verdict != Intact && !s.neverLed(&next)
		member := slices.Contains(next.ISR, life.ID) || slices.Contains(next.ELR, life.ID)
		if damaged && member && !slices.Contains(next.Barred, life.ID) {
			next.Barred = append(slices.Clone(next.Barred), life.ID)
		}
		view.elect(&next, s.configs[next.Topic], Hints{})
		// A proposal to add one that is no member may be on its way, made while its replica
		// was whole: a new partition epoch refuses it, as a bar does.
		outdates := damaged && !member && slices.Contains(next.Replicas, life.ID)
		if outdates || !samePartition(&e.Value, &next) {
			planned[v.id()] = true
			p.put(next)
		}
	}
	return p.done()
}

func (v Vouch) id() PartitionID { return PartitionID{v.Topic, v.Partition} }

// barred is who may not be elected in a partition once a broker's new life is on
// record. In a partition that never had a leader nobody can lack a record.
func barred(s *State, p Partition, r BrokerRegistration) []int32 {
	b := r.Process.ID
	if !slices.Contains(p.ISR, b) && !slices.Contains(p.ELR, b) || s.neverLed(&p) {
		return p.Barred
	}
	vouch, ok := s.vouches[r.Process][p.id()]
	switch {
	case ok && vouch.Verdict == Intact:
		return keep(p.Barred, func(x int32) bool { return x != b })
	case slices.Contains(p.Barred, b):
		return p.Barred
	default:
		return append(slices.Clone(p.Barred), b)
	}
}
