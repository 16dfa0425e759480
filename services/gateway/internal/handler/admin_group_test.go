package handler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

func owned(n int32) *coordinatorv1.OwnedPartition {
	return &coordinatorv1.OwnedPartition{TopicId: topicA[:], Partition: n}
}

// busyGroup has two members over topic a's three partitions: 0 is being read, 1 is
// being given up by the stuck m2, and 2 waits for that to happen. Logs are 3 to 10;
// the leader of partition 2 does not answer once told so.
func busyGroup(m *fakeMesh) {
	m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
		switch {
		case q.Spec.GetTimestamp() != nil:
			return client.OffsetResult{Offset: 5}
		case q.Spec.GetPlace() == typev1.OffsetSpec_PLACE_EARLIEST:
			return client.OffsetResult{Offset: 3}
		}
		return client.OffsetResult{Offset: 10}
	}
	m.onAge = func(r client.RecordAt) client.RecordAge {
		return client.RecordAge{RecordAt: r, Known: true, Age: time.Duration(r.Offset) * time.Second, AtLeast: r.Partition == 1}
	}
	m.group = &coordinatorv1.DescribeGroupResponse{
		Summary:  &coordinatorv1.GroupSummary{Group: "g", State: coordinatorv1.GroupState_GROUP_STATE_RECONCILING, Members: 2, GroupEpoch: 7},
		Assignor: "uniform",
		Offsets: []*coordinatorv1.CommittedOffset{
			{TopicId: topicA[:], Partition: 0, NextOffset: 10}, {TopicId: topicA[:], Partition: 1, NextOffset: 4, CommittedAt: timestamppb.New(time.Unix(5, 0))},
		},
		Members: []*coordinatorv1.GroupMember{
			{
				MemberId: "m1", Owned: []*coordinatorv1.OwnedPartition{owned(0)}, Target: []*coordinatorv1.OwnedPartition{owned(0), owned(1), owned(2)},
				Topics: []string{"a"}, SessionTimeout: durationpb.New(15 * time.Second), Attached: true, LastSign: durationpb.New(time.Second),
				Progress: []*coordinatorv1.MemberProgress{{TopicId: topicA[:], Partition: 0, DeliveredNext: 10, ProcessedNext: 10, WaitingFor: coordinatorv1.WaitingFor_WAITING_FOR_NOTHING}},
			},
			{
				MemberId: "m2", InstanceId: "i2", Owned: []*coordinatorv1.OwnedPartition{owned(1)}, TopicPattern: "a.*", MaxProcessing: durationpb.New(time.Hour),
				Progress: []*coordinatorv1.MemberProgress{
					{TopicId: topicA[:], Partition: 1, DeliveredNext: 9, ProcessedNext: 4, OldestUnprocessedAge: durationpb.New(time.Minute), WaitingFor: coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION},
					{TopicId: topicA[:], Partition: 2, DeliveredNext: 9, ProcessedNext: 9}, // told before it gave it up
				},
				Revoking: []*coordinatorv1.RevokingPartition{{TopicId: topicA[:], Partition: 1, Remaining: durationpb.New(9 * time.Minute), Heeded: true}},
				Stuck:    []*coordinatorv1.GroupPartition{{TopicId: topicA[:], Partition: 1}},
			},
		},
		Unowned: []*coordinatorv1.UnownedPartition{{TopicId: topicA[:], Partition: 2, Since: durationpb.New(3 * time.Second), MemberId: "m1", WaitingFor: "m1 has to take it in"}},
		Rebalances: []*coordinatorv1.Rebalance{
			{GroupEpoch: 7, Cause: "m1 joined", StartedAt: timestamppb.New(time.Unix(9, 0)), Moved: 2, LongestUnowned: durationpb.New(3 * time.Second), Moves: []*coordinatorv1.PartitionMove{
				{TopicId: topicA[:], Partition: 2, To: "m1"}, {TopicId: topicA[:], Partition: 1, From: "m2", To: "m1"}, {TopicId: topicB[:], From: "m2"},
			}},
			{GroupEpoch: 6, Cause: "m2 joined", FinishedAt: timestamppb.New(time.Unix(8, 0))},
		},
	}
}

// TestDescribeGroupInFull tells of each partition how far it is and what holds it
// back, and of each member how it does.
func TestDescribeGroupInFull(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { busyGroup(m) })
	g, err := r.admin.DescribeGroup(testContext(t), &gatewayv1.DescribeGroupRequest{Group: "g"})
	if err != nil || len(g.Partitions) != 3 || len(g.Members) != 2 {
		t.Fatalf("%v, %v", g, err)
	}
	var got []string
	for _, p := range g.Partitions {
		got = append(got, fmt.Sprintf("%s-%d %s->%s lag %d age %v %v by %s %q delivered %d processed %d left %v unowned %v stuck %v",
			p.Topic, p.Partition, p.MemberId, p.TargetMemberId, p.Lag, p.LagAge.AsDuration(), p.LagAgeAtLeast, strings.TrimPrefix(p.HeldBackBy.String(), "HELD_BACK_BY_"),
			p.HeldBackDetail, p.Delivered, p.Processed, p.RevokingRemaining.AsDuration(), p.Unowned.AsDuration(), p.Stuck))
	}
	want := []string{
		`a-0 m1->m1 lag 0 age 0s false by NOTHING "" delivered 10 processed 10 left 0s unowned 0s stuck false`,
		`a-1 m2->m1 lag 6 age 4s true by APPLICATION "its member has been asked to give it up, and has not yet" delivered 9 processed 4 left 9m0s unowned 0s stuck true`,
		`a-2 ->m1 lag 7 age 3s false by NO_OWNER "m1 has to take it in" delivered -1 processed -1 left 0s unowned 3s stuck false`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	m1, m2 := g.Members[0], g.Members[1]
	if !m1.Attached || m1.Stuck || m1.LastSign.AsDuration() != time.Second || m1.Topics[0] != "a" || m1.MaxProcessing != nil {
		t.Errorf("m1: %v", m1)
	}
	if m2.Attached || !m2.Stuck || m2.LastSign != nil || m2.TopicPattern != "a.*" || m2.MaxProcessing.AsDuration() != time.Hour {
		t.Errorf("m2: %v", m2)
	}
	if g.LastRebalance.GetCause() != "m1 joined" || g.LastRebalance.FinishedAt != nil {
		t.Errorf("the newest rebalance: %v", g.LastRebalance)
	}
}

// TestDescribeGroupTellsOfASilentMember: what its member told before counts no more.
func TestDescribeGroupTellsOfASilentMember(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		busyGroup(m)
		m2 := m.group.Members[1]
		m2.Revoking, m2.Stuck, m2.LastSign, m2.SessionTimeout = nil, nil, durationpb.New(9*time.Second), durationpb.New(15*time.Second)
		m2.Progress[0].WaitingFor = coordinatorv1.WaitingFor_WAITING_FOR_NOTHING
	})
	for attached, want := range map[bool]string{
		true:  "UNSPECIFIED nothing has been heard of its member for 9s; others get its partitions after 15s",
		false: "NETWORK its member is not connected; others get its partitions 15s after its last sign",
	} {
		r.mesh.group.Members[1].Attached = attached
		g, err := r.admin.DescribeGroup(testContext(t), &gatewayv1.DescribeGroupRequest{Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		if p := g.Partitions[1]; strings.TrimPrefix(p.HeldBackBy.String(), "HELD_BACK_BY_")+" "+p.HeldBackDetail != want {
			t.Errorf("attached %v: held back by %s %q", attached, p.HeldBackBy, p.HeldBackDetail)
		}
	}
}

// TestDescribeGroupTellsRates from two looks of one call, or from what it remembers.
func TestDescribeGroupTellsRates(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { busyGroup(m) })
	looked := 0
	onOffsets := r.mesh.onOffsets
	r.mesh.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
		if q.Partition == 1 && q.Spec.GetPlace() == typev1.OffsetSpec_PLACE_LATEST {
			// The group gets on between the looks, and the log does not grow.
			r.mesh.group.Offsets[1].NextOffset = int64(6 + looked)
			r.mesh.group.Offsets[1].CommittedAt = timestamppb.New(time.Unix(int64(7+looked), 0))
			looked++
		}
		return onOffsets(q)
	}
	ctx := testContext(t)
	g, err := r.admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: "g", RateOver: durationpb.New(300 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if p := g.Partitions[1]; p.RecordsPerSecond != 1 || p.AppendedPerSecond != 0 || p.CatchUp == nil {
		t.Errorf("after two looks: %v", p)
	}
	if p := g.Partitions[0]; p.RecordsPerSecond != -1 || p.CatchUp == nil || p.CatchUp.AsDuration() != 0 {
		t.Errorf("of what has no lag: %v", p)
	}
	r.mesh.group.Members = nil
	if g, err = r.admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: "g"}); err != nil || g.Partitions[1].RecordsPerSecond != -1 || g.Partitions[1].CatchUp != nil {
		t.Errorf("once everybody has left: %v, %v", g, err)
	}
	for _, over := range []time.Duration{-1, 2 * time.Minute} {
		if _, err := r.admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: "g", RateOver: durationpb.New(over)}); reason(err) != "INVALID_REQUEST" {
			t.Errorf("%v: %v", over, err)
		}
	}
}

// TestExplainGroup names topics, sorts moves, and tells what is gone without a name.
func TestExplainGroup(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { busyGroup(m) })
	e, err := r.admin.ExplainGroup(testContext(t), &gatewayv1.ExplainGroupRequest{Group: "g"})
	if err != nil || len(e.Rebalances) != 2 || e.Summary.GetState() != "reconciling" {
		t.Fatalf("%v, %v", e, err)
	}
	newest := e.Rebalances[0]
	var got []string
	for _, m := range newest.Moves {
		got = append(got, fmt.Sprintf("%s-%d %s>%s", m.Topic, m.Partition, m.From, m.To))
	}
	if s := strings.Join(got, " "); s != "-0 m2> a-1 m2>m1 a-2 >m1" || newest.Moved != 2 || newest.LongestUnowned.AsDuration() != 3*time.Second {
		t.Errorf("%s of %v", s, newest)
	}
}

// TestSimulateGroup passes the question on, and refuses one that asks nothing.
func TestSimulateGroup(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.simulation = &coordinatorv1.SimulateGroupResponse{
			Assignor: "range", Members: []*coordinatorv1.SimulatedMember{{MemberId: "m1", Before: 2, After: 3}},
			Moves: []*coordinatorv1.PartitionMove{{TopicId: topicA[:], Partition: 1, From: "m2", To: "m1"}},
		}
	})
	ctx := testContext(t)
	s, err := r.admin.SimulateGroup(ctx, &gatewayv1.SimulateGroupRequest{Group: "g", RemoveMembers: []string{"m2"}, AddMembers: 1, LikeMember: "m1"})
	if err != nil || s.Assignor != "range" || len(s.Members) != 1 || s.Members[0].After != 3 || s.Moves[0].Topic != "a" {
		t.Errorf("%v, %v", s, err)
	}
	if q := r.mesh.simulated; q.GetRemoveMembers()[0] != "m2" || q.GetAddMembers() != 1 || q.GetLikeMember() != "m1" {
		t.Errorf("asked %v", q)
	}
	for _, bad := range []*gatewayv1.SimulateGroupRequest{{Group: "g"}, {Group: "g", AddMembers: -1}, {Group: "g", AddMembers: maxSimulated + 1}} {
		if _, err := r.admin.SimulateGroup(ctx, bad); reason(err) != "INVALID_REQUEST" {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func place(p typev1.OffsetSpec_Place) *gatewayv1.ResetGroupOffsetsRequest_Spec {
	return &gatewayv1.ResetGroupOffsetsRequest_Spec{Spec: &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: p}}}
}

// TestResetGroupOffsets: each target, dry and done, in a group with members.
func TestResetGroupOffsets(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) { busyGroup(m) })
	ctx := testContext(t)
	shift := &gatewayv1.ResetGroupOffsetsRequest_ShiftBy{ShiftBy: -5}
	of := []*gatewayv1.TopicPartitions{{Topic: "a", Partitions: []int32{1, 0}}}
	exact := &gatewayv1.ResetGroupOffsetsRequest_Offsets{Offsets: &gatewayv1.GroupOffsets{Offsets: []*gatewayv1.GroupOffset{{Topic: "a", Partition: 2, NextOffset: 6}}}}
	for _, c := range []struct {
		name string
		req  *gatewayv1.ResetGroupOffsetsRequest
		want string // rows: partition old>new of the member
		done string // offsets that the coordinator is asked to set
	}{
		{"earliest", &gatewayv1.ResetGroupOffsetsRequest{Target: place(typev1.OffsetSpec_PLACE_EARLIEST)}, "0 10>3 m1, 1 4>3 m2, 2 -1>3 ", "0@3 1@3 2@3"},
		{"latest", &gatewayv1.ResetGroupOffsetsRequest{Target: place(typev1.OffsetSpec_PLACE_LATEST), Topics: []*gatewayv1.TopicPartitions{{Topic: "a"}}}, "0 10>10 m1, 1 4>10 m2, 2 -1>10 ", "0@10 1@10 2@10"},
		{"an offset", &gatewayv1.ResetGroupOffsetsRequest{Topics: of, Target: &gatewayv1.ResetGroupOffsetsRequest_Offset{Offset: 99}}, "0 10>10 m1 clamped, 1 4>10 m2 clamped", "0@10 1@10"},
		{"by duration", &gatewayv1.ResetGroupOffsetsRequest{Topics: of, Target: &gatewayv1.ResetGroupOffsetsRequest_ByDuration{ByDuration: durationpb.New(time.Hour)}}, "0 10>5 m1, 1 4>5 m2", "0@5 1@5"},
		{"a shift", &gatewayv1.ResetGroupOffsetsRequest{Topics: of, Target: shift}, "0 10>5 m1, 1 4>3 m2 clamped", "0@5 1@3"},
		{"a shift where nothing is committed", &gatewayv1.ResetGroupOffsetsRequest{Target: shift}, "0 10>5 m1, 1 4>3 m2 clamped, 2 -1>-1  INVALID_REQUEST", ""},
		{"as planned", &gatewayv1.ResetGroupOffsetsRequest{Target: exact}, "2 -1>6 ", "2@6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.req.Group, c.req.DryRun = "g", true
			r.mesh.committed = nil
			resp, err := r.admin.ResetGroupOffsets(ctx, c.req)
			if err != nil || showReset(resp) != c.want || !resp.Online || r.mesh.committed != nil {
				t.Errorf("planned %q, %v; set %v", showReset(resp), err, r.mesh.committed)
			}
			c.req.DryRun = false
			resp, err = r.admin.ResetGroupOffsets(ctx, c.req)
			var set []string
			for _, o := range r.mesh.committed {
				set = append(set, fmt.Sprintf("%d@%d", o.Partition, o.NextOffset))
			}
			if s := strings.Join(set, " "); s != c.done {
				t.Errorf("set %q, want %q", s, c.done)
			}
			if (err == nil) != (c.done != "") || err == nil && len(resp.Rows) != len(set) {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
}

func showReset(r *gatewayv1.ResetGroupOffsetsResponse) string {
	var rows []string
	for _, row := range r.GetRows() {
		s := fmt.Sprintf("%d %d>%d %s", row.Partition, row.OldOffset, row.NewOffset, row.MemberId)
		if row.Clamped {
			s += " clamped"
		}
		if row.Error != nil {
			s += " " + rpc.ReasonName(row.Error.Reason)
		}
		rows = append(rows, s)
	}
	return strings.Join(rows, ", ")
}

// TestResetOutcomes: what members do not give up is told by partition, with the time
// that the caller's deadline leaves them.
func TestResetOutcomes(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		busyGroup(m)
		m.onReset = func(o client.CommitOffset) client.OffsetReset {
			if o.Partition == 1 {
				return client.OffsetReset{TopicPartition: o.TopicPartition, OldOffset: 4, NewOffset: 4, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_REVOCATION_TIMEOUT, "m2 keeps it")}
			}
			return client.OffsetReset{TopicPartition: o.TopicPartition, OldOffset: 9, NewOffset: o.NextOffset}
		}
	})
	resp, err := r.admin.ResetGroupOffsets(testContext(t), &gatewayv1.ResetGroupOffsetsRequest{Group: "g", Target: place(typev1.OffsetSpec_PLACE_EARLIEST), RevocationTimeout: durationpb.New(time.Hour)})
	if got := showReset(resp); err != nil || got != "0 9>3 m1, 1 4>4 m2 REVOCATION_TIMEOUT, 2 9>3 " {
		t.Errorf("%q, %v", got, err)
	}
	if r.mesh.resetTimeout <= 0 || r.mesh.resetTimeout > patience {
		t.Errorf("members get %v, the caller waits %v", r.mesh.resetTimeout, patience)
	}
}

// TestResetRefusals say what is wrong and what to do.
func TestResetRefusals(t *testing.T) {
	earliest := place(typev1.OffsetSpec_PLACE_EARLIEST)
	for _, c := range []struct {
		name  string
		mesh  func(*fakeMesh)
		req   *gatewayv1.ResetGroupOffsetsRequest
		want  string
		words string
	}{
		{"no target", nil, &gatewayv1.ResetGroupOffsetsRequest{}, "INVALID_REQUEST", "where to"},
		{"an empty spec", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: &gatewayv1.ResetGroupOffsetsRequest_Spec{}}, "INVALID_REQUEST", "spec names no offset"},
		{"a negative offset", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: &gatewayv1.ResetGroupOffsetsRequest_Offset{Offset: -1}}, "INVALID_REQUEST", "offset is -1"},
		{"no duration", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: &gatewayv1.ResetGroupOffsetsRequest_ByDuration{}}, "INVALID_REQUEST", "above 0"},
		{"no offsets", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: &gatewayv1.ResetGroupOffsetsRequest_Offsets{}}, "INVALID_REQUEST", "0 offsets"},
		{"a timeout of nothing", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest, RevocationTimeout: durationpb.New(0)}, "INVALID_REQUEST", "revocation_timeout"},
		{"an unknown topic", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest, Topics: []*gatewayv1.TopicPartitions{{Topic: "nope"}}}, "UNKNOWN_TOPIC", "nope"},
		{"an unknown partition", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest, Topics: []*gatewayv1.TopicPartitions{{Topic: "a", Partitions: []int32{3}}}}, "UNKNOWN_PARTITION", "0 to 2"},
		{"a partition twice", nil, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest, Topics: []*gatewayv1.TopicPartitions{{Topic: "a"}, {Topic: "a", Partitions: []int32{1}}}}, "INVALID_REQUEST", "named twice"},
		{"a group that there is not", func(m *fakeMesh) { m.groupErr = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP, "none") }, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest}, "UNKNOWN_GROUP", "none"},
		{"a group being deleted", func(m *fakeMesh) { m.group.Summary.State = coordinatorv1.GroupState_GROUP_STATE_DELETING }, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest}, "UNKNOWN_GROUP", "being deleted"},
		{"a group without anything", func(m *fakeMesh) {
			m.group = &coordinatorv1.DescribeGroupResponse{Summary: &coordinatorv1.GroupSummary{Group: "g"}}
		}, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest}, "INVALID_REQUEST", "name the topics"},
		{"a leader that does not answer", func(m *fakeMesh) {
			m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
				if q.Partition == 2 {
					return client.OffsetResult{Offset: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "none leads 2")}
				}
				return client.OffsetResult{Offset: 3}
			}
		}, &gatewayv1.ResetGroupOffsetsRequest{Target: earliest}, "LEADER_NOT_AVAILABLE", "1 of 3 partitions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
				busyGroup(m)
				if c.mesh != nil {
					c.mesh(m)
				}
			})
			c.req.Group = "g"
			_, err := r.admin.ResetGroupOffsets(testContext(t), c.req)
			if reason(err) != c.want || !strings.Contains(err.Error(), c.words) || r.mesh.committed != nil {
				t.Errorf("got %v, want %s with %q; set %v", err, c.want, c.words, r.mesh.committed)
			}
		})
	}
}

// TestResetMakesAGroup that does not exist, if it is told of what.
func TestResetMakesAGroup(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		busyGroup(m)
		m.group, m.describeErr = nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP, "none")
	})
	resp, err := r.admin.ResetGroupOffsets(testContext(t), &gatewayv1.ResetGroupOffsetsRequest{
		Group: "new", Target: place(typev1.OffsetSpec_PLACE_EARLIEST), Topics: []*gatewayv1.TopicPartitions{{Topic: "a", Partitions: []int32{0}}},
	})
	if err != nil || resp.Online || showReset(resp) != "0 -1>3 " {
		t.Errorf("%v, %v", resp, err)
	}
}
