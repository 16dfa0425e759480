package handler

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// forwardedKey marks a request that a standby has passed on, so that it is passed on
// once only.
const forwardedKey = "leat-forwarded"

// forwarder passes requests that only the leader can answer on to it: whoever cannot
// reach the leader may well reach a standby.
type forwarder struct{ h *Handler }

// forward lets the leader answer, whichever controller was asked. Where it cannot,
// the caller gets NOT_CONTROLLER with a hint, as if nothing had been tried.
func forward[Req, Resp any](
	ctx context.Context, f forwarder, req Req,
	local func(context.Context, Req) (Resp, error),
	remote func(controllerv1.ControllerServiceClient, context.Context, Req, ...grpc.CallOption) (Resp, error),
) (Resp, error) {
	var zero Resp
	err := f.h.cfg.Loop.CheckLeading()
	if err == nil {
		return local(ctx, req)
	}
	hint := rpc.FromError(err)
	if md, _ := metadata.FromIncomingContext(ctx); hint.Leader.GetAddress() == "" || len(md.Get(forwardedKey)) > 0 {
		return zero, err
	}
	conn, dialErr := f.h.cfg.Conns.Get(hint.Leader.GetAddress())
	if dialErr != nil {
		return zero, err
	}
	resp, remoteErr := remote(controllerv1.NewControllerServiceClient(conn), metadata.AppendToOutgoingContext(ctx, forwardedKey, "1"), req)
	if rpc.IsReason(remoteErr, typev1.ErrorReason_ERROR_REASON_UNREACHABLE) {
		return zero, err
	}
	if remoteErr != nil {
		return zero, rpc.FromError(remoteErr)
	}
	return resp, nil
}

// relay serves ControllerService: what is the leader's goes there.
type relay struct {
	controllerv1.UnimplementedControllerServiceServer
	local *controllerServer
}

func (r *relay) to() forwarder { return forwarder{r.local.h} }

// RegisterBroker is the leader's.
func (r *relay) RegisterBroker(ctx context.Context, req *controllerv1.RegisterBrokerRequest) (*controllerv1.RegisterBrokerResponse, error) {
	return forward(ctx, r.to(), req, r.local.RegisterBroker, controllerv1.ControllerServiceClient.RegisterBroker)
}

// ProposeIsr is the leader's.
func (r *relay) ProposeIsr(ctx context.Context, req *controllerv1.ProposeIsrRequest) (*controllerv1.ProposeIsrResponse, error) {
	return forward(ctx, r.to(), req, r.local.ProposeIsr, controllerv1.ControllerServiceClient.ProposeIsr)
}

// RequestLeave is the leader's.
func (r *relay) RequestLeave(ctx context.Context, req *controllerv1.RequestLeaveRequest) (*controllerv1.RequestLeaveResponse, error) {
	return forward(ctx, r.to(), req, r.local.RequestLeave, controllerv1.ControllerServiceClient.RequestLeave)
}

// ConfirmDeletion is the leader's.
func (r *relay) ConfirmDeletion(ctx context.Context, req *controllerv1.ConfirmDeletionRequest) (*controllerv1.ConfirmDeletionResponse, error) {
	return forward(ctx, r.to(), req, r.local.ConfirmDeletion, controllerv1.ControllerServiceClient.ConfirmDeletion)
}

// ReportReplicas is the leader's.
func (r *relay) ReportReplicas(ctx context.Context, req *controllerv1.ReportReplicasRequest) (*controllerv1.ReportReplicasResponse, error) {
	return forward(ctx, r.to(), req, r.local.ReportReplicas, controllerv1.ControllerServiceClient.ReportReplicas)
}

// AllocateProducerIds is the leader's.
func (r *relay) AllocateProducerIds(ctx context.Context, req *controllerv1.AllocateProducerIdsRequest) (*controllerv1.AllocateProducerIdsResponse, error) {
	return forward(ctx, r.to(), req, r.local.AllocateProducerIds, controllerv1.ControllerServiceClient.AllocateProducerIds)
}

// EnsureInternalTopic is the leader's.
func (r *relay) EnsureInternalTopic(ctx context.Context, req *controllerv1.EnsureInternalTopicRequest) (*controllerv1.EnsureInternalTopicResponse, error) {
	return forward(ctx, r.to(), req, r.local.EnsureInternalTopic, controllerv1.ControllerServiceClient.EnsureInternalTopic)
}

// GetReach is each controller's own.
func (r *relay) GetReach(ctx context.Context, req *controllerv1.GetReachRequest) (*controllerv1.GetReachResponse, error) {
	return r.local.GetReach(ctx, req)
}
