package handler

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
)

// part reads a partition's name.
func part(topicID []byte, partition int32) (group.Part, *rpc.Error) {
	if len(topicID) != len(group.TopicID{}) {
		return group.Part{}, invalid("a topic id has %d bytes, it must have 16", len(topicID))
	}
	if partition < 0 {
		return group.Part{}, invalid("partition %d is negative", partition)
	}
	return group.Part{Topic: group.TopicID(topicID), Partition: partition}, nil
}

func owned(in []*coordinatorv1.OwnedPartition) ([]group.Owned, *rpc.Error) {
	if len(in) > maxPartitions {
		return nil, limit("partitions", "%d partitions are named, at most %d may be", len(in), maxPartitions)
	}
	out := make([]group.Owned, 0, len(in))
	for _, o := range in {
		p, err := part(o.GetTopicId(), o.GetPartition())
		if err != nil {
			return nil, err
		}
		out = append(out, group.Owned{Part: p, Epoch: o.GetAssignmentEpoch()})
	}
	return out, nil
}

func commits(in []*coordinatorv1.OffsetCommit) ([]group.OffsetCommit, *rpc.Error) {
	if len(in) > maxPartitions {
		return nil, limit("partitions", "%d offsets are committed at once, at most %d may be", len(in), maxPartitions)
	}
	out := make([]group.OffsetCommit, 0, len(in))
	for _, o := range in {
		p, err := part(o.GetTopicId(), o.GetPartition())
		if err != nil {
			return nil, err
		}
		out = append(out, group.OffsetCommit{
			Part: p, NextOffset: o.GetNextOffset(), LeaderEpoch: o.GetLeaderEpoch(),
			Metadata: o.GetMetadata(), AssignmentEpoch: o.GetAssignmentEpoch(),
		})
	}
	return out, nil
}

// open translates a MemberOpen; Req is filled in later.
func open(groupName, member string, o *coordinatorv1.MemberOpen) (group.Open, *rpc.Error) {
	e := group.Open{
		Group: groupName, Member: member, Instance: o.GetInstanceId(), Topics: o.GetTopics(), Pattern: o.GetTopicPattern(),
		Assignor: o.GetAssignor(), Attach: o.GetAttach(), ClientID: o.GetClientId(), ClientHost: o.GetClientHost(),
	}
	var err *rpc.Error
	if e.Owned, err = owned(o.GetOwned()); err != nil {
		return e, err
	}
	if e.SessionTimeout, err = duration("session timeout", o.GetSessionTimeout()); err != nil {
		return e, err
	}
	if e.RebalanceTimeout, err = duration("rebalance timeout", o.GetRebalanceTimeout()); err != nil {
		return e, err
	}
	if e.MaxProcessing, err = duration("longest time without progress", o.GetMaxProcessing()); err != nil {
		return e, err
	}
	if e.Start, err = startPolicy(o); err != nil {
		return e, err
	}
	return e, checkOpen(e)
}

// startPolicy reads where partitions without a committed offset start.
func startPolicy(o *coordinatorv1.MemberOpen) (group.StartPolicy, *rpc.Error) {
	policy := group.StartPolicy{}
	switch o.GetResetPolicy() {
	case coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_UNSPECIFIED, coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST:
		policy.Kind = group.StartLatest
	case coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST:
		policy.Kind = group.StartEarliest
	case coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE:
	case coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION:
		back, err := duration("duration of the reset policy", o.GetResetByDuration())
		if err != nil {
			return policy, err
		}
		if back == 0 {
			return policy, invalid("the reset policy is by duration and names none; set reset_by_duration")
		}
		policy.Kind, policy.Back = group.StartDuration, back
	case coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_TIMESTAMP:
		policy.Kind, policy.TimestampMs = group.StartTimestamp, o.GetResetTimestampMs()
	default:
		return policy, invalid("the reset policy %d is unknown to this coordinator; choose another", o.GetResetPolicy())
	}
	if o.GetLeaveStarts() {
		return group.StartPolicy{}, nil
	}
	return policy, nil
}

// duration reads an optional duration; absent is 0, the default.
func duration(what string, d *durationpb.Duration) (time.Duration, *rpc.Error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 {
		return 0, invalid("the %s %v is not above 0; leave it out for the default", what, d.AsDuration())
	}
	return d.AsDuration(), nil
}

// checkOpen bounds what a member brings: it is kept in one record.
func checkOpen(e group.Open) *rpc.Error {
	if e.Attach < 0 {
		return invalid("the attach number %d is negative", e.Attach)
	}
	if e.Instance != "" {
		if err := checkName(invalidReason, "instance id", e.Instance); err != nil {
			return err
		}
	}
	if len(e.ClientID) > maxName || len(e.ClientHost) > maxName {
		return invalid("the client id and host may have %d bytes each, they have %d and %d", maxName, len(e.ClientID), len(e.ClientHost))
	}
	if len(e.Pattern) > maxPattern {
		return limit("topic_pattern", "the topic pattern has %d bytes, at most %d are allowed", len(e.Pattern), maxPattern)
	}
	if len(e.Topics) == 0 && e.Pattern == "" {
		return invalid("member %q subscribes to nothing; name topics or a pattern", e.Member)
	}
	if len(e.Topics) > maxTopics {
		return limit("topics", "%d topics are subscribed to by name, at most %d may be", len(e.Topics), maxTopics)
	}
	size := 0
	for _, t := range e.Topics {
		if t == "" || len(t) > maxTopicName {
			return invalid("%q is no topic name", t)
		}
		size += len(t)
	}
	if size > maxSubscription {
		return limit("topics", "the names of the topics subscribed to have %d bytes together, at most %d are kept; use a pattern", size, maxSubscription)
	}
	return nil
}

func opened(o group.Opened) *coordinatorv1.MemberOpened {
	return &coordinatorv1.MemberOpened{
		Attach: o.Attach, MemberEpoch: o.MemberEpoch,
		PingInterval: durationpb.New(o.PingInterval), SessionTimeout: durationpb.New(o.SessionTimeout),
	}
}

func assignment(a group.Assignment) *coordinatorv1.Assignment {
	out := &coordinatorv1.Assignment{MemberEpoch: a.Epoch, GroupEpoch: a.Epoch, Cause: a.Cause}
	if a.RevocationTimeout > 0 {
		out.RevocationTimeout = durationpb.New(a.RevocationTimeout)
	}
	for _, p := range a.Partitions {
		out.Partitions = append(out.Partitions, &coordinatorv1.AssignedPartition{
			TopicId: p.Part.Topic[:], Topic: p.Topic, Partition: p.Partition, AssignmentEpoch: p.Epoch,
			StartOffset: p.Start, StartLeaderEpoch: p.StartLeaderEpoch,
		})
	}
	return out
}

func (h *Handler) partErrors(groupName string, refused []group.PartError) []*coordinatorv1.PartitionCommitError {
	var out []*coordinatorv1.PartitionCommitError
	for _, r := range refused {
		out = append(out, &coordinatorv1.PartitionCommitError{
			TopicId: r.Topic[:], Partition: r.Partition, Error: rpc.ToProto(h.fromCore(groupName, r.Err)),
		})
	}
	return out
}

func committed(offsets []group.OffsetAt) []*coordinatorv1.CommittedOffset {
	out := make([]*coordinatorv1.CommittedOffset, 0, len(offsets))
	for _, o := range offsets {
		c := &coordinatorv1.CommittedOffset{
			TopicId: o.Topic[:], Partition: o.Partition, NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
		}
		if o.CommitMs > 0 {
			c.CommittedAt = timestamppb.New(time.UnixMilli(o.CommitMs))
		}
		out = append(out, c)
	}
	return out
}

func summary(s group.Summary) *coordinatorv1.GroupSummary {
	state := map[group.Status]coordinatorv1.GroupState{
		group.StatusEmpty:       coordinatorv1.GroupState_GROUP_STATE_EMPTY,
		group.StatusReconciling: coordinatorv1.GroupState_GROUP_STATE_RECONCILING,
		group.StatusStable:      coordinatorv1.GroupState_GROUP_STATE_STABLE,
		group.StatusDeleting:    coordinatorv1.GroupState_GROUP_STATE_DELETING,
	}[s.Status]
	return &coordinatorv1.GroupSummary{Group: s.Group, State: state, Members: int32(s.Members), GroupEpoch: s.Epoch}
}
