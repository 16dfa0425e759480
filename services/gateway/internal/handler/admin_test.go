package handler

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/metadata"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

var topicB = topicid.ID{0xb}

// TestCreateTopicWaitsForLeaders returns when every partition has a leader, and not
// before.
func TestCreateTopicWaitsForLeaders(t *testing.T) {
	r := newRig(t, nil)
	asked := make(chan *controllerv1.CreateTopicsRequest, 1)
	r.controller.create = func(req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
		asked <- req
		m := &controllerv1.MetadataChanges{Topics: []*controllerv1.Topic{{TopicId: topicB[:], Name: "b", Partitions: 2}}}
		for n := range int32(2) {
			m.Partitions = append(m.Partitions, &controllerv1.Partition{TopicId: topicB[:], Partition: n, Replicas: []int32{1}})
		}
		return &controllerv1.CreateTopicsResponse{
			Position: r.controller.change(m),
			Results:  []*controllerv1.TopicResult{{Name: "b", TopicId: topicB[:], Partitions: 2, ReplicationFactor: 1}},
		}, nil
	}
	type answer struct {
		resp *gatewayv1.CreateTopicResponse
		err  error
	}
	done := make(chan answer, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		resp, err := r.admin.CreateTopic(testContext(t), &gatewayv1.CreateTopicRequest{
			RequestId: "id", Topic: "b", Partitions: ptr(int32(2)), Configs: map[string]string{"retention.ms": "5"},
		})
		done <- answer{resp, err}
	})
	if req := <-asked; req.RequestId != "id" || req.Topics[0].GetPartitions() != 2 || req.Topics[0].Configs["retention.ms"] != "5" {
		t.Errorf("the controller was asked %v", req)
	}
	eventually(t, "the topic is seen", func() bool { return r.cfg.Images.Image().TopicByName("b") != nil })
	lead := func(n int32) {
		r.controller.change(&controllerv1.MetadataChanges{Partitions: []*controllerv1.Partition{{
			TopicId: topicB[:], Partition: n, Replicas: []int32{1}, Leader: &typev1.Process{Id: 1, Incarnation: 9},
		}}})
	}
	lead(0)
	eventually(t, "partition 0 has a leader", func() bool { return leaderless(r.cfg.Images.Image().TopicByName("b")) == 1 })
	select {
	case a := <-done:
		t.Fatalf("answered %v, %v while partition 1 has no leader", a.resp, a.err)
	default:
	}
	lead(1)
	if a := <-done; a.err != nil || string(a.resp.TopicId) != string(topicB[:]) || a.resp.Partitions != 2 {
		t.Errorf("answered %v, %v", a.resp, a.err)
	}
}

// TestCreateTopicWithoutLeaders is done, and says what is missing.
func TestCreateTopicWithoutLeaders(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.AdminTimeout = 300 * time.Millisecond })
	r.controller.create = func(*controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
		at := r.controller.change(&controllerv1.MetadataChanges{
			Topics:     []*controllerv1.Topic{{TopicId: topicB[:], Name: "b", Partitions: 1}},
			Partitions: []*controllerv1.Partition{{TopicId: topicB[:], Replicas: []int32{1}}},
		})
		// A gateway that has not seen it yet when its time is up says that instead.
		eventually(t, "the topic is seen", func() bool { return r.cfg.Images.Image().TopicByName("b") != nil })
		return &controllerv1.CreateTopicsResponse{
			Position: at,
			Results:  []*controllerv1.TopicResult{{Name: "b", TopicId: topicB[:], Partitions: 1}},
		}, nil
	}
	_, err := r.admin.CreateTopic(context.Background(), &gatewayv1.CreateTopicRequest{Topic: "b"})
	if e := rpc.FromError(err); e == nil || e.Reason != typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE || e.Outcome != typev1.Outcome_OUTCOME_DONE || !strings.Contains(e.Message, "partition 0") {
		t.Errorf("got %v", err)
	}
}

// TestAdminErrors reach the client as the controller gave them.
func TestAdminErrors(t *testing.T) {
	r := newRig(t, nil)
	ctx := testContext(t)
	r.controller.create = func(req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
		return &controllerv1.CreateTopicsResponse{Results: []*controllerv1.TopicResult{{
			Name:  req.Topics[0].Name,
			Error: rpc.ToProto(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_EXISTS, "topic %q exists", req.Topics[0].Name)),
		}}}, nil
	}
	if _, err := r.admin.CreateTopic(ctx, &gatewayv1.CreateTopicRequest{Topic: "a"}); reason(err) != "TOPIC_EXISTS" {
		t.Errorf("create: %v", err)
	}
	for _, n := range []int32{0, -1} {
		if _, err := r.admin.CreateTopic(ctx, &gatewayv1.CreateTopicRequest{Topic: "b", Partitions: ptr(n)}); reason(err) != "INVALID_PARTITIONS" {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
	r.controller.remove = func(*controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE, "none leads")
	}
	if _, err := r.admin.DeleteTopic(ctx, &gatewayv1.DeleteTopicRequest{Topic: "a"}); reason(err) != "CONTROLLER_NOT_AVAILABLE" {
		t.Errorf("delete: %v", err)
	}
	r.controller.alter = func(*controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_CONFIG, "unknown key")
	}
	if _, err := r.admin.AlterTopic(ctx, &gatewayv1.AlterTopicRequest{Topic: "a"}); reason(err) != "INVALID_CONFIG" {
		t.Errorf("alter: %v", err)
	}
	if _, err := r.admin.DescribeTopic(ctx, &gatewayv1.DescribeTopicRequest{Topic: "nope"}); reason(err) != "UNKNOWN_TOPIC" {
		t.Errorf("describe: %v", err)
	}
	if _, err := r.admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{PageToken: "!"}); reason(err) != "INVALID_REQUEST" {
		t.Errorf("list: %v", err)
	}
	if _, err := r.admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{PageSize: -1}); reason(err) != "INVALID_REQUEST" {
		t.Errorf("list: %v", err)
	}
	if _, err := r.admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{}); reason(err) != "INVALID_GROUP" {
		t.Errorf("group: %v", err)
	}
}

// TestAlterAndDelete return when this gateway has seen the change.
func TestAlterAndDelete(t *testing.T) {
	r := newRig(t, nil)
	ctx := testContext(t)
	r.controller.alter = func(req *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
		return &controllerv1.AlterTopicResponse{Position: r.controller.change(topicEntries(req.GetPartitions()))}, nil
	}
	if _, err := r.admin.AlterTopic(ctx, &gatewayv1.AlterTopicRequest{Topic: "a", Partitions: ptr(int32(5))}); err != nil {
		t.Fatal(err)
	}
	if n := r.cfg.Images.Image().TopicByName("a").NumPartitions(); n != 5 {
		t.Errorf("%d partitions are seen", n)
	}
	r.controller.remove = func(*controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
		return &controllerv1.DeleteTopicsResponse{
			Results:  []*controllerv1.TopicResult{{Name: "a"}},
			Position: r.controller.change(&controllerv1.MetadataChanges{RemovedTopics: [][]byte{topicA[:]}}),
		}, nil
	}
	if _, err := r.admin.DeleteTopic(ctx, &gatewayv1.DeleteTopicRequest{Topic: "a"}); err != nil {
		t.Fatal(err)
	}
	if r.cfg.Images.Image().TopicByName("a") != nil {
		t.Error("the topic is still seen")
	}
}

func TestListTopicsByPages(t *testing.T) {
	r := newRig(t, nil)
	m := &controllerv1.MetadataChanges{}
	for i, name := range []string{"b", "c", "__consumer_offsets"} {
		id := topicid.ID{0xc, byte(i)}
		m.Topics = append(m.Topics, &controllerv1.Topic{TopicId: id[:], Name: name, Partitions: 1, Internal: i == 2})
		m.Partitions = append(m.Partitions, &controllerv1.Partition{TopicId: id[:], Replicas: []int32{1, 2}})
	}
	r.controller.change(m)
	eventually(t, "the topics are seen", func() bool { return r.cfg.Images.Image().TopicByName("c") != nil })
	var names []string
	token, pages := "", 0
	for {
		resp, err := r.admin.ListTopics(testContext(t), &gatewayv1.ListTopicsRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range resp.Topics {
			names = append(names, s.Name)
		}
		pages++
		if token = resp.NextPageToken; token == "" {
			break
		}
	}
	if strings.Join(names, " ") != "__consumer_offsets a b c" || pages != 2 {
		t.Errorf("%d pages of %q", pages, names)
	}
	resp, err := r.admin.ListTopics(testContext(t), &gatewayv1.ListTopicsRequest{ExcludeInternal: true})
	if err != nil || len(resp.Topics) != 3 || resp.Topics[1].ReplicationFactor != 2 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestDescribeTopic tells configs with their source, and marks as far as brokers
// answered.
func TestDescribeTopic(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onReplicas = func(p []client.TopicPartition) []client.ReplicaResult {
			return []client.ReplicaResult{
				{TopicPartition: p[0], Broker: 1, Replica: &brokerv1.ReplicaDescription{Leads: true, LogStartOffset: 2, HighWatermark: 8, LogEndOffset: 9, DurableEndOffset: 8}},
				{TopicPartition: p[1], Broker: 1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "gone")},
				{TopicPartition: p[2], Broker: -1, Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "none")},
			}
		}
	})
	r.controller.change(&controllerv1.MetadataChanges{Partitions: []*controllerv1.Partition{partition(2, 0)}})
	eventually(t, "the leader is gone", func() bool { return leaderless(r.cfg.Images.Image().TopicByName("a")) == 2 })
	resp, err := r.admin.DescribeTopic(testContext(t), &gatewayv1.DescribeTopicRequest{Topic: "a"})
	if err != nil {
		t.Fatal(err)
	}
	p := resp.Partitions
	if len(p) != 3 || p[0].HighWatermark != 8 || p[0].LogStartOffset != 2 || p[0].ReplicaEnds[0].End != 9 || p[0].Leader != 1 || p[0].LeaderEpoch != 2 {
		t.Errorf("partition 0: %v", p)
	}
	if p[1].HighWatermark != -1 || p[1].Leader != 1 || p[2].Leader != -1 || p[2].HighWatermark != -1 {
		t.Errorf("partitions 1 and 2: %v", p[1:])
	}
	found := false
	for _, c := range resp.Configs {
		if c.Name == "retention.ms" {
			found = true
			if c.Value != "1000" || c.Source != gatewayv1.ConfigSource_CONFIG_SOURCE_TOPIC || c.DefaultValue == "1000" || c.DefaultValue == "" || c.Description == "" {
				t.Errorf("retention.ms: %v", c)
			}
		} else if c.Source != gatewayv1.ConfigSource_CONFIG_SOURCE_DEFAULT || c.Value != c.DefaultValue {
			t.Errorf("%v", c)
		}
	}
	if !found {
		t.Error("retention.ms is missing")
	}
}

func TestListOffsets(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
			if q.Partition == 1 {
				return client.OffsetResult{Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "none")}
			}
			return client.OffsetResult{Offset: 40 + int64(q.Partition), TimestampMs: 1500, LeaderEpoch: 2}
		}
	})
	ctx := testContext(t)
	resp, err := r.admin.ListOffsets(ctx, &gatewayv1.ListOffsetsRequest{Topic: "a", Spec: client.Latest()})
	if err != nil || len(resp.Offsets) != 3 {
		t.Fatalf("%v, %v", resp, err)
	}
	o := resp.Offsets
	if o[0].Offset != 40 || o[0].Timestamp.AsTime().UnixMilli() != 1500 || o[1].Offset != -1 || o[1].Error.GetReason() != typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE || o[2].Offset != 42 {
		t.Errorf("offsets %v", o)
	}
	for want, req := range map[string]*gatewayv1.ListOffsetsRequest{
		"UNKNOWN_PARTITION":  {Topic: "a", Partitions: []int32{3}, Spec: client.Latest()},
		"UNKNOWN_TOPIC":      {Topic: "nope", Spec: client.Latest()},
		"INVALID_REQUEST":    {Topic: "a"},
		"INVALID_TOPIC_NAME": {Spec: client.Latest()},
	} {
		if _, err := r.admin.ListOffsets(ctx, req); reason(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestDescribeCluster is the controller's view; without one the gateway's own, in
// which no controller leads.
func TestDescribeCluster(t *testing.T) {
	r := newRig(t, func(l *Limits, _ *fakeMesh, _ *Config) { l.MarksTimeout = 50 * time.Millisecond })
	broker := func(incarnation uint64) *controllerv1.Registration {
		return &controllerv1.Registration{Kind: controllerv1.ServiceKind_SERVICE_KIND_BROKER, Process: &typev1.Process{Id: 1, Incarnation: incarnation}, Address: "h:1"}
	}
	r.controller.cluster = func(context.Context) (*controllerv1.DescribeClusterResponse, error) {
		return &controllerv1.DescribeClusterResponse{
			ClusterId: "c1", Leader: &controllerv1.ControllerLeader{Controller: &typev1.Process{Id: 2}}, Topics: 1, Partitions: 3,
			Position: &controllerv1.Position{Generation: 1, Revision: 12},
			Registrations: []*controllerv1.Registration{
				broker(9),
				{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Process: &typev1.Process{Id: 2}},
			},
			Brokers: []*controllerv1.Broker{{Broker: &typev1.Process{Id: 1, Incarnation: 9}}, {Broker: &typev1.Process{Id: 5}, Fenced: true}},
		}, nil
	}
	resp, err := r.admin.DescribeCluster(testContext(t), &gatewayv1.DescribeClusterRequest{})
	if err != nil || resp.Controller != 2 || resp.Revision != 12 || len(resp.Services) != 3 {
		t.Fatalf("%v, %v", resp, err)
	}
	s := resp.Services
	if s[0].Kind != "broker" || s[0].Fenced || !s[0].Registered || !s[1].Leads || s[2].Registered || !s[2].Fenced || s[2].Process.Id != 5 {
		t.Errorf("services %v", s)
	}
	r.controller.cluster = func(ctx context.Context) (*controllerv1.DescribeClusterResponse, error) {
		<-ctx.Done()
		return nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_CONTROLLER_NOT_AVAILABLE, "none leads")
	}
	r.controller.change(&controllerv1.MetadataChanges{
		Registrations: []*controllerv1.Registration{broker(10)},
		Brokers:       []*controllerv1.Broker{{Broker: &typev1.Process{Id: 1, Incarnation: 9}}}, Partitions: []*controllerv1.Partition{partition(2, 0)},
	})
	eventually(t, "the change is seen", func() bool { return len(r.cfg.Images.Image().Brokers()) == 1 })
	resp, err = r.admin.DescribeCluster(testContext(t), &gatewayv1.DescribeClusterRequest{})
	if err != nil || resp.Controller != 0 || resp.ClusterId != "c1" || resp.OfflinePartitions != 1 || resp.Partitions != 3 || resp.Topics != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	if !resp.Services[0].Fenced {
		t.Error("nothing was accepted of this life of the broker")
	}
}

func TestGroups(t *testing.T) {
	r := newRig(t, func(_ *Limits, m *fakeMesh, _ *Config) {
		m.onOffsets = func(q client.OffsetQuery) client.OffsetResult {
			if q.Partition == 2 {
				return client.OffsetResult{Err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LEADER_NOT_AVAILABLE, "none")}
			}
			if q.Spec.GetPlace() == typev1.OffsetSpec_PLACE_EARLIEST {
				return client.OffsetResult{Offset: 3}
			}
			return client.OffsetResult{Offset: 10}
		}
		m.groups = []*coordinatorv1.GroupSummary{{Group: "g", State: coordinatorv1.GroupState_GROUP_STATE_STABLE, Members: 1}, {Group: "h"}}
		m.group = &coordinatorv1.DescribeGroupResponse{
			Summary: m.groups[0], Assignor: "uniform",
			Offsets: []*coordinatorv1.CommittedOffset{{TopicId: topicA[:], Partition: 0, NextOffset: 4, Metadata: "m"}, {TopicId: topicB[:], NextOffset: 1}, {TopicId: topicA[:], Partition: 2, NextOffset: 1}},
			Members: []*coordinatorv1.GroupMember{{MemberId: "m1", Owned: []*coordinatorv1.OwnedPartition{{TopicId: topicA[:], Partition: 0}, {TopicId: topicA[:], Partition: 1}}}},
		}
	})
	ctx := testContext(t)
	list, err := r.admin.ListGroups(ctx, &gatewayv1.ListGroupsRequest{PageSize: 1})
	if err != nil || len(list.Groups) != 1 || list.Groups[0].State != "stable" || list.NextPageToken == "" {
		t.Fatalf("%v, %v", list, err)
	}
	if list, err = r.admin.ListGroups(ctx, &gatewayv1.ListGroupsRequest{PageToken: list.NextPageToken}); err != nil || len(list.Groups) != 1 || list.Groups[0].Group != "h" {
		t.Errorf("%v, %v", list, err)
	}
	g, err := r.admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: "g"})
	if err != nil || len(g.Partitions) != 4 || g.Members[0].Partitions != 2 || g.Assignor != "uniform" {
		t.Fatalf("%v, %v", g, err)
	}
	gone, p0, p1, p2 := g.Partitions[0], g.Partitions[1], g.Partitions[2], g.Partitions[3]
	if gone.Topic != "" || gone.Committed != 1 || gone.Lag != -1 {
		t.Errorf("of a topic that is gone: %v", gone)
	}
	if p0.Committed != 4 || p0.End != 10 || p0.Lag != 6 || p0.MemberId != "m1" || p0.Metadata != "m" {
		t.Errorf("partition 0: %v", p0)
	}
	if p1.Committed != -1 || p1.Lag != 7 || p2.End != -1 || p2.Lag != -1 {
		t.Errorf("partitions 1 and 2: %v, %v", p1, p2)
	}

	offset := func(n int32, next int64) *gatewayv1.GroupOffset {
		return &gatewayv1.GroupOffset{Topic: "a", Partition: n, NextOffset: next}
	}
	if _, err := r.admin.CommitGroupOffsets(ctx, &gatewayv1.CommitGroupOffsetsRequest{Group: "g", Offsets: []*gatewayv1.GroupOffset{offset(1, 7)}}); err != nil {
		t.Fatal(err)
	}
	if c := r.mesh.committed; len(c) != 1 || c[0].TopicPartition != partA(1) || c[0].NextOffset != 7 || c[0].LeaderEpoch != -1 {
		t.Errorf("committed %v", c)
	}
	for want, o := range map[string][]*gatewayv1.GroupOffset{
		"UNKNOWN_PARTITION":         {offset(3, 1)},
		"OFFSET_OUT_OF_RANGE":       {offset(0, -1)},
		"INVALID_REQUEST":           {},
		"UNKNOWN_TOPIC":             {{Topic: "nope"}},
		"OFFSET_METADATA_TOO_LARGE": {{Topic: "a", Metadata: strings.Repeat("x", 5000)}},
	} {
		if _, err := r.admin.CommitGroupOffsets(ctx, &gatewayv1.CommitGroupOffsetsRequest{Group: "g", Offsets: o}); reason(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	r.mesh.commitResult = client.CommitResult{Refused: map[client.TopicPartition]error{partA(1): rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, "gone")}}
	if _, err := r.admin.CommitGroupOffsets(ctx, &gatewayv1.CommitGroupOffsetsRequest{Group: "g", Offsets: []*gatewayv1.GroupOffset{offset(0, 1), offset(1, 7)}}); reason(err) != "TOPIC_DELETED" || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("refused: %v", err)
	}
	r.mesh.groupErr = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_GROUP_NOT_EMPTY, "members")
	if _, err := r.admin.DeleteGroup(ctx, &gatewayv1.DeleteGroupRequest{Group: "g"}); reason(err) != "GROUP_NOT_EMPTY" {
		t.Errorf("delete: %v", err)
	}
	r.mesh.groupErr = nil
	if _, err := r.admin.DeleteGroup(ctx, &gatewayv1.DeleteGroupRequest{Group: "g"}); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// noImages is a gateway that has heard from no controller yet.
type noImages struct{ Images }

func (noImages) Image() *metadata.Image {
	return metadata.NewWatcher(metadata.Options{}).Image()
}

// TestBeforeTheMesh: every call is answered with what is awaited, and may be
// retried blindly.
func TestBeforeTheMesh(t *testing.T) {
	r := newRig(t, func(_ *Limits, _ *fakeMesh, c *Config) { c.Images = noImages{c.Images} })
	ctx := testContext(t)
	calls := map[string]func() error{
		"ListTopics": func() error { _, err := r.admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{}); return err },
		"CreateTopic": func() error {
			_, err := r.admin.CreateTopic(ctx, &gatewayv1.CreateTopicRequest{Topic: "b"})
			return err
		},
		"DescribeCluster": func() error { _, err := r.admin.DescribeCluster(ctx, &gatewayv1.DescribeClusterRequest{}); return err },
		"ListGroups":      func() error { _, err := r.admin.ListGroups(ctx, &gatewayv1.ListGroupsRequest{}); return err },
		"ExplainGroup": func() error {
			_, err := r.admin.ExplainGroup(ctx, &gatewayv1.ExplainGroupRequest{Group: "g"})
			return err
		},
		"SimulateGroup": func() error {
			_, err := r.admin.SimulateGroup(ctx, &gatewayv1.SimulateGroupRequest{Group: "g", AddMembers: 1})
			return err
		},
		"ResetGroupOffsets": func() error {
			_, err := r.admin.ResetGroupOffsets(ctx, &gatewayv1.ResetGroupOffsetsRequest{Group: "g"})
			return err
		},
		"Send": func() error { _, err := r.produce.Send(ctx, &gatewayv1.SendRequest{Topic: "a"}); return err },
		"Produce": func() error {
			s, err := r.produce.Produce(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"Consume": func() error {
			s, err := r.consume.Consume(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	}
	for name, call := range calls {
		err := call()
		if reason(err) != "STARTING" || !rpc.Retryable(err) || !strings.Contains(err.Error(), "controller") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
