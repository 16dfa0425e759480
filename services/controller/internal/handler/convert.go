package handler

import (
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
)

// processMessage is nil for nobody.
func processMessage(p cluster.Process) *typev1.Process {
	if p.IsZero() {
		return nil
	}
	return &typev1.Process{Id: p.ID, Incarnation: p.Incarnation}
}

func leaderMessage(state *cluster.State) *controllerv1.ControllerLeader {
	e := state.Election()
	if e == nil {
		return &controllerv1.ControllerLeader{Controller: &typev1.Process{}}
	}
	return &controllerv1.ControllerLeader{Controller: processMessage(e.Value.Controller), Address: e.Value.Address, ElectionRevision: e.Create}
}

func registrationMessage(r *cluster.Entry[cluster.Registration]) *controllerv1.Registration {
	h := &typev1.Handshake{SoftwareVersion: r.Value.Version}
	for _, f := range r.Value.Features {
		h.Features = append(h.Features, &typev1.Feature{Name: f.Name, MinVersion: f.Min, MaxVersion: f.Max})
	}
	return &controllerv1.Registration{
		Kind: controllerv1.ServiceKind(r.Value.Kind), Process: processMessage(r.Value.Process),
		Address: r.Value.Address, Rack: r.Value.Rack, Handshake: h, Revision: r.Create,
	}
}

func brokerMessage(b cluster.Broker) *controllerv1.Broker {
	return &controllerv1.Broker{Broker: processMessage(b.Process), Address: b.Address, Rack: b.Rack, Fenced: b.Fenced, Draining: b.Draining}
}

func topicMessage(t cluster.Topic) *controllerv1.Topic {
	return &controllerv1.Topic{TopicId: t.ID.Bytes(), Name: t.Name, Partitions: t.Partitions, Configs: t.Configs, Internal: t.Internal, Deleting: t.Deleting}
}

// partitionMessage leaves out what only those who hold the partition need, unless
// full.
func partitionMessage(p cluster.Partition, full bool) *controllerv1.Partition {
	m := &controllerv1.Partition{
		TopicId: p.Topic.Bytes(), Partition: p.Number, Leader: processMessage(p.Leader), LeaderEpoch: p.LeaderEpoch,
		Replicas: p.Replicas, Isr: p.ISR, Elr: p.ELR,
		ShardOwner: processMessage(p.ShardOwner), ShardEpoch: p.ShardEpoch,
	}
	if full {
		m.PartitionEpoch, m.Barred, m.MinIsr, m.TargetReplicas = p.PartitionEpoch, p.Barred, p.MinISR, p.TargetReplicas
		m.UncleanEpoch = p.UncleanEpoch
	}
	return m
}

func deletionMessage(d cluster.Deletion) *controllerv1.Deletion {
	return &controllerv1.Deletion{TopicId: d.Topic.Bytes(), Name: d.Name, PendingBrokers: d.Pending}
}
