package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/topicid"
)

// Entry is a record with its etcd revisions.
type Entry[R Record] struct {
	Value  R
	Create int64 // revision at which the key was made
	Mod    int64 // revision of its last change
}

// State is the image of all records.
type State struct {
	cluster       *Entry[Cluster]
	election      *Entry[Election]
	producerIDs   *Entry[ProducerIDs]
	registrations map[Key]*Entry[Registration]
	brokers       map[int32]*Entry[Broker]
	topics        map[topicid.ID]*Entry[Topic]
	names         map[string]*Entry[TopicName]
	partitions    map[topicid.ID]map[int32]*Entry[Partition]
	deletions     map[topicid.ID]*Entry[Deletion]
	reassignments map[string]*Entry[Reassignment]

	// folded maps each living topic's name, dots as underscores, to the name:
	// two such names would be one in metrics.
	folded map[string]string
	// configs are the topics' configurations in force.
	configs map[topicid.ID]*topicconfig.Config
	// vouches are what brokers said of their replicas; not in etcd, since each
	// broker says it again to every new controller.
	vouches map[Process]map[PartitionID]Vouch
	// hears tells who keeps up with the metadata; nil: everybody does.
	hears func(Process) bool
	index index
}

// NewState returns the state of an empty mesh.
func NewState() *State {
	return &State{
		registrations: map[Key]*Entry[Registration]{},
		brokers:       map[int32]*Entry[Broker]{},
		topics:        map[topicid.ID]*Entry[Topic]{},
		names:         map[string]*Entry[TopicName]{},
		partitions:    map[topicid.ID]map[int32]*Entry[Partition]{},
		deletions:     map[topicid.ID]*Entry[Deletion]{},
		reassignments: map[string]*Entry[Reassignment]{},
		folded:        map[string]string{},
		configs:       map[topicid.ID]*topicconfig.Config{},
		vouches:       map[Process]map[PartitionID]Vouch{},
		index:         newIndex(),
	}
}

// PreferHearing has elections prefer lives that hears approves of, among those that
// could be elected anyway: one that does not keep up with the metadata would not learn
// of its leadership. hears is called whenever a leader is chosen.
func (s *State) PreferHearing(hears func(Process) bool) { s.hears = hears }

// Set puts a record as etcd holds it.
func (s *State) Set(record Record, create, mod int64) {
	switch r := record.(type) {
	case Cluster:
		s.cluster = &Entry[Cluster]{r, create, mod}
		for _, t := range s.topics {
			s.setConfig(t.Value)
			s.noteTopicPartitions(t.Value.ID)
		}
	case Election:
		s.election = &Entry[Election]{r, create, mod}
	case ProducerIDs:
		s.producerIDs = &Entry[ProducerIDs]{r, create, mod}
	case Registration:
		s.registrations[r.Key()] = &Entry[Registration]{r, create, mod}
	case Broker:
		s.noteBroker(r.Process.ID, pointer(s.brokers[r.Process.ID]), &r)
		s.brokers[r.Process.ID] = &Entry[Broker]{r, create, mod}
	case Topic:
		s.topics[r.ID] = &Entry[Topic]{r, create, mod}
		s.setConfig(r)
		s.noteTopic(r)
	case TopicName:
		s.names[r.Name] = &Entry[TopicName]{r, create, mod}
		if r.Topic.IsZero() {
			s.unfold(r.Name)
		} else {
			s.folded[fold(r.Name)] = r.Name
			s.noteTopicPartitions(r.Topic)
		}
	case Partition:
		of := s.partitions[r.Topic]
		if of == nil {
			of = map[int32]*Entry[Partition]{}
			s.partitions[r.Topic] = of
		}
		s.notePartition(r.id(), pointer(of[r.Number]), &r)
		of[r.Number] = &Entry[Partition]{r, create, mod}
	case Deletion:
		s.deletions[r.Topic] = &Entry[Deletion]{r, create, mod}
	case Reassignment:
		s.noteReassignment(r.PlanID, pointer(s.reassignments[r.PlanID]), &r)
		s.reassignments[r.PlanID] = &Entry[Reassignment]{r, create, mod}
	}
}

// Delete takes a record away.
func (s *State) Delete(key Key) {
	switch key.Type {
	case KeyCluster:
		s.cluster = nil
	case KeyElection:
		s.election = nil
	case KeyProducerIDs:
		s.producerIDs = nil
	case KeyRegistration:
		delete(s.registrations, key)
	case KeyBroker:
		s.noteBroker(key.ID, pointer(s.brokers[key.ID]), nil)
		delete(s.brokers, key.ID)
	case KeyTopic:
		delete(s.topics, key.Topic)
		delete(s.configs, key.Topic)
		delete(s.index.internal, key.Topic)
		s.index.untidy[key.Topic] = struct{}{}
	case KeyTopicName:
		delete(s.names, key.Name)
		s.unfold(key.Name)
	case KeyPartition:
		of := s.partitions[key.Topic]
		s.notePartition(PartitionID{key.Topic, key.ID}, pointer(of[key.ID]), nil)
		delete(of, key.ID)
		if len(of) == 0 {
			delete(s.partitions, key.Topic)
		}
	case KeyDeletion:
		delete(s.deletions, key.Topic)
	case KeyReassignment:
		s.noteReassignment(key.Name, pointer(s.reassignments[key.Name]), nil)
		delete(s.reassignments, key.Name)
	}
}

func (s *State) unfold(name string) {
	if s.folded[fold(name)] == name {
		delete(s.folded, fold(name))
	}
}

// fold is a name as metrics show it.
func fold(name string) string { return strings.ReplaceAll(name, ".", "_") }

// Keys lists the key of every record, in no order.
func (s *State) Keys() []Key {
	var keys []Key
	if s.cluster != nil {
		keys = append(keys, Key{Type: KeyCluster})
	}
	if s.election != nil {
		keys = append(keys, Key{Type: KeyElection})
	}
	if s.producerIDs != nil {
		keys = append(keys, Key{Type: KeyProducerIDs})
	}
	keys = slices.AppendSeq(keys, maps.Keys(s.registrations))
	for id := range s.brokers {
		keys = append(keys, Key{Type: KeyBroker, ID: id})
	}
	for id := range s.topics {
		keys = append(keys, Key{Type: KeyTopic, Topic: id})
	}
	for name := range s.names {
		keys = append(keys, Key{Type: KeyTopicName, Name: name})
	}
	for id, of := range s.partitions {
		for n := range of {
			keys = append(keys, Key{Type: KeyPartition, Topic: id, ID: n})
		}
	}
	for id := range s.deletions {
		keys = append(keys, Key{Type: KeyDeletion, Topic: id})
	}
	for id := range s.reassignments {
		keys = append(keys, Key{Type: KeyReassignment, Name: id})
	}
	return keys
}

// Cluster returns the cluster record; zero before the first controller wrote it.
func (s *State) Cluster() Cluster { return value(s.cluster) }

// Election returns the election record with its revisions, nil if nobody leads.
func (s *State) Election() *Entry[Election] { return s.election }

// Registration returns who is registered under an id, nil if nobody is.
func (s *State) Registration(kind ServiceKind, id int32) *Entry[Registration] {
	return s.registrations[Key{Type: KeyRegistration, Kind: kind, ID: id}]
}

// Registrations returns who is registered, by kind and id; kind 0: all kinds.
func (s *State) Registrations(kind ServiceKind) []*Entry[Registration] {
	var all []*Entry[Registration]
	for key, r := range s.registrations {
		if kind == 0 || key.Kind == kind {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *Entry[Registration]) int {
		return cmp.Or(cmp.Compare(a.Value.Kind, b.Value.Kind), cmp.Compare(a.Value.Process.ID, b.Value.Process.ID))
	})
	return all
}

// Broker returns a broker record, nil if there is none.
func (s *State) Broker(id int32) *Entry[Broker] { return s.brokers[id] }

// Brokers returns every broker record by id.
func (s *State) Brokers() []*Entry[Broker] {
	return slices.SortedFunc(maps.Values(s.brokers), func(a, b *Entry[Broker]) int {
		return cmp.Compare(a.Value.Process.ID, b.Value.Process.ID)
	})
}

// Topic returns a topic, nil if there is none.
func (s *State) Topic(id topicid.ID) *Entry[Topic] { return s.topics[id] }

// TopicByName returns the living topic of a name, nil if there is none.
func (s *State) TopicByName(name string) *Entry[Topic] {
	n := s.names[name]
	if n == nil || n.Value.Topic.IsZero() {
		return nil
	}
	t := s.topics[n.Value.Topic]
	if t == nil || t.Value.Deleting {
		return nil
	}
	return t
}

// TopicName returns what is kept for a name; zero if there never was a topic of
// that name.
func (s *State) TopicName(name string) TopicName { return value(s.names[name]) }

// Topics returns every topic by id, those being deleted included.
func (s *State) Topics() []*Entry[Topic] {
	return slices.SortedFunc(maps.Values(s.topics), func(a, b *Entry[Topic]) int { return a.Value.ID.Compare(b.Value.ID) })
}

// Partition returns a partition, nil if there is none.
func (s *State) Partition(id topicid.ID, n int32) *Entry[Partition] { return s.partitions[id][n] }

// Partitions returns the partition records of a topic by number, also those of a
// topic that is not whole yet or any more.
func (s *State) Partitions(id topicid.ID) []*Entry[Partition] {
	return slices.SortedFunc(maps.Values(s.partitions[id]), func(a, b *Entry[Partition]) int {
		return cmp.Compare(a.Value.Number, b.Value.Number)
	})
}

// Deletions returns the deletion records by topic id.
func (s *State) Deletions() []*Entry[Deletion] {
	return slices.SortedFunc(maps.Values(s.deletions), func(a, b *Entry[Deletion]) int {
		return a.Value.Topic.Compare(b.Value.Topic)
	})
}

// Reassignment returns a plan under way, nil if there is none of that id.
func (s *State) Reassignment(planID string) *Entry[Reassignment] { return s.reassignments[planID] }

// Reassignments returns the plans under way by their ids.
func (s *State) Reassignments() []*Entry[Reassignment] {
	return slices.SortedFunc(maps.Values(s.reassignments), func(a, b *Entry[Reassignment]) int {
		return cmp.Compare(a.Value.PlanID, b.Value.PlanID)
	})
}

// Deletion returns a topic's deletion record, nil if there is none.
func (s *State) Deletion(id topicid.ID) *Entry[Deletion] { return s.deletions[id] }

// revision is the revision to compare a key's with; 0: the key must not exist.
func (s *State) revision(key Key) int64 {
	switch key.Type {
	case KeyCluster:
		return mod(s.cluster)
	case KeyElection:
		return mod(s.election)
	case KeyProducerIDs:
		return mod(s.producerIDs)
	case KeyRegistration:
		return mod(s.registrations[key])
	case KeyBroker:
		return mod(s.brokers[key.ID])
	case KeyTopic:
		return mod(s.topics[key.Topic])
	case KeyTopicName:
		return mod(s.names[key.Name])
	case KeyPartition:
		return mod(s.partitions[key.Topic][key.ID])
	case KeyDeletion:
		return mod(s.deletions[key.Topic])
	case KeyReassignment:
		return mod(s.reassignments[key.Name])
	}
	return 0
}

func mod[R Record](e *Entry[R]) int64 {
	if e == nil {
		return 0
	}
	return e.Mod
}

func value[R Record](e *Entry[R]) R {
	if e == nil {
		var zero R
		return zero
	}
	return e.Value
}

func pointer[R Record](e *Entry[R]) *R {
	if e == nil {
		return nil
	}
	return &e.Value
}
