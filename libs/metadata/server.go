package metadata

import (
	"context"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

const (
	// behindWait is how long a request waits for a picture new enough.
	behindWait = 2 * time.Second
	// maxRequestedTopics bounds the work of one request.
	maxRequestedTopics = 10_000
)

// server answers clients from a watcher's image.
type server struct {
	brokerv1.UnimplementedMetadataServiceServer
	watcher *Watcher
}

// NewServer answers GetMetadata from a watcher's image; brokers and gateways
// serve it alike.
func NewServer(w *Watcher) brokerv1.MetadataServiceServer { return &server{watcher: w} }

// GetMetadata tells brokers, coordinators and the topics asked for. Unknown
// topics carry an error of their own. Without any picture yet it answers
// STARTING; with one older than demanded METADATA_BEHIND; both are worth a retry.
func (s *server) GetMetadata(ctx context.Context, req *brokerv1.GetMetadataRequest) (*brokerv1.GetMetadataResponse, error) {
	if n := len(req.GetTopics()) + len(req.GetTopicIds()); n > maxRequestedTopics {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"%d topics asked for at once; ask for at most %d, or for all_topics", n, maxRequestedTopics)
	}
	if err := s.awaitPosition(ctx, PositionOfClient(req.GetMinPosition())); err != nil {
		return nil, err
	}
	image := s.watcher.Image()
	if image.Position().Generation == 0 {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STARTING,
			"this process has not heard from a controller yet; try again, or check that a controller runs")
	}
	resp := &brokerv1.GetMetadataResponse{
		Handshake: rpc.LocalHandshake(),
		Position:  image.Position().ClientProto(),
		ClusterId: image.ClusterID(),
	}
	for _, b := range image.Brokers() {
		if !b.GetFenced() {
			resp.Brokers = append(resp.Brokers, &brokerv1.BrokerInfo{Broker: b.GetBroker(), Address: b.GetAddress(), Rack: b.GetRack()})
		}
	}
	for _, r := range image.Registrations(controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR) {
		resp.Coordinators = append(resp.Coordinators, &brokerv1.CoordinatorInfo{Coordinator: r.GetProcess(), Address: r.GetAddress()})
	}
	resp.Topics = selectTopics(image, req)
	return resp, nil
}

// awaitPosition waits a while for a picture new enough.
func (s *server) awaitPosition(ctx context.Context, min Position) error {
	if !s.watcher.Image().Position().Before(min) {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, behindWait)
	defer cancel()
	if s.watcher.WaitFor(wait, min) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return rpc.FromError(err)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_BEHIND,
		"this process knows the metadata up to %v and %v was asked for; try again or ask another one",
		s.watcher.Image().Position(), min)
}

func selectTopics(image *Image, req *brokerv1.GetMetadataRequest) []*brokerv1.TopicInfo {
	var infos []*brokerv1.TopicInfo
	if req.GetAllTopics() {
		for _, t := range image.Topics() {
			if !t.Deleting {
				infos = append(infos, topicInfo(t))
			}
		}
		return infos
	}
	for _, name := range req.GetTopics() {
		if t := image.TopicByName(name); t != nil {
			infos = append(infos, topicInfo(t))
			continue
		}
		infos = append(infos, &brokerv1.TopicInfo{Name: name, Error: rpc.ToProto(
			rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, "there is no topic %q; create it, or check the name", name).With("topic", name))})
	}
	for _, raw := range req.GetTopicIds() {
		infos = append(infos, topicInfoByID(image, raw))
	}
	return infos
}

func topicInfoByID(image *Image, raw []byte) *brokerv1.TopicInfo {
	id, err := topicid.FromBytes(raw)
	if err != nil {
		return &brokerv1.TopicInfo{Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%w", err))}
	}
	t := image.TopicByID(id)
	switch {
	case t == nil && image.Deletion(id) == nil:
		return &brokerv1.TopicInfo{Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC,
			"there is no topic with id %v; it may have been deleted", id).With("topic_id", id.String()))}
	case t == nil || t.Deleting:
		return &brokerv1.TopicInfo{Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED,
			"the topic with id %v has been deleted", id).With("topic_id", id.String()))}
	}
	return topicInfo(t)
}

func topicInfo(t *Topic) *brokerv1.TopicInfo {
	info := &brokerv1.TopicInfo{
		Name:            t.Name,
		TopicId:         t.ID.Bytes(),
		Internal:        t.Internal,
		MaxMessageBytes: t.Config.MaxMessageBytes,
		Partitions:      make([]*brokerv1.PartitionInfo, 0, len(t.partitions)),
	}
	for n, p := range t.partitions {
		pi := &brokerv1.PartitionInfo{
			Partition: int32(n), Leader: -1,
			LeaderEpoch: p.GetLeaderEpoch(),
			Replicas:    p.GetReplicas(), Isr: p.GetIsr(), Elr: p.GetElr(),
		}
		if l := p.GetLeader(); l != nil {
			pi.Leader = l.GetId()
		}
		if o := p.GetShardOwner(); o != nil {
			pi.ShardOwner = &brokerv1.ShardOwner{Coordinator: o, ShardEpoch: p.GetShardEpoch()}
		}
		info.Partitions = append(info.Partitions, pi)
	}
	return info
}
