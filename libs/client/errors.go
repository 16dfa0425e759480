package client

import (
	"context"
	"errors"
	"io"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Short names of the reasons that this package makes or looks for.
const (
	reasonInternalBug       = typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG
	reasonInvalidRequest    = typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST
	reasonStreamProtocol    = typev1.ErrorReason_ERROR_REASON_STREAM_PROTOCOL
	reasonUnreachable       = typev1.ErrorReason_ERROR_REASON_UNREACHABLE
	reasonDeadlineExceeded  = typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED
	reasonCancelled         = typev1.ErrorReason_ERROR_REASON_CANCELLED
	reasonLimitExceeded     = typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED
	reasonUnknownTopic      = typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC
	reasonUnknownPartition  = typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION
	reasonTopicDeleted      = typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED
	reasonNotLeader         = typev1.ErrorReason_ERROR_REASON_NOT_LEADER
	reasonLeaderUnavailable = typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE
	reasonMetadataBehind    = typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND
	reasonRecordTooLarge    = typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE
	reasonInvalidRecord     = typev1.ErrorReason_ERROR_REASON_INVALID_RECORD
	reasonCorruptBatch      = typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH
	reasonConnectionLost    = typev1.ErrorReason_ERROR_REASON_CONNECTION_LOST
	reasonOutOfOrder        = typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE
	reasonNotEnoughReplicas = typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS
	reasonShrunkAfterAppend = typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND
	reasonPartitionStopped  = typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED
	reasonOffsetOutOfRange  = typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE
	reasonNotCoordinator    = typev1.ErrorReason_ERROR_REASON_NOT_COORDINATOR
	reasonCoordUnavailable  = typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE
	reasonCoordLoading      = typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING
	reasonUnknownGroup      = typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP
	reasonInvalidGroup      = typev1.ErrorReason_ERROR_REASON_INVALID_GROUP
	reasonNoCommittedOffset = typev1.ErrorReason_ERROR_REASON_NO_COMMITTED_OFFSET
	reasonInstanceFenced    = typev1.ErrorReason_ERROR_REASON_INSTANCE_FENCED
)

const (
	outcomeNotDone = typev1.Outcome_OUTCOME_NOT_DONE
	outcomeUnknown = typev1.Outcome_OUTCOME_UNKNOWN
)

// closedError says that something of this package was closed.
func closedError(what string) *rpc.Error {
	return rpc.Errorf(reasonCancelled, "the %s is closed: make another one", what).WithOutcome(outcomeNotDone)
}

// mayHaveHappened reports whether an error leaves open that the request took
// place.
func mayHaveHappened(e *rpc.Error) bool { return e.Outcome != outcomeNotDone }

// contextError says that ctx ended while something was waited for; last, if not
// nil, is why it was still being waited for.
func contextError(ctx context.Context, doing string, last error) *rpc.Error {
	reason := reasonDeadlineExceeded
	if errors.Is(ctx.Err(), context.Canceled) {
		reason = reasonCancelled
	}
	if last == nil {
		return rpc.Errorf(reason, "%s: %w", doing, context.Cause(ctx))
	}
	why := rpc.FromError(last)
	e := rpc.Errorf(reason, "%s: %w; last problem: %w", doing, context.Cause(ctx), last).
		With("last_reason", rpc.ReasonName(why.Reason))
	e.Leader = why.Leader
	return e
}

// streamEnd turns the end of a stream into an error; also an end without one,
// which no server of ours has a reason for.
func streamEnd(err error, what, addr string) *rpc.Error {
	if err == nil || errors.Is(err, io.EOF) {
		return rpc.Errorf(reasonUnreachable, "%s %s ended the stream", what, addr).With("address", addr)
	}
	e := rpc.FromError(err)
	if e.Metadata["address"] == "" {
		e = e.With("address", addr)
	}
	return e
}

// notOurs is err, unless it says that the caller cancelled and ctx, the caller's,
// has not ended: then it was the other side that gave up, which may pass.
func notOurs(ctx context.Context, err *rpc.Error) *rpc.Error {
	if err.Reason != reasonCancelled || ctx.Err() != nil {
		return err
	}
	e := rpc.Errorf(reasonUnreachable, "the other side gave the stream up: %w", err)
	e.Metadata = err.Metadata
	return e
}

// sleep waits for d or until ctx ends, which is false.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
