package handler

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// maxSendDetails bounds the results in the status of a failed Send, in bytes.
const maxSendDetails = 4 << 10

// Send serves ProducerService.Send: OK if every record was appended, else an error
// whose details carry the results.
func (h *Handler) Send(ctx context.Context, req *gatewayv1.SendRequest) (*gatewayv1.SendResponse, error) {
	if err := h.started(); err != nil {
		return nil, err
	}
	settings, err := session.UnarySettings(req, h.cfg.Limits.Produce)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The producer knows what was never sent, if it has the last word.
		settings.DeliveryTimeout = min(settings.DeliveryTimeout, session.StepDown(deadline.Sub(h.cfg.Now()), time.Second))
	}
	producer, release, err := h.producers.get(settings)
	if err != nil {
		return nil, err
	}
	defer release()
	bytes := session.SendSize(req, len(req.GetRecords()))
	refund, err := h.charge(ctx, bytes)
	if err != nil {
		return nil, rpc.FromError(err).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
	}
	ctx, finish := h.publish(h.tracing.stream(ctx), req.GetTopic(), len(req.GetRecords()), bytes, nil)
	results := h.sendAll(ctx, producer, req, refund)
	ranges := session.Ranges(req.GetTopic(), results)
	err = sendError(req.GetTopic(), len(req.GetRecords()), ranges)
	last := results[len(results)-1]
	finish(client.Result{Partition: last.Partition, Offset: last.Offset, Err: err})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.SendResponse{Ranges: ranges}, nil
}

// sendAll hands the records over and waits for their results until ctx ends; what
// has none then is unknown.
func (h *Handler) sendAll(ctx context.Context, producer Producer, req *gatewayv1.SendRequest, refund func()) []session.RecordResult {
	type done struct {
		index  int
		result client.Result
	}
	n := len(req.GetRecords())
	// Room for all, so that the producer's goroutines never wait for this one.
	answers := make(chan done, n)
	job := &sendJob{left: n, refund: refund, finish: func(client.Result) {}}
	results := make([]session.RecordResult, n)
	known := make([]bool, n)
	waiting := 0
	var failed error
	for i, r := range req.GetRecords() {
		if failed == nil {
			rctx, finish := h.tracing.record(ctx, req.GetTopic(), r)
			err := producer.Send(rctx, toClientRecord(req.GetTopic(), r, h.cfg.Now()), func(result client.Result) {
				if finish != nil {
					finish(result)
				}
				h.metrics.result(result)
				job.done(result)
				answers <- done{i, result}
			})
			if err == nil {
				waiting++
				continue
			}
			failed = notTaken(err, req.GetTopic())
			if finish != nil {
				finish(client.Result{Err: failed, Partition: -1})
			}
		}
		result := notTakenResult(req.GetTopic(), r, failed)
		results[i], known[i] = toSessionResult(result), true
		h.metrics.result(result)
		job.done(result)
		if !concernsTopic(failed) {
			failed = nil
		}
	}
	for ; waiting > 0; waiting-- {
		select {
		case d := <-answers:
			results[d.index], known[d.index] = toSessionResult(d.result), true
			continue
		case <-ctx.Done():
		}
		break
	}
	for i := range results {
		if !known[i] {
			err := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
				"the call ended before topic %q acknowledged; see whether its brokers are well, or allow more time: %w", req.GetTopic(), ctx.Err()).
				WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
			results[i] = session.RecordResult{Partition: -1, Offset: -1, LeaderEpoch: -1, Err: err}
		}
	}
	return results
}

// sendError is the error of a Send: nil if every record was appended, else the
// first failure, or the first unknown one, with the results beside it.
func sendError(topic string, records int, ranges []*gatewayv1.RecordRange) error {
	var first *typev1.Error
	failed := int32(0)
	for _, r := range ranges {
		if r.GetError() == nil {
			continue
		}
		failed += r.GetCount()
		if first == nil || unknown(r.GetError()) && !unknown(first) {
			first = r.GetError()
		}
	}
	if first == nil {
		return nil
	}
	e := rpc.FromProto(first)
	if int(failed) < records || len(ranges) > 1 {
		e.Message = describeFailure(topic, records, failed, first)
	}
	return e.WithDetails(&gatewayv1.SendResponse{Ranges: fitting(ranges)})
}

func unknown(e *typev1.Error) bool { return e.GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE }

func describeFailure(topic string, records int, failed int32, first *typev1.Error) string {
	what := "were not stored"
	if unknown(first) {
		what = "were not acknowledged, and may be stored"
	}
	return rpc.Errorf(first.GetReason(), "%d of %d records for topic %q %s; the details tell of each; the first: %s",
		failed, records, topic, what, first.GetMessage()).Message
}

// fitting is as many of the ranges, from the first on, as details may carry. Their
// errors come without sentences: the status has the one that matters.
func fitting(ranges []*gatewayv1.RecordRange) []*gatewayv1.RecordRange {
	var out []*gatewayv1.RecordRange
	size := 0
	for _, r := range ranges {
		c := &gatewayv1.RecordRange{
			First: r.GetFirst(), Count: r.GetCount(), Topic: r.GetTopic(), Partition: r.GetPartition(),
			BaseOffset: r.GetBaseOffset(), LeaderEpoch: r.GetLeaderEpoch(), MaybeDuplicated: r.GetMaybeDuplicated(),
		}
		if e := r.GetError(); e != nil {
			c.Error = &typev1.Error{Code: e.GetCode(), Reason: e.GetReason(), Outcome: e.GetOutcome(), Action: e.GetAction()}
		}
		size += proto.Size(c) + 4
		if size > maxSendDetails {
			break
		}
		out = append(out, c)
	}
	return out
}
