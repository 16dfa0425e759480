package offsets

import (
	"context"
	"errors"
	"fmt"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

// Batches encodes records into as few batches as fit into maxBytes each, in order.
// A single record that does not fit is an error.
func Batches(kvs []group.KV, maxBytes int, nowMs int64) ([][]byte, error) {
	opts := record.DefaultBuilderOptions()
	if maxBytes > 0 {
		opts.MaxBytes = maxBytes
	}
	b, err := record.NewBuilder(opts)
	if err != nil {
		return nil, err
	}
	var batches [][]byte
	for _, kv := range kvs {
		key, value, err := Encode(kv)
		if err != nil {
			return nil, err
		}
		r := &record.Record{Timestamp: nowMs, Key: key, Value: value}
		ok, err := b.Append(r)
		if err == nil && !ok {
			var full []byte
			if full, err = b.Build(); err == nil {
				batches = append(batches, full)
				b.Reset()
				_, err = b.Append(r)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("encode a record of group %q: %w", kv.Key.Group, err)
		}
	}
	last, err := b.Build()
	if err != nil {
		return nil, err
	}
	return append(batches, last), nil
}

// Fence is the permission to append to a shard.
type Fence struct {
	ShardEpoch int64
	Attempt    int32
	Sequence   int64 // of the append within the attempt, from 0
}

// FenceBatch encodes the control batch by which an owner fences its shard: every
// replica remembers it, so that whoever leads the shard, now or later, refuses what
// comes under a lower one.
func FenceBatch(f Fence, nowMs int64) ([]byte, error) {
	return record.BuildFence(record.Fence{ShardEpoch: f.ShardEpoch, Attempt: int64(f.Attempt)}, nowMs)
}

// Log is the partitions of one life of the internal topic. It is safe for
// concurrent use.
type Log struct {
	client *client.Client
	topic  topicid.ID
}

// NewLog reads and writes the topic through the client, which stays the caller's.
func NewLog(c *client.Client, topic topicid.ID) *Log { return &Log{client: c, topic: topic} }

// Append appends one batch with acks=all and returns the offset of its first
// record. The error is a *rpc.Error whose outcome says whether the batch may be in
// the log.
func (l *Log) Append(ctx context.Context, shard int32, fence Fence, batch []byte) (int64, error) {
	produced, err := l.client.ProduceBatch(ctx, l.partition(shard), batch, typev1.Acks_ACKS_ALL, &brokerv1.ShardFence{
		ShardEpoch: fence.ShardEpoch, Attempt: fence.Attempt, Sequence: fence.Sequence,
	})
	return produced.BaseOffset, err
}

// Read calls f with the records of the shard from its start up to the offset end,
// exclusive. It stops at the first error of f. Key and value may be kept.
func (l *Log) Read(ctx context.Context, shard int32, end int64, f func(key, value []byte) error) (err error) {
	start, err := l.start(ctx, shard)
	if err != nil || start >= end {
		return err
	}
	fetcher, err := l.client.NewFetcher(client.FetcherConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fetcher.Close()) }()
	fetcher.Add(client.FetchStart{TopicPartition: l.partition(shard), Offset: start, LastEpoch: -1})
	for {
		event, err := fetcher.Next(ctx)
		if err != nil {
			return err
		}
		done, err := take(event, end, f)
		event.Release()
		if done || err != nil {
			return err
		}
	}
}

// take works on one event and tells whether the end is reached.
func take(event *client.FetchEvent, end int64, f func(key, value []byte) error) (bool, error) {
	if event.Kind == client.FetchError {
		return false, fmt.Errorf("read shard %d: %w", event.Partition, event.Err)
	}
	for i := range event.Records {
		r := &event.Records[i]
		if r.Offset >= end {
			return true, nil
		}
		if err := f(r.Key, r.Value); err != nil {
			return false, fmt.Errorf("shard %d, offset %d: %w", event.Partition, r.Offset, err)
		}
	}
	return event.NextOffset >= end, nil
}

// start asks for the first offset of the shard.
func (l *Log) start(ctx context.Context, shard int32) (int64, error) {
	results := l.client.ListOffsets(ctx, []client.OffsetQuery{{TopicPartition: l.partition(shard), Spec: client.Earliest()}},
		typev1.IsolationLevel_ISOLATION_LEVEL_READ_UNCOMMITTED)
	if len(results) != 1 {
		return 0, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INTERNAL_BUG, "asked for one offset of shard %d, got %d answers", shard, len(results))
	}
	return results[0].Offset, results[0].Err
}

func (l *Log) partition(shard int32) client.TopicPartition {
	return client.TopicPartition{TopicID: l.topic, Partition: shard}
}
