package client

import (
	"context"
	"errors"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

var errStub = errors.New("client: being written")

// Client is the way into the mesh for one process. It is safe for concurrent use.
type Client struct {
	cfg    Config
	source MetadataSource
}

// New checks the configuration and returns a client. It connects to nothing yet.
func New(cfg Config) (*Client, error) { return nil, errStub }

// Close waits for the client's goroutines. Producers, fetchers, members and
// consumers made from it must have been closed.
func (c *Client) Close() error { return nil }

// Metadata is the client's source of metadata.
func (c *Client) Metadata() MetadataSource { return c.source }

// Produced tells where a batch was stored.
type Produced struct {
	BaseOffset  int64 // -1 with acks none
	LeaderEpoch int32 // -1 with acks none
}

// ProduceBatch appends one encoded batch, in one attempt, at the partition's
// leader: no batching and no retry. The fence is for shards. The error's outcome
// says whether the batch may have been stored; when ctx ends before an answer it is
// UNKNOWN. The batch must not be changed until ProduceBatch returns; not even then
// if it returned an error with an UNKNOWN outcome.
func (c *Client) ProduceBatch(ctx context.Context, p TopicPartition, batch []byte, acks typev1.Acks, fence *brokerv1.ShardFence) (Produced, error) {
	return Produced{}, errStub
}

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
