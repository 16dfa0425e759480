package handler

import (
	"fmt"
	"slices"
	"testing"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/coordinator/internal/shard"
)

// commitTo commits an offset for a group without members, once its shard serves.
func (m *mesh) commitTo(group string, partition int32, next int64) error {
	for {
		r, err := m.client.CommitOffsets(m.ctx(), &coordinatorv1.CommitOffsetsRequest{Group: group, Offsets: []*coordinatorv1.OffsetCommit{
			{TopicId: topicA.ID[:], Partition: partition, NextOffset: next, LeaderEpoch: -1, Metadata: "by hand"},
		}})
		if rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING) {
			continue
		}
		for _, p := range r.GetPartitionErrors() {
			return rpc.FromProto(p.GetError())
		}
		return err
	}
}

func TestGroupWithoutMembers(t *testing.T) {
	m := newMesh(t, nil)
	if err := m.commitTo("g", 1, 12); err != nil {
		t.Fatal(err)
	}
	r, err := m.client.FetchOffsets(m.ctx(), &coordinatorv1.FetchOffsetsRequest{Group: "g", Partitions: []*coordinatorv1.GroupPartition{
		{TopicId: topicA.ID[:], Partition: 0}, {TopicId: topicA.ID[:], Partition: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	none, one := r.GetOffsets()[0], r.GetOffsets()[1]
	if none.GetNextOffset() != -1 || one.GetNextOffset() != 12 || one.GetMetadata() != "by hand" || one.GetCommittedAt() == nil {
		t.Fatalf("the offsets are %v", r)
	}
	wantReason(t, m.commitTo("g", 9, 1), typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION)
	wantReason(t, m.commitTo("g", 0, -5), invalidReason)
	member := m.stream().member("m1").join().holding(4)
	wantReason(t, m.commitTo("g", 1, 13), typev1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY)
	d, err := m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	who := d.GetMembers()[0]
	if d.GetAssignor() != "uniform" || who.GetMemberId() != "m1" || who.GetClientId() != "c" || who.GetClientHost() != "h" ||
		len(who.GetOwned()) != 4 || len(who.GetTarget()) != 4 || len(d.GetOffsets()) != 4 || d.GetOffsets()[1].GetNextOffset() != 12 {
		t.Fatalf("described as %v", d)
	}
	remove := func() error {
		_, err := m.client.DeleteGroup(m.ctx(), &coordinatorv1.DeleteGroupRequest{Group: "g"})
		return err
	}
	wantReason(t, remove(), typev1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY)
	member.frame(&coordinatorv1.JoinRequest{Message: &coordinatorv1.JoinRequest_Leave{Leave: &coordinatorv1.MemberLeave{Attach: member.attach}}})
	if r := member.next(); r.GetLeft() == nil {
		t.Fatalf("the leave was answered %v", r)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	wantReason(t, remove(), typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP)
	_, err = m.client.DescribeGroup(m.ctx(), &coordinatorv1.DescribeGroupRequest{Group: "g"})
	wantReason(t, err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP)
}

func TestCommitWaitsForATopicToAppear(t *testing.T) {
	m := newMesh(t, nil)
	if err := m.commitTo("g", 0, 1); err != nil {
		t.Fatal(err)
	}
	grown := topicA
	grown.Partitions = 9
	done := make(chan error, 1)
	go func() { done <- m.commitTo("g", 8, 5) }()
	m.view.show(pictureOf(me(1), grown))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := m.committedOffsets(); got[8] != 5 {
		t.Fatalf("the offsets are %v", got)
	}
}

func TestListGroupsInPages(t *testing.T) {
	m := newMesh(t, nil)
	for i := range 10 {
		if err := m.commitTo(fmt.Sprintf("g%d", i), 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	req := &coordinatorv1.ListGroupsRequest{PageSize: 4}
	pages := 0
	for {
		r, err := m.client.ListGroups(m.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if got := r.GetShards().GetPartitions(); !slices.Equal(got, []int32{0, 1, 2}) {
			t.Fatalf("the page names the shards %v", got)
		}
		for _, g := range r.GetGroups() {
			names = append(names, g.GetGroup())
			if g.GetState() != coordinatorv1.GroupState_GROUP_STATE_EMPTY {
				t.Fatalf("listed %v", g)
			}
		}
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if pages != 3 || len(names) != 10 || names[0] != "g0" || names[9] != "g9" {
		t.Fatalf("%d pages list %v", pages, names)
	}
	_, err := m.client.ListGroups(m.ctx(), &coordinatorv1.ListGroupsRequest{PageToken: "!"})
	wantReason(t, err, invalidReason)
	_, err = m.client.ListGroups(m.ctx(), &coordinatorv1.ListGroupsRequest{PageSize: -1})
	wantReason(t, err, invalidReason)
}

func TestBadNames(t *testing.T) {
	m := newMesh(t, nil)
	for _, name := range []string{"", string(make([]byte, 256)), "a\nb"} {
		_, err := m.client.FetchOffsets(m.ctx(), &coordinatorv1.FetchOffsetsRequest{Group: name})
		wantReason(t, err, typev1.ErrorReason_ERROR_REASON_INVALID_GROUP)
	}
	_, err := m.client.FetchOffsets(m.ctx(), &coordinatorv1.FetchOffsetsRequest{Group: "g", Partitions: []*coordinatorv1.GroupPartition{{TopicId: []byte{1}}}})
	wantReason(t, err, invalidReason)
}

func TestWithoutTheInternalTopic(t *testing.T) {
	m := newMesh(t, nil)
	m.view.show(&shard.Picture{Topics: pictureOf(me(1)).Topics})
	eventually(t, "the topic to be missed", func() bool {
		_, err := m.client.FetchOffsets(m.ctx(), &coordinatorv1.FetchOffsetsRequest{Group: "g"})
		return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_COORDINATOR_NOT_AVAILABLE)
	})
}
