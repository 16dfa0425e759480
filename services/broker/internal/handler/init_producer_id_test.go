package handler

import (
	"strings"
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

func TestInitProducerID(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	seen := map[int64]bool{}
	for range 35 {
		resp, err := h.client.InitProducerId(t.Context(), &brokerv1.InitProducerIdRequest{ClientId: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetProducerEpoch() != 0 || seen[resp.GetProducerId()] {
			t.Errorf("producer id %d in epoch %d: given before %v", resp.GetProducerId(), resp.GetProducerEpoch(), seen[resp.GetProducerId()])
		}
		seen[resp.GetProducerId()] = true
	}
	_, err := h.client.InitProducerId(t.Context(), &brokerv1.InitProducerIdRequest{ClientId: strings.Repeat("x", 256)})
	if !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) {
		t.Errorf("a long client id: %v", err)
	}
	// case 38
	brokertest.Await(t, "two blocks are in store", func() bool { return h.producerIDs.Held() >= 10 })
	ctl.Stop()
	if _, err := h.client.InitProducerId(t.Context(), &brokerv1.InitProducerIdRequest{}); err != nil {
		t.Errorf("without a controller: %v", err)
	}
}
