package cluster

import (
	"slices"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// maxStageWrites is what fits in one transaction beside the guard; a plan whose
// parts must take place together stays within it.
const maxStageWrites = 100

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

// BrokerRegistration is a broker's registration with its vouches.
type BrokerRegistration struct {
	Process   Process
	Address   string
	Rack      string
	ClusterID string // found on its disks; empty: new disks
	Vouches   []Vouch
}

// SetVouches remembers what a broker says of its replicas, in place of what an
// earlier life said. It is not part of etcd's state; call it before
// RegisterBroker's plan is made, with each registration.
func (s *State) SetVouches(r BrokerRegistration) {
	for life := range s.vouches {
		if life.ID == r.Process.ID {
			delete(s.vouches, life)
		}
	}
	m := make(map[PartitionID]Vouch, len(r.Vouches))
	for _, v := range r.Vouches {
		m[PartitionID{v.Topic, v.Partition}] = v
	}
	s.vouches[r.Process] = m
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
		return Plan{}, nil
	}
	if old != nil && old.Value.Process == r.Process {
		// The same life: its vouch is known, only fencing, address or leave end.
		return returnBroker(s, record)
	}
	p := newPlanner(s)
	view := brokerView{state: s, override: &record}
	var changed []Partition
	for _, e := range s.held(r.Process.ID) {
		next := e.Value
		next.Barred = barred(s, next, r)
		if !slices.Equal(next.Barred, e.Value.Barred) {
			changed = append(changed, next)
		}
	}
	together := s.electAll(view, changed)
	if len(together) < maxStageWrites {
		for _, next := range together {
			p.put(next)
		}
	} else {
		// Too many for one transaction: bars first, elections by Reconcile after.
		for _, next := range changed {
			p.put(next)
		}
		p.next()
	}
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
	together := s.electAll(brokerView{state: s, override: &record}, nil)
	if len(together) < maxStageWrites {
		for _, next := range together {
			p.put(next)
		}
	}
	p.put(record)
	return p.done()
}

// held lists the partitions of living topics that a broker holds, sorted.
func (s *State) held(broker int32) []*Entry[Partition] {
	var held []*Entry[Partition]
	for _, t := range s.Topics() {
		if t.Value.Deleting {
			continue
		}
		for _, e := range s.Partitions(t.Value.ID) {
			if slices.Contains(e.Value.Replicas, broker) {
				held = append(held, e)
			}
		}
	}
	return held
}

// barred is who may not be elected in a partition once a broker's new life is on
// record.
func barred(s *State, p Partition, r BrokerRegistration) []int32 {
	b := r.Process.ID
	if !slices.Contains(p.ISR, b) && !slices.Contains(p.ELR, b) {
		return p.Barred
	}
	vouch, ok := s.vouches[r.Process][PartitionID{p.Topic, p.Number}]
	if !ok {
		vouch.Verdict = Missing
	}
	intact := vouch.Verdict == Intact || vouch.Verdict == Missing && neverOpened(s, p)
	switch {
	case intact:
		return keep(p.Barred, func(x int32) bool { return x != b })
	case slices.Contains(p.Barred, b):
		return p.Barred
	default:
		return append(slices.Clone(p.Barred), b)
	}
}

// neverOpened tells whether a missing replica may be one that its broker had not
// made yet when it died: it is the only one, in the first leader epoch of its
// topic. A wiped disk in that epoch looks the same; with one replica nothing more
// is promised.
func neverOpened(s *State, p Partition) bool {
	t := s.topics[p.Topic]
	if t == nil || len(p.Replicas) != 1 {
		return false
	}
	return p.LeaderEpoch == value(s.names[t.Value.Name]).LeaderEpochFloor+1
}

// electAll runs the elections that a view of the brokers brings, on top of
// records that change anyway, and returns every record that changes.
func (s *State) electAll(view brokerView, changed []Partition) []Partition {
	pre := make(map[PartitionID]Partition, len(changed))
	for _, p := range changed {
		pre[PartitionID{p.Topic, p.Number}] = p
	}
	var all []Partition
	for _, t := range s.Topics() {
		if t.Value.Deleting {
			continue
		}
		config := s.config(t.Value)
		for _, e := range s.Partitions(t.Value.ID) {
			next, ok := pre[PartitionID{e.Value.Topic, e.Value.Number}]
			if !ok {
				next = e.Value
			}
			view.elect(&next, config)
			if !samePartition(e.Value, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

// config is a topic's configuration in force.
func (s *State) config(t Topic) topicconfig.Config { return s.configs[t.ID] }

func (s *State) setConfig(t Topic) {
	c, err := topicconfig.Parse(s.Cluster().DefaultConfigs, t.Configs)
	if err != nil {
		c = topicconfig.Default() // only a newer release writes what does not parse
	}
	s.configs[t.ID] = c
}

// samePartition compares all but the partition epoch.
func samePartition(a, b Partition) bool {
	return a.Leader == b.Leader && a.LeaderEpoch == b.LeaderEpoch && a.MinISR == b.MinISR &&
		a.ShardOwner == b.ShardOwner && a.ShardEpoch == b.ShardEpoch &&
		slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR) &&
		slices.Equal(a.ELR, b.ELR) && slices.Equal(a.Barred, b.Barred)
}

// FenceBroker plans that a life of a broker is fenced, and its leaderships go to
// others. leave marks it as leaving. The plan is empty if that life is not on
// record or is fenced already.
func FenceBroker(s *State, life Process, leave bool) (Plan, error) {
	old := s.Broker(life.ID)
	if old == nil || old.Value.Process != life || old.Value.Fenced {
		return Plan{}, nil
	}
	record := old.Value
	record.Fenced, record.Draining = true, leave
	p := newPlanner(s)
	together := s.electAll(brokerView{state: s, override: &record}, nil)
	p.put(record)
	if len(together) < maxStageWrites {
		for _, next := range together {
			p.put(next)
		}
	}
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
