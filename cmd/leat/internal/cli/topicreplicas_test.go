package cli

import (
	"context"
	"strings"
	"testing"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// DeleteRecords moves every partition's start but that of partition 1.
func (f *fakeGateway) DeleteRecords(_ context.Context, r *gatewayv1.DeleteRecordsRequest) (*gatewayv1.DeleteRecordsResponse, error) {
	resp := &gatewayv1.DeleteRecordsResponse{}
	for _, p := range r.Partitions {
		d := &gatewayv1.DeletedRecords{Partition: p.Partition, LogStartOffset: p.BeforeOffset}
		if p.BeforeOffset < 0 {
			d.LogStartOffset = int64(len(f.log(r.Topic, p.Partition)))
		}
		if p.Partition == 1 {
			d.LogStartOffset, d.Error = -1, rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "too far"))
		}
		resp.Results = append(resp.Results, d)
	}
	return resp, nil
}

// DigestTopic finds broker 2 away, and broker 3 different in partition 1.
func (f *fakeGateway) DigestTopic(_ context.Context, r *gatewayv1.DigestTopicRequest) (*gatewayv1.DigestTopicResponse, error) {
	resp := &gatewayv1.DigestTopicResponse{}
	for _, n := range r.Partitions {
		p := &gatewayv1.PartitionDigest{Partition: n, HighWatermark: 9, FromOffset: 4}
		for broker := int32(1); broker <= 3; broker++ {
			d := &gatewayv1.ReplicaDigest{Broker: broker, Digest: []byte{0xab}, Records: 5}
			switch {
			case broker == 2:
				d = &gatewayv1.ReplicaDigest{Broker: broker, Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "broker 2 is away"))}
			case broker == 3 && n == 1:
				d.Digest = []byte{0xcd}
			}
			p.Replicas = append(p.Replicas, d)
		}
		resp.Partitions = append(resp.Partitions, p)
	}
	return resp, nil
}

// ElectLeaders elects broker 2 in partition 0 and nobody in the others.
func (f *fakeGateway) ElectLeaders(_ context.Context, r *gatewayv1.ElectLeadersRequest) (*gatewayv1.ElectLeadersResponse, error) {
	resp := &gatewayv1.ElectLeadersResponse{}
	for _, n := range r.Partitions {
		e := &gatewayv1.ElectedLeader{Topic: r.Topic, Partition: n, Leader: 2, Changed: true}
		if n > 0 {
			e = &gatewayv1.ElectedLeader{Topic: r.Topic, Partition: n, Leader: -1, Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "nobody lives"))}
		}
		resp.Results = append(resp.Results, e)
	}
	return resp, nil
}

// TestReplicaCommands print documented JSON, tables for people, and exit codes that
// tell partly from wholly failed.
func TestReplicaCommands(t *testing.T) {
	f := startFake(t)
	f.topic("t", 2)
	f.fill("t", 0, "a", "b")
	unreachable := `"error":{"reason":"UNREACHABLE","message":"broker 2 is away"}`
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"topic delete-records t --partition 0 --before 1", 0, `{"topic":"t","partitions":[{"partition":0,"log_start_offset":1}]}`},
		{"topic delete-records t --before end", 3, `{"topic":"t","partitions":[{"partition":0,"log_start_offset":2},{"partition":1,"log_start_offset":-1,"error":{"reason":"OFFSET_OUT_OF_RANGE","message":"too far"}}]}`},
		{
			"topic digest t --partition 0", 0,
			`{"topic":"t","partitions":[{"partition":0,"high_watermark":9,"from_offset":4,"replicas":[{"broker":1,"digest":"ab","records":5},{"broker":2,"digest":null,"records":0,` + unreachable + `},{"broker":3,"digest":"ab","records":5}]}]}`,
		},
		{
			"topic digest t --partition 1", 1,
			`{"topic":"t","partitions":[{"partition":1,"high_watermark":9,"from_offset":4,"replicas":[{"broker":1,"digest":"ab","records":5},{"broker":2,"digest":null,"records":0,` + unreachable + `},{"broker":3,"digest":"cd","records":5}]}]}`,
		},
		{"cluster elect-leaders", 0, `{"elections":[]}`},
		{"cluster elect-leaders --topic t --partition 0", 0, `{"elections":[{"topic":"t","partition":0,"leader":2,"changed":true}]}`},
		{"cluster elect-leaders --topic t --partition 1 --unclean", 1, `{"elections":[{"topic":"t","partition":1,"leader":-1,"changed":false,"error":{"reason":"LEADER_NOT_AVAILABLE","message":"nobody lives"}}]}`},
	} {
		out, _ := leat(t, c.code, f.addr, "", append(strings.Fields(c.args), "-o", "json")...)
		if out != c.want+"\n" {
			t.Errorf("%s:\n%s", c.args, out)
		}
		if text, _ := leat(t, c.code, f.addr, "", strings.Fields(c.args)...); text == "" || strings.HasPrefix(text, "{") {
			t.Errorf("%s for people:\n%s", c.args, text)
		}
	}
	for _, wrong := range []string{
		"topic delete-records t", "topic delete-records t --before soon", "topic delete-records t --before -3", "topic digest t --timeout 0s",
		"cluster elect-leaders --unclean", "cluster elect-leaders --partition 1", "consume t --replica 0", "consume t --replica 1 --group g",
		"consume t --replica 1 --client-rack r",
	} {
		leat(t, 2, f.addr, "", strings.Fields(wrong)...)
	}
}
