package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
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
	// succeeded: the record may be in the log twice. Never with idempotence.
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
type Producer struct {
	client  *Client
	cfg     ProducerConfig
	acc     accumulatorConfig
	senders *senders
	memory  *semaphore.Weighted
	timers  *timerQueue

	identity producerIdentity // with idempotence

	mu     sync.Mutex // before a topic's
	topics map[topicid.ID]*producerTopic
	closed atomic.Bool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when Close has ended

	records, acknowledged, failed, unknown, retries, unacknowledged, buffered atomic.Int64
	refreshed                                                                 atomic.Int64 // when metadata was asked for last, see refreshUnanswered; ns
}

// producerTopic is what a producer holds for a topic.
type producerTopic struct {
	mu          sync.Mutex // serialises the partitioner
	partitioner Partitioner
	parts       map[int32]*producerPartition
}

// NewProducer returns a producer, which must be closed.
func (c *Client) NewProducer(cfg ProducerConfig) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p := &Producer{
		client: c, cfg: cfg, memory: semaphore.NewWeighted(cfg.MaxBufferedBytes),
		topics: make(map[topicid.ID]*producerTopic), senders: c.newSenders("producer"), done: make(chan struct{}),
	}
	p.acc = accumulatorConfig{
		linger: cfg.Linger, batchBytes: cfg.BatchBytes, batchRecords: cfg.BatchRecords, compression: cfg.Compression,
		delivery: cfg.DeliveryTimeout, maxInFlight: cfg.MaxInFlightPerPartition, noRetryUnknown: cfg.NoRetryUnknown,
		stopPartition: cfg.StopPartition, noAcks: cfg.Acks == typev1.Acks_ACKS_NONE, noID: p.whyNoID,
		backoff: func(failures int) time.Duration { return c.cfg.backoff(failures) },
	}
	p.senders.lost = func(part TopicPartition, a produceAnswer) {
		p.unacknowledged.Add(1)
		p.client.learnFrom(part, a.addr, a.err.Leader)
	}
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	p.timers = newTimerQueue()
	p.wg.Go(p.run)
	return p, nil
}

// run looks at partitions when their time has come or the metadata has changed.
func (p *Producer) run() {
	changed := p.client.source.Changed()
	for {
		timer := p.timers.timer()
		select {
		case <-p.ctx.Done():
			timer.Stop()
			return
		case <-p.timers.wake:
		case <-timer.C:
		case <-changed:
			changed = p.client.source.Changed()
			for _, part := range p.partitions() {
				part.metadataChanged()
			}
		}
		timer.Stop()
		for _, part := range p.timers.due(time.Now()) {
			part.step()
		}
	}
}

// partitions lists all partitions there are.
func (p *Producer) partitions() []*producerPartition {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*producerPartition
	for _, t := range p.topics {
		t.mu.Lock()
		for _, part := range t.parts {
			all = append(all, part)
		}
		t.mu.Unlock()
	}
	return all
}

// Send takes a record in, copying it, and calls done once with what became of it,
// unless it returns an error. It blocks while the buffers are full or the topic is
// looked up. done may be nil; it runs on the producer's goroutines, must not block,
// and is called in order for the records of a partition that succeed. The context
// bounds Send, not the delivery; its span is the parent of the record's.
func (p *Producer) Send(ctx context.Context, r Record, done func(Result)) error {
	if p.closed.Load() {
		return closedError("producer")
	}
	if ctx.Err() != nil {
		return contextError(ctx, "send a record", nil).WithOutcome(outcomeNotDone)
	}
	topic, err := p.client.awaitTopic(ctx, r.Topic, p.cfg.DeliveryTimeout)
	if err != nil {
		return err
	}
	sc := trace.SpanContextFromContext(ctx)
	now := time.Now()
	rec := record.Record{Timestamp: timestampMs(r.Timestamp, now), Key: r.Key, Value: r.Value, Headers: r.Headers}
	if p.cfg.TraceHeaders && sc.IsSampled() {
		rec.Headers = withTraceHeader(ctx, rec.Headers)
	}
	part, err := p.place(ctx, &topic, &r)
	if err != nil {
		return err
	}
	if size := record.SizeOf(&rec); size > int(topic.MaxMessageBytes) {
		err := tooLarge(topic, part.tp.Partition, size)
		part.stopAfter(err)
		return err
	}
	w := waiter{done: done, cost: min(int64(record.RecordSizeUpperBound(&rec))+recordOverhead, p.cfg.MaxBufferedBytes)}
	if err := p.reserve(ctx, w.cost); err != nil {
		return err
	}
	return part.add(&rec, w, sc, topic)
}

// recordOverhead is what a record takes besides its bytes, roughly.
const recordOverhead = 48

// reserve waits for room in the buffers.
func (p *Producer) reserve(ctx context.Context, cost int64) error {
	if !p.memory.TryAcquire(cost) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(p.ctx, func() { cancel(closedError("producer")) })
		defer stop()
		if err := p.memory.Acquire(ctx, cost); err != nil {
			if p.ctx.Err() != nil {
				return closedError("producer")
			}
			return contextError(ctx, "wait for room in the producer's buffers", nil).WithOutcome(outcomeNotDone).
				With("limit", "MaxBufferedBytes")
		}
	}
	p.buffered.Add(cost)
	return nil
}

// unansweredRefresh is how often metadata is asked for while batches go out whose
// failures nobody tells.
const unansweredRefresh = 5 * time.Second

// refreshUnanswered asks for fresh metadata now and then where no answer would say
// that a leader has moved.
func (p *Producer) refreshUnanswered(now time.Time) {
	if p.cfg.Acks != typev1.Acks_ACKS_NONE {
		return
	}
	last := p.refreshed.Load()
	if now.UnixNano()-last > int64(unansweredRefresh) && p.refreshed.CompareAndSwap(last, now.UnixNano()) {
		p.client.refreshSoon()
	}
}

func (p *Producer) release(cost int64) {
	p.buffered.Add(-cost)
	p.memory.Release(cost)
}

// timestampMs is Kafka's form of a time; zero stands for now.
func timestampMs(t, now time.Time) int64 {
	if t.IsZero() {
		t = now
	}
	return t.UnixMilli()
}

func tooLarge(t *Topic, partition int32, size int) *rpc.Error {
	return rpc.Errorf(reasonRecordTooLarge, "the record takes %d bytes in a batch of its own, and topic %q allows %d (max.message.bytes): make it smaller, or raise the limit", size, t.Name, t.MaxMessageBytes).
		With("topic", t.Name, "partition", itoa(partition), "limit", "max.message.bytes", "limit_bytes", itoa(t.MaxMessageBytes), "bytes", itoa(size))
}

// place chooses the partition. The topic is replaced by a newer picture where the
// partition asked for needs one.
func (p *Producer) place(ctx context.Context, topic **Topic, r *Record) (*producerPartition, error) {
	t := *topic
	pt := p.topic(t.ID)
	n := int32(len(t.Partitions))
	var number int32
	if r.Partition != nil {
		number = *r.Partition
		if number >= n && number >= 0 {
			// The topic may have grown.
			if err := p.client.source.Refresh(ctx); err == nil {
				if again, err := p.client.source.Topic(ctx, t.Name); err == nil && again.ID == t.ID {
					*topic, t, n = again, again, int32(len(again.Partitions))
				}
			}
		}
		if number < 0 || number >= n {
			return nil, unknownPartition(t, number)
		}
		pt.mu.Lock()
		defer pt.mu.Unlock()
	} else {
		if n == 0 {
			return nil, rpc.Errorf(reasonLeaderUnavailable, "topic %q has no partitions yet: try again shortly", t.Name).With("topic", t.Name)
		}
		pt.mu.Lock()
		defer pt.mu.Unlock()
		if number = pt.partitioner.Partition(r, t); number < 0 || number >= n {
			return nil, unknownPartition(t, number)
		}
	}
	part := pt.parts[number]
	if part == nil {
		part = newProducerPartition(p, pt, t, number)
		pt.parts[number] = part
	}
	// Close looks for partitions after it has set the mark, so that it finds this one
	// if the mark is not there yet.
	if p.closed.Load() {
		return nil, closedError("producer")
	}
	return part, nil
}

func unknownPartition(t *Topic, number int32) *rpc.Error {
	return rpc.Errorf(reasonUnknownPartition, "topic %q has no partition %d: choose one from 0 to %d", t.Name, number, len(t.Partitions)-1).
		With("topic", t.Name, "partition", itoa(number))
}

// topic is what is held for a topic.
func (p *Producer) topic(id topicid.ID) *producerTopic {
	p.mu.Lock()
	defer p.mu.Unlock()
	pt := p.topics[id]
	if pt == nil {
		pt = &producerTopic{partitioner: p.cfg.Partitioner(), parts: make(map[int32]*producerPartition)}
		p.topics[id] = pt
	}
	return pt
}

// SendSync sends a record and waits for its result, whose Err it also returns.
// When ctx ends first the record may still be delivered: the outcome is UNKNOWN.
func (p *Producer) SendSync(ctx context.Context, r Record) (Result, error) {
	got := make(chan Result, 1)
	none := Result{Topic: r.Topic, Partition: -1, Offset: -1, LeaderEpoch: -1}
	if err := p.Send(ctx, r, func(res Result) { got <- res }); err != nil {
		none.Err = err
		return none, err
	}
	select {
	case res := <-got:
		return res, res.Err
	case <-ctx.Done():
		none.Err = contextError(ctx, "wait for the acknowledgement; the record may still be delivered", nil).WithOutcome(outcomeUnknown)
		return none, none.Err
	}
}

// Flush sends what is buffered without lingering and waits until everything that
// was taken in before has its result.
func (p *Producer) Flush(ctx context.Context) error {
	var waits []*batch
	for _, part := range p.partitions() {
		waits = append(waits, part.flush(false)...)
	}
	for _, b := range waits {
		select {
		case <-b.over:
		case <-ctx.Done():
			return contextError(ctx, "wait for buffered records to be delivered", nil)
		}
	}
	return nil
}

// Stats counts what has been done.
func (p *Producer) Stats() ProducerStats {
	return ProducerStats{
		Records: p.records.Load(), Acknowledged: p.acknowledged.Load(), Failed: p.failed.Load(), Unknown: p.unknown.Load(),
		Retries: p.retries.Load(), BufferedBytes: p.buffered.Load(), UnacknowledgedFailures: p.unacknowledged.Load(),
	}
}

// Close takes in nothing more, and waits for the results of what was taken in
// until ctx ends; what has none then fails. Closing twice is harmless.
func (p *Producer) Close(ctx context.Context) error {
	if p.closed.Swap(true) {
		select {
		case <-p.done:
			return nil
		case <-ctx.Done():
			return contextError(ctx, "wait for the producer to close", nil)
		}
	}
	defer close(p.done)
	// New partitions cannot come any more, and those that are there take nothing new
	// once they are closed.
	for _, part := range p.partitions() {
		part.flush(true)
	}
	err := p.Flush(ctx)
	p.cancel()
	for _, part := range p.partitions() {
		part.abandon(closedError("producer"))
	}
	p.senders.close()
	p.wg.Wait()
	p.leaveIDs()
	return err
}
