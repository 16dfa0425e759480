package handler

import (
	"context"
	"sync"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// digestsAtOnce bounds the replicas whose logs are read for digests, over all calls:
// each takes a chunk of a log and one batch unpacked.
const digestsAtOnce = 4

// DigestReplicas supports replicas that lead and that follow. All of a call wait for
// their high watermarks together.
func (h *Handlers) DigestReplicas(ctx context.Context, req *brokerv1.DigestReplicasRequest) (*brokerv1.DigestReplicasResponse, error) {
	m, err := h.manager()
	if err != nil {
		return nil, err
	}
	if n := len(req.GetReplicas()); n == 0 || n > maxListOffsets {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "%d replicas are asked for: ask for 1 to %d at a time", n, maxListOffsets)
	}
	resp := &brokerv1.DigestReplicasResponse{Results: make([]*brokerv1.DigestResult, len(req.GetReplicas()))}
	var wg sync.WaitGroup
	for i, p := range req.GetReplicas() {
		wg.Go(func() {
			d, err := h.digest(ctx, m, p)
			if err != nil {
				resp.Results[i] = &brokerv1.DigestResult{Error: rpc.ToProto(err)}
				return
			}
			resp.Results[i] = &brokerv1.DigestResult{Digest: d.Sum, Records: d.Records}
		})
	}
	wg.Wait()
	return resp, nil
}

func (h *Handlers) digest(ctx context.Context, m *replica.Manager, p *brokerv1.DigestReplica) (replica.Digest, *rpc.Error) {
	if p.GetFromOffset() < 0 || p.GetToOffset() < p.GetFromOffset() {
		return replica.Digest{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the offsets from %d to %d are no range: give from_offset at least 0 and to_offset not below it", p.GetFromOffset(), p.GetToOffset())
	}
	r, err := m.Lookup(p.GetTopicId(), p.GetPartition())
	if err != nil {
		return replica.Digest{}, err
	}
	if err := r.AwaitWatermark(ctx, p.GetToOffset()); err != nil {
		return replica.Digest{}, err
	}
	select {
	case h.digests <- struct{}{}:
		defer func() { <-h.digests }()
	case <-ctx.Done():
		return replica.Digest{}, rpc.FromError(ctx.Err()).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	return r.Digest(ctx, p.GetFromOffset(), p.GetToOffset(), h.cfg.MaxDecodedBytes)
}
