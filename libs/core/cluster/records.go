package cluster

import (
	"github.com/leat-io/leat/libs/topicid"
)

// Process names one life of one process; the zero Process is nobody.
type Process struct {
	ID          int32
	Incarnation uint64
}

// IsZero tells whether it is nobody.
func (p Process) IsZero() bool { return p == Process{} }

// ServiceKind is a kind of process, numbered as in the protos.
type ServiceKind int32

// The kinds of processes.
const (
	KindBroker      ServiceKind = 1
	KindController  ServiceKind = 2
	KindCoordinator ServiceKind = 3
	KindGateway     ServiceKind = 4
)

// Feature is one ability of a registered process.
type Feature struct {
	Name     string
	Min, Max int32
}

// Cluster is the cluster record.
type Cluster struct {
	ID             string
	Generation     int64 // from 1
	DefaultConfigs map[string]string
}

// Election is the election record.
type Election struct {
	Controller Process
	Address    string
}

// Registration is a process that holds a lease.
type Registration struct {
	Kind     ServiceKind
	Process  Process
	Address  string
	Rack     string
	Version  string
	Features []Feature
}

// Broker is a broker record; it outlives the broker.
type Broker struct {
	Process  Process // the life on record; it has vouched if unfenced
	Address  string
	Rack     string
	Fenced   bool
	Draining bool
}

// Topic is one life of a topic.
type Topic struct {
	ID         topicid.ID
	Name       string
	Partitions int32
	Configs    map[string]string
	Internal   bool
	Deleting   bool
}

// TopicName outlives the topics of a name.
type TopicName struct {
	Name             string
	Topic            topicid.ID // the living topic; zero: none
	LeaderEpochFloor int32      // epochs of the next topic start above
}

// Partition is who holds and leads one partition.
type Partition struct {
	Topic          topicid.ID
	Number         int32
	Leader         Process // zero: none
	LeaderEpoch    int32
	Replicas       []int32 // the first is preferred as leader
	ISR            []int32
	ELR            []int32
	Barred         []int32 // members of ISR or ELR that may not be elected
	MinISR         int32
	PartitionEpoch int64
	ShardOwner     Process // zero: none, or no shard
	ShardEpoch     int64
	// TargetReplicas are what a running reassignment ends with, FormerReplicas what
	// it began with; Replicas are both together meanwhile. Empty: none runs.
	TargetReplicas []int32
	FormerReplicas []int32
	// UncleanEpoch is the newest leader epoch whose leader was elected without knowing
	// that it has every committed record; 0: none.
	UncleanEpoch int32
}

// IsReassigning tells whether a reassignment of the partition runs.
func (p Partition) IsReassigning() bool { return len(p.TargetReplicas) > 0 }

// ReplicationFactor is how many replicas the partition has, without those that a
// running reassignment adds.
func (p Partition) ReplicationFactor() int32 {
	if p.IsReassigning() {
		return int32(len(p.FormerReplicas))
	}
	return int32(len(p.Replicas))
}

// Reassignment is a plan of moves under way. It goes when nothing of it is left
// to do.
type Reassignment struct {
	PlanID     string
	Partitions []ReassignedPartition
	Paused     bool // nothing more of it begins or completes
	Cancelling bool // it is being taken back
}

// ReassignedPartition is one partition of a plan and the replicas it ends with.
type ReassignedPartition struct {
	Topic  topicid.ID
	Number int32
	Target []int32
}

// Deletion lists the brokers that have not confirmed a topic's deletion.
type Deletion struct {
	Topic   topicid.ID
	Name    string
	Pending []int32
}

// ProducerIDs is what has been handed out.
type ProducerIDs struct {
	Next int64 // first id never handed out
}

// KeyType says what a key holds.
type KeyType int

// The types of keys.
const (
	KeyCluster KeyType = iota + 1
	KeyElection
	KeyProducerIDs
	KeyRegistration
	KeyBroker
	KeyTopic
	KeyTopicName
	KeyPartition
	KeyDeletion
	KeyReassignment
)

// Key identifies a record. Fields that its type does not need are zero, so that
// keys can be compared.
type Key struct {
	Type  KeyType
	Kind  ServiceKind // of a registration
	ID    int32       // of a registration or broker; number of a partition
	Topic topicid.ID  // of a topic, partition or deletion
	Name  string      // of a topic name; plan id of a reassignment
}

// Record is one of the records above.
type Record interface{ Key() Key }

// Key identifies the one cluster record.
func (Cluster) Key() Key { return Key{Type: KeyCluster} }

// Key identifies the one election record.
func (Election) Key() Key { return Key{Type: KeyElection} }

// Key identifies the one record of producer ids.
func (ProducerIDs) Key() Key { return Key{Type: KeyProducerIDs} }

// Key identifies the registration by kind and id.
func (r Registration) Key() Key { return Key{Type: KeyRegistration, Kind: r.Kind, ID: r.Process.ID} }

// Key identifies the broker by its id.
func (b Broker) Key() Key { return Key{Type: KeyBroker, ID: b.Process.ID} }

// Key identifies the topic by its id.
func (t Topic) Key() Key { return Key{Type: KeyTopic, Topic: t.ID} }

// Key identifies the name.
func (n TopicName) Key() Key { return Key{Type: KeyTopicName, Name: n.Name} }

// Key identifies the partition by topic id and number.
func (p Partition) Key() Key { return Key{Type: KeyPartition, Topic: p.Topic, ID: p.Number} }

// Key identifies the deletion by topic id.
func (d Deletion) Key() Key { return Key{Type: KeyDeletion, Topic: d.Topic} }

// Key identifies the reassignment by its plan's id.
func (r Reassignment) Key() Key { return Key{Type: KeyReassignment, Name: r.PlanID} }
