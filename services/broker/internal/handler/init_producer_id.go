package handler

import (
	"context"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// InitProducerId hands out ids for idempotent producers, from those in store. Each
// id begins in epoch 0. Transactional ids are not supported.
func (h *Handlers) InitProducerId(ctx context.Context, req *brokerv1.InitProducerIdRequest) (*brokerv1.InitProducerIdResponse, error) {
	if _, err := h.manager(); err != nil {
		return nil, err
	}
	if n := len(req.GetClientId()); n > maxClientID {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "client_id has %d bytes: use at most %d", n, maxClientID)
	}
	id, err := h.cfg.NextProducerID(ctx)
	if err != nil {
		return nil, err
	}
	return &brokerv1.InitProducerIdResponse{ProducerId: id}, nil
}
