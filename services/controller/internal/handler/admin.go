package handler

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/services/controller/internal/reconcile"
)

// maxTopicsPerRequest bounds the work of one admin request.
const maxTopicsPerRequest = 10_000

// adminServer serves the controller's AdminService. Mutations are the leader's;
// a standby answers NOT_CONTROLLER.
type adminServer struct {
	controllerv1.UnimplementedAdminServiceServer
	h *Handler
}

// memorable is the request's id; none if the request only checks.
func memorable(req interface {
	GetRequestId() string
	GetValidateOnly() bool
},
) string {
	if req.GetValidateOnly() {
		return ""
	}
	return req.GetRequestId()
}

// mutate carries out an admin mutation with the memory of its request id.
// build gives the answer once all is written.
func (s *adminServer) mutate(ctx context.Context, requestID, name string,
	plan func(*cluster.State, int) (cluster.Plan, error), build func(*controllerv1.Position) proto.Message,
) (proto.Message, error) {
	// The memory is looked at in the loop, where an earlier attempt of the same
	// request has ended.
	var earlier proto.Message
	id := name + "/" + requestID
	if requestID == "" {
		id = ""
	}
	position, err := s.h.do(ctx, name,
		func(state *cluster.State, attempt int) (cluster.Plan, error) {
			if earlier = s.h.memory.get(id); earlier != nil {
				return cluster.Plan{}, nil
			}
			return plan(state, attempt)
		},
		func(revision int64) {
			if earlier == nil {
				s.h.memory.put(id, build(s.h.position(revision)))
			}
		})
	if err != nil {
		return nil, err
	}
	if earlier != nil {
		return earlier, nil
	}
	return build(position), nil
}

// CreateTopics creates topics, each by itself whole or not at all, and answers
// when they are in force.
func (s *adminServer) CreateTopics(ctx context.Context, req *controllerv1.CreateTopicsRequest) (*controllerv1.CreateTopicsResponse, error) {
	if len(req.GetTopics()) > maxTopicsPerRequest {
		return nil, invalid("%d topics in one request; at most %d", len(req.GetTopics()), maxTopicsPerRequest)
	}
	c := &creation{h: s.h, req: req}
	resp, err := s.mutate(ctx, memorable(req), "create topics", c.plan, func(p *controllerv1.Position) proto.Message {
		return &controllerv1.CreateTopicsResponse{Results: results(c.outcomes), Position: p}
	})
	if err != nil {
		return nil, err
	}
	if !req.GetValidateOnly() {
		c.log()
	}
	return resp.(*controllerv1.CreateTopicsResponse), nil
}

// creation is one CreateTopics request over its attempts.
type creation struct {
	h        *Handler
	req      *controllerv1.CreateTopicsRequest
	outcomes []cluster.TopicOutcome
	tried    []topicid.ID // ids of earlier attempts, some of which may exist
}

func (c *creation) plan(state *cluster.State, _ int) (cluster.Plan, error) {
	topics := make([]cluster.NewTopic, 0, len(c.req.GetTopics()))
	var done []cluster.TopicOutcome
	for _, t := range c.req.GetTopics() {
		if made := c.made(state, t.GetName()); made != nil {
			done = append(done, *made)
			continue
		}
		n, err := c.newTopic(state, t)
		if err != nil {
			return cluster.Plan{}, err
		}
		topics = append(topics, n)
		c.tried = append(c.tried, n.ID)
	}
	if len(topics) == 0 && len(done) > 0 {
		c.outcomes = done
		return cluster.Plan{}, nil
	}
	plan, outcomes, err := cluster.CreateTopics(state, c.h.cfg.Limits, topics)
	if err != nil {
		return cluster.Plan{}, err
	}
	c.outcomes = c.inOrder(append(done, outcomes...))
	if c.req.GetValidateOnly() {
		for i := range c.outcomes {
			c.outcomes[i].ID = topicid.ID{}
		}
		return cluster.Plan{}, nil
	}
	return plan, nil
}

// derived is the id that this request gives a topic, so that another controller
// recognises what the request has made already. The floor of the name's leader
// epochs grows with every deletion and stays while a topic lives: a request id
// that is used again for the next topic of the name gives another id.
func (c *creation) derived(state *cluster.State, name string) (topicid.ID, bool) {
	request := memorable(c.req)
	if request == "" {
		return topicid.ID{}, false
	}
	floor := state.TopicName(name).LeaderEpochFloor
	return topicid.Derive(fmt.Appendf(nil, "%d:%s %s %d", len(request), request, name, floor)), true
}

// made tells whether an earlier attempt of this request made the topic, here or
// at another controller.
func (c *creation) made(state *cluster.State, name string) *cluster.TopicOutcome {
	t := state.TopicByName(name)
	if t == nil {
		return nil
	}
	if id, ok := c.derived(state, name); !slices.Contains(c.tried, t.Value.ID) && !(ok && id == t.Value.ID) {
		return nil
	}
	replicas := int32(0)
	if p := state.Partition(t.Value.ID, 0); p != nil {
		replicas = int32(len(p.Value.Replicas))
	}
	return &cluster.TopicOutcome{Name: name, ID: t.Value.ID, Partitions: t.Value.Partitions, ReplicationFactor: replicas}
}

// inOrder puts outcomes into the order of the request.
func (c *creation) inOrder(outcomes []cluster.TopicOutcome) []cluster.TopicOutcome {
	sorted := make([]cluster.TopicOutcome, 0, len(outcomes))
	used := make([]bool, len(outcomes))
	for _, t := range c.req.GetTopics() {
		for i, o := range outcomes {
			if !used[i] && o.Name == t.GetName() {
				used[i] = true
				sorted = append(sorted, o)
				break
			}
		}
	}
	return sorted
}

func (c *creation) log() {
	for _, o := range c.outcomes {
		if o.Rejection == nil {
			c.h.cfg.Logger.Info("topic created", "topic", o.Name, "topic_id", o.ID.String(), "partitions", o.Partitions, "replication_factor", o.ReplicationFactor)
		}
	}
}

// newTopic draws what a new topic needs by chance.
func (c *creation) newTopic(state *cluster.State, t *controllerv1.NewTopic) (cluster.NewTopic, error) {
	id, shift, err := draw()
	if err != nil {
		return cluster.NewTopic{}, err
	}
	if derived, ok := c.derived(state, t.GetName()); ok && state.Deletion(derived) == nil && state.Topic(derived) == nil && len(state.Partitions(derived)) == 0 {
		id = derived
	}
	n := cluster.NewTopic{
		Name: t.GetName(), Configs: t.GetConfigs(), ID: id, Shift: shift,
		Partitions: cluster.Unset, ReplicationFactor: cluster.Unset,
	}
	// A zero that was given is not an absent number; the core refuses it.
	if t.Partitions != nil {
		n.Partitions = t.GetPartitions()
	}
	if t.ReplicationFactor != nil {
		n.ReplicationFactor = t.GetReplicationFactor()
	}
	return n, nil
}

// draw draws a topic id and a start for placement.
func draw() (topicid.ID, int, error) {
	id, err := topicid.New(rand.Reader)
	if err != nil {
		return id, 0, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "%w", err)
	}
	var b [2]byte
	rand.Read(b[:]) // never fails
	return id, int(binary.BigEndian.Uint16(b[:])), nil
}

// results are outcomes in the form that travels.
func results(outcomes []cluster.TopicOutcome) []*controllerv1.TopicResult {
	list := make([]*controllerv1.TopicResult, 0, len(outcomes))
	for _, o := range outcomes {
		r := &controllerv1.TopicResult{Name: o.Name, Partitions: o.Partitions, ReplicationFactor: o.ReplicationFactor}
		if o.Rejection != nil {
			r = &controllerv1.TopicResult{Name: o.Name, Error: rpc.ToProto(reconcile.FromRejection(o.Rejection))}
		} else if !o.ID.IsZero() {
			r.TopicId = o.ID.Bytes()
		}
		list = append(list, r)
	}
	return list
}

// DeleteTopics begins the deletion of topics, each by itself, and answers when
// they are gone for clients.
func (s *adminServer) DeleteTopics(ctx context.Context, req *controllerv1.DeleteTopicsRequest) (*controllerv1.DeleteTopicsResponse, error) {
	if len(req.GetTopics()) > maxTopicsPerRequest {
		return nil, invalid("%d topics in one request; at most %d", len(req.GetTopics()), maxTopicsPerRequest)
	}
	var outcomes []cluster.TopicOutcome
	before := map[string]cluster.TopicOutcome{} // of earlier attempts
	plan := func(state *cluster.State, _ int) (cluster.Plan, error) {
		plan, out, err := cluster.DeleteTopics(state, req.GetTopics())
		for i, o := range out {
			// An earlier attempt whose answer was lost has done it.
			if prev, ok := before[o.Name]; ok && o.Rejection != nil && o.Rejection.Reason == "UNKNOWN_TOPIC" {
				out[i] = prev
			} else if o.Rejection == nil {
				before[o.Name] = o
			}
		}
		outcomes = out
		return plan, err
	}
	resp, err := s.mutate(ctx, req.GetRequestId(), "delete topics", plan, func(p *controllerv1.Position) proto.Message {
		return &controllerv1.DeleteTopicsResponse{Results: results(outcomes), Position: p}
	})
	if err != nil {
		return nil, err
	}
	for _, o := range outcomes {
		if o.Rejection == nil {
			s.h.cfg.Logger.Info("topic deleted", "topic", o.Name, "topic_id", o.ID.String())
		}
	}
	return resp.(*controllerv1.DeleteTopicsResponse), nil
}

// AlterTopic changes configs and adds partitions, all or nothing.
func (s *adminServer) AlterTopic(ctx context.Context, req *controllerv1.AlterTopicRequest) (*controllerv1.AlterTopicResponse, error) {
	command := cluster.AlterTopicCommand{Name: req.GetTopic(), SetConfigs: req.GetSetConfigs(), DeleteConfigs: req.GetDeleteConfigs(), Partitions: req.GetPartitions()}
	if req.Partitions != nil && command.Partitions == 0 {
		command.Partitions = -1 // refused by the core, unlike an absent number
	}
	planned := false
	plan := func(state *cluster.State, _ int) (cluster.Plan, error) {
		c := command
		if t := state.TopicByName(c.Name); planned && t != nil && t.Value.Partitions == c.Partitions {
			c.Partitions = 0 // an earlier attempt whose answer was lost has done it
		}
		plan, err := cluster.AlterTopic(state, c)
		if err != nil || req.GetValidateOnly() {
			return cluster.Plan{}, err
		}
		planned = true
		return plan, nil
	}
	resp, err := s.mutate(ctx, memorable(req), "alter topic", plan, func(p *controllerv1.Position) proto.Message {
		return &controllerv1.AlterTopicResponse{Position: p}
	})
	if err != nil {
		return nil, err
	}
	if planned {
		s.h.cfg.Logger.Info("topic altered", "topic", req.GetTopic(), "set", req.GetSetConfigs(), "reset", req.GetDeleteConfigs(), "partitions", req.GetPartitions())
	}
	return resp.(*controllerv1.AlterTopicResponse), nil
}

// DescribeCluster tells the elected controller's view; a standby answers
// NOT_CONTROLLER.
func (s *adminServer) DescribeCluster(ctx context.Context, _ *controllerv1.DescribeClusterRequest) (*controllerv1.DescribeClusterResponse, error) {
	resp := &controllerv1.DescribeClusterResponse{Handshake: rpc.LocalHandshake()}
	// An empty command comes back only from the leader, and by then its view holds
	// everything that went before.
	position, err := s.h.do(ctx, "describe cluster", func(state *cluster.State, _ int) (cluster.Plan, error) {
		describe(state, resp)
		return cluster.Plan{}, nil
	}, nil)
	if err != nil {
		return nil, err
	}
	resp.Position = position
	return resp, nil
}

func describe(state *cluster.State, resp *controllerv1.DescribeClusterResponse) {
	resp.ClusterId, resp.DefaultConfigs = state.Cluster().ID, state.Cluster().DefaultConfigs
	resp.Leader = leaderMessage(state)
	for _, r := range state.Registrations(0) {
		resp.Registrations = append(resp.Registrations, registrationMessage(r))
	}
	for _, b := range state.Brokers() {
		resp.Brokers = append(resp.Brokers, brokerMessage(b.Value))
	}
	count := state.Count()
	resp.Topics, resp.Partitions = int32(count.Topics), int32(count.Partitions)
	resp.OfflinePartitions, resp.UnderReplicatedPartitions = int32(count.Offline), int32(count.UnderReplicated)
}
