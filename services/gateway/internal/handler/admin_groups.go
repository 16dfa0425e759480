package handler

import (
	"context"
	"errors"
	"strings"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
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
