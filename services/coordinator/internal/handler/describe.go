package handler

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
)

func described(d group.Description) *coordinatorv1.DescribeGroupResponse {
	out := &coordinatorv1.DescribeGroupResponse{Summary: summary(d.Summary), Assignor: d.Assignor, Offsets: committed(d.Offsets)}
	for _, m := range d.Members {
		out.Members = append(out.Members, describedMember(m))
	}
	for _, v := range slices.Backward(d.Ledger) {
		out.Rebalances = append(out.Rebalances, rebalance(v))
	}
	for _, u := range d.Unowned {
		out.Unowned = append(out.Unowned, &coordinatorv1.UnownedPartition{
			TopicId: u.Topic[:], Partition: u.Partition, Since: durationpb.New(u.For), MemberId: u.Member, WaitingFor: u.Why,
		})
	}
	return out
}

func describedMember(m group.MemberDescription) *coordinatorv1.GroupMember {
	out := &coordinatorv1.GroupMember{
		MemberId: m.ID, InstanceId: m.InstanceID, ClientId: m.ClientID, ClientHost: m.ClientHost, MemberEpoch: m.Epoch,
		Owned: ownedOut(m.Owned), Target: ownedOut(m.Target), Topics: m.Topics, TopicPattern: m.Pattern,
		SessionTimeout: durationpb.New(m.SessionTimeout), RebalanceTimeout: durationpb.New(m.RebalanceTimeout),
		Attached: m.Attached, LastSign: durationpb.New(m.LastSign), ReplacedBy: m.ReplacedBy, Attach: m.Attach,
	}
	if m.MaxProcessing > 0 {
		out.MaxProcessing = durationpb.New(m.MaxProcessing)
	}
	for _, p := range m.Progress {
		out.Progress = append(out.Progress, progressOut(p))
	}
	for _, r := range m.Revoking {
		out.Revoking = append(out.Revoking, &coordinatorv1.RevokingPartition{
			TopicId: r.Topic[:], Partition: r.Partition, Remaining: durationpb.New(r.Remaining), Heeded: r.Heeded,
		})
	}
	for _, p := range m.Stuck {
		out.Stuck = append(out.Stuck, &coordinatorv1.GroupPartition{TopicId: p.Topic[:], Partition: p.Partition})
	}
	return out
}

func rebalance(v group.LedgerValue) *coordinatorv1.Rebalance {
	out := &coordinatorv1.Rebalance{
		GroupEpoch: v.Epoch, Cause: v.Cause, StartedAt: timestamppb.New(time.UnixMilli(v.TimeMs)), Moved: v.Moved, Moves: movesOut(v.Moves),
		LongestUnowned: durationpb.New(time.Duration(v.LongestMs) * time.Millisecond),
		TotalUnowned:   durationpb.New(time.Duration(v.TotalMs) * time.Millisecond),
	}
	if v.FinishedMs > 0 {
		out.FinishedAt = timestamppb.New(time.UnixMilli(v.FinishedMs))
	}
	return out
}

func movesOut(moves []group.Move) []*coordinatorv1.PartitionMove {
	var out []*coordinatorv1.PartitionMove
	for _, m := range moves {
		out = append(out, &coordinatorv1.PartitionMove{TopicId: m.Topic[:], Partition: m.Partition, From: m.From, To: m.To})
	}
	return out
}

func ownedOut(in []group.Owned) []*coordinatorv1.OwnedPartition {
	out := make([]*coordinatorv1.OwnedPartition, 0, len(in))
	for _, o := range in {
		out = append(out, &coordinatorv1.OwnedPartition{TopicId: o.Topic[:], Partition: o.Partition, AssignmentEpoch: o.Epoch})
	}
	return out
}

// waiting pairs what a partition waits for on the wire with the core's.
var waiting = [...]coordinatorv1.WaitingFor{
	group.WaitingUnknown:     coordinatorv1.WaitingFor_WAITING_FOR_UNSPECIFIED,
	group.WaitingNothing:     coordinatorv1.WaitingFor_WAITING_FOR_NOTHING,
	group.WaitingBroker:      coordinatorv1.WaitingFor_WAITING_FOR_BROKER,
	group.WaitingNetwork:     coordinatorv1.WaitingFor_WAITING_FOR_NETWORK,
	group.WaitingCredit:      coordinatorv1.WaitingFor_WAITING_FOR_CREDIT,
	group.WaitingApplication: coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION,
}

func progressOut(p group.Progress) *coordinatorv1.MemberProgress {
	out := &coordinatorv1.MemberProgress{
		TopicId: p.Topic[:], Partition: p.Partition, DeliveredNext: p.Delivered, ProcessedNext: p.Processed,
		WaitingFor: waiting[p.Waiting], Detail: p.Detail,
	}
	if p.OldestAge > 0 {
		out.OldestUnprocessedAge = durationpb.New(p.OldestAge)
	}
	return out
}

// progress reads what a member tells of itself. What a newer client waits for and this
// release does not know is unknown; text that is too long is left out.
func progress(in []*coordinatorv1.MemberProgress) ([]group.Progress, *rpc.Error) {
	if len(in) > maxPartitions {
		return nil, limit("partitions", "progress of %d partitions is told, at most %d may be", len(in), maxPartitions)
	}
	out := make([]group.Progress, 0, len(in))
	for _, m := range in {
		p, err := part(m.GetTopicId(), m.GetPartition())
		if err != nil {
			return nil, err
		}
		told := group.Progress{
			Part: p, Delivered: max(-1, m.GetDeliveredNext()), Processed: max(-1, m.GetProcessedNext()),
			OldestAge: max(0, m.GetOldestUnprocessedAge().AsDuration()),
		}
		for i, w := range waiting {
			if w == m.GetWaitingFor() {
				told.Waiting = group.Waiting(i)
			}
		}
		if len(m.GetDetail()) <= maxName {
			told.Detail = m.GetDetail()
		}
		out = append(out, told)
	}
	return out, nil
}
