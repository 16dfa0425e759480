package client

import (
	"context"

	"github.com/leat-io/leat/libs/topicid"
)

// Result is what became of a record.
type Result struct {
	Topic       string
	TopicID     topicid.ID
	Partition   int32 // -1: none was chosen
	Offset      int64 // -1: none (an error, or acks none)
	LeaderEpoch int32 // -1: none
	// MaybeDuplicated says that an earlier attempt ended unknown before this one
	// succeeded: the record may be in the log twice.
	MaybeDuplicated bool
	// Err is a *rpc.Error; its outcome is UNKNOWN if any attempt may have stored the
	// record, else NOT_DONE.
	Err error
}

// ProducerStats counts since the producer was made.
type ProducerStats struct {
	Records       int64 // taken in
	Acknowledged  int64 // stored, or handed over with acks none
	Failed        int64 // not done
	Unknown       int64
	Retries       int64 // batches sent again
	BufferedBytes int64 // of records without a result, now
	// UnacknowledgedFailures counts batches sent with acks none that are known to
	// have been lost.
	UnacknowledgedFailures int64
}

// Producer batches records and sends them to the leaders. It is safe for
// concurrent use; records that one goroutine sends to a partition keep their
// order.
type Producer struct{}

// NewProducer returns a producer, which must be closed.
func (c *Client) NewProducer(cfg ProducerConfig) (*Producer, error) { return nil, errStub }

// Send takes a record in, copying it, and calls done once with what became of it,
// unless it returns an error. It blocks while the buffers are full or the topic is
// looked up. done may be nil; it runs on the producer's goroutines, must not block,
// and is called in order for the records of a partition that succeed. The context
// bounds Send, not the delivery; its span is the parent of the record's.
func (p *Producer) Send(ctx context.Context, r Record, done func(Result)) error { return errStub }

// SendSync sends a record and waits for its result, whose Err it also returns.
// When ctx ends first the record may still be delivered: the outcome is UNKNOWN.
func (p *Producer) SendSync(ctx context.Context, r Record) (Result, error) { return Result{}, errStub }

// Flush sends what is buffered without lingering and waits until everything that
// was taken in before has its result.
func (p *Producer) Flush(ctx context.Context) error { return errStub }

// Stats counts what has been done.
func (p *Producer) Stats() ProducerStats { return ProducerStats{} }

// Close takes in nothing more, and waits for the results of what was taken in
// until ctx ends; what has none then fails. Closing twice is harmless.
func (p *Producer) Close(ctx context.Context) error { return errStub }
