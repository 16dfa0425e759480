package client

import (
	"context"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// CommittedOffset is a committed position of a group.
type CommittedOffset struct {
	TopicPartition
	NextOffset  int64 // -1: none is committed
	LeaderEpoch int32 // -1: unknown
	Metadata    string
	CommittedAt time.Time // zero: unknown
}

// callGroup makes a unary call at the group's coordinator, retrying what can be
// retried until ctx ends.
func callGroup[R any](ctx context.Context, c *Client, group string, call func(context.Context, coordinatorv1.GroupServiceClient) (R, error)) (R, error) {
	return callGroupFor(ctx, c, group, groupCall{timeout: c.cfg.RequestTimeout}, call)
}

// askGroup is callGroup for what somebody waits to see: it does not go on until ctx ends
// where the group's shard can confirm nothing.
func askGroup[R any](ctx context.Context, c *Client, group string, call func(context.Context, coordinatorv1.GroupServiceClient) (R, error)) (R, error) {
	return callGroupFor(ctx, c, group, groupCall{timeout: c.cfg.RequestTimeout, patience: shardPatience}, call)
}

// shardPatience is how long a question goes on whose coordinator says that the shard has
// no leader or too few in-sync replicas: an election is over by then, while brokers that
// are missing may stay away for long.
const shardPatience = 2 * time.Second

// groupCall bounds a call.
type groupCall struct {
	timeout  time.Duration // of an attempt
	patience time.Duration // with a shard that can confirm nothing; 0: until the call's own end
}

// shardLacks reports whether a coordinator says of the group's shard that it can confirm
// nothing.
func shardLacks(e *rpc.Error) bool {
	return e.Reason == reasonNotEnoughReplicas || e.Reason == reasonLeaderUnavailable
}

// callGroupFor is callGroup with other bounds.
func callGroupFor[R any](ctx context.Context, c *Client, group string, bounds groupCall, call func(context.Context, coordinatorv1.GroupServiceClient) (R, error)) (R, error) {
	var none R
	if group == "" || len(group) > 255 {
		return none, rpc.Errorf(reasonInvalidGroup, "the group name has %d bytes: use 1 to 255", len(group)).With("group", group)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var hint *typev1.LeaderHint
	var last *rpc.Error
	unknown := false
	began := time.Now()
	var lacking time.Time // since when the shard can confirm nothing; zero: that was not said
	for failures := 1; ; failures++ {
		at, e := c.coordinator(ctx, group, hint)
		if e == nil {
			seated, end := c.seated(ctx, group, at)
			r, err := callCoordinator(seated, c, at.addr, bounds.timeout, call)
			moved := end()
			if err == nil {
				return r, nil
			}
			if e = rpc.FromError(err); moved != nil {
				e = moved
			}
			unknown = unknown || mayHaveHappened(e)
		}
		if last == nil || !rpc.Ended(ctx) {
			last = e
		}
		if ctx.Err() == nil && !rpc.Retryable(e) {
			return none, e.With("group", group)
		}
		if shardLacks(e) && lacking.IsZero() {
			lacking = time.Now()
		}
		if bounds.patience > 0 && shardLacks(e) && time.Since(lacking) >= bounds.patience {
			if unknown {
				e = e.WithOutcome(outcomeUnknown)
			}
			return none, e.With("group", group)
		}
		c.refreshSoon() // one that is gone refuses at once, and cannot tell who is next
		hint = e.Leader
		if hint.GetAddress() == "" || failures > 1 {
			c.awaitSeat(ctx, group, at, c.cfg.backoff(failures), began)
		}
		if ctx.Err() != nil {
			end := contextError(ctx, "ask the coordinator of group "+group, last).With("group", group)
			if !unknown {
				end = end.WithOutcome(outcomeNotDone)
			}
			return none, end
		}
	}
}

func callCoordinator[R any](ctx context.Context, c *Client, addr string, timeout time.Duration, call func(context.Context, coordinatorv1.GroupServiceClient) (R, error)) (R, error) {
	var none R
	conn, err := c.askConns.Get(addr)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := call(ctx, coordinatorv1.NewGroupServiceClient(conn))
	if err == nil {
		return r, nil
	}
	e := rpc.FromError(err)
	if e.Reason == reasonDeadlineExceeded {
		e = rpc.Errorf(e.Reason, "coordinator %s did not answer in time (%w); its shard may wait for enough in-sync replicas, see leat topic describe __consumer_offsets", addr, err).
			WithOutcome(e.Outcome).With("address", addr)
	}
	return none, e
}

// FetchOffsets tells committed offsets of the partitions, or all where none are
// given. Like all questions about groups it finds the coordinator and retries what
// can be retried, until ctx ends, or Config.RetryTimeout has passed where it has no
// deadline.
func (c *Client) FetchOffsets(ctx context.Context, group string, partitions []TopicPartition) ([]CommittedOffset, error) {
	req := &coordinatorv1.FetchOffsetsRequest{Group: group}
	for _, p := range partitions {
		req.Partitions = append(req.Partitions, &coordinatorv1.GroupPartition{TopicId: p.TopicID.Bytes(), Partition: p.Partition})
	}
	resp, err := callGroup(ctx, c, group, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.FetchOffsetsResponse, error) {
		return g.FetchOffsets(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return CommittedFromProto(resp.Offsets), nil
}

// CommittedFromProto reads the message form; entries without a valid topic id are
// left out.
func CommittedFromProto(offsets []*coordinatorv1.CommittedOffset) []CommittedOffset {
	out := make([]CommittedOffset, 0, len(offsets))
	for _, o := range offsets {
		id, err := topicid.FromBytes(o.TopicId)
		if err != nil {
			continue
		}
		co := CommittedOffset{
			TopicPartition: TopicPartition{TopicID: id, Partition: o.Partition}, NextOffset: o.NextOffset,
			LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
		}
		if o.CommittedAt.IsValid() {
			co.CommittedAt = o.CommittedAt.AsTime()
		}
		out = append(out, co)
	}
	return out
}

// CommitOffsets commits for a group without members.
func (c *Client) CommitOffsets(ctx context.Context, group string, offsets []CommitOffset) (CommitResult, error) {
	req := &coordinatorv1.CommitOffsetsRequest{Group: group, Offsets: commitsToProto(offsets)}
	resp, err := callGroup(ctx, c, group, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.CommitOffsetsResponse, error) {
		return g.CommitOffsets(ctx, req)
	})
	if err != nil {
		return CommitResult{}, err
	}
	return CommitResult{Refused: refusedFromProto(resp.PartitionErrors)}, nil
}

func refusedFromProto(errs []*coordinatorv1.PartitionCommitError) map[TopicPartition]error {
	var refused map[TopicPartition]error
	for _, e := range errs {
		id, err := topicid.FromBytes(e.TopicId)
		if err != nil {
			continue // no partition of ours
		}
		if refused == nil {
			refused = make(map[TopicPartition]error)
		}
		refused[TopicPartition{TopicID: id, Partition: e.Partition}] = rpc.FromProto(e.Error)
	}
	return refused
}

// DescribeGroup tells members, assignment and offsets. Like SimulateGroup, ResetOffsets
// and DeleteGroup it gives up after 2 s, with an error that may be retried, where the
// group's shard has no leader or too few in-sync replicas (NOT_ENOUGH_REPLICAS).
func (c *Client) DescribeGroup(ctx context.Context, group string) (*coordinatorv1.DescribeGroupResponse, error) {
	return askGroup(ctx, c, group, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.DescribeGroupResponse, error) {
		return g.DescribeGroup(ctx, &coordinatorv1.DescribeGroupRequest{Group: group})
	})
}

// DeleteGroup deletes a group without members, and its offsets. A group that is
// gone on a second attempt, after one whose outcome was unknown, was deleted.
func (c *Client) DeleteGroup(ctx context.Context, group string) error {
	tried := false
	_, err := askGroup(ctx, c, group, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.DeleteGroupResponse, error) {
		resp, err := g.DeleteGroup(ctx, &coordinatorv1.DeleteGroupRequest{Group: group})
		if tried && rpc.IsReason(err, reasonUnknownGroup) {
			return &coordinatorv1.DeleteGroupResponse{}, nil
		}
		tried = tried || err != nil && mayHaveHappened(rpc.FromError(err))
		return resp, err
	})
	return err
}
