package cli

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// at is a time of the fake's history.
func at(seconds float64) *timestamppb.Timestamp {
	return timestamppb.New(time.UnixMilli(1_700_000_000_000 + int64(seconds*1000)))
}

func (f *fakeGateway) ListGroups(context.Context, *gatewayv1.ListGroupsRequest) (*gatewayv1.ListGroupsResponse, error) {
	return &gatewayv1.ListGroupsResponse{Groups: []*gatewayv1.GroupSummary{{Group: "g", State: "stable", Members: 1}, {Group: "goats", State: "empty"}, {Group: "x", State: "empty"}}}, nil
}

func (f *fakeGateway) ListTopics(context.Context, *gatewayv1.ListTopicsRequest) (*gatewayv1.ListTopicsResponse, error) {
	return &gatewayv1.ListTopicsResponse{Topics: []*gatewayv1.TopicSummary{{Name: "t"}, {Name: "tt"}}}, nil
}

// unknownGroup is the answer about every group but "g", "busy" and "calm".
func unknownGroup(name string) *rpc.Error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP, "there is no group %q", name)
}

// DescribeGroup knows "g", a group of an older mesh that tells the least, and "busy",
// which has everything that there is to tell.
func (f *fakeGateway) DescribeGroup(_ context.Context, q *gatewayv1.DescribeGroupRequest) (*gatewayv1.DescribeGroupResponse, error) {
	f.mu.Lock()
	f.ratesOver = append(f.ratesOver, q.GetRateOver().AsDuration())
	lacks := f.lacks
	f.mu.Unlock()
	if lacks != nil {
		return nil, lacks
	}
	switch q.GetGroup() {
	case "g":
		return &gatewayv1.DescribeGroupResponse{
			Summary: &gatewayv1.GroupSummary{Group: "g", State: "stable", Members: 1}, GroupEpoch: 3, Assignor: "uniform",
			Members: []*gatewayv1.GroupMember{{MemberId: "m1", ClientId: "c", ClientHost: "h", MemberEpoch: 3, Partitions: 1}},
			Partitions: []*gatewayv1.GroupPartition{
				{Topic: "t", Partition: 0, TopicId: []byte("0123456789abcdef"), Committed: 5, End: 7, Lag: 2, MemberId: "m1", LogStart: -1, RecordsPerSecond: -1, AppendedPerSecond: -1, Delivered: -1, Processed: -1},
				{Topic: "t", Partition: 1, TopicId: []byte("0123456789abcdef"), Committed: -1, End: -1, Lag: -1, LogStart: -1, RecordsPerSecond: -1, AppendedPerSecond: -1, Delivered: -1, Processed: -1},
			},
		}, nil
	case "busy":
		return busyGroup(), nil
	case "late":
		d := &gatewayv1.DescribeGroupResponse{
			Summary: &gatewayv1.GroupSummary{Group: "late", State: "reconciling", Members: 2},
			Members: []*gatewayv1.GroupMember{{MemberId: "m1", Partitions: 1}, {MemberId: "member-1"}},
		}
		if f.settled() {
			d.Summary.State, d.Members[1].Partitions = "stable", 1
		}
		return d, nil
	}
	return nil, unknownGroup(q.GetGroup())
}

func busyGroup() *gatewayv1.DescribeGroupResponse {
	seconds := func(s float64) *durationpb.Duration { return durationpb.New(time.Duration(s * float64(time.Second))) }
	return &gatewayv1.DescribeGroupResponse{
		Summary: &gatewayv1.GroupSummary{Group: "busy", State: "reconciling", Members: 4}, GroupEpoch: 12, Assignor: "uniform",
		LastRebalance: busyRebalances()[0],
		Members: []*gatewayv1.GroupMember{
			{MemberId: "m1", InstanceId: "worker-1", ClientId: "app", ClientHost: "10.0.0.1:99", MemberEpoch: 12, Partitions: 2, Topics: []string{"t"}, SessionTimeout: seconds(15), RebalanceTimeout: seconds(900), Attached: true, LastSign: seconds(1.2)},
			{MemberId: "m2", ClientId: "app", MemberEpoch: 11, Partitions: 1, TopicPattern: "t.*", Attached: true, LastSign: seconds(0.4), Stuck: true, MaxProcessing: seconds(3600)},
			{MemberId: "m3", ClientId: "app", MemberEpoch: 11, LastSign: seconds(8)},
			{MemberId: "m4", InstanceId: "worker-1", ReplacedBy: "m1", LastSign: seconds(9)},
		},
		Partitions: []*gatewayv1.GroupPartition{
			{Topic: "t", Partition: 0, Committed: 900, CommittedAt: at(0), LogStart: 100, End: 1900, Lag: 1000, LagAge: seconds(95), MemberId: "m1", TargetMemberId: "m1", RecordsPerSecond: 150.4, AppendedPerSecond: 50, CatchUp: seconds(10), HeldBackBy: gatewayv1.HeldBackBy_HELD_BACK_BY_NOTHING, Delivered: 950, Processed: 900},
			{Topic: "t", Partition: 1, Committed: 1900, CommittedAt: at(0), End: 1900, LagAge: seconds(0), CatchUp: seconds(0), MemberId: "m1", TargetMemberId: "m1", RecordsPerSecond: 5, AppendedPerSecond: 5, HeldBackBy: gatewayv1.HeldBackBy_HELD_BACK_BY_NOTHING, Delivered: 1900, Processed: 1900, Metadata: "x"},
			{Topic: "t", Partition: 2, Committed: 10, CommittedAt: at(0), End: 12345, Lag: 12335, LagAge: seconds(7200), LagAgeAtLeast: true, MemberId: "m2", TargetMemberId: "m3", RecordsPerSecond: 0, AppendedPerSecond: 1, HeldBackBy: gatewayv1.HeldBackBy_HELD_BACK_BY_APPLICATION, HeldBackDetail: "stuck: it has had records for 40s and finished none of them", Stuck: true, OldestUnprocessedAge: seconds(40), Revoking: true, RevokingRemaining: seconds(840), Delivered: 60, Processed: 10},
			{Topic: "t", Partition: 3, Committed: 7, End: 9, Lag: 2, TargetMemberId: "m3", Unowned: seconds(2), RecordsPerSecond: -1, AppendedPerSecond: -1, HeldBackBy: gatewayv1.HeldBackBy_HELD_BACK_BY_NO_OWNER, HeldBackDetail: "m3 has to take it in", Delivered: -1, Processed: -1},
			{Topic: "", Partition: 0, Committed: 7, LogStart: -1, End: -1, Lag: -1, RecordsPerSecond: -1, AppendedPerSecond: -1, Delivered: -1, Processed: -1},
		},
	}
}

func busyRebalances() []*gatewayv1.GroupRebalance {
	return []*gatewayv1.GroupRebalance{
		{GroupEpoch: 12, Cause: "m3 joined", StartedAt: at(60), Moved: 3, LongestUnowned: durationpb.New(2 * time.Second), TotalUnowned: durationpb.New(2 * time.Second), Moves: []*gatewayv1.GroupMove{
			{Topic: "t", Partition: 2, From: "m2", To: "m3"}, {Topic: "t", Partition: 3, To: "m3"},
		}},
		{GroupEpoch: 11, Cause: "m9 left", StartedAt: at(30), FinishedAt: at(30.012), Moved: 1, LongestUnowned: durationpb.New(12 * time.Millisecond), TotalUnowned: durationpb.New(12 * time.Millisecond), Moves: []*gatewayv1.GroupMove{
			{Topic: "", Partition: 1, From: "m9", To: "m2"},
		}},
		{GroupEpoch: 10, Cause: "offsets were reset", StartedAt: at(1), FinishedAt: at(3)},
	}
}

// ExplainGroup knows "busy", and "calm", which nobody has joined.
func (f *fakeGateway) ExplainGroup(_ context.Context, q *gatewayv1.ExplainGroupRequest) (*gatewayv1.ExplainGroupResponse, error) {
	switch q.GetGroup() {
	case "busy":
		return &gatewayv1.ExplainGroupResponse{Summary: busyGroup().Summary, Rebalances: busyRebalances()}, nil
	case "calm":
		return &gatewayv1.ExplainGroupResponse{Summary: &gatewayv1.GroupSummary{Group: "calm", State: "empty"}}, nil
	}
	return nil, unknownGroup(q.GetGroup())
}

func (f *fakeGateway) SimulateGroup(_ context.Context, q *gatewayv1.SimulateGroupRequest) (*gatewayv1.SimulateGroupResponse, error) {
	if q.GetGroup() != "busy" {
		return nil, unknownGroup(q.GetGroup())
	}
	f.mu.Lock()
	f.simulated = q
	f.mu.Unlock()
	return &gatewayv1.SimulateGroupResponse{
		Assignor: "uniform",
		Members:  []*gatewayv1.SimulatedMember{{MemberId: "+1", After: 1}, {MemberId: "m1", InstanceId: "worker-1", Before: 2, After: 2}, {MemberId: "m2", Before: 1}},
		Moves:    []*gatewayv1.GroupMove{{Topic: "t", Partition: 2, From: "m2", To: "+1"}},
	}, nil
}

// ResetGroupOffsets plans two partitions of "busy", to 0 and the end, clamping the
// second; partition 1 is refused when it is done, and, of topic "away", planned not
// even.
func (f *fakeGateway) ResetGroupOffsets(_ context.Context, q *gatewayv1.ResetGroupOffsetsRequest) (*gatewayv1.ResetGroupOffsetsResponse, error) {
	if q.GetGroup() != "busy" {
		return nil, unknownGroup(q.GetGroup())
	}
	f.mu.Lock()
	f.resets = append(f.resets, q)
	f.mu.Unlock()
	resp := &gatewayv1.ResetGroupOffsetsResponse{Online: true, Rows: []*gatewayv1.GroupOffsetReset{
		{Topic: "t", Partition: 0, OldOffset: 900, NewOffset: 100, LogStart: 100, End: 1900, MemberId: "m1"},
		{Topic: "t", Partition: 1, OldOffset: -1, NewOffset: 1900, LogStart: 0, End: 1900, Clamped: q.GetDryRun()},
	}}
	switch {
	case len(q.GetTopics()) > 0 && q.GetTopics()[0].GetTopic() == "away":
		resp.Rows[1].NewOffset, resp.Rows[1].Clamped = -1, false
		resp.Rows[1].Error = rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "nobody leads it"))
	case !q.GetDryRun() && f.refuseReset:
		resp.Rows[1].NewOffset = -1
		resp.Rows[1].Error = rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_REVOCATION_TIMEOUT, "m2 has not given it up"))
	}
	return resp, nil
}

// settled reports whether the group "late" has been asked for often enough.
func (f *fakeGateway) settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ratesOver) >= f.settlesAfter
}
