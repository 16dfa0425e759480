package client

import (
	"context"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// ResetPolicy says where a partition without a position starts, and where one goes
// on whose position lies outside the log.
type ResetPolicy int

// The reset policies.
const (
	ResetLatest   ResetPolicy = iota // at the visible end
	ResetEarliest                    // at the log start offset
	ResetNone                        // nowhere: an error of the partition
)

// ConsumerConfig configures a Consumer. Zero values mean the defaults stated.
type ConsumerConfig struct {
	// Group to join; empty: partitions by hand, see Consumer.Assign.
	Group string
	// Topics and TopicPattern (RE2) are subscribed to in the group.
	Topics       []string
	TopicPattern string
	// InstanceID makes the membership static; empty: dynamic.
	InstanceID string
	// Assignor is "uniform" or "range"; empty: uniform.
	Assignor string
	// SessionTimeout; 0: 15 s.
	SessionTimeout time.Duration
	// RebalanceTimeout; 0: 15 min.
	RebalanceTimeout time.Duration
	// Reset applies where there is no position, and on a genuine OFFSET_OUT_OF_RANGE.
	Reset ResetPolicy
	// AutoCommitInterval commits what earlier Polls handed out, every this often; 0:
	// 5 s; negative: never.
	AutoCommitInterval time.Duration
	// Fetch configures reading.
	Fetch FetcherConfig
	// OnAssigned and OnRevoked tell of changes, from within Poll or Close; nil: nobody
	// is told. What is revoked is committed, if auto-commit is on, after OnRevoked.
	OnAssigned, OnRevoked func([]AssignedPartition)
}

// ConsumerRecord is a record with its place.
type ConsumerRecord struct {
	Topic string
	TopicPartition
	Offset      int64
	LeaderEpoch int32
	Timestamp   time.Time
	Key, Value  []byte // nil is null
	Headers     []Header
	Trace       *typev1.TraceContext // of the broker's span; nil: not traced
}

// Position is a place in a partition.
type Position struct {
	TopicPartition
	NextOffset  int64
	LeaderEpoch int32 // of the record before it; -1: unknown
}

// Consumer reads records, in a group or from partitions by hand. It is for one
// goroutine at a time.
type Consumer struct{}

// NewConsumer returns a consumer, which must be closed. It joins its group in the
// first Poll.
func (c *Client) NewConsumer(cfg ConsumerConfig) (*Consumer, error) { return nil, errStub }

// Poll returns up to maxRecords records, waiting for the first. The records of the
// Poll before count as worked on from now. Errors of single partitions, and of the
// group's membership, are returned once each; the consumer goes on after them.
func (c *Consumer) Poll(ctx context.Context, maxRecords int) ([]ConsumerRecord, error) {
	return nil, errStub
}

// Assign reads partitions by hand instead of those read before. A position with
// NextOffset -1 starts as the reset policy says.
func (c *Consumer) Assign(ctx context.Context, positions ...Position) error { return errStub }

// Assigned lists the partitions being read and their positions: the offsets after
// the last records that Poll returned.
func (c *Consumer) Assigned() []Position { return nil }

// Commit commits positions; without any, those after everything that Poll has
// returned.
func (c *Consumer) Commit(ctx context.Context, positions ...Position) error { return errStub }

// CommitAsync is Commit that does not wait: done, if not nil, is called from a
// later Poll, Commit or Close.
func (c *Consumer) CommitAsync(done func(error), positions ...Position) {}

// Seek moves a partition; the next Poll returns nothing from before.
func (c *Consumer) Seek(p TopicPartition, offset int64) error { return errStub }

// Pause stops handing out partitions; Resume goes on.
func (c *Consumer) Pause(partitions ...TopicPartition) {}

// Resume goes on with paused partitions.
func (c *Consumer) Resume(partitions ...TopicPartition) {}

// Position is the offset of the next record that Poll will return for the
// partition; false if it is not being read.
func (c *Consumer) Position(p TopicPartition) (int64, bool) { return 0, false }

// Close commits, if auto-commit is on, leaves the group and ends the streams. The
// context bounds the first two.
func (c *Consumer) Close(ctx context.Context) error { return errStub }
