package handler

import (
	"context"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

// PlanReassignment says what a reassignment would move.
func (s *adminServer) PlanReassignment(ctx context.Context, req *controllerv1.PlanReassignmentRequest) (*controllerv1.PlanReassignmentResponse, error) {
	if n := len(req.GetAssignments()) + len(req.GetTopics()); n > maxPartitionsPerRequest {
		return nil, invalid("%d partitions and topics in one request; at most %d", n, maxPartitionsPerRequest)
	}
	r := cluster.ReassignmentRequest{
		DrainBrokers: req.GetDrainBrokers(), Balance: req.GetBalance(),
		ReplicationFactor: req.GetReplicationFactor(), Topics: req.GetTopics(),
	}
	for _, a := range req.GetAssignments() {
		r.Assignments = append(r.Assignments, cluster.Move{PartitionName: partitionName(a.GetPartition()), To: a.GetReplicas()})
	}
	var planned cluster.ReassignmentPlan
	position, err := s.h.do(ctx, "plan reassignment", func(state *cluster.State, _ int) (_ cluster.Plan, err error) {
		planned, err = cluster.PlanReassignment(state, r)
		return cluster.Plan{}, err
	}, nil)
	if err != nil {
		return nil, err
	}
	return &controllerv1.PlanReassignmentResponse{PlanId: planned.ID, Moves: moveMessages(planned.Moves), Position: position}, nil
}

// ApplyReassignment begins a planned reassignment.
func (s *adminServer) ApplyReassignment(ctx context.Context, req *controllerv1.ApplyReassignmentRequest) (*controllerv1.ApplyReassignmentResponse, error) {
	if len(req.GetMoves()) > maxPartitionsPerRequest {
		return nil, invalid("%d moves in one request; at most %d", len(req.GetMoves()), maxPartitionsPerRequest)
	}
	moves := make([]cluster.Move, 0, len(req.GetMoves()))
	for _, m := range req.GetMoves() {
		moves = append(moves, cluster.Move{PartitionName: partitionName(m.GetPartition()), From: m.GetFrom(), To: m.GetTo(), InSync: m.GetInSync()})
	}
	begun := false
	position, err := s.h.do(ctx, "apply reassignment", func(state *cluster.State, _ int) (cluster.Plan, error) {
		plan, err := cluster.ApplyReassignment(state, req.GetPlanId(), moves)
		begun = begun || !plan.IsEmpty()
		return plan, err
	}, nil)
	if err != nil {
		return nil, err
	}
	if begun {
		s.h.cfg.Logger.Info("reassignment begun", "plan", req.GetPlanId(), "partitions", len(moves), "revision", position.GetRevision())
	}
	return &controllerv1.ApplyReassignmentResponse{Position: position}, nil
}

// ListReassignments tells what is being reassigned.
func (s *adminServer) ListReassignments(ctx context.Context, _ *controllerv1.ListReassignmentsRequest) (*controllerv1.ListReassignmentsResponse, error) {
	resp := &controllerv1.ListReassignmentsResponse{}
	_, err := s.h.do(ctx, "list reassignments", func(state *cluster.State, _ int) (cluster.Plan, error) {
		resp.Reassignments = nil
		for _, r := range cluster.RunningReassignments(state) {
			resp.Reassignments = append(resp.Reassignments, &controllerv1.Reassignment{
				PlanId: r.PlanID, Moves: moveMessages(r.Moves), Paused: r.Paused, Cancelling: r.Cancelling,
			})
		}
		return cluster.Plan{}, nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// ControlReassignment pauses, resumes or cancels a running plan.
func (s *adminServer) ControlReassignment(ctx context.Context, req *controllerv1.ControlReassignmentRequest) (*controllerv1.ControlReassignmentResponse, error) {
	if req.GetAction() == controllerv1.ReassignmentAction_REASSIGNMENT_ACTION_UNSPECIFIED {
		return nil, invalid("the request does not say what to do with the plan: pause, resume or cancel")
	}
	position, err := s.h.do(ctx, "control reassignment", func(state *cluster.State, _ int) (cluster.Plan, error) {
		return cluster.ControlReassignment(state, req.GetPlanId(), cluster.ReassignmentAction(req.GetAction()))
	}, nil)
	if err != nil {
		return nil, err
	}
	s.h.cfg.Logger.Info("reassignment changed", "plan", req.GetPlanId(), "action", req.GetAction().String(), "revision", position.GetRevision())
	return &controllerv1.ControlReassignmentResponse{Position: position}, nil
}

// RemoveBroker forgets a broker that holds nothing and does not run.
func (s *adminServer) RemoveBroker(ctx context.Context, req *controllerv1.RemoveBrokerRequest) (*controllerv1.RemoveBrokerResponse, error) {
	if req.GetBroker() < 1 {
		return nil, invalid("there is no broker %d; ids begin at 1", req.GetBroker())
	}
	removed := false
	position, err := s.h.command(ctx, reconcile.Command{
		Name: "remove broker",
		Plan: func(state *cluster.State, attempt int) (cluster.Plan, error) {
			if attempt > 0 && removed && state.Broker(req.GetBroker()) == nil {
				return cluster.Plan{}, nil // an earlier attempt whose answer was lost has done it
			}
			plan, err := cluster.RemoveBroker(state, req.GetBroker())
			removed = removed || !plan.IsEmpty()
			return plan, err
		},
	})
	if err != nil {
		return nil, err
	}
	if removed {
		s.h.cfg.Logger.Info("broker removed", "broker", req.GetBroker(), "revision", position.GetRevision())
	}
	return &controllerv1.RemoveBrokerResponse{Position: position}, nil
}

func moveMessages(moves []cluster.Move) []*controllerv1.ReassignmentMove {
	list := make([]*controllerv1.ReassignmentMove, 0, len(moves))
	for _, m := range moves {
		list = append(list, &controllerv1.ReassignmentMove{Partition: partitionNameMessage(m.PartitionName), From: m.From, To: m.To, InSync: m.InSync})
	}
	return list
}
