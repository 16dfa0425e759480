package replica

import (
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// History is what an image says about its own past, as far as it concerns a broker.
func History(image *metadata.Image, self partition.Replica) store.History {
	h := store.History{Position: store.Position(image.Position()), EtcdClusterID: image.EtcdClusterID(), Epochs: map[store.Key]int32{}}
	if r := image.Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, self.Broker); r.GetProcess().GetIncarnation() == self.Incarnation {
		h.Registered = r.GetRevision()
	}
	for _, t := range image.Topics() {
		if t.Deleting {
			continue
		}
		for _, p := range t.Partitions() {
			for _, id := range p.GetReplicas() {
				if id == self.Broker {
					h.Epochs[store.Key{Topic: t.ID, Partition: p.GetPartition()}] = p.GetLeaderEpoch()
				}
			}
		}
	}
	return h
}
