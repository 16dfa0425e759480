package controller

import (
	"slices"
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// reassignTo plans and applies that partition 0 of topic a gets other replicas, and
// returns the plan's id.
func reassignTo(t *testing.T, m *mesh, c *metadata.Controllers, replicas ...int32) string {
	t.Helper()
	plan, err := c.PlanReassignment(m.ctx(), &controllerv1.PlanReassignmentRequest{Assignments: []*controllerv1.ReplicaAssignment{
		{Partition: &controllerv1.PartitionName{Topic: "a"}, Replicas: replicas},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.GetMoves()) != 1 || !slices.Equal(plan.GetMoves()[0].GetTo(), replicas) || plan.GetPlanId() == "" {
		t.Fatalf("planned: %v", plan)
	}
	req := &controllerv1.ApplyReassignmentRequest{PlanId: plan.GetPlanId(), Moves: plan.GetMoves()}
	for range 2 { // repeating it changes nothing
		if _, err := c.ApplyReassignment(m.ctx(), req); err != nil {
			t.Fatal(err)
		}
	}
	return plan.GetPlanId()
}

func TestReassignment(t *testing.T) {
	m := newMesh(t)
	m.controller(1)
	w := m.gateway()
	three := m.three(w)
	brokers := three[:]
	c := m.controllers(w)
	m.createReplicated(w, c, "a", 1, 3)
	four := m.broker(4, 41)
	m.awaitUnfenced(w, four)
	brokers = append(brokers, four)
	now := func() *controllerv1.Partition { return w.Image().TopicByName("a").Partition(0) }
	before := now().GetReplicas()
	keep, leaves := before[0], before[2]
	result := []int32{keep, before[1], 4}
	union := append(slices.Clone(result), leaves)

	// Begun, and taken back.
	id := reassignTo(t, m, c, result...)
	eventually(t, "the replicas are the union", func() bool {
		p := four.record("a", 0)
		return slices.Equal(p.GetReplicas(), union) && slices.Equal(p.GetTargetReplicas(), result) && p.GetPartitionEpoch() > 0
	})
	list, err := c.ListReassignments(m.ctx(), &controllerv1.ListReassignmentsRequest{})
	if err != nil || len(list.GetReassignments()) != 1 || list.GetReassignments()[0].GetMoves()[0].GetInSync() != 2 {
		t.Fatalf("listed: %v, %v", list, err)
	}
	control := func(action controllerv1.ReassignmentAction) {
		t.Helper()
		if _, err := c.ControlReassignment(m.ctx(), &controllerv1.ControlReassignmentRequest{PlanId: id, Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	control(controllerv1.ReassignmentAction_REASSIGNMENT_ACTION_CANCEL)
	eventually(t, "it is taken back", func() bool {
		list, err := c.ListReassignments(m.ctx(), &controllerv1.ListReassignmentsRequest{})
		return err == nil && len(list.GetReassignments()) == 0 && slices.Equal(now().GetReplicas(), before)
	})

	// Begun again: it completes once the newcomer is in sync, and not while it rests.
	id = reassignTo(t, m, c, result...)
	control(controllerv1.ReassignmentAction_REASSIGNMENT_ACTION_PAUSE)
	grow(t, m, c, brokers, union)
	eventually(t, "all four are in sync", func() bool { return len(now().GetIsr()) == 4 })
	if !slices.Equal(now().GetReplicas(), union) {
		t.Errorf("it completed while it rested: %v", now())
	}
	control(controllerv1.ReassignmentAction_REASSIGNMENT_ACTION_RESUME)
	eventually(t, "it completes", func() bool { return slices.Equal(now().GetReplicas(), result) })
	if p := now(); p.GetLeader() == nil || slices.Contains(p.GetIsr(), leaves) || len(p.GetIsr()) != 3 || p.GetLeader().GetId() == leaves {
		t.Errorf("completed: %v", p)
	}

	// The broker that holds nothing any more is forgotten once it has stopped.
	remove := func(broker int32) error {
		_, err := c.RemoveBroker(m.ctx(), &controllerv1.RemoveBrokerRequest{Broker: broker})
		return err
	}
	if err := remove(leaves); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) {
		t.Errorf("a running broker was removed: %v", err)
	}
	brokers[leaves-1].kill()
	brokers[keep-1].kill()
	eventually(t, "both are gone", func() bool {
		gone := func(id int32) bool {
			return w.Image().Broker(id).GetFenced() && w.Image().Registration(controllerv1.ServiceKind_SERVICE_KIND_BROKER, id) == nil
		}
		return gone(leaves) && gone(keep)
	})
	if err := remove(keep); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) {
		t.Errorf("a broker that holds replicas was removed: %v", err)
	}
	if err := remove(leaves); err != nil {
		t.Error(err)
	}
	eventually(t, "it is forgotten", func() bool { return w.Image().Broker(leaves) == nil })
}

// grow has the leader of partition 0 of topic a propose a larger in-sync set.
func grow(t *testing.T, m *mesh, c *metadata.Controllers, brokers []*fake, replicas []int32) {
	t.Helper()
	eventually(t, "the leader sees the union and has proposed", func() bool {
		for _, f := range brokers {
			p := f.record("a", 0)
			if p.GetLeader().GetId() != f.process.GetId() || !slices.Equal(p.GetReplicas(), replicas) {
				continue
			}
			var isr []*typev1.Process
			for _, id := range replicas {
				isr = append(isr, brokers[id-1].process)
			}
			_, err := f.propose(c, p, isr...)
			return err == nil
		}
		return false
	})
}
