package handler

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// ListOffsets supports earliest, latest, greatest timestamp and the first record
// of a timestamp or later. Isolation levels do not differ before transactions.
func (h *Handlers) ListOffsets(ctx context.Context, req *brokerv1.ListOffsetsRequest) (*brokerv1.ListOffsetsResponse, error) {
	m, err := h.manager()
	if err != nil {
		return nil, err
	}
	if n := len(req.GetPartitions()); n > maxListOffsets {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "%d partitions are asked for: ask for at most %d at a time", n, maxListOffsets)
	}
	resp := &brokerv1.ListOffsetsResponse{Results: make([]*brokerv1.ListOffsetsResult, len(req.GetPartitions()))}
	for i, p := range req.GetPartitions() {
		if ctx.Err() != nil {
			return nil, rpc.FromError(ctx.Err())
		}
		found, err := listOffset(m, p, req.GetAllowFollower())
		if err != nil {
			resp.Results[i] = &brokerv1.ListOffsetsResult{Offset: -1, LeaderEpoch: -1, Error: rpc.ToProto(err)}
			continue
		}
		r := &brokerv1.ListOffsetsResult{Offset: found.Offset, LeaderEpoch: found.LeaderEpoch}
		if found.Timestamp >= 0 {
			r.Timestamp = timestamppb.New(timeOf(found.Timestamp))
		}
		resp.Results[i] = r
	}
	return resp, nil
}

func listOffset(m *replica.Manager, p *brokerv1.ListOffsetsPartition, allowFollower bool) (replica.Offset, *rpc.Error) {
	r, err := m.Lookup(p.GetTopicId(), p.GetPartition())
	if err != nil {
		return replica.Offset{}, err
	}
	switch spec := p.GetSpec().GetSpec().(type) {
	case *typev1.OffsetSpec_Place_:
		switch spec.Place {
		case typev1.OffsetSpec_PLACE_EARLIEST, typev1.OffsetSpec_PLACE_LATEST, typev1.OffsetSpec_PLACE_MAX_TIMESTAMP:
			return r.ListOffset(spec.Place, 0, p.GetCurrentLeaderEpoch(), allowFollower)
		}
	case *typev1.OffsetSpec_Timestamp:
		if spec.Timestamp.CheckValid() == nil {
			return r.ListOffset(typev1.OffsetSpec_PLACE_UNSPECIFIED, spec.Timestamp.AsTime().UnixMilli(), p.GetCurrentLeaderEpoch(), allowFollower)
		}
	}
	return replica.Offset{}, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the offset spec names neither a known place nor a valid timestamp: set one of them")
}
