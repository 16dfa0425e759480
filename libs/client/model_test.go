package client

import (
	"context"
	"math"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// modelProducer is what the model of a log remembers of a producer: its epoch and
// its last five batches.
type modelProducer struct {
	epoch   int16
	batches []modelBatch
}

type modelBatch struct {
	first, last int32
	base        int64
}

// checkProducer is the rule by which a log takes the batches of idempotent
// producers.
func (p *fakePart) checkProducer(h *record.Header) (base int64, duplicate bool, err *rpc.Error) {
	if h.ProducerID < 0 {
		return -1, false, nil
	}
	m := p.producers[h.ProducerID]
	if m == nil {
		if h.BaseSequence > 0 {
			return -1, false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID, "nothing is known of producer %d", h.ProducerID)
		}
		return -1, false, nil
	}
	switch {
	case h.ProducerEpoch < m.epoch:
		return -1, false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED, "epoch %d, not %d", m.epoch, h.ProducerEpoch)
	case h.ProducerEpoch > m.epoch:
		if h.BaseSequence != 0 {
			return -1, false, rpc.Errorf(reasonOutOfOrder, "epoch %d begins with %d", h.ProducerEpoch, h.BaseSequence)
		}
		return -1, false, nil
	}
	for _, b := range m.batches {
		if b.first == h.BaseSequence && b.last == h.LastSequence() {
			return b.base, true, nil
		}
	}
	want := int32(0)
	if n := len(m.batches); n > 0 && m.batches[n-1].last < math.MaxInt32 {
		want = m.batches[n-1].last + 1
	}
	if h.BaseSequence < want {
		return -1, false, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE, "sequence %d, not %d", want, h.BaseSequence)
	}
	if h.BaseSequence != want {
		return -1, false, rpc.Errorf(reasonOutOfOrder, "sequence %d, not %d", want, h.BaseSequence)
	}
	return -1, false, nil
}

// noteProducer remembers a batch that is stored at an offset.
func (p *fakePart) noteProducer(h *record.Header, base int64) {
	if h.ProducerID < 0 {
		return
	}
	m := p.producers[h.ProducerID]
	if m == nil || m.epoch != h.ProducerEpoch {
		m = &modelProducer{epoch: h.ProducerEpoch}
		if p.producers == nil {
			p.producers = make(map[int64]*modelProducer)
		}
		p.producers[h.ProducerID] = m
	}
	if m.batches = append(m.batches, modelBatch{h.BaseSequence, h.LastSequence(), base}); len(m.batches) > maxIdempotentInFlight {
		m.batches = m.batches[1:]
	}
}

func (b *fakeBroker) InitProducerId(context.Context, *brokerv1.InitProducerIdRequest) (*brokerv1.InitProducerIdResponse, error) {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	if b.m.onInit != nil {
		if err := b.m.onInit(b); err != nil {
			return nil, err
		}
	}
	b.m.lastID++
	return &brokerv1.InitProducerIdResponse{ProducerId: b.m.lastID + 1000}, nil
}
