package produce

import (
	"context"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Bounds of what is under way at once, and of one Send.
const (
	maxInFlightRecords = 20_000
	maxInFlightBytes   = 16 << 20
	maxInFlightChunks  = 1_000
	maxChunkRecords    = 1_000
	maxChunkBytes      = 1 << 20
	recordOverhead     = 64 // bytes reckoned for a record beside its fields
)

// How long things that should not take long may take.
const (
	// answerGrace is how long beyond the delivery timeout the gateway's answer is
	// waited for: it knows whether a record was ever sent to a broker, and why not.
	// Only if it says nothing is the outcome unknown here. It is above the gateway's
	// own grace for its producer.
	answerGrace    = 5 * time.Second
	interruptGrace = 3 * time.Second  // for answers after an interrupt
	summaryGrace   = 10 * time.Second // for the end of the stream
)

// Config says how to produce.
type Config struct {
	// Client reaches the gateway.
	Client gatewayv1.ProducerServiceClient
	// Topic takes the records.
	Topic string
	// Open is what each stream is opened with; Run sets its delivery timeout.
	Open *gatewayv1.ProduceOpen
	// DeliveryTimeout bounds the time from the first send of a record to its
	// result.
	DeliveryTimeout time.Duration
	// Rate is the records sent per second; 0 is no bound.
	Rate float64
	// Result is told what became of each record, once; called by Run only.
	Result func(Result)
	// Settled is called when Run has told the results that it knows; nil is
	// nothing.
	Settled func() error
	// Note is told about lost and found connections; nil is silence.
	Note func(format string, args ...any)
	// Interrupt ends the reading of the input; Run waits a little for results.
	Interrupt <-chan struct{}
	// Progress is called now and then; nil is never.
	Progress func(Summary)
}

// Result is what became of a record.
type Result struct {
	Number    int64
	Partition int32
	Offset    int64 // -1 with acks 0
	// MaybeDuplicated says that an earlier attempt had ended without an answer.
	MaybeDuplicated bool
	// Err is set unless the record was acknowledged. With Unknown the record may
	// be in the log all the same.
	Err     *rpc.Error
	Unknown bool
}

// Summary counts what became of the records.
type Summary struct {
	Records, Bytes         int64
	Acked, Failed, Unknown int64
	MaybeDuplicated        int64
	Elapsed                time.Duration
	P50, P99               time.Duration // from the send of a record to its result
	Interrupted            bool
	FirstErr               *rpc.Error // of the records that failed or are unknown
}

// Run produces the whole input. The error is not nil if the records that were
// left could not even be tried; what became of those that were is in the
// summary and was told to Result. After an interrupt the goroutine that reads
// the input may be left waiting for it until the process ends.
func Run(ctx context.Context, in *Input, cfg Config) (Summary, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := newEngine(ctx, in, cfg)
	err := e.run()
	cancel()
	e.abandonSession()
	e.summary.Elapsed = time.Since(e.started)
	e.summary.P50, e.summary.P99 = e.latency.percentile(0.50), e.latency.percentile(0.99)
	return e.summary, err
}

type readResult struct {
	items []Item
	err   error
}

// chunk is a Send.
type chunk struct {
	id        int64
	items     []Item
	bytes     int64
	born      time.Time // when it was first ready to be sent
	sentAt    time.Time // on the present session
	sent      bool      // handed to the present session, unanswered
	uncertain bool      // an earlier session broke before it answered
}

func (c *chunk) request(topic string) *gatewayv1.ProduceRequest {
	send := &gatewayv1.ProduceSend{Id: c.id, Topic: topic, Records: make([]*gatewayv1.ProduceRecord, len(c.items))}
	for i := range c.items {
		send.Records[i] = c.items[i].Record
	}
	return &gatewayv1.ProduceRequest{Message: &gatewayv1.ProduceRequest_Send{Send: send}}
}

func sizeOf(r *gatewayv1.ProduceRecord) int64 {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 8
	}
	return int64(n)
}

func notDone(reason typev1.ErrorReason, format string, args ...any) *rpc.Error {
	return rpc.Errorf(reason, format, args...).WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}
