package replica

import (
	"math"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// settle looks, right before a batch is appended, at what the log remembers of its
// producer or its shard. What the log has already, or may not take, ends here; true
// says so. The caller holds mu, and no other append runs.
func (r *Replica) settle(a *partition.Append, b *Batch) bool {
	log := r.log()
	if b.Fence != nil {
		have := log.Fence()
		if (record.Fence{ShardEpoch: b.Fence.ShardEpoch, Attempt: int64(b.Fence.Attempt)}).Less(have) {
			r.refuse(a, b, r.refusal(partition.ReasonShardFenced, partition.Rejected))
			return true
		}
	}
	check := log.CheckProducer(&b.Header)
	switch check.Verdict {
	case commitlog.ProducerOK:
		return false
	case commitlog.ProducerDuplicate:
		b.appendTime = check.Timestamp
		r.current = nil
		b.Payload.Free()
		r.m.cfg.Metrics.duplicates.Inc()
		r.step(&partition.Duplicate{Op: a.Op, Base: check.BaseOffset, End: check.LastOffset + 1})
	default:
		r.refuse(a, b, r.producerError(&b.Header, check))
	}
	return true
}

// refuse answers a batch that the log was not asked to take. The caller holds mu.
func (r *Replica) refuse(a *partition.Append, b *Batch, err *rpc.Error) {
	r.current = nil
	b.Payload.Free()
	r.refused = err
	r.step(partition.AppendRefused{Op: a.Op, Now: r.m.now()})
	r.refused = nil
}

// producerError says why a producer's batch is not taken. Nothing was appended,
// except perhaps long before.
func (r *Replica) producerError(h *record.Header, c commitlog.ProducerCheck) *rpc.Error {
	name := r.Name()
	var e *rpc.Error
	switch {
	case c.Verdict == commitlog.ProducerFenced:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED, "%s has seen producer %d in epoch %d, and the batch comes from epoch %d: close this producer", name, h.ProducerID, c.Epoch, h.ProducerEpoch)
	case c.Verdict == commitlog.ProducerUnknown:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID, "%s knows nothing of producer %d, whose batch begins at sequence %d: send the batches before it first; if they were stored, the producer was idle for too long and takes a new epoch", name, h.ProducerID, h.BaseSequence)
	case c.Verdict == commitlog.ProducerOutOfOrder && h.ProducerEpoch == c.Epoch && behind(h.BaseSequence, c.NextSequence):
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE, "the batch of producer %d at sequence %d lies behind sequence %d, which %s expects, and is none of its last five: it was most likely stored", h.ProducerID, h.BaseSequence, c.NextSequence, name)
	case h.ProducerEpoch != c.Epoch:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, "the first batch of producer %d in epoch %d has sequence %d in %s: a new epoch begins with sequence 0", h.ProducerID, h.ProducerEpoch, h.BaseSequence, name)
	default:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, "the batch of producer %d has sequence %d where %s expects %d: send the batches before it first", h.ProducerID, h.BaseSequence, name, c.NextSequence)
	}
	return e.With("topic", r.Topic, "partition", itoa(int64(r.Key.Partition)), "producer_id", itoa(h.ProducerID), "producer_epoch", itoa(int64(h.ProducerEpoch)),
		"sequence", itoa(int64(h.BaseSequence)), "expected_sequence", itoa(int64(c.NextSequence)))
}

// behind reports whether a sequence lies before the next one, by the shorter way
// around: sequences wrap from 2³¹−1 to 0.
func behind(sequence, next int32) bool {
	distance := (int64(next) - int64(sequence)) & math.MaxInt32
	return distance > 0 && distance <= math.MaxInt32/2
}
