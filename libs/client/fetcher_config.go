package client

import (
	"errors"
	"fmt"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
)

// FetcherConfig configures a Fetcher. Zero values mean the defaults stated.
type FetcherConfig struct {
	// CreditBytes bounds the bytes of records received and not released, shared
	// between the brokers; one response for each broker may pass it; 0: 16 MiB.
	CreditBytes int64
	// MaxResponseBytes bounds one response, but for a single larger batch; 0: 1 MiB.
	MaxResponseBytes int
	// MaxDecodedBytes caps what one batch may unpack to; 0: 64 MiB.
	MaxDecodedBytes int
	// Isolation says how far to see into open transactions.
	Isolation typev1.IsolationLevel
	// Rack reads partitions that are led in other racks from an in-sync replica in this
	// one, if there is any, up to the high watermark that it knows, and else from their
	// leaders; empty: from the leaders.
	Rack string
	// Replica reads from this broker's replicas only, whether they lead or follow, up to
	// the high watermark that they know; nil: from the leaders.
	Replica *int32
}

// Validate joins everything that is wrong with the configuration.
func (c FetcherConfig) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int64
	}{{"CreditBytes", c.CreditBytes}, {"MaxResponseBytes", int64(c.MaxResponseBytes)}, {"MaxDecodedBytes", int64(c.MaxDecodedBytes)}} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("fetcher: %s is %d; it must not be negative", f.name, f.v))
		}
	}
	if c.Replica != nil && *c.Replica < 0 {
		errs = append(errs, fmt.Errorf("fetcher: Replica is %d; it must be the id of a broker", *c.Replica))
	}
	if c.Replica != nil && c.Rack != "" {
		errs = append(errs, errors.New("fetcher: Replica says where to read, and Rack does, too; set one"))
	}
	return errors.Join(errs...)
}

func (c FetcherConfig) withDefaults() FetcherConfig {
	c.CreditBytes = or(c.CreditBytes, 16<<20)
	c.MaxResponseBytes = or(c.MaxResponseBytes, 1<<20)
	c.MaxDecodedBytes = or(c.MaxDecodedBytes, record.DefaultMaxDecodedBytes)
	return c
}

// FetchStart says from where a partition is read.
type FetchStart struct {
	TopicPartition
	// Topic is the topic's name, for the events.
	Topic string
	// Offset is the first offset wanted.
	Offset int64
	// LastEpoch is the leader epoch of the record before it; -1: unknown. If the log
	// has another epoch there, the error is LOG_TRUNCATED. Mind that 0 is an epoch.
	LastEpoch int32
	// Tag comes back in every event of this asking, for the caller's use.
	Tag int64
	// Paused adds the partition without reading it, until Resume.
	Paused bool
}

// FetchKind is the kind of a FetchEvent.
type FetchKind int

// The kinds of events.
const (
	// FetchRecords carries the records of one batch.
	FetchRecords FetchKind = iota + 1
	// FetchProgress moves the position, the visible end or both, without records: a
	// batch without records for the reader, or news of a caught-up partition.
	FetchProgress
	// FetchError says that the partition is paused until it is added again. Errors
	// that pass by themselves are not reported.
	FetchError
)

// FetchEvent is news of one partition. Release must be called once it is worked
// on: it gives the broker leave to send more.
type FetchEvent struct {
	TopicPartition
	Topic string
	Tag   int64
	Kind  FetchKind
	// Records, in order, at or above the offset asked for. They may be kept, also
	// after Release.
	Records []record.Record
	// Offset is the position before the event, NextOffset the one after it.
	Offset, NextOffset int64
	// LeaderEpoch is that of the batch; -1 for other kinds.
	LeaderEpoch int32
	// HighWatermark, LastStableOffset and LogStartOffset as of sending; -1: unknown.
	HighWatermark, LastStableOffset, LogStartOffset int64
	// Bytes is the encoded size of the batch.
	Bytes int
	// Trace is the context of the broker's span; nil: not traced.
	Trace *typev1.TraceContext
	// Err is a *rpc.Error: OFFSET_OUT_OF_RANGE, LOG_TRUNCATED, CORRUPT_BATCH,
	// INVALID_RECORD, UNKNOWN_TOPIC and others that do not pass by themselves.
	Err error

	release func()
}

// Release gives back the credit that the event holds. More than one call is
// harmless; it is not safe for concurrent use.
func (e *FetchEvent) Release() {
	if e.release != nil {
		e.release()
		e.release = nil
	}
}
