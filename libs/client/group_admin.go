package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// OffsetReset is what became of the reset of one partition.
type OffsetReset struct {
	TopicPartition
	OldOffset, NewOffset int64 // committed next offsets; -1: none
	Err                  error // *rpc.Error; nil: it was reset
}

// ResetOffsets sets offsets of a group, also while it has members, which give the
// partitions up first: within the timeout, or those of theirs are refused; 0: 30 s.
// There is a result for each offset, in order. Like all questions about groups it
// finds the coordinator and retries what can be retried.
func (c *Client) ResetOffsets(ctx context.Context, group string, offsets []CommitOffset, timeout time.Duration) ([]OffsetReset, error) {
	timeout = or(timeout, 30*time.Second)
	req := &coordinatorv1.ResetOffsetsRequest{Group: group, Offsets: commitsToProto(offsets), RevocationTimeout: durationpb.New(timeout)}
	// The coordinator answers within the timeout, so that an attempt needs more.
	resp, err := callGroupFor(ctx, c, group, groupCall{timeout: timeout + c.cfg.RequestTimeout, patience: shardPatience}, func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.ResetOffsetsResponse, error) {
		return g.ResetOffsets(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	if len(resp.Offsets) != len(offsets) {
		return nil, rpc.Errorf(reasonInternalBug, "the coordinator answered %d of %d resets", len(resp.Offsets), len(offsets)).With("group", group)
	}
	out := make([]OffsetReset, len(offsets))
	for i, o := range resp.Offsets {
		out[i] = OffsetReset{TopicPartition: offsets[i].TopicPartition, OldOffset: o.OldNextOffset, NewOffset: o.NewNextOffset}
		if o.Error != nil {
			out[i].Err = rpc.FromProto(o.Error)
		}
	}
	return out, nil
}

// SimulateGroup tells who would hold what if members came or went; it changes
// nothing.
func (c *Client) SimulateGroup(ctx context.Context, req *coordinatorv1.SimulateGroupRequest) (*coordinatorv1.SimulateGroupResponse, error) {
	return askGroup(ctx, c, req.GetGroup(), func(ctx context.Context, g coordinatorv1.GroupServiceClient) (*coordinatorv1.SimulateGroupResponse, error) {
		return g.SimulateGroup(ctx, req)
	})
}

// RecordAt names a record by its place.
type RecordAt struct {
	TopicPartition
	Offset int64 // below the log start it stands for the first record
}

// RecordAge is how long ago a record was appended at the leader of its partition, by
// the leader's own monotonic clock.
type RecordAge struct {
	RecordAt
	Age time.Duration
	// AtLeast says that the leader's sample does not reach back to the record.
	AtLeast bool
	// Known is false where there is no such record, or the leader takes no samples.
	Known bool
	Err   error // *rpc.Error
}

// RecordAges asks the leaders, each once: an age that is not told at once is not
// worth waiting for. There is a result for each record, in order.
func (c *Client) RecordAges(ctx context.Context, records []RecordAt) []RecordAge {
	results := make([]RecordAge, len(records))
	for i, r := range records {
		results[i].RecordAt = r
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	all := make([]int, len(records))
	for i := range all {
		all[i] = i
	}
	c.askLeadersOnce(ctx, leaderQuestions{
		count: len(records), what: "ask how old a record is in ",
		of: func(i int) (TopicPartition, *error) { return results[i].TopicPartition, &results[i].Err },
		ask: func(ctx context.Context, addr string, asked []int, _ map[int]int32) []int {
			c.agesAt(ctx, addr, results, asked)
			return nil
		},
	}, all)
	return results
}

// agesAt asks one broker.
func (c *Client) agesAt(ctx context.Context, addr string, results []RecordAge, asked []int) {
	req := &brokerv1.DescribeReplicasRequest{}
	for _, i := range asked {
		r := &results[i]
		req.Replicas = append(req.Replicas, &brokerv1.ReplicaName{TopicId: r.TopicID.Bytes(), Partition: r.Partition, AgeOf: &r.Offset})
	}
	resp, err := askBroker(ctx, c, addr, func(ctx context.Context, b brokerv1.LogServiceClient) (*brokerv1.DescribeReplicasResponse, error) {
		return b.DescribeReplicas(ctx, req)
	})
	for n, i := range asked {
		r := &results[i]
		if r.Err = answerError(addr, err, resp.GetReplicas(), n, len(asked)); r.Err != nil {
			continue
		}
		if age := resp.Replicas[n].GetAge(); age != nil {
			r.Age, r.AtLeast, r.Known = age.AsDuration(), resp.Replicas[n].GetAgeAtLeast(), true
		}
	}
}
