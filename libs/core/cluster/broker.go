package cluster

import (
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
)

// maxStageWrites is what fits in one transaction beside the guard; a plan whose
// parts must take place together stays within it.
const maxStageWrites = 100

// BrokerRegistration is a broker's registration with its vouches.
type BrokerRegistration struct {
	Process   Process
	Address   string
	Rack      string
	ClusterID string // found on its disks; empty: new disks
	Vouches   []Vouch
}

// RegisterBroker plans a broker's registration: its record takes the new life,
// unfenced, no earlier than replicas that are not intact are barred. The plan is
// empty if the record is so already. The error is a *Rejection or an
// *InvariantError.
//
// The caller has made sure that the life holds the registration key, and that the
// one on record, if it is another, is dead.
func RegisterBroker(s *State, r BrokerRegistration) (Plan, error) {
	if c := s.Cluster(); r.ClusterID != "" && r.ClusterID != c.ID {
		return Plan{}, reject("WRONG_CLUSTER", "the disks of broker %d belong to the mesh %s and this is %s; check etcd.endpoints, etcd.prefix and log.dirs",
			r.Process.ID, r.ClusterID, c.ID)
	}
	switch reg := s.Registration(KindBroker, r.Process.ID); {
	case reg == nil:
		// Its lease was lost, and it will register again.
		return Plan{}, reject("METADATA_BEHIND", "broker %d is not registered at the moment; try again once it is", r.Process.ID)
	case reg.Value.Process != r.Process:
		return Plan{}, reject("STALE_INCARNATION", "a newer process is registered as broker %d, at %s; this one must stop", r.Process.ID, reg.Value.Address)
	}
	record := Broker{Process: r.Process, Address: r.Address, Rack: r.Rack}
	old := s.Broker(r.Process.ID)
	if old != nil && old.Value == record {
		return sameRecord(s, r.Process.ID)
	}
	if old != nil && old.Value.Process == r.Process {
		// The same life: its vouch is known, only fencing, address or leave end.
		return returnBroker(s, record)
	}
	if s.vouches[r.Process] == nil {
		// Its key was not there when it vouched. To go on would be to take every replica
		// for one that it said nothing of, and to bar them all.
		return Plan{}, reject("METADATA_BEHIND", "broker %d was not registered when it vouched for its replicas; it has to send its registration again", r.Process.ID)
	}
	return newLife(s, record, r)
}

// sameRecord plans what a new controller learns from the vouches of a broker that it
// found unfenced: who has the longest copy, say.
func sameRecord(s *State, broker int32) (Plan, error) {
	p := newPlanner(s)
	together, _ := s.electHeld(brokerView{state: s}, broker, nil, reconcileWrites)
	for _, next := range together {
		p.put(next)
	}
	return p.done()
}

// newLife plans that a broker's record takes a new life, unfenced, together with the
// bars that its vouches bring and the elections that follow.
func newLife(s *State, record Broker, r BrokerRegistration) (Plan, error) {
	var changed []Partition
	for _, e := range s.held(record.Process.ID) {
		next := e.Value
		next.Barred = barred(s, next, r)
		if !slices.Equal(next.Barred, e.Value.Barred) {
			changed = append(changed, next)
		}
	}
	p := newPlanner(s)
	view := brokerView{state: s, override: &record}
	if together, fit := s.electHeld(view, record.Process.ID, changed, maxStageWrites-1); fit {
		for _, next := range together {
			p.put(next)
		}
		p.put(record)
		return p.done()
	}
	// Too many for one transaction. Bars come first, and who leads where a barred
	// replica did; Reconcile runs the other elections after. Until then the life on
	// record is the old one, so that nobody is elected for a bar that ends.
	view = brokerView{state: s}
	for _, next := range changed {
		if slices.Contains(next.Barred, record.Process.ID) {
			view.elect(&next, s.configs[next.Topic], Hints{})
		}
		p.put(next)
	}
	p.next()
	p.put(record)
	return p.done()
}

// returnBroker plans that a fenced life comes back, once nothing names it leader
// any more.
func returnBroker(s *State, record Broker) (Plan, error) {
	if s.Broker(record.Process.ID).Value.Fenced {
		for _, e := range s.held(record.Process.ID) {
			if e.Value.Leader == record.Process {
				return Plan{}, nil
			}
		}
	}
	p := newPlanner(s)
	p.put(record)
	electTogether(p, record)
	return p.done()
}

// electTogether plans the elections that a broker's record brings, if they fit into
// the record's transaction; else they are left to Reconcile.
func electTogether(p *planner, record Broker) {
	view := brokerView{state: p.state, override: &record}
	if together, fit := p.state.electHeld(view, record.Process.ID, nil, maxStageWrites-1); fit {
		for _, next := range together {
			p.put(next)
		}
	}
}

// electHeld runs the elections that a view of the brokers brings where one broker
// holds a replica, on top of records that change anyway, and returns every record
// that changes; the first limit of them if they are more, which do not fit.
func (s *State) electHeld(view brokerView, broker int32, changed []Partition, limit int) (all []Partition, fit bool) {
	pre := make(map[PartitionID]Partition, len(changed))
	for _, p := range changed {
		pre[p.id()] = p
	}
	for _, e := range s.held(broker) {
		next, ok := pre[e.Value.id()]
		if !ok {
			next = e.Value
		}
		view.elect(&next, s.configs[next.Topic], Hints{})
		if samePartition(&e.Value, &next) {
			continue
		}
		if len(all) >= limit {
			return all, false
		}
		all = append(all, next)
	}
	return all, true
}

func (s *State) setConfig(t Topic) {
	c, err := topicconfig.Parse(s.Cluster().DefaultConfigs, t.Configs)
	if err != nil {
		c = topicconfig.Default() // only a newer release writes what does not parse
	}
	s.configs[t.ID] = &c
}

// samePartition compares all but the partition epoch.
func samePartition(a, b *Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch && a.MinISR == b.MinISR &&
		a.ShardOwner == b.ShardOwner && a.ShardEpoch == b.ShardEpoch &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR) &&
		slices.Equal(a.ELR, b.ELR) && slices.Equal(a.Barred, b.Barred) &&
		slices.Equal(a.TargetReplicas, b.TargetReplicas) && slices.Equal(a.FormerReplicas, b.FormerReplicas)
}

// FenceBroker plans that a life of a broker is fenced, and its leaderships go to
// others; where these are more than fit beside it, by Reconcile. The plan is empty if
// that life is not on record or is fenced already. The error is an *InvariantError.
func FenceBroker(s *State, life Process) (Plan, error) {
	old := s.Broker(life.ID)
	if old == nil || old.Value.Process != life || old.Value.Fenced {
		return Plan{}, nil
	}
	record := old.Value
	record.Fenced = true
	p := newPlanner(s)
	p.put(record)
	electTogether(p, record)
	return p.done()
}

// UnfenceBroker plans that a fenced life, which answers again and holds its
// registration key, is unfenced without a new vouch. The plan is empty while
// something still names it leader, or if there is nothing to do.
func UnfenceBroker(s *State, life Process) (Plan, error) {
	old := s.Broker(life.ID)
	reg := s.Registration(KindBroker, life.ID)
	if old == nil || old.Value.Process != life || !old.Value.Fenced || old.Value.Draining || reg == nil || reg.Value.Process != life {
		return Plan{}, nil
	}
	record := old.Value
	record.Fenced = false
	return returnBroker(s, record)
}

// DropRegistration plans that the registration of a life that is proved dead is
// removed. The plan is empty if it is not there.
func DropRegistration(s *State, kind ServiceKind, life Process) (Plan, error) {
	reg := s.Registration(kind, life.ID)
	if reg == nil || reg.Value.Process != life {
		return Plan{}, nil
	}
	p := newPlanner(s)
	p.delete(reg.Value.Key())
	return p.done()
}
