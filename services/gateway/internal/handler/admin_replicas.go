package handler

import (
	"context"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
)

// DeleteRecords serves AdminService.DeleteRecords.
func (a *Admin) DeleteRecords(ctx context.Context, req *gatewayv1.DeleteRecordsRequest) (*gatewayv1.DeleteRecordsResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	if len(req.GetPartitions()) == 0 {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the request names no partition; name each with the first offset to keep")
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	t, err := a.topic(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	if t.Internal {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_TOPIC,
			"topic %q belongs to Leat itself, and deleting its records would lose what groups have committed; name another topic", t.Name).With("topic", t.Name)
	}
	wanted := make([]client.RecordsToDelete, 0, len(req.GetPartitions()))
	seen := map[int32]bool{}
	for _, p := range req.GetPartitions() {
		n := p.GetPartition()
		switch {
		case n < 0 || n >= t.NumPartitions():
			return nil, unknownPartition(t.Name, n, t.NumPartitions())
		case seen[n]:
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "partition %d is named twice; name each once", n)
		case p.GetBeforeOffset() < -1:
			return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
				"before_offset of partition %d is %d; give the first offset to keep, or -1 to delete all that is committed", n, p.GetBeforeOffset())
		}
		seen[n] = true
		wanted = append(wanted, client.RecordsToDelete{TopicPartition: client.TopicPartition{TopicID: t.ID, Partition: n}, Before: p.GetBeforeOffset()})
	}
	asked, done := forController(ctx)
	defer done()
	resp := &gatewayv1.DeleteRecordsResponse{}
	for _, r := range a.h.cfg.Mesh.DeleteRecords(asked, wanted) {
		resp.Results = append(resp.Results, &gatewayv1.DeletedRecords{Partition: r.Partition, LogStartOffset: r.LogStart, Error: rpc.ToProto(r.Err)})
	}
	return resp, nil
}

// ElectLeaders serves AdminService.ElectLeaders.
func (a *Admin) ElectLeaders(ctx context.Context, req *gatewayv1.ElectLeadersRequest) (*gatewayv1.ElectLeadersResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	wanted := &controllerv1.ElectLeadersRequest{Type: controllerv1.ElectionType_ELECTION_TYPE_PREFERRED}
	if req.GetUnclean() {
		wanted.Type = controllerv1.ElectionType_ELECTION_TYPE_UNCLEAN
	}
	switch {
	case req.GetTopic() != "":
		t, err := a.topic(ctx, req.GetTopic())
		if err != nil {
			return nil, err
		}
		partitions, err := partitionsOf(t, req.GetPartitions())
		if err != nil {
			return nil, err
		}
		for _, n := range partitions {
			wanted.Partitions = append(wanted.Partitions, &controllerv1.PartitionName{Topic: t.Name, Partition: n})
		}
	case req.GetUnclean():
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "an unclean election loses records, so that it is done by name only; name the topic")
	case len(req.GetPartitions()) > 0:
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "partitions are named without their topic; set topic")
	}
	asked, done := forController(ctx)
	defer done()
	answer, err := a.h.cfg.Controllers.ElectLeaders(asked, wanted)
	if err != nil {
		return nil, err
	}
	if err := a.awaitPosition(ctx, answer.GetPosition(), "leaders were elected"); err != nil {
		return nil, err
	}
	resp := &gatewayv1.ElectLeadersResponse{}
	for _, r := range answer.GetResults() {
		resp.Results = append(resp.Results, &gatewayv1.ElectedLeader{
			Topic: r.GetPartition().GetTopic(), Partition: r.GetPartition().GetPartition(), Leader: r.GetLeader(), Changed: r.GetChanged(), Error: r.GetError(),
		})
	}
	return resp, nil
}

// partitionsOf checks the partitions named of a topic; none named means all.
func partitionsOf(t *metadata.Topic, named []int32) ([]int32, error) {
	if len(named) == 0 {
		all := make([]int32, t.NumPartitions())
		for n := range all {
			all[n] = int32(n)
		}
		return all, nil
	}
	for _, n := range named {
		if n < 0 || n >= t.NumPartitions() {
			return nil, unknownPartition(t.Name, n, t.NumPartitions())
		}
	}
	return named, nil
}

// DigestTopic serves AdminService.DigestTopic: it takes the leader's high watermark
// of each partition and has every replica hash what lies below.
func (a *Admin) DigestTopic(ctx context.Context, req *gatewayv1.DigestTopicRequest) (*gatewayv1.DigestTopicResponse, error) {
	if err := a.h.started(); err != nil {
		return nil, err
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
	asked, done := forController(ctx)
	defer done()
	digests, queries := a.digestRanges(asked, t, partitions)
	at := map[int32]int{}
	for i, p := range digests {
		at[p.GetPartition()] = i
	}
	for _, r := range a.h.cfg.Mesh.DigestReplicas(asked, queries) {
		p := digests[at[r.Partition]]
		p.Replicas = append(p.Replicas, &gatewayv1.ReplicaDigest{Broker: r.Broker, Digest: r.Digest, Records: r.Records, Error: rpc.ToProto(r.Err)})
	}
	return &gatewayv1.DigestTopicResponse{Partitions: digests}, nil
}

// digestRanges says for each partition what is to be hashed, and at which brokers.
// Replicas begin where retention has brought each of them; what they all hold is
// compared.
func (a *Admin) digestRanges(ctx context.Context, t *metadata.Topic, partitions []int32) ([]*gatewayv1.PartitionDigest, []client.DigestQuery) {
	list := make([]client.TopicPartition, len(partitions))
	digests := make([]*gatewayv1.PartitionDigest, len(partitions))
	at := map[int32]*gatewayv1.PartitionDigest{}
	for i, n := range partitions {
		list[i] = client.TopicPartition{TopicID: t.ID, Partition: n}
		digests[i] = &gatewayv1.PartitionDigest{Partition: n, HighWatermark: -1}
		at[n] = digests[i]
	}
	for _, r := range a.h.cfg.Mesh.DescribeReplicas(ctx, list, false) {
		if p := at[r.Partition]; r.Err == nil && r.Replica != nil {
			p.FromOffset = max(p.FromOffset, r.Replica.GetLogStartOffset())
			if r.Replica.GetLeads() {
				p.HighWatermark = r.Replica.GetHighWatermark()
			}
		}
	}
	var queries []client.DigestQuery
	for i, p := range digests {
		if p.HighWatermark < 0 {
			p.Error = rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE,
				"the leader of %s-%d did not tell its high watermark; see whether it has one (leat topic describe)", t.Name, p.Partition))
			continue
		}
		for _, broker := range t.Partition(p.Partition).GetReplicas() {
			queries = append(queries, client.DigestQuery{TopicPartition: list[i], Broker: broker, From: p.FromOffset, To: p.HighWatermark})
		}
	}
	return digests, queries
}
