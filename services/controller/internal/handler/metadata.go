package handler

import (
	"context"
	"time"

	"google.golang.org/grpc"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/controller/internal/store"
)

const (
	// heartbeatInterval is the time between heartbeats.
	heartbeatInterval = 500 * time.Millisecond
	// openLimit is how long an opening stream waits for the state it needs.
	openLimit = time.Second
)

// metadataServer serves MetadataService: every controller does, leading or not.
type metadataServer struct {
	controllerv1.UnimplementedMetadataServiceServer
	h *Handler
}

// WatchMetadata sends the whole state, then every change and heartbeats. A slow
// receiver gets changes run together; what is kept for it is bounded.
func (s *metadataServer) WatchMetadata(req *controllerv1.WatchMetadataRequest, stream grpc.ServerStreamingServer[controllerv1.WatchMetadataResponse]) error {
	if err := rpc.CheckHandshake(req.GetHandshake()); err != nil {
		return err
	}
	if registry.KindName(req.GetKind()) == "unknown" {
		return invalid("the watcher does not say of what kind it is")
	}
	ctx := stream.Context()
	if err := s.awaitState(ctx, nil); err != nil {
		return err
	}
	w := &watcherStream{stream: stream, store: s.h.cfg.Store, kind: req.GetKind(), broker: req.GetWatcher().GetId()}
	// Who this is comes before the wait for a state as new as demanded: with etcd
	// restored from a backup the wait is in vain, and the watcher must learn why.
	if err := w.initial(s.h.cfg.Self); err != nil {
		return err
	}
	if err := s.awaitState(ctx, req.GetMinPosition()); err != nil {
		return err
	}
	return w.run(ctx, s.h.cfg.Draining)
}

// awaitState waits until there is a state, and one as new as demanded.
func (s *metadataServer) awaitState(ctx context.Context, min *controllerv1.Position) error {
	deadline := time.NewTimer(openLimit)
	defer deadline.Stop()
	for {
		changed := s.h.cfg.Store.Changed()
		var generation, revision int64
		s.h.cfg.Store.View(func(state *cluster.State, r int64) { generation, revision = state.Cluster().Generation, r })
		if generation > min.GetGeneration() || generation > 0 && generation == min.GetGeneration() && revision >= min.GetRevision() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rpc.FromError(ctx.Err())
		case <-deadline.C:
			if generation == 0 {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING,
					"this controller has not read the metadata yet; it waits for etcd, or for the first election of the mesh")
			}
			if now, err := s.h.cfg.Store.CurrentRevision(ctx); err == nil && generation == min.GetGeneration() && now < min.GetRevision() {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_REGRESSED,
					"etcd is at revision %d and the watcher has seen revision %d of generation %d: etcd went back in time; restore the mesh before anything else",
					now, min.GetRevision(), generation)
			}
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND,
				"this controller knows the metadata up to %d/%d and %d/%d is demanded; ask another controller",
				generation, revision, min.GetGeneration(), min.GetRevision())
		}
	}
}

// watcherStream is one stream. One goroutine uses it.
type watcherStream struct {
	stream grpc.ServerStreamingServer[controllerv1.WatchMetadataResponse]
	store  *store.Store
	kind   controllerv1.ServiceKind
	broker int32 // its id, if it is a broker
	// sent is the position up to which the receiver has been told of every change.
	sent *controllerv1.Position
}

func (w *watcherStream) initial(self cluster.Process) error {
	initial := &controllerv1.WatchInitial{
		Handshake: rpc.LocalHandshake(), Controller: processMessage(self),
		HeartbeatIntervalMs: int32(heartbeatInterval / time.Millisecond), EtcdClusterId: w.store.EtcdClusterID(),
	}
	position := &controllerv1.Position{}
	w.store.View(func(state *cluster.State, revision int64) {
		initial.ClusterId = state.Cluster().ID
		position = &controllerv1.Position{Generation: state.Cluster().Generation, Revision: revision}
	})
	return w.stream.Send(&controllerv1.WatchMetadataResponse{Position: position, Message: &controllerv1.WatchMetadataResponse_Initial{Initial: initial}})
}

// run sends until the receiver is gone or the server drains.
func (w *watcherStream) run(ctx context.Context, draining <-chan struct{}) error {
	sub := w.store.Subscribe()
	defer sub.Close()
	beat := time.NewTicker(heartbeatInterval)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-sub.Signal():
			err = w.changes(sub)
		case <-beat.C:
			err = w.heartbeat(sub)
		case <-ctx.Done():
			return rpc.FromError(ctx.Err())
		case <-draining:
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "this controller is stopping; watch another one")
		}
		if err != nil {
			return err
		}
	}
}

// changes sends what has changed since the last time.
func (w *watcherStream) changes(sub *store.Subscription) error {
	var parts []*controllerv1.MetadataChanges
	var position *controllerv1.Position
	snapshot := false
	sub.Take(func(state *cluster.State, revision int64, dirty map[cluster.Key]struct{}, all bool) {
		position = &controllerv1.Position{Generation: state.Cluster().Generation, Revision: revision}
		c := newCollector(state, w.kind, w.broker)
		if snapshot = all; all {
			c.everything()
		} else {
			c.keys(dirty)
		}
		parts = c.parts()
	})
	if len(parts) == 0 && !snapshot {
		w.sent = position
		return nil // nothing that this receiver is told
	}
	if len(parts) == 0 {
		parts = append(parts, &controllerv1.MetadataChanges{})
	}
	for i, part := range parts {
		msg := &controllerv1.WatchMetadataResponse{Position: position}
		last := i == len(parts)-1
		if snapshot {
			msg.Message = &controllerv1.WatchMetadataResponse_Snapshot{Snapshot: &controllerv1.SnapshotPart{Entries: part, Last: last}}
		} else {
			msg.Message, msg.Partial = &controllerv1.WatchMetadataResponse_Delta{Delta: part}, !last
		}
		if err := w.stream.Send(msg); err != nil {
			return err
		}
	}
	w.sent = position
	return nil
}

// heartbeat tells that this controller lives and how far etcd has confirmed, but no
// position whose changes are still to be sent: the receiver acts on having reached it.
func (w *watcherStream) heartbeat(sub *store.Subscription) error {
	msg := &controllerv1.WatchMetadataResponse{
		Message: &controllerv1.WatchMetadataResponse_Heartbeat{Heartbeat: &controllerv1.Heartbeat{EtcdSilentMs: w.store.Silent().Milliseconds()}},
	}
	sub.Idle(func(state *cluster.State, revision int64) {
		w.sent = &controllerv1.Position{Generation: state.Cluster().Generation, Revision: revision}
	})
	msg.Position = w.sent
	return w.stream.Send(msg)
}
