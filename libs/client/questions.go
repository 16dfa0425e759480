package client

import (
	"context"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// OffsetQuery asks for one offset.
type OffsetQuery struct {
	TopicPartition
	Spec *typev1.OffsetSpec
}

// OffsetResult answers an OffsetQuery.
type OffsetResult struct {
	OffsetQuery
	Offset      int64 // -1: no record has that timestamp or later
	TimestampMs int64 // of the record there; -1: a place without one
	LeaderEpoch int32
	Err         error // *rpc.Error
}

// ListOffsets asks the leaders, retrying what can be retried until ctx ends, or
// Config.RetryTimeout has passed where it has no deadline. There is a result for
// each query, in order.
func (c *Client) ListOffsets(ctx context.Context, queries []OffsetQuery, isolation typev1.IsolationLevel) []OffsetResult {
	return nil
}

// Earliest asks for the log start offset.
func Earliest() *typev1.OffsetSpec { return placeSpec(typev1.OffsetSpec_PLACE_EARLIEST) }

// Latest asks for the visible end.
func Latest() *typev1.OffsetSpec { return placeSpec(typev1.OffsetSpec_PLACE_LATEST) }

func placeSpec(p typev1.OffsetSpec_Place) *typev1.OffsetSpec {
	return &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: p}}
}

// ReplicaResult tells the marks of a replica, as its broker sees it.
type ReplicaResult struct {
	TopicPartition
	Broker  int32
	Replica *brokerv1.ReplicaDescription // nil with an error
	Err     error                        // *rpc.Error
}

// DescribeReplicas asks brokers about replicas of the partitions: the leaders'
// only, or all. One attempt each; results are sorted by partition, in the order
// given, then as the metadata lists the replicas. A partition without a leader has
// a result with Broker -1.
func (c *Client) DescribeReplicas(ctx context.Context, partitions []TopicPartition, leadersOnly bool) []ReplicaResult {
	return nil
}
