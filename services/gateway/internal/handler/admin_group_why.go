package handler

import (
	"cmp"
	"context"
	"slices"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// ExplainGroup serves AdminService.ExplainGroup, from the ledger that the coordinator
// keeps.
func (a *Admin) ExplainGroup(ctx context.Context, req *gatewayv1.ExplainGroupRequest) (*gatewayv1.ExplainGroupResponse, error) {
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
	image := a.h.cfg.Images.Image()
	resp := &gatewayv1.ExplainGroupResponse{Summary: groupSummary(g.GetSummary())}
	for _, r := range g.GetRebalances() {
		resp.Rebalances = append(resp.Rebalances, rebalance(image, r))
	}
	return resp, nil
}

func rebalance(image *metadata.Image, r *coordinatorv1.Rebalance) *gatewayv1.GroupRebalance {
	return &gatewayv1.GroupRebalance{
		GroupEpoch: r.GetGroupEpoch(), Cause: r.GetCause(), StartedAt: r.GetStartedAt(), FinishedAt: r.GetFinishedAt(),
		Moved: r.GetMoved(), Moves: moves(image, r.GetMoves()), LongestUnowned: r.GetLongestUnowned(), TotalUnowned: r.GetTotalUnowned(),
	}
}

// moves names the topics of partitions that change hands, by topic and number; topics
// that are gone have no name.
func moves(image *metadata.Image, all []*coordinatorv1.PartitionMove) []*gatewayv1.GroupMove {
	out := make([]*gatewayv1.GroupMove, 0, len(all))
	for _, m := range all {
		named := &gatewayv1.GroupMove{Partition: m.GetPartition(), From: m.GetFrom(), To: m.GetTo()}
		if id, err := topicid.FromBytes(m.GetTopicId()); err == nil {
			named.Topic = topicName(image, id)
		}
		out = append(out, named)
	}
	slices.SortStableFunc(out, func(a, b *gatewayv1.GroupMove) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

// maxSimulated is how many members a simulation may add, or take out.
const maxSimulated = 2000

// SimulateGroup serves AdminService.SimulateGroup.
func (a *Admin) SimulateGroup(ctx context.Context, req *gatewayv1.SimulateGroupRequest) (*gatewayv1.SimulateGroupResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkGroup(req.GetGroup()); err != nil {
		return nil, err
	}
	switch n := len(req.GetRemoveMembers()); {
	case n == 0 && req.GetAddMembers() == 0:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "nobody leaves and nobody comes; set remove_members, add_members, or both")
	case req.GetAddMembers() < 0 || req.GetAddMembers() > maxSimulated || n > maxSimulated:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%d members come and %d leave; use 0 to %d of each", req.GetAddMembers(), n, maxSimulated)
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	r, err := a.h.cfg.Mesh.SimulateGroup(asked, &coordinatorv1.SimulateGroupRequest{
		Group: req.GetGroup(), RemoveMembers: req.GetRemoveMembers(), AddMembers: req.GetAddMembers(), LikeMember: req.GetLikeMember(),
	})
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.SimulateGroupResponse{Assignor: r.GetAssignor(), Moves: moves(a.h.cfg.Images.Image(), r.GetMoves())}
	for _, m := range r.GetMembers() {
		resp.Members = append(resp.Members, &gatewayv1.SimulatedMember{MemberId: m.GetMemberId(), InstanceId: m.GetInstanceId(), Before: m.GetBefore(), After: m.GetAfter()})
	}
	return resp, nil
}
