package handler

import (
	"context"
	"encoding/base64"
	"time"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// Admin serves the public AdminService: it asks the elected controller, the brokers
// that lead, or the coordinators, and waits until what was changed can be used.
type Admin struct {
	gatewayv1.UnimplementedAdminServiceServer
	h *Handler
}

// maxPage is the most entries of one page of a list.
const maxPage = 1000

// bounded gives calls without a deadline one.
func (a *Admin) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.h.cfg.Limits.AdminTimeout)
}

// forController leaves the caller's deadline a moment for the answer, so that what
// kept the controller from answering gets through instead of a bare timeout.
func forController(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithDeadline(ctx, deadline.Add(-min(left/5, 500*time.Millisecond)))
}

// CreateTopic serves AdminService.CreateTopic.
func (a *Admin) CreateTopic(ctx context.Context, req *gatewayv1.CreateTopicRequest) (*gatewayv1.CreateTopicResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if req.Partitions != nil && req.GetPartitions() < 1 {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS,
			"topic %q cannot have %d partitions; choose 1 to 10000", req.GetTopic(), req.GetPartitions()).With("topic", req.GetTopic())
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	resp, err := a.h.cfg.Controllers.CreateTopics(asked, &controllerv1.CreateTopicsRequest{
		RequestId: req.GetRequestId(), ValidateOnly: req.GetValidateOnly(),
		Topics: []*controllerv1.NewTopic{{
			Name: req.GetTopic(), Partitions: req.Partitions, ReplicationFactor: req.ReplicationFactor, Configs: req.GetConfigs(),
		}},
	})
	if err != nil {
		return nil, err
	}
	r, err := onlyResult(resp.GetResults())
	if err != nil {
		return nil, err
	}
	if !req.GetValidateOnly() {
		if err := a.awaitUsable(ctx, req.GetTopic(), r.GetTopicId(), metadata.PositionOf(resp.GetPosition())); err != nil {
			return nil, err
		}
	}
	return &gatewayv1.CreateTopicResponse{TopicId: r.GetTopicId(), Partitions: r.GetPartitions(), ReplicationFactor: r.GetReplicationFactor()}, nil
}

// onlyResult is the one result of a request for one topic.
func onlyResult(results []*controllerv1.TopicResult) (*controllerv1.TopicResult, error) {
	if len(results) != 1 {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "the controller answered with %d results for one topic", len(results))
	}
	if e := results[0].GetError(); e != nil {
		return nil, rpc.FromProto(e)
	}
	return results[0], nil
}

// awaitUsable waits until this gateway knows the topic and a leader for each of its
// partitions.
func (a *Admin) awaitUsable(ctx context.Context, topic string, id []byte, at metadata.Position) error {
	for {
		image, changed := a.h.cfg.Images.Watch()
		missing := int32(-1)
		if t := image.TopicByName(topic); t != nil && string(t.ID[:]) == string(id) {
			missing = leaderless(t)
			if missing < 0 {
				return nil
			}
		} else if !image.Position().Before(at) && t == nil {
			// Seen, and gone again: somebody has deleted it meanwhile.
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED,
				"topic %q was created, and deleted again before it could be used", topic).With("topic", topic).WithOutcome(typev1.Outcome_OUTCOME_DONE)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			e := rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE,
				"topic %q was created, and this gateway has not heard of it yet; look again in a moment (leat topic describe)", topic)
			if missing >= 0 {
				e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE,
					"topic %q was created, but its partition %d has no leader yet; see whether its brokers run (leat topic describe)", topic, missing)
			}
			return e.With("topic", topic).WithOutcome(typev1.Outcome_OUTCOME_DONE)
		}
	}
}

// leaderless is a partition without a leader; -1: there is none.
func leaderless(t *metadata.Topic) int32 {
	for n := range t.NumPartitions() {
		if p := t.Partition(n); p.GetLeader().GetId() == 0 {
			return n
		}
	}
	return -1
}

// DeleteTopic serves AdminService.DeleteTopic.
func (a *Admin) DeleteTopic(ctx context.Context, req *gatewayv1.DeleteTopicRequest) (*gatewayv1.DeleteTopicResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	resp, err := a.h.cfg.Controllers.DeleteTopics(asked, &controllerv1.DeleteTopicsRequest{RequestId: req.GetRequestId(), Topics: []string{req.GetTopic()}})
	if err != nil {
		return nil, err
	}
	if _, err := onlyResult(resp.GetResults()); err != nil {
		return nil, err
	}
	if err := a.awaitPosition(ctx, resp.GetPosition(), "topic "+req.GetTopic()+" is deleted"); err != nil {
		return nil, err
	}
	return &gatewayv1.DeleteTopicResponse{}, nil
}

// AlterTopic serves AdminService.AlterTopic.
func (a *Admin) AlterTopic(ctx context.Context, req *gatewayv1.AlterTopicRequest) (*gatewayv1.AlterTopicResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := forController(ctx)
	defer done()
	resp, err := a.h.cfg.Controllers.AlterTopic(asked, &controllerv1.AlterTopicRequest{
		RequestId: req.GetRequestId(), Topic: req.GetTopic(), SetConfigs: req.GetSetConfigs(), DeleteConfigs: req.GetDeleteConfigs(),
		Partitions: req.Partitions, ValidateOnly: req.GetValidateOnly(),
	})
	if err != nil {
		return nil, err
	}
	if !req.GetValidateOnly() {
		if err := a.awaitPosition(ctx, resp.GetPosition(), "topic "+req.GetTopic()+" is changed"); err != nil {
			return nil, err
		}
	}
	return &gatewayv1.AlterTopicResponse{}, nil
}

// awaitPosition waits until this gateway has seen a change that the controller
// made, so that its caller sees it too.
func (a *Admin) awaitPosition(ctx context.Context, p *controllerv1.Position, what string) error {
	if err := a.h.cfg.Images.WaitFor(ctx, metadata.PositionOf(p)); err != nil {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND,
			"%s, but this gateway has not seen it yet; look again in a moment: %w", what, err).WithOutcome(typev1.Outcome_OUTCOME_DONE)
	}
	return nil
}

// ListTopics serves AdminService.ListTopics, from the gateway's image.
func (a *Admin) ListTopics(_ context.Context, req *gatewayv1.ListTopicsRequest) (*gatewayv1.ListTopicsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	size, after, err := page(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.ListTopicsResponse{}
	for _, t := range a.h.cfg.Images.Image().Topics() {
		if t.Deleting || t.Internal && req.GetExcludeInternal() || t.Name <= after && after != "" {
			continue
		}
		if len(resp.Topics) == size {
			resp.NextPageToken = pageToken(resp.Topics[size-1].GetName())
			break
		}
		resp.Topics = append(resp.Topics, summary(t))
	}
	return resp, nil
}

func summary(t *metadata.Topic) *gatewayv1.TopicSummary {
	s := &gatewayv1.TopicSummary{Name: t.Name, TopicId: t.ID[:], Partitions: t.NumPartitions(), Internal: t.Internal}
	if p := t.Partition(0); p != nil {
		s.ReplicationFactor = int32(len(p.GetReplicas()))
	}
	return s
}

// page reads the size and the token of a page; the token names the last entry of
// the page before.
func page(size int32, token string) (int, string, error) {
	if size < 0 {
		return 0, "", rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "page_size is %d; use 1 to %d, or 0 for that", size, maxPage)
	}
	after, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, "", rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"page_token %q is not one that this method gave out; begin again without one: %w", token, err)
	}
	if size == 0 || size > maxPage {
		size = maxPage
	}
	return int(size), string(after), nil
}

func pageToken(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }
