package handler

import (
	"context"
	"slices"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/rpc"
)

// maxRevocation bounds how long a reset may wait for members.
const maxRevocation = time.Hour

// ResetOffsets sets offsets of a group, with members or without. What is refused since
// its topic or partition is unknown gets a little time to appear, as in CommitOffsets.
func (h *Handler) ResetOffsets(ctx context.Context, req *coordinatorv1.ResetOffsetsRequest) (*coordinatorv1.ResetOffsetsResponse, error) {
	offsets, bad := commits(req.GetOffsets())
	if bad != nil {
		return nil, bad
	}
	timeout, bad := duration("revocation timeout", req.GetRevocationTimeout())
	if bad != nil {
		return nil, bad
	}
	if timeout > maxRevocation {
		return nil, invalid("the revocation timeout %v is above %v; allow less", timeout, maxRevocation)
	}
	rows := make([]group.ResetRow, len(offsets))
	todo := make([]int, len(offsets))
	for i := range todo {
		todo[i] = i
	}
	for wait := firstGrace; ; wait *= 2 {
		if err := h.reset(ctx, req.GetGroup(), timeout, offsets, todo, rows); err != nil {
			return nil, err
		}
		todo = slices.DeleteFunc(todo, func(i int) bool {
			return rows[i].Err == nil || !mayAppear(group.PartError{Part: rows[i].Part, Err: rows[i].Err})
		})
		if wait > lastGrace || len(todo) == 0 {
			return &coordinatorv1.ResetOffsetsResponse{Offsets: h.resetRows(req.GetGroup(), rows)}, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, rpc.FromError(ctx.Err())
		}
	}
}

// reset resets some of the offsets and fills in their rows.
func (h *Handler) reset(ctx context.Context, name string, timeout time.Duration, offsets []group.OffsetCommit, todo []int, rows []group.ResetRow) error {
	some := make([]group.OffsetCommit, 0, len(todo))
	for _, i := range todo {
		some = append(some, offsets[i])
	}
	result, err := h.ask(ctx, name, func(n uint64) group.Event {
		return group.ResetOffsets{Req: n, Group: name, Offsets: some, Timeout: timeout}
	})
	if err != nil {
		return err
	}
	for k, row := range result.(group.ResetDone).Rows {
		rows[todo[k]] = row
	}
	return nil
}

func (h *Handler) resetRows(name string, rows []group.ResetRow) []*coordinatorv1.ResetOffset {
	out := make([]*coordinatorv1.ResetOffset, 0, len(rows))
	for _, r := range rows {
		row := &coordinatorv1.ResetOffset{TopicId: r.Topic[:], Partition: r.Partition, OldNextOffset: r.Old, NewNextOffset: r.New}
		if r.Err != nil {
			row.Error = rpc.ToProto(h.fromCore(name, r.Err))
		}
		out = append(out, row)
	}
	return out
}

// SimulateGroup tells what would be.
func (h *Handler) SimulateGroup(ctx context.Context, req *coordinatorv1.SimulateGroupRequest) (*coordinatorv1.SimulateGroupResponse, error) {
	if n := len(req.GetRemoveMembers()); n > maxSimulated || int(req.GetAddMembers()) > maxSimulated {
		return nil, limit("members", "%d members are taken out and %d added, at most %d may be", n, req.GetAddMembers(), maxSimulated)
	}
	result, err := h.ask(ctx, req.GetGroup(), func(n uint64) group.Event {
		return group.Simulate{
			Req: n, Group: req.GetGroup(), Remove: req.GetRemoveMembers(), Add: int(req.GetAddMembers()), Like: req.GetLikeMember(),
		}
	})
	if err != nil {
		return nil, err
	}
	done := result.(group.Simulated)
	out := &coordinatorv1.SimulateGroupResponse{Assignor: done.Assignor, Moves: movesOut(done.Moves)}
	for _, m := range done.Members {
		member := &coordinatorv1.SimulatedMember{MemberId: m.ID, InstanceId: m.InstanceID, Before: int32(m.Before), After: int32(len(m.After))}
		for _, p := range m.After {
			member.Partitions = append(member.Partitions, &coordinatorv1.GroupPartition{TopicId: p.Topic[:], Partition: p.Partition})
		}
		out.Members = append(out.Members, member)
	}
	return out, nil
}

// maxSimulated bounds the members of one simulation that come, and that go.
const maxSimulated = 2000
