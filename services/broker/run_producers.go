package broker

import (
	"context"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/services/broker/internal/producerid"
)

// runProducerIDs keeps producer ids in store. Nothing waits for them: a broker
// without any still serves what it leads.
func (b *Broker) runProducerIDs(ctx context.Context, ready func()) error {
	ready()
	return b.producerIDs.Run(ctx)
}

func (b *Broker) allocateProducerIDs(ctx context.Context) (producerid.Block, error) {
	resp, err := b.controllers.AllocateProducerIds(ctx, &controllerv1.AllocateProducerIdsRequest{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: b.self,
	})
	if err != nil {
		return producerid.Block{}, err
	}
	return producerid.Block{First: resp.GetFirstProducerId(), Count: resp.GetCount()}, nil
}
