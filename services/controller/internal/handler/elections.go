package handler

import (
	"context"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

// maxPartitionsPerRequest bounds the partitions that one admin request names.
const maxPartitionsPerRequest = 100_000

// ElectLeaders elects the leaders that an operator asked for, and answers when the
// records say so.
func (s *adminServer) ElectLeaders(ctx context.Context, req *controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error) {
	kind := cluster.ElectionType(req.GetType())
	if kind != cluster.ElectPreferred && kind != cluster.ElectUnclean {
		return nil, invalid("the request does not say which leaders to elect: preferred or unclean")
	}
	if len(req.GetPartitions()) > maxPartitionsPerRequest {
		return nil, invalid("%d partitions in one request; at most %d", len(req.GetPartitions()), maxPartitionsPerRequest)
	}
	names := make([]cluster.PartitionName, 0, len(req.GetPartitions()))
	for _, p := range req.GetPartitions() {
		names = append(names, partitionName(p))
	}
	var outcomes []cluster.ElectionOutcome
	changed := map[cluster.PartitionName]bool{} // by an earlier attempt
	position, err := s.h.command(ctx, reconcile.Command{
		Name: "elect leaders", Cause: "an operator's request", Preferred: kind == cluster.ElectPreferred,
		Plan: func(state *cluster.State, _ int) (plan cluster.Plan, err error) {
			plan, outcomes, err = cluster.ElectLeaders(state, kind, names)
			for _, o := range outcomes {
				changed[o.PartitionName] = changed[o.PartitionName] || o.Changed
			}
			return plan, err
		},
	})
	if err != nil {
		return nil, err
	}
	resp := &controllerv1.ElectLeadersResponse{Position: position}
	for _, o := range outcomes {
		r := &controllerv1.ElectionResult{Partition: partitionNameMessage(o.PartitionName), Leader: -1, Changed: changed[o.PartitionName]}
		if !o.Leader.IsZero() {
			r.Leader = o.Leader.ID
		}
		if o.Rejection != nil {
			r.Error = rpc.ToProto(reconcile.FromRejection(o.Rejection))
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func partitionName(p *controllerv1.PartitionName) cluster.PartitionName {
	return cluster.PartitionName{Topic: p.GetTopic(), Partition: p.GetPartition()}
}

func partitionNameMessage(p cluster.PartitionName) *controllerv1.PartitionName {
	return &controllerv1.PartitionName{Topic: p.Topic, Partition: p.Partition}
}
