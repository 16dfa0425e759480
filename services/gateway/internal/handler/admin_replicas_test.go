package handler

import (
	"slices"
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// TestDeleteRecords answers for each partition by itself, and asks nobody where the
// request is wrong.
func TestDeleteRecords(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onDelete = func(w client.RecordsToDelete) client.DeletedRecords {
			if w.Partition == 1 {
				return client.DeletedRecords{RecordsToDelete: w, LogStart: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "too far")}
			}
			return client.DeletedRecords{RecordsToDelete: w, LogStart: w.Before}
		}
	})
	ctx := testContext(t)
	resp, err := r.admin.DeleteRecords(ctx, &gatewayv1.DeleteRecordsRequest{Topic: "a", Partitions: []*gatewayv1.RecordsToDelete{
		{Partition: 0, BeforeOffset: 7}, {Partition: 1, BeforeOffset: 99},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Results; len(got) != 2 || got[0].LogStartOffset != 7 || got[0].Error != nil ||
		got[1].LogStartOffset != -1 || got[1].Error.GetReason() != typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE {
		t.Errorf("got %v", got)
	}
	for want, p := range map[string][]*gatewayv1.RecordsToDelete{
		"UNKNOWN_PARTITION": {{Partition: 3}},
		"INVALID_REQUEST":   {{Partition: 0, BeforeOffset: -2}},
	} {
		if _, err := r.admin.DeleteRecords(ctx, &gatewayv1.DeleteRecordsRequest{Topic: "a", Partitions: p}); reason(err) != want {
			t.Errorf("%v: got %v, want %s", p, err, want)
		}
	}
	twice := []*gatewayv1.RecordsToDelete{{Partition: 0}, {Partition: 0}}
	if _, err := r.admin.DeleteRecords(ctx, &gatewayv1.DeleteRecordsRequest{Topic: "a", Partitions: twice}); reason(err) != "INVALID_REQUEST" {
		t.Errorf("one partition twice: %v", err)
	}
	if _, err := r.admin.DeleteRecords(ctx, &gatewayv1.DeleteRecordsRequest{Topic: "a"}); reason(err) != "INVALID_REQUEST" {
		t.Errorf("no partition: %v", err)
	}
}

// TestElectLeaders passes a topic's partitions on, and has unclean elections named.
func TestElectLeaders(t *testing.T) {
	r := newRig(t, nil)
	ctx := testContext(t)
	var asked *controllerv1.ElectLeadersRequest
	r.controller.elect = func(req *controllerv1.ElectLeadersRequest) (*controllerv1.ElectLeadersResponse, error) {
		asked = req
		resp := &controllerv1.ElectLeadersResponse{Position: &controllerv1.Position{Generation: 1, Revision: 1}}
		for _, p := range req.Partitions {
			resp.Results = append(resp.Results, &controllerv1.ElectionResult{Partition: p, Leader: 1, Changed: true})
		}
		return resp, nil
	}
	resp, err := r.admin.ElectLeaders(ctx, &gatewayv1.ElectLeadersRequest{Topic: "a"})
	if err != nil || len(resp.Results) != 3 || resp.Results[2].Partition != 2 || !resp.Results[2].Changed || asked.Type != controllerv1.ElectionType_ELECTION_TYPE_PREFERRED {
		t.Errorf("preferred: %v, %v, asked %v", resp, err, asked)
	}
	if _, err = r.admin.ElectLeaders(ctx, &gatewayv1.ElectLeadersRequest{Topic: "a", Partitions: []int32{1}, Unclean: true}); err != nil ||
		asked.Type != controllerv1.ElectionType_ELECTION_TYPE_UNCLEAN || len(asked.Partitions) != 1 {
		t.Errorf("unclean: %v, asked %v", err, asked)
	}
	if _, err = r.admin.ElectLeaders(ctx, &gatewayv1.ElectLeadersRequest{}); err != nil || len(asked.Partitions) != 0 {
		t.Errorf("all topics: %v, asked %v", err, asked)
	}
	for _, req := range []*gatewayv1.ElectLeadersRequest{{Unclean: true}, {Partitions: []int32{0}}} {
		if _, err := r.admin.ElectLeaders(ctx, req); reason(err) != "INVALID_REQUEST" {
			t.Errorf("%v: %v", req, err)
		}
	}
	if _, err := r.admin.ElectLeaders(ctx, &gatewayv1.ElectLeadersRequest{Topic: "a", Partitions: []int32{9}}); reason(err) != "UNKNOWN_PARTITION" {
		t.Errorf("partition 9: %v", err)
	}
}

// TestDigestTopic takes one high watermark and one start for all replicas of a
// partition, and says which replica gave nothing.
func TestDigestTopic(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onReplicas = func(p []client.TopicPartition) []client.ReplicaResult {
			return []client.ReplicaResult{
				{TopicPartition: p[0], Broker: 1, Replica: &brokerv1.ReplicaDescription{Leads: true, LogStartOffset: 2, HighWatermark: 8}},
				{TopicPartition: p[0], Broker: 2, Replica: &brokerv1.ReplicaDescription{LogStartOffset: 3, HighWatermark: 5}},
				{TopicPartition: p[1], Broker: 1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "gone")},
			}
		}
		m.onDigest = func(q client.DigestQuery) client.DigestResult {
			if q.Broker == 2 {
				return client.DigestResult{DigestQuery: q, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, "behind")}
			}
			return client.DigestResult{DigestQuery: q, Digest: []byte{byte(q.From), byte(q.To)}, Records: q.To - q.From}
		}
	})
	p0 := partition(0, 1)
	p0.Replicas = []int32{1, 2}
	r.controller.change(&controllerv1.MetadataChanges{Partitions: []*controllerv1.Partition{p0}})
	eventually(t, "two replicas are known", func() bool { return len(r.cfg.Images.Image().TopicByName("a").Partition(0).GetReplicas()) == 2 })
	resp, err := r.admin.DigestTopic(testContext(t), &gatewayv1.DigestTopicRequest{Topic: "a", Partitions: []int32{0, 1}})
	if err != nil || len(resp.Partitions) != 2 {
		t.Fatalf("got %v, %v", resp, err)
	}
	p := resp.Partitions[0]
	if p.HighWatermark != 8 || p.FromOffset != 3 || len(p.Replicas) != 2 || !slices.Equal(p.Replicas[0].Digest, []byte{3, 8}) || p.Replicas[0].Records != 5 ||
		p.Replicas[1].Digest != nil || p.Replicas[1].Error.GetReason() != typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED {
		t.Errorf("partition 0: %v", p)
	}
	if p := resp.Partitions[1]; p.HighWatermark != -1 || p.Error.GetReason() != typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE || len(p.Replicas) != 0 {
		t.Errorf("partition 1: %v", p)
	}
}
