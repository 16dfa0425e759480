package handler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/groups"
)

// Bounds of a reset.
const (
	defaultRevocationTimeout = 30 * time.Second
	maxRevocationTimeout     = time.Hour
	maxResetPartitions       = 20_000
)

// ResetGroupOffsets serves AdminService.ResetGroupOffsets: it says where each
// partition goes, and, unless it is a dry run, has the coordinator take the partitions
// back from members, set the offsets and hand them out again. If one partition cannot
// be planned, none is reset.
func (a *Admin) ResetGroupOffsets(ctx context.Context, req *gatewayv1.ResetGroupOffsetsRequest) (*gatewayv1.ResetGroupOffsetsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if err := checkReset(req); err != nil {
		return nil, err
	}
	timeout := defaultRevocationTimeout
	if req.GetRevocationTimeout() != nil {
		timeout = req.GetRevocationTimeout().AsDuration()
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.h.cfg.Limits.AdminTimeout+timeout)
		defer cancel()
	}
	group, err := a.groupToReset(ctx, req)
	if err != nil {
		return nil, err
	}
	parts, err := a.partsToReset(ctx, req, group)
	if err != nil {
		return nil, err
	}
	target, err := a.findTargets(ctx, req, parts)
	if err != nil {
		return nil, err
	}
	plan := groups.Plan(target, parts)
	resp := &gatewayv1.ResetGroupOffsetsResponse{Online: len(group.GetMembers()) > 0}
	for _, p := range plan {
		resp.Rows = append(resp.Rows, resetRow(p))
	}
	if req.GetDryRun() {
		return resp, nil
	}
	if err := refusePlan(req.GetGroup(), plan); err != nil {
		return nil, err
	}
	return resp, a.reset(ctx, req.GetGroup(), plan, timeout, resp.Rows)
}

// checkReset checks what does not depend on the group.
func checkReset(req *gatewayv1.ResetGroupOffsetsRequest) error {
	if err := checkGroup(req.GetGroup()); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, format, args...).With("group", req.GetGroup())
	}
	switch t := req.GetTarget().(type) {
	case nil:
		return bad("the request does not say where to; set spec, offset, by_duration, shift_by or offsets")
	case *gatewayv1.ResetGroupOffsetsRequest_Spec:
		if t.Spec.GetSpec() == nil {
			return bad("spec names no offset; set a place (PLACE_EARLIEST, PLACE_LATEST, PLACE_MAX_TIMESTAMP) or a timestamp")
		}
	case *gatewayv1.ResetGroupOffsetsRequest_Offset:
		if t.Offset < 0 {
			return bad("offset is %d; use 0 or more, or spec for the ends of the log", t.Offset)
		}
	case *gatewayv1.ResetGroupOffsetsRequest_ByDuration:
		if t.ByDuration.AsDuration() <= 0 {
			return bad("by_duration is %v; use a time above 0: how far back from now", t.ByDuration.AsDuration())
		}
	case *gatewayv1.ResetGroupOffsetsRequest_Offsets:
		if len(req.GetTopics()) > 0 {
			return bad("offsets name their partitions themselves; leave topics out")
		}
		if n := len(t.Offsets.GetOffsets()); n == 0 || n > maxResetPartitions {
			return bad("the request sets %d offsets; set 1 to %d", n, maxResetPartitions)
		}
	}
	if d := req.GetRevocationTimeout(); d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxRevocationTimeout) {
		return bad("revocation_timeout is %v; use a time above 0, up to %v", d.AsDuration(), maxRevocationTimeout)
	}
	return nil
}

// groupToReset is the group as it is. One that does not exist may be made by a reset
// that names what to reset.
func (a *Admin) groupToReset(ctx context.Context, req *gatewayv1.ResetGroupOffsetsRequest) (*coordinatorv1.DescribeGroupResponse, error) {
	asked, done := forController(ctx)
	defer done()
	group, err := a.h.cfg.Mesh.DescribeGroup(asked, req.GetGroup())
	named := len(req.GetTopics()) > 0 || req.GetOffsets() != nil
	switch {
	case err != nil && named && rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP):
		return nil, nil
	case err != nil:
		return nil, err
	case group.GetSummary().GetState() == coordinatorv1.GroupState_GROUP_STATE_DELETING:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_GROUP,
			"group %q is being deleted; wait until it is gone (leat group list), then reset it by naming topics", req.GetGroup()).With("group", req.GetGroup())
	}
	return group, nil
}

// partsToReset lists the partitions that move, by topic and number, with what is
// committed in each.
func (a *Admin) partsToReset(ctx context.Context, req *gatewayv1.ResetGroupOffsetsRequest, group *coordinatorv1.DescribeGroupResponse) ([]groups.ResetPart, error) {
	d := &description{group: group, image: a.h.cfg.Images.Image()}
	d.collect()
	var parts []groups.ResetPart
	add := func(topic string, id client.TopicPartition, found int64) {
		p := groups.ResetPart{ID: id, Topic: topic, Committed: -1, Start: -1, End: -1, Found: found}
		if known := d.byID[id]; known != nil {
			p.Committed, p.Member = known.Committed, known.MemberId
		}
		parts = append(parts, p)
	}
	for _, t := range req.GetTopics() {
		topic, err := a.topic(ctx, t.GetTopic())
		if err != nil {
			return nil, err
		}
		numbers, err := partitionsOf(topic, t.GetPartitions())
		if err != nil {
			return nil, err
		}
		for _, n := range numbers {
			add(topic.Name, client.TopicPartition{TopicID: topic.ID, Partition: n}, -1)
		}
	}
	if exact := req.GetOffsets(); exact != nil {
		offsets, err := a.commitOffsets(ctx, exact.GetOffsets())
		if err != nil {
			return nil, err
		}
		for i, o := range offsets {
			add(exact.GetOffsets()[i].GetTopic(), o.TopicPartition, o.NextOffset)
		}
	} else if len(req.GetTopics()) == 0 {
		for _, p := range d.parts {
			if p.Topic != "" {
				add(p.Topic, p.id, -1)
			}
		}
	}
	return parts, checkParts(req.GetGroup(), parts)
}

// checkParts sorts the partitions, and refuses those that are named twice, too many,
// or none.
func checkParts(group string, parts []groups.ResetPart) error {
	switch n := len(parts); {
	case n == 0:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"group %q has neither offsets nor partitions that its members hold; name the topics to reset", group).With("group", group)
	case n > maxResetPartitions:
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
			"the reset is about %d partitions, at most %d go at once; name some of the topics at a time", n, maxResetPartitions).With("group", group)
	}
	slices.SortFunc(parts, func(a, b groups.ResetPart) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID.Partition, b.ID.Partition))
	})
	for i, p := range parts[1:] {
		if p.ID == parts[i].ID {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "partition %d of topic %q is named twice; name each once", p.ID.Partition, p.Topic).With("topic", p.Topic)
		}
	}
	return nil
}

// findTargets finds the bounds of the logs and, for places and times, the offsets
// there, and says what kind of target it is.
func (a *Admin) findTargets(ctx context.Context, req *gatewayv1.ResetGroupOffsetsRequest, parts []groups.ResetPart) (groups.Target, error) {
	ids := make([]client.TopicPartition, len(parts))
	for i, p := range parts {
		ids[i] = p.ID
	}
	// A leader that is being elected is worth a moment; members may take the rest.
	ctx, cancel := context.WithTimeout(ctx, 2*a.h.cfg.Limits.MarksTimeout)
	defer cancel()
	for i, b := range a.boundsOf(ctx, ids) {
		parts[i].Start, parts[i].End, parts[i].Err = b.start, b.end, b.err
	}
	spec := req.GetSpec()
	switch t := req.GetTarget().(type) {
	case *gatewayv1.ResetGroupOffsetsRequest_Offset:
		return groups.Target{Kind: groups.ToOffset, Offset: t.Offset}, nil
	case *gatewayv1.ResetGroupOffsetsRequest_ShiftBy:
		return groups.Target{Kind: groups.ShiftBy, Offset: t.ShiftBy}, nil
	case *gatewayv1.ResetGroupOffsetsRequest_Offsets:
		return groups.Target{Kind: groups.ToFound}, nil
	case *gatewayv1.ResetGroupOffsetsRequest_ByDuration:
		at := timestamppb.New(a.h.cfg.Now().Add(-t.ByDuration.AsDuration()))
		spec = &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: at}}
	}
	queries := make([]client.OffsetQuery, len(ids))
	for i, id := range ids {
		queries[i] = client.OffsetQuery{TopicPartition: id, Spec: spec}
	}
	for i, r := range a.h.cfg.Mesh.ListOffsets(ctx, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED) {
		if parts[i].Found = r.Offset; r.Err != nil && parts[i].Err == nil {
			parts[i].Err = r.Err
		}
	}
	return groups.Target{Kind: groups.ToPlace}, nil
}

func resetRow(p groups.ResetPlan) *gatewayv1.GroupOffsetReset {
	return &gatewayv1.GroupOffsetReset{
		Topic: p.Topic, Partition: p.ID.Partition, OldOffset: p.Committed, NewOffset: p.New, Clamped: p.Clamped,
		LogStart: p.Start, End: p.End, MemberId: p.Member, Error: rpc.ToProto(p.Err),
	}
}

// refusePlan is the error of a plan that has no place for some partitions.
func refusePlan(group string, plan []groups.ResetPlan) error {
	var errs []error
	for _, p := range plan {
		if p.Err != nil {
			errs = append(errs, p.Err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	const shown = 5
	return rpc.Errorf(rpc.ReasonOf(errs[0]), "%d of %d partitions cannot be reset, so that none was; a dry run shows which, and naming the others leaves them out: %w",
		len(errs), len(plan), errors.Join(errs[:min(shown, len(errs))]...)).With("group", group).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

// reset has the coordinator do it, and puts what became of it into the rows.
func (a *Admin) reset(ctx context.Context, group string, plan []groups.ResetPlan, timeout time.Duration, rows []*gatewayv1.GroupOffsetReset) error {
	if deadline, ok := ctx.Deadline(); ok {
		// The answer has to be back in time, also that of members who did not give up.
		timeout = min(timeout, max(time.Until(deadline)*4/5, time.Second))
	}
	offsets := make([]client.CommitOffset, len(plan))
	for i, p := range plan {
		offsets[i] = client.CommitOffset{TopicPartition: p.ID, NextOffset: p.New, LeaderEpoch: -1}
	}
	asked, done := forController(ctx)
	defer done()
	results, err := a.h.cfg.Mesh.ResetOffsets(asked, group, offsets, timeout)
	if err != nil {
		return err
	}
	for i, r := range results {
		rows[i].OldOffset, rows[i].NewOffset, rows[i].Error = r.OldOffset, r.NewOffset, rpc.ToProto(r.Err)
	}
	return nil
}
