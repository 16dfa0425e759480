package store

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	storagev1 "github.com/leat-io/leat/gen/go/leat/storage/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/topicid"
)

// keyName is a record's key in etcd.
func keyName(keys registry.Keys, k cluster.Key) string {
	switch k.Type {
	case cluster.KeyCluster:
		return keys.Cluster()
	case cluster.KeyElection:
		return keys.Election()
	case cluster.KeyProducerIDs:
		return keys.ProducerIDs()
	case cluster.KeyRegistration:
		return keys.Registration(controllerv1.ServiceKind(k.Kind), k.ID)
	case cluster.KeyBroker:
		return keys.Broker(k.ID)
	case cluster.KeyTopic:
		return keys.Topic(k.Topic)
	case cluster.KeyTopicName:
		return keys.TopicName(k.Name)
	case cluster.KeyPartition:
		return keys.Partition(k.Topic, k.ID)
	case cluster.KeyDeletion:
		return keys.Deletion(k.Topic)
	case cluster.KeyReassignment:
		return keys.Reassignment(k.Name)
	}
	return ""
}

// parseKey reads a key back; ok is false for what this release does not know.
func parseKey(keys registry.Keys, name string) (k cluster.Key, ok bool) {
	p := keys.Parse(name)
	if p.Type == registry.KeyUnknown {
		return cluster.Key{}, false
	}
	types := map[registry.KeyType]cluster.KeyType{
		registry.KeyCluster: cluster.KeyCluster, registry.KeyElection: cluster.KeyElection,
		registry.KeyProducerIDs: cluster.KeyProducerIDs, registry.KeyRegistration: cluster.KeyRegistration,
		registry.KeyBroker: cluster.KeyBroker, registry.KeyTopic: cluster.KeyTopic,
		registry.KeyTopicName: cluster.KeyTopicName, registry.KeyPartition: cluster.KeyPartition,
		registry.KeyDeletion: cluster.KeyDeletion, registry.KeyReassignment: cluster.KeyReassignment,
	}
	return cluster.Key{Type: types[p.Type], Kind: cluster.ServiceKind(p.Kind), ID: p.ID, Topic: p.Topic, Name: p.Name}, true
}

// encode is a record's value in etcd.
func encode(r cluster.Record) ([]byte, error) {
	b, err := proto.Marshal(message(r))
	if err != nil {
		return nil, fmt.Errorf("encode the record of %+v: %w", r.Key(), err)
	}
	return b, nil
}

func message(r cluster.Record) proto.Message {
	const v = registry.FormatVersion
	switch r := r.(type) {
	case cluster.Cluster:
		return &storagev1.ClusterRecord{FormatVersion: v, ClusterId: r.ID, Generation: r.Generation, DefaultConfigs: r.DefaultConfigs}
	case cluster.Broker:
		return &storagev1.BrokerRecord{FormatVersion: v, Broker: ref(r.Process), Address: r.Address, Rack: r.Rack, Fenced: r.Fenced, Draining: r.Draining}
	case cluster.Topic:
		return &storagev1.TopicRecord{FormatVersion: v, TopicId: r.ID.Bytes(), Name: r.Name, Partitions: r.Partitions, Configs: r.Configs, Internal: r.Internal, Deleting: r.Deleting}
	case cluster.TopicName:
		m := &storagev1.TopicNameRecord{FormatVersion: v, LeaderEpochFloor: r.LeaderEpochFloor}
		if !r.Topic.IsZero() {
			m.TopicId = r.Topic.Bytes()
		}
		return m
	case cluster.Partition:
		return &storagev1.PartitionRecord{
			FormatVersion: v, TopicId: r.Topic.Bytes(), Partition: r.Number, Leader: ref(r.Leader), LeaderEpoch: r.LeaderEpoch,
			Replicas: r.Replicas, Isr: r.ISR, Elr: r.ELR, Barred: r.Barred, MinIsr: r.MinISR, PartitionEpoch: r.PartitionEpoch,
			ShardOwner: ref(r.ShardOwner), ShardEpoch: r.ShardEpoch,
			TargetReplicas: r.TargetReplicas, FormerReplicas: r.FormerReplicas, UncleanEpoch: r.UncleanEpoch,
		}
	case cluster.Reassignment:
		m := &storagev1.ReassignmentRecord{FormatVersion: v, PlanId: r.PlanID, Paused: r.Paused, Cancelling: r.Cancelling}
		for _, p := range r.Partitions {
			m.Partitions = append(m.Partitions, &storagev1.ReassignedPartition{TopicId: p.Topic.Bytes(), Partition: p.Number, Target: p.Target})
		}
		return m
	case cluster.Deletion:
		return &storagev1.DeletionRecord{FormatVersion: v, TopicId: r.Topic.Bytes(), Name: r.Name, PendingBrokers: r.Pending}
	case cluster.ProducerIDs:
		return &storagev1.ProducerIdRecord{FormatVersion: v, NextProducerId: r.Next}
	}
	// Registrations and the election are written by package registry.
	return nil
}

func ref(p cluster.Process) *storagev1.ProcessRef {
	if p.IsZero() {
		return nil
	}
	return &storagev1.ProcessRef{Id: p.ID, Incarnation: p.Incarnation}
}

func process(r *storagev1.ProcessRef) cluster.Process {
	return cluster.Process{ID: r.GetId(), Incarnation: r.GetIncarnation()}
}

// versioned is every message with a format version.
type versioned interface {
	proto.Message
	GetFormatVersion() int32
}

// decode reads a value. Errors are *registry.FormatError, or name the key whose
// value is broken.
func decode(name string, key cluster.Key, value []byte) (cluster.Record, error) {
	var m versioned
	switch key.Type {
	case cluster.KeyCluster:
		m = &storagev1.ClusterRecord{}
	case cluster.KeyElection:
		m = &storagev1.ElectionRecord{}
	case cluster.KeyProducerIDs:
		m = &storagev1.ProducerIdRecord{}
	case cluster.KeyRegistration:
		m = &storagev1.RegistrationRecord{}
	case cluster.KeyBroker:
		m = &storagev1.BrokerRecord{}
	case cluster.KeyTopic:
		m = &storagev1.TopicRecord{}
	case cluster.KeyTopicName:
		m = &storagev1.TopicNameRecord{}
	case cluster.KeyPartition:
		m = &storagev1.PartitionRecord{}
	case cluster.KeyDeletion:
		m = &storagev1.DeletionRecord{}
	case cluster.KeyReassignment:
		m = &storagev1.ReassignmentRecord{}
	default:
		return nil, fmt.Errorf("no record type for the key %s", name)
	}
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("the value of %s in etcd is damaged: %w; restore it from a backup", name, err)
	}
	if err := registry.CheckFormat(name, m.GetFormatVersion()); err != nil {
		return nil, err
	}
	return record(key, m), nil
}

// record turns a message into the record of its key; the key decides about
// identities.
func record(key cluster.Key, m proto.Message) cluster.Record {
	switch m := m.(type) {
	case *storagev1.ClusterRecord:
		return cluster.Cluster{ID: m.GetClusterId(), Generation: m.GetGeneration(), DefaultConfigs: m.GetDefaultConfigs()}
	case *storagev1.ElectionRecord:
		return cluster.Election{Controller: process(m.GetController()), Address: m.GetAddress()}
	case *storagev1.ProducerIdRecord:
		return cluster.ProducerIDs{Next: m.GetNextProducerId()}
	case *storagev1.RegistrationRecord:
		r := cluster.Registration{
			Kind: key.Kind, Process: cluster.Process{ID: key.ID, Incarnation: m.GetProcess().GetIncarnation()},
			Address: m.GetAddress(), Rack: m.GetRack(), Version: m.GetSoftwareVersion(),
		}
		for _, f := range m.GetFeatures() {
			r.Features = append(r.Features, cluster.Feature{Name: f.GetName(), Min: f.GetMinVersion(), Max: f.GetMaxVersion()})
		}
		return r
	case *storagev1.BrokerRecord:
		return cluster.Broker{
			Process: cluster.Process{ID: key.ID, Incarnation: m.GetBroker().GetIncarnation()},
			Address: m.GetAddress(), Rack: m.GetRack(), Fenced: m.GetFenced(), Draining: m.GetDraining(),
		}
	case *storagev1.TopicRecord:
		return cluster.Topic{ID: key.Topic, Name: m.GetName(), Partitions: m.GetPartitions(), Configs: m.GetConfigs(), Internal: m.GetInternal(), Deleting: m.GetDeleting()}
	case *storagev1.TopicNameRecord:
		n := cluster.TopicName{Name: key.Name, LeaderEpochFloor: m.GetLeaderEpochFloor()}
		if id, err := topicid.FromBytes(m.GetTopicId()); err == nil {
			n.Topic = id
		}
		return n
	case *storagev1.PartitionRecord:
		return cluster.Partition{
			Topic: key.Topic, Number: key.ID, Leader: process(m.GetLeader()), LeaderEpoch: m.GetLeaderEpoch(),
			Replicas: m.GetReplicas(), ISR: m.GetIsr(), ELR: m.GetElr(), Barred: m.GetBarred(), MinISR: m.GetMinIsr(),
			PartitionEpoch: m.GetPartitionEpoch(), ShardOwner: process(m.GetShardOwner()), ShardEpoch: m.GetShardEpoch(),
			TargetReplicas: m.GetTargetReplicas(), FormerReplicas: m.GetFormerReplicas(), UncleanEpoch: m.GetUncleanEpoch(),
		}
	case *storagev1.ReassignmentRecord:
		r := cluster.Reassignment{PlanID: key.Name, Paused: m.GetPaused(), Cancelling: m.GetCancelling()}
		for _, p := range m.GetPartitions() {
			if id, err := topicid.FromBytes(p.GetTopicId()); err == nil {
				r.Partitions = append(r.Partitions, cluster.ReassignedPartition{Topic: id, Number: p.GetPartition(), Target: p.GetTarget()})
			}
		}
		return r
	case *storagev1.DeletionRecord:
		return cluster.Deletion{Topic: key.Topic, Name: m.GetName(), Pending: m.GetPendingBrokers()}
	}
	return nil
}
