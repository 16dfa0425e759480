package handler

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/group"
)

// reset resets partitions of topic a to one offset, in the background.
func (m *mesh) reset(wait time.Duration, next int64, parts ...int32) <-chan *coordinatorv1.ResetOffsetsResponse {
	req := &coordinatorv1.ResetOffsetsRequest{Group: "g"}
	if wait > 0 {
		req.RevocationTimeout = durationpb.New(wait)
	}
	for _, p := range parts {
		req.Offsets = append(req.Offsets, &coordinatorv1.OffsetCommit{TopicId: topicA.ID[:], Partition: p, NextOffset: next, LeaderEpoch: -1})
	}
	done := make(chan *coordinatorv1.ResetOffsetsResponse, 1)
	ctx := m.ctx()
	go func() {
		r, err := m.client.ResetOffsets(ctx, req)
		if err != nil {
			m.t.Error(err)
		}
		done <- r
	}()
	return done
}

func starts(m *member) map[int32]int64 {
	all := make(map[int32]int64)
	for _, p := range m.held {
		all[p.GetPartition()] = p.GetStartOffset()
	}
	return all
}

func TestResetOffsetsOnline(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	if s := starts(one); s[0] != m.starts.Last || s[3] != m.starts.Last {
		t.Fatalf("the member starts at %v, want the ends", s)
	}
	done := m.reset(0, 7, 1, 2, 9)
	one.holding(2).holding(4)
	rows := (<-done).GetOffsets()
	if len(rows) != 3 || rows[0].GetError() != nil || rows[0].GetOldNextOffset() != m.starts.Last || rows[0].GetNewNextOffset() != 7 {
		t.Fatalf("answered %v", rows)
	}
	if r := rows[2].GetError().GetReason(); r != typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION {
		t.Fatalf("answered %v for a partition that does not exist", rows[2])
	}
	if s := starts(one); s[0] != m.starts.Last || s[1] != 7 || s[2] != 7 {
		t.Fatalf("the member starts at %v", s)
	}
	if got := m.committedOffsets(); got[1] != 7 || got[2] != 7 || got[3] != m.starts.Last {
		t.Fatalf("committed %v", got)
	}
}

func TestResetOffsetsThatAMemberDoesNotHeed(t *testing.T) {
	m := newMesh(t, nil)
	one := m.stream().member("m1").join().holding(4)
	done := m.reset(30*time.Millisecond, 7, 1)
	if a := one.recv().GetAssignment(); len(a.GetPartitions()) != 3 || a.GetRevocationTimeout() == nil {
		t.Fatalf("got %v, want one partition revoked", a)
	}
	rows := (<-done).GetOffsets()
	if r := rows[0].GetError().GetReason(); r != typev1.ErrorReason_ERROR_REASON_REVOCATION_TIMEOUT || rows[0].GetNewNextOffset() != m.starts.Last {
		t.Fatalf("answered %v", rows)
	}
	if a := one.recv().GetAssignment(); len(a.GetPartitions()) != 4 {
		t.Fatalf("got %v, want the partition back", a)
	}
	_, err := m.client.ResetOffsets(m.ctx(), &coordinatorv1.ResetOffsetsRequest{Group: "g", RevocationTimeout: durationpb.New(2 * time.Hour)})
	wantReason(t, err, invalidReason)
}

func TestResetOffsetsWithoutMembers(t *testing.T) {
	m := newMesh(t, nil)
	for {
		// The shard may still be loading.
		r, err := m.client.ResetOffsets(m.ctx(), &coordinatorv1.ResetOffsetsRequest{Group: "g", Offsets: []*coordinatorv1.OffsetCommit{
			{TopicId: topicA.ID[:], Partition: 2, NextOffset: 5, LeaderEpoch: -1},
		}})
		if err != nil {
			wantReason(t, err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING)
			continue
		}
		if row := r.GetOffsets()[0]; row.GetError() != nil || row.GetOldNextOffset() != -1 || row.GetNewNextOffset() != 5 {
			t.Fatalf("answered %v", r)
		}
		return
	}
}

func TestSimulateGroup(t *testing.T) {
	m := newMesh(t, nil)
	m.stream().member("m1").join().holding(4)
	r, err := m.client.SimulateGroup(m.ctx(), &coordinatorv1.SimulateGroupRequest{Group: "g", AddMembers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetMembers()) != 2 || r.GetMembers()[0].GetBefore() != 4 || r.GetMembers()[1].GetAfter() != 2 || len(r.GetMembers()[1].GetPartitions()) != 2 ||
		len(r.GetMoves()) != 2 || r.GetMoves()[0].GetFrom() != "m1" || r.GetMoves()[0].GetTo() != "+1" || r.GetAssignor() != group.AssignorUniform {
		t.Fatalf("answered %v", r)
	}
	_, err = m.client.SimulateGroup(m.ctx(), &coordinatorv1.SimulateGroupRequest{Group: "g", AddMembers: maxSimulated + 1})
	wantReason(t, err, typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED)
	_, err = m.client.SimulateGroup(m.ctx(), &coordinatorv1.SimulateGroupRequest{Group: "g", RemoveMembers: []string{"m9"}})
	wantReason(t, err, invalidReason)
}

// A description tells what a member says of itself, what it has been asked to give up,
// and what happened.
func TestDescribeGroupInFull(t *testing.T) {
	m := newMesh(t, nil)
	s := m.stream()
	one := s.member("m1").join().holding(4)
	one.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Ping{Ping: &coordinatorv1.MemberPing{
		PingId: 3, Attach: one.attach, MemberEpoch: one.epoch, Progress: []*coordinatorv1.MemberProgress{{
			TopicId: topicA.ID[:], Partition: 1, DeliveredNext: 9, ProcessedNext: 8, OldestUnprocessedAge: durationpb.New(time.Minute),
			WaitingFor: coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION, Detail: "handler",
		}},
	}}})
	if pong := one.next().GetPong(); pong.GetPingId() != 3 {
		t.Fatalf("answered %v", pong)
	}
	other := m.stream().member("m2").join()
	a := one.recv().GetAssignment()
	revoked := map[int32]bool{0: true, 1: true, 2: true, 3: true}
	for _, p := range a.GetPartitions() {
		delete(revoked, p.GetPartition())
	}
	var parts []*coordinatorv1.OwnedPartition
	for _, p := range one.held {
		if revoked[p.GetPartition()] {
			parts = append(parts, &coordinatorv1.OwnedPartition{TopicId: p.GetTopicId(), Partition: p.GetPartition(), AssignmentEpoch: p.GetAssignmentEpoch()})
		}
	}
	one.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Revoking{Revoking: &coordinatorv1.MemberRevoking{Attach: one.attach, Partitions: parts}}})
	var d *coordinatorv1.DescribeGroupResponse
	eventually(t, "the revocation to be heeded", func() bool {
		var err error
		if d, err = m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"}); err != nil {
			t.Fatal(err)
		}
		r := d.GetMembers()[0].GetRevoking()
		return len(r) == 2 && r[0].GetHeeded() && r[1].GetHeeded() && r[0].GetRemaining().AsDuration() > 0
	})
	who := d.GetMembers()[0]
	if p := who.GetProgress(); len(p) != 1 || p[0].GetDeliveredNext() != 9 || p[0].GetProcessedNext() != 8 || p[0].GetDetail() != "handler" ||
		p[0].GetWaitingFor() != coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION || p[0].GetOldestUnprocessedAge().AsDuration() < time.Minute {
		t.Fatalf("its progress is %v", p)
	}
	if !who.GetAttached() || who.GetTopics()[0] != "a" || who.GetSessionTimeout().AsDuration() != 15*time.Second || who.GetMaxProcessing() != nil {
		t.Fatalf("described as %v", who)
	}
	if r := d.GetRebalances(); len(r) != 2 || r[0].GetCause() != `member "m2" joined` || r[0].GetMoved() != 2 || r[0].GetMoves()[0].GetTo() != "m2" ||
		r[0].GetFinishedAt() != nil || r[1].GetFinishedAt() == nil {
		t.Fatalf("the rebalances are %v", r)
	}
	one.take(a)
	other.holding(2)
}

func TestUnownedPartitionsSayWhy(t *testing.T) {
	m := newMesh(t, nil)
	m.starts.Fail("no leader")
	one := m.stream().member("m1").join()
	one.holding(0)
	eventually(t, "the reason", func() bool {
		d, err := m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		u := d.GetUnowned()
		return len(u) == 4 && u[0].GetMemberId() == "m1" && u[0].GetWaitingFor() == "where it starts could not be found: no leader"
	})
	m.starts.Fail("")
	one.holding(4)
}

func TestStartPolicies(t *testing.T) {
	hour := durationpb.New(time.Hour)
	for name, c := range map[string]struct {
		open *coordinatorv1.MemberOpen
		want group.StartPolicy
		bad  bool
	}{
		"not stated":          {&coordinatorv1.MemberOpen{}, group.StartPolicy{Kind: group.StartLatest}, false},
		"latest":              {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST}, group.StartPolicy{Kind: group.StartLatest}, false},
		"earliest":            {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST}, group.StartPolicy{Kind: group.StartEarliest}, false},
		"none":                {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE}, group.StartPolicy{}, false},
		"left":                {&coordinatorv1.MemberOpen{LeaveStarts: true}, group.StartPolicy{}, false},
		"duration":            {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION, ResetByDuration: hour}, group.StartPolicy{Kind: group.StartDuration, Back: time.Hour}, false},
		"no duration":         {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION}, group.StartPolicy{}, true},
		"timestamp":           {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_TIMESTAMP, ResetTimestampMs: 5}, group.StartPolicy{Kind: group.StartTimestamp, TimestampMs: 5}, false},
		"of a later release":  {&coordinatorv1.MemberOpen{ResetPolicy: 99}, group.StartPolicy{}, true},
		"a negative duration": {&coordinatorv1.MemberOpen{ResetPolicy: coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION, ResetByDuration: durationpb.New(-1)}, group.StartPolicy{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := startPolicy(c.open)
			if (err != nil) != c.bad || !c.bad && got != c.want {
				t.Fatalf("read as %+v (%v), want %+v", got, err, c.want)
			}
		})
	}
}
