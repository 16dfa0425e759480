package replica

import (
	"errors"
	"strconv"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// refusal makes an error of what the core said. The caller holds mu.
func (r *Replica) refusal(reason partition.Reason, outcome partition.Outcome) *rpc.Error {
	e := r.describe(reason).With("topic", r.Topic, "partition", strconv.Itoa(int(r.Key.Partition)))
	if outcome == partition.Unknown {
		return e.WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN)
	}
	return e.WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

func (r *Replica) describe(reason partition.Reason) *rpc.Error {
	name := r.Name()
	leader, epoch := r.core.Leader()
	switch reason {
	case partition.ReasonNotLeader:
		e := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_LEADER, "broker %d does not lead %s: go to broker %d, which leads in epoch %d", r.m.cfg.Self.Broker, name, leader.Broker, epoch)
		return e.WithLeader(leader.Broker, r.m.brokerAddress(leader.Broker), int64(epoch))
	case partition.ReasonLeaderNotAvailable:
		if r.core.Down() == partition.ReasonReplicaWithheld {
			return r.describe(partition.ReasonReplicaWithheld) // which is why nobody leads, or part of it
		}
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "%s has no serving leader at the moment: try again shortly", name)
	case partition.ReasonStaleLeaderEpoch:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_LEADER_EPOCH, "the request names an older leader epoch of %s than %d: refresh the metadata", name, epoch).
			WithLeader(leader.Broker, r.m.brokerAddress(leader.Broker), int64(epoch))
	case partition.ReasonUnknownLeaderEpoch:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH, "the request names a newer leader epoch of %s than %d, the newest that broker %d has heard of: try again shortly", name, epoch, r.m.cfg.Self.Broker)
	case partition.ReasonNotEnoughReplicas:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "%s has fewer in-sync replicas than min.insync.replicas; nothing was appended: bring its brokers back", name)
	case partition.ReasonNotEnoughReplicasAfterAppend:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND, "the in-sync set of %s fell below min.insync.replicas after the batch was appended; it may be committed later: bring its brokers back, and send it again only as an idempotent producer", name)
	case partition.ReasonShardFenced:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_SHARD_FENCED, "the shard %s belongs to a coordinator with a newer shard epoch or attempt, or the batch carries none: stop writing to it", name)
	case partition.ReasonFenceNotAllowed:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%s belongs to no internal topic: leave shard_fence out", name)
	case partition.ReasonTopicDeleted:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, "topic %s is being deleted: stop working on it", r.Topic)
	case partition.ReasonDiskOffline:
		if r.withheld {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD, "the log of %s on broker %d was found damaged and is withheld: another replica takes over, and this one is fetched again", name, r.m.cfg.Self.Broker)
		}
		return r.diskOffline()
	case partition.ReasonDiskFull:
		return r.diskFull()
	case partition.ReasonReplicaWithheld:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD, "the replica of %s on broker %d was found %s and is withheld: restore it from another replica", name, r.m.cfg.Self.Broker, r.verdict)
	case partition.ReasonMetadataRegressed:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED, "the log of %s has seen a newer leader epoch than the metadata's %d: etcd went back in time; restore the mesh", name, epoch)
	case partition.ReasonDeadline:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "%s did not store the batch within its timeout", name)
	case partition.ReasonLimit:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "too many batches wait at %s: send fewer at a time", name).WithAction(typev1.Action_ACTION_RETRY).With("limit", "queued batches of a partition")
	case partition.ReasonOffsetOutOfRange:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "%s holds offsets from %d up to, not including, %d: choose one of those", name, r.core.Start(), r.core.HighWatermark()).
			With("start_offset", strconv.FormatInt(r.core.Start(), 10), "end_offset", strconv.FormatInt(r.core.HighWatermark(), 10))
	case partition.ReasonOffsetNotAvailable:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE, "the offset of %s exists and is not committed yet: try again shortly", name)
	case partition.ReasonDraining:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "broker %d is stopping: send to it again after its restart", r.m.cfg.Self.Broker)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "%s stopped itself (%v): see the log of broker %d, and restart it", name, reason, r.m.cfg.Self.Broker)
}

// undecidedError says of a batch that waited in vain that it did so because a change of
// the in-sync set could not be decided: a member is away, and so is the metadata.
func (r *Replica) undecidedError(why error) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE,
		"%s stored the batch, and not every in-sync replica has done so in time; that one is gone cannot be put on record (%w): bring controllers and etcd back; the batch may be committed then", r.Name(), why).
		WithOutcome(typev1.Outcome_OUTCOME_UNKNOWN).With("topic", r.Topic, "partition", strconv.Itoa(int(r.Key.Partition)))
}

// diskOffline names the disk that failed.
func (r *Replica) diskOffline() *rpc.Error {
	if r.stored() == nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE, "%s is on a disk of broker %d that failed: repair it, then restart the broker", r.Name(), r.m.cfg.Self.Broker)
	}
	dir := r.stored().Disk.Dir
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE, "the disk %s of %s on broker %d failed: repair it, then restart the broker", dir, r.Name(), r.m.cfg.Self.Broker).With("dir", dir)
}

// diskFull names the disk that is full, and what to do about it.
func (r *Replica) diskFull() *rpc.Error {
	d := r.stored().Disk
	e := func(format string, args ...any) *rpc.Error {
		args = append([]any{d.Dir, r.Name(), r.m.cfg.Self.Broker}, args...)
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DISK_FULL, "the disk %s of %s on broker %d is full: "+format, args...).With("dir", d.Dir)
	}
	if errors.Is(r.log().Err(), commitlog.ErrFailed) {
		return e("the log could not be left as it was; make room, then restart the broker")
	}
	return e("%s; delete topics, shorten retention or make the disk larger, and it goes on by itself", d.Describe())
}

// BatchError makes an error of what package record or the log say about a batch.
// Nothing was appended.
func BatchError(err error, topic string, limit int) *rpc.Error {
	var large *record.TooLargeError
	var invalid *record.InvalidError
	var corrupt *record.CorruptError
	switch {
	case errors.As(err, &large):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, "topic %s: %w", topic, err).
			With("topic", topic, "limit", strconv.Itoa(limit), "size", strconv.Itoa(large.Size))
	case errors.As(err, &invalid):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_RECORD, "topic %s: %w", topic, err).
			With("topic", topic, "record", strconv.Itoa(invalid.Record))
	case errors.As(err, &corrupt):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, "topic %s: %w", topic, err).With("topic", topic)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "topic %s: the batch could not be checked: %w", topic, err).
		WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).With("topic", topic)
}

// readError makes an error of what the log says to a read.
func (r *Replica) readError(err error) *rpc.Error {
	where := []string{"topic", r.Topic, "partition", strconv.Itoa(int(r.Key.Partition))}
	var rangeErr *commitlog.OffsetOutOfRangeError
	var corrupt *commitlog.CorruptError
	switch {
	case errors.As(err, &rangeErr):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "%s: %w", r.Name(), err).
			With(append(where, "start_offset", strconv.FormatInt(rangeErr.Start, 10), "end_offset", strconv.FormatInt(rangeErr.End, 10))...)
	case errors.As(err, &corrupt):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CORRUPT_LOG, "%s: %w", r.Name(), err).
			With(append(where, "path", corrupt.Path, "position", strconv.FormatInt(corrupt.Position, 10), "offset", strconv.FormatInt(corrupt.Offset, 10))...)
	case errors.Is(err, commitlog.ErrClosed):
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, "the replica of %s is gone from broker %d: stop working on it", r.Name(), r.m.cfg.Self.Broker).
			WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).With(where...)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE, "read %s: %w: check the disk of broker %d", r.Name(), err, r.m.cfg.Self.Broker).With(where...)
}
