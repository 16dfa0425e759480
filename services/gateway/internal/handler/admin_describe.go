package handler

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/registry"
	"github.com/leat-io/leat/libs/rpc"
)

// topic finds a topic, with the client library's patience for one that was
// created a moment ago.
func (a *Admin) topic(ctx context.Context, name string) (*metadata.Topic, error) {
	if name == "" {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, "the request names no topic; set topic")
	}
	if t := a.h.cfg.Images.Image().TopicByName(name); t != nil {
		return t, nil
	}
	if _, err := a.h.cfg.Mesh.Topic(ctx, name); err != nil {
		return nil, err
	}
	if t := a.h.cfg.Images.Image().TopicByName(name); t != nil {
		return t, nil
	}
	return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC,
		"there is no topic %q; check the spelling (leat topic list), or create it", name).With("topic", name)
}

// DescribeTopic serves AdminService.DescribeTopic: configs and replicas from the
// gateway's image, marks from the brokers, as far as they answer at once.
func (a *Admin) DescribeTopic(ctx context.Context, req *gatewayv1.DescribeTopicRequest) (*gatewayv1.DescribeTopicResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	t, err := a.topic(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.DescribeTopicResponse{Summary: summary(t)}
	resp.Configs = configEntries(a.h.cfg.Images.Image().DefaultConfigs(), t.Configs, resp.Summary.ReplicationFactor)
	asked := make([]client.TopicPartition, 0, t.NumPartitions())
	for n := range t.NumPartitions() {
		d := &gatewayv1.PartitionDescription{Partition: n, Leader: -1, LogStartOffset: -1, HighWatermark: -1}
		if p := t.Partition(n); p != nil {
			d.LeaderEpoch, d.Replicas, d.Isr, d.Elr = p.GetLeaderEpoch(), p.GetReplicas(), p.GetIsr(), p.GetElr()
			d.MinIsr = t.Config.MinISR(int32(len(p.GetReplicas())))
			if p.GetLeader().GetId() != 0 {
				d.Leader = p.GetLeader().GetId()
			}
		}
		resp.Partitions = append(resp.Partitions, d)
		asked = append(asked, client.TopicPartition{TopicID: t.ID, Partition: n})
	}
	a.fillMarks(ctx, resp.Partitions, asked)
	return resp, nil
}

// fillMarks asks the brokers for the marks of replicas, for a short time.
func (a *Admin) fillMarks(ctx context.Context, partitions []*gatewayv1.PartitionDescription, asked []client.TopicPartition) {
	ctx, cancel := context.WithTimeout(ctx, a.h.cfg.Limits.MarksTimeout)
	defer cancel()
	for _, r := range a.h.cfg.Mesh.DescribeReplicas(ctx, asked, false) {
		if r.Err != nil || r.Replica == nil || r.Replica.GetError() != nil || int(r.Partition) >= len(partitions) {
			continue
		}
		d := partitions[r.Partition]
		d.ReplicaEnds = append(d.ReplicaEnds, &gatewayv1.ReplicaEnd{
			Broker: r.Broker, End: r.Replica.GetLogEndOffset(), DurableEnd: r.Replica.GetDurableEndOffset(),
		})
		if r.Replica.GetLeads() {
			d.LogStartOffset, d.HighWatermark = r.Replica.GetLogStartOffset(), r.Replica.GetHighWatermark()
		}
	}
}

// configEntries are all configs in force, with what each would be without the
// topic's own setting.
func configEntries(defaults, topic map[string]string, replicas int32) []*gatewayv1.ConfigEntry {
	without := topicconfig.Effective(defaults, nil, replicas)
	out := make([]*gatewayv1.ConfigEntry, 0, len(without))
	for i, e := range topicconfig.Effective(defaults, topic, replicas) {
		out = append(out, &gatewayv1.ConfigEntry{
			Name: e.Key, Value: e.Value, Source: configSource(e.Source), DefaultValue: without[i].Value, Description: e.Description,
		})
	}
	return out
}

func configSource(s topicconfig.Source) gatewayv1.ConfigSource {
	switch s {
	case topicconfig.SourceTopic:
		return gatewayv1.ConfigSource_CONFIG_SOURCE_TOPIC
	case topicconfig.SourceCluster:
		return gatewayv1.ConfigSource_CONFIG_SOURCE_CLUSTER_DEFAULT
	case topicconfig.SourceDefault:
	}
	return gatewayv1.ConfigSource_CONFIG_SOURCE_DEFAULT
}

// ListOffsets serves AdminService.ListOffsets.
func (a *Admin) ListOffsets(ctx context.Context, req *gatewayv1.ListOffsetsRequest) (*gatewayv1.ListOffsetsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if req.GetSpec().GetSpec() == nil {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			"the request does not say which offset; set spec to a place (PLACE_EARLIEST, PLACE_LATEST, PLACE_MAX_TIMESTAMP) or a timestamp")
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	t, err := a.topic(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	partitions, err := partitionsOf(t, req.GetPartitions())
	if err != nil {
		return nil, err
	}
	queries := make([]client.OffsetQuery, len(partitions))
	for i, n := range partitions {
		queries[i] = client.OffsetQuery{TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: n}, Spec: req.GetSpec()}
	}
	asked, done := forController(ctx)
	defer done()
	results := a.h.cfg.Mesh.ListOffsets(asked, queries, typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED)
	resp := &gatewayv1.ListOffsetsResponse{}
	for i, r := range results {
		o := &gatewayv1.PartitionOffset{Partition: partitions[i], Offset: r.Offset, LeaderEpoch: r.LeaderEpoch}
		if r.Err != nil {
			o.Offset, o.LeaderEpoch, o.Error = -1, -1, rpc.ToProto(r.Err)
		} else if r.TimestampMs >= 0 {
			o.Timestamp = &timestamppb.Timestamp{Seconds: r.TimestampMs / 1000, Nanos: int32(r.TimestampMs%1000) * 1e6}
		}
		resp.Offsets = append(resp.Offsets, o)
	}
	return resp, nil
}

func unknownPartition(topic string, n, count int32) error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION,
		"topic %q has no partition %d; its %d partitions are 0 to %d", topic, n, count, count-1).With("topic", topic, "partition", fmt.Sprint(n))
}

// DescribeCluster serves AdminService.DescribeCluster: the elected controller's
// view, or, if none answers, the gateway's own image, in which no controller leads.
func (a *Admin) DescribeCluster(ctx context.Context, _ *gatewayv1.DescribeClusterRequest) (*gatewayv1.DescribeClusterResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	asked, done := context.WithTimeout(ctx, a.h.cfg.Limits.MarksTimeout)
	defer done()
	view, err := a.h.cfg.Controllers.DescribeCluster(asked, &controllerv1.DescribeClusterRequest{})
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return fromImage(a.h.cfg.Images.Image()), nil
	}
	return &gatewayv1.DescribeClusterResponse{
		ClusterId: view.GetClusterId(), Controller: view.GetLeader().GetController().GetId(),
		Services:                  services(view.GetRegistrations(), view.GetBrokers(), view.GetLeader()),
		UnderReplicatedPartitions: view.GetUnderReplicatedPartitions(), OfflinePartitions: view.GetOfflinePartitions(),
		Topics: view.GetTopics(), Partitions: view.GetPartitions(),
		Generation: view.GetPosition().GetGeneration(), Revision: view.GetPosition().GetRevision(),
	}, nil
}

// fromImage describes the mesh as the gateway saw it last. Controller 0 says that
// no controller answers.
func fromImage(image *metadata.Image) *gatewayv1.DescribeClusterResponse {
	resp := &gatewayv1.DescribeClusterResponse{
		ClusterId: image.ClusterID(), Generation: image.Position().Generation, Revision: image.Position().Revision,
	}
	var registrations []*controllerv1.Registration
	for _, kind := range registry.Kinds() {
		registrations = append(registrations, image.Registrations(kind)...)
	}
	resp.Services = services(registrations, image.Brokers(), nil)
	for _, t := range image.Topics() {
		if t.Deleting {
			continue
		}
		resp.Topics++
		for _, p := range t.Partitions() {
			resp.Partitions++
			if p.GetLeader().GetId() == 0 {
				resp.OfflinePartitions++
			}
			if len(p.GetIsr()) < len(p.GetReplicas()) {
				resp.UnderReplicatedPartitions++
			}
		}
	}
	return resp
}

// services joins registrations and broker records.
func services(registrations []*controllerv1.Registration, brokers []*controllerv1.Broker, leader *controllerv1.ControllerLeader) []*gatewayv1.ServiceDescription {
	var out []*gatewayv1.ServiceDescription
	byID := map[int32]*gatewayv1.ServiceDescription{}
	for _, r := range registrations {
		d := &gatewayv1.ServiceDescription{
			Kind: registry.KindName(r.GetKind()), Process: r.GetProcess(), Address: r.GetAddress(), Rack: r.GetRack(), Registered: true,
			SoftwareVersion: r.GetHandshake().GetSoftwareVersion(),
		}
		switch r.GetKind() {
		case controllerv1.ServiceKind_SERVICE_KIND_BROKER:
			// Until a record says otherwise nothing was accepted of it.
			d.Fenced = true
			byID[r.GetProcess().GetId()] = d
		case controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER:
			d.Leads = leader != nil && leader.GetController().GetId() == r.GetProcess().GetId()
		}
		out = append(out, d)
	}
	for _, b := range brokers {
		d := byID[b.GetBroker().GetId()]
		if d == nil {
			d = &gatewayv1.ServiceDescription{Kind: registry.KindName(controllerv1.ServiceKind_SERVICE_KIND_BROKER), Process: b.GetBroker(), Address: b.GetAddress(), Rack: b.GetRack()}
			out = append(out, d)
		}
		// A record of an earlier life says nothing of the one that is registered.
		d.Fenced = b.GetFenced() || d.Registered && d.GetProcess().GetIncarnation() != b.GetBroker().GetIncarnation()
		d.Draining = b.GetDraining()
	}
	return out
}
