package replica

import (
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
)

// DeleteRecords has the log begin at an offset, -1 for the high watermark. done is
// called once, possibly before DeleteRecords returns and with the replica's lock held:
// with the log start that every in-sync replica has applied, or why not within the
// timeout.
func (r *Replica) DeleteRecords(before int64, clientEpoch int32, timeout time.Duration, done func(start int64, err *rpc.Error)) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, epoch := r.core.Leader()
	switch {
	case clientEpoch > epoch:
		done(-1, r.refusal(partition.ReasonUnknownLeaderEpoch, partition.Rejected))
		return
	case clientEpoch >= 0 && clientEpoch < epoch:
		done(-1, r.refusal(partition.ReasonStaleLeaderEpoch, partition.Rejected))
		return
	}
	r.nextReq++
	if r.starts == nil {
		r.starts = map[int64]func(int64, *rpc.Error){}
	}
	r.starts[r.nextReq] = done
	r.step(&partition.StartWanted{Req: r.nextReq, Offset: before, Deadline: now + timeout, Now: now})
}

// replyStart ends a request for a log start. The caller holds mu.
func (r *Replica) replyStart(e *partition.Reply) {
	done := r.starts[e.Req]
	if done == nil {
		return
	}
	delete(r.starts, e.Req)
	switch {
	case e.Outcome == partition.OK:
		done(e.Base, nil)
	case e.Reason == partition.ReasonDeadline:
		err := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "not every in-sync replica of %s has deleted the records in time: they go all the same, unless the leader changes first; ask again to be sure", r.Name())
		if e.Outcome == partition.Rejected {
			err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "the deadline had passed before records of %s could be deleted: allow more time", r.Name()).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
		}
		done(-1, err.With("topic", r.Topic, "partition", itoa(int64(r.Key.Partition))))
	default:
		done(-1, r.refusal(e.Reason, e.Outcome))
	}
}
