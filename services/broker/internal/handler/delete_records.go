package handler

import (
	"context"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

const (
	// defaultDeleteTimeout is for calls without a deadline.
	defaultDeleteTimeout = 30 * time.Second
	// A tenth of a call's deadline, but that much if there is twice as much, is left for
	// the answer to travel.
	answerShare   = 10
	minAnswerTime = 100 * time.Millisecond
)

// DeleteRecords supports all topics but the internal ones, whose records are the
// mesh's own. The partitions of a call are worked on side by side.
func (h *Handlers) DeleteRecords(ctx context.Context, req *brokerv1.DeleteRecordsRequest) (*brokerv1.DeleteRecordsResponse, error) {
	m, err := h.manager()
	if err != nil {
		return nil, err
	}
	n := len(req.GetPartitions())
	if n == 0 || n > maxListOffsets {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "records of %d partitions are to be deleted: name 1 to %d at a time", n, maxListOffsets)
	}
	type result struct {
		place int
		start int64
		err   *rpc.Error
	}
	results := make(chan result, n) // done must not block
	timeout := defaultDeleteTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
		timeout = min(timeout-max(timeout/answerShare, min(timeout/2, minAnswerTime)), maxProduceTimeout)
	}
	for i, p := range req.GetPartitions() {
		deleteRecords(m, p, timeout, func(start int64, err *rpc.Error) { results <- result{i, start, err} })
	}
	resp := &brokerv1.DeleteRecordsResponse{Results: make([]*brokerv1.DeleteRecordsResult, n)}
	for range n {
		select {
		case r := <-results:
			resp.Results[r.place] = &brokerv1.DeleteRecordsResult{LogStartOffset: r.start}
			if r.err != nil {
				resp.Results[r.place].LogStartOffset, resp.Results[r.place].Error = -1, rpc.ToProto(r.err)
			}
		case <-ctx.Done():
			return nil, rpc.FromError(ctx.Err())
		}
	}
	return resp, nil
}

func deleteRecords(m *replica.Manager, p *brokerv1.DeleteRecordsPartition, timeout time.Duration, done func(int64, *rpc.Error)) {
	r, err := m.Lookup(p.GetTopicId(), p.GetPartition())
	switch {
	case err != nil:
		done(-1, err)
	case r.Internal:
		done(-1, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_TOPIC, "topic %s belongs to the mesh itself: its records cannot be deleted", r.Topic).With("topic", r.Topic))
	case p.GetBeforeOffset() < -1:
		done(-1, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "before_offset is %d: give an offset, or -1 for the high watermark", p.GetBeforeOffset()))
	default:
		r.DeleteRecords(p.GetBeforeOffset(), p.GetLeaderEpoch(), timeout, done)
	}
}
