package handler

import (
	"context"
	"errors"
	"slices"
	"strings"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// ListGroups serves AdminService.ListGroups. What could not be asked is an error:
// half a list would look like a whole one.
func (a *Admin) ListGroups(ctx context.Context, req *gatewayv1.ListGroupsRequest) (*gatewayv1.ListGroupsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	size, after, err := page(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	groups, err := a.h.cfg.Mesh.ListGroups(asked)
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.ListGroupsResponse{}
	for _, g := range groups {
		if g.GetGroup() <= after && after != "" {
			continue
		}
		if len(resp.Groups) == size {
			resp.NextPageToken = pageToken(resp.Groups[size-1].GetGroup())
			break
		}
		resp.Groups = append(resp.Groups, groupSummary(g))
	}
	return resp, nil
}

func groupSummary(g *coordinatorv1.GroupSummary) *gatewayv1.GroupSummary {
	return &gatewayv1.GroupSummary{Group: g.GetGroup(), State: groupState(g.GetState()), Members: g.GetMembers()}
}

// groupState is "empty", "reconciling", "stable" or "deleting".
func groupState(s coordinatorv1.GroupState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "GROUP_STATE_"))
}

func checkGroup(group string) error {
	if group == "" || len(group) > 255 {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_GROUP, "the group name has %d bytes; use 1 to 255", len(group))
	}
	return nil
}

// DescribeGroup serves AdminService.DescribeGroup: members and offsets from the
// coordinator, ends from the brokers that lead.
func (a *Admin) DescribeGroup(ctx context.Context, req *gatewayv1.DescribeGroupRequest) (*gatewayv1.DescribeGroupResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	g, err := a.h.cfg.Mesh.DescribeGroup(asked, req.GetGroup())
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.DescribeGroupResponse{
		Summary: groupSummary(g.GetSummary()), GroupEpoch: g.GetSummary().GetGroupEpoch(), Assignor: g.GetAssignor(),
	}
	partitions := groupPartitions(a.h.cfg.Images.Image(), g)
	for _, m := range g.GetMembers() {
		resp.Members = append(resp.Members, &gatewayv1.GroupMember{
			MemberId: m.GetMemberId(), InstanceId: m.GetInstanceId(), ClientId: m.GetClientId(), ClientHost: m.GetClientHost(),
			MemberEpoch: m.GetMemberEpoch(), Partitions: int32(len(m.GetOwned())),
		})
	}
	resp.Partitions = a.withLag(ctx, partitions)
	return resp, nil
}

// groupPartition is a partition of a group, by id.
type groupPartition struct {
	id client.TopicPartition
	*gatewayv1.GroupPartition
}

// groupPartitions lists every partition that is assigned or has an offset, by topic
// and number.
func groupPartitions(image *metadata.Image, g *coordinatorv1.DescribeGroupResponse) []groupPartition {
	byID := map[client.TopicPartition]*gatewayv1.GroupPartition{}
	entry := func(topic []byte, n int32) *gatewayv1.GroupPartition {
		id, err := topicid.FromBytes(topic)
		if err != nil {
			return &gatewayv1.GroupPartition{} // not ours to judge; it is left out
		}
		key := client.TopicPartition{TopicID: id, Partition: n}
		p := byID[key]
		if p == nil {
			p = &gatewayv1.GroupPartition{Partition: n, Committed: -1, End: -1, Lag: -1}
			if t := image.TopicByID(id); t != nil && !t.Deleting {
				p.Topic = t.Name
			}
			byID[key] = p
		}
		return p
	}
	for _, o := range g.GetOffsets() {
		p := entry(o.GetTopicId(), o.GetPartition())
		p.Committed, p.Metadata = o.GetNextOffset(), o.GetMetadata()
	}
	for _, m := range g.GetMembers() {
		for _, o := range m.GetOwned() {
			entry(o.GetTopicId(), o.GetPartition()).MemberId = m.GetMemberId()
		}
	}
	out := make([]groupPartition, 0, len(byID))
	for id, p := range byID {
		out = append(out, groupPartition{id, p})
	}
	slices.SortFunc(out, func(a, b groupPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		if c := strings.Compare(a.id.TopicID.Hex(), b.id.TopicID.Hex()); c != 0 {
			return c
		}
		return int(a.id.Partition) - int(b.id.Partition)
	})
	return out
}

// withLag asks for the visible ends, for a short time, and counts what is unread:
// from the committed offset, or from the log's start where that is later or nothing
// is committed.
func (a *Admin) withLag(ctx context.Context, partitions []groupPartition) []*gatewayv1.GroupPartition {
	var queries []client.OffsetQuery
	var asked []*gatewayv1.GroupPartition
	out := make([]*gatewayv1.GroupPartition, 0, len(partitions))
	for _, p := range partitions {
		out = append(out, p.GroupPartition)
		if p.Topic == "" {
			continue
		}
		asked = append(asked, p.GroupPartition)
		queries = append(queries,
			client.OffsetQuery{TopicPartition: p.id, Spec: client.Latest()},
			client.OffsetQuery{TopicPartition: p.id, Spec: client.Earliest()})
	}
	if len(queries) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, a.h.cfg.Limits.MarksTimeout)
	defer cancel()
	results := a.h.cfg.Mesh.ListOffsets(ctx, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED)
	for i, p := range asked {
		if 2*i+1 >= len(results) || results[2*i].Err != nil || results[2*i+1].Err != nil {
			continue
		}
		p.End = results[2*i].Offset
		p.Lag = max(p.End-max(p.Committed, results[2*i+1].Offset), 0)
	}
	return out
}

// CommitGroupOffsets serves AdminService.CommitGroupOffsets.
func (a *Admin) CommitGroupOffsets(ctx context.Context, req *gatewayv1.CommitGroupOffsetsRequest) (*gatewayv1.CommitGroupOffsetsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	if len(req.GetOffsets()) == 0 {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the request holds no offsets; put in at least one")
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	offsets, err := a.commitOffsets(ctx, req.GetOffsets())
	if err != nil {
		return nil, err
	}
	asked, done := forController(ctx)
	defer done()
	r, err := a.h.cfg.Mesh.CommitOffsets(asked, req.GetGroup(), offsets)
	if err != nil {
		return nil, err
	}
	var errs []error
	var first error
	for i, o := range offsets {
		if refused := r.Refused[o.TopicPartition]; refused != nil {
			errs = append(errs, rpc.Errorf(rpc.ReasonOf(refused), "partition %d of topic %q: %w", o.Partition, req.GetOffsets()[i].GetTopic(), refused))
			if first == nil {
				first = refused
			}
		}
	}
	if first == nil {
		return &gatewayv1.CommitGroupOffsetsResponse{}, nil
	}
	return nil, rpc.Errorf(rpc.ReasonOf(first), "%d of %d offsets of group %q were refused, the others are committed: %w",
		len(errs), len(offsets), req.GetGroup(), errors.Join(errs...))
}

// commitOffsets checks the offsets and finds their topics' ids.
func (a *Admin) commitOffsets(ctx context.Context, offsets []*gatewayv1.GroupOffset) ([]client.CommitOffset, error) {
	out := make([]client.CommitOffset, 0, len(offsets))
	for _, o := range offsets {
		t, err := a.topic(ctx, o.GetTopic())
		switch {
		case err != nil:
			return nil, err
		case o.GetPartition() < 0 || o.GetPartition() >= t.NumPartitions():
			return nil, unknownPartition(t.Name, o.GetPartition(), t.NumPartitions())
		case o.GetNextOffset() < 0:
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE,
				"offset %d for partition %d of topic %q is negative; use 0 or more", o.GetNextOffset(), o.GetPartition(), t.Name).WithAction(typev1.Action_ACTION_FIX)
		case len(o.GetMetadata()) > 4<<10:
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_METADATA_TOO_LARGE,
				"the metadata for partition %d of topic %q has %d bytes; keep it within 4096", o.GetPartition(), t.Name, len(o.GetMetadata()))
		}
		out = append(out, client.CommitOffset{
			TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: o.GetPartition()},
			NextOffset:     o.GetNextOffset(), LeaderEpoch: -1, Metadata: o.GetMetadata(),
		})
	}
	return out, nil
}

// DeleteGroup serves AdminService.DeleteGroup.
func (a *Admin) DeleteGroup(ctx context.Context, req *gatewayv1.DeleteGroupRequest) (*gatewayv1.DeleteGroupResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	if err := a.h.cfg.Mesh.DeleteGroup(asked, req.GetGroup()); err != nil {
		return nil, err
	}
	return &gatewayv1.DeleteGroupResponse{}, nil
}
