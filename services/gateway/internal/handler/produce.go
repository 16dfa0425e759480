package handler

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// Produce serves ProducerService.Produce, whose states are session.Produce's.
//
// Three goroutines make a stream: the handler's own owns the session and sends;
// the reader receives, one message at a time as the session and the budget of all
// streams allow; the feeder hands records to the producer, which may block there
// while a topic is looked up.
func (h *Handler) Produce(stream gatewayv1.ProducerService_ProduceServer) error {
	if err := h.started(); err != nil {
		return err
	}
	release, err := admit(&h.produceStreams, h.cfg.Limits.MaxProduceStreams, "produce")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(h.tracing.stream(stream.Context()))
	s := &produceStream{
		h: h, ctx: ctx, stream: stream,
		session:  session.NewProduce(h.cfg.Now(), h.cfg.Limits.Produce, h.cfg.Identity),
		messages: make(chan received), permits: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		jobs: newQueue[*sendJob](), stoppedTopics: map[string]bool{},
	}
	var feeder sync.WaitGroup
	feeder.Go(s.feed)
	// The reader ends with the stream, which is only after the handler returned.
	h.readers.Go(s.read)
	err = s.loop()
	cancel()
	feeder.Wait()
	if s.releaseProducer != nil {
		s.releaseProducer()
	}
	return err
}

// produceStream is one stream being served.
type produceStream struct {
	h       *Handler
	ctx     context.Context // ends with the stream
	stream  gatewayv1.ProducerService_ProduceServer
	session *session.Produce

	producer        Producer
	releaseProducer func()
	settings        session.ProduceSettings
	stoppedTopics   map[string]bool // the feeder's; of streams that stop on errors

	messages chan received // from the reader
	permits  chan struct{} // to the reader: one more may be read
	wanted   bool          // a permit is out
	wake     chan struct{} // results have come
	jobs     *queue[*sendJob]

	mu      sync.Mutex
	results []recordDone // that the session has not seen; bounded by its window
}

// received is a message of the client, or the end of its side.
type received struct {
	message *gatewayv1.ProduceRequest
	bytes   int64
	refund  func() // gives its bytes back to the budget
	err     error
}

// recordDone is the result of one record.
type recordDone struct {
	seq    int64
	index  int
	result client.Result
}

// sendJob is a send on its way to the producer.
type sendJob struct {
	session.ProduceAppend
	ctx    context.Context
	finish func(client.Result) // ends its span, and counts it
	refund func()

	mu   sync.Mutex
	left int           // records without a result
	last client.Result // what its span tells: the first failure, else the last record
}

// loop owns the session until it has ended.
func (s *produceStream) loop() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	draining := s.h.cfg.Draining
	for {
		if err := s.flush(); err != nil {
			return err
		}
		if ended, err := s.session.Ended(); ended {
			return err
		}
		if s.session.WantsRead() && !s.wanted {
			s.wanted = true
			s.permits <- struct{}{}
		}
		resetTimer(timer, s.session.WakeAt(), s.h.cfg.Now())
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case m := <-s.messages:
			s.wanted = false
			if err := s.receive(m); err != nil {
				return err
			}
		case <-s.wake:
			s.takeResults()
		case <-draining:
			draining = nil
			s.session.Drain(s.h.cfg.Now())
		case <-timer.C:
			s.session.Tick(s.h.cfg.Now())
		}
	}
}

// flush sends what there is to send.
func (s *produceStream) flush() error {
	for m := s.session.Next(); m != nil; m = s.session.Next() {
		if err := s.stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// receive hands a message to the session. The bytes of a send stay charged until
// its records have results.
func (s *produceStream) receive(m received) error {
	switch {
	case errors.Is(m.err, io.EOF):
		s.session.HalfClose()
		return nil
	case m.err != nil:
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		s.session.Fail(m.err)
		return nil
	}
	s.session.Receive(s.h.cfg.Now(), m.message, m.bytes)
	charged := false
	for _, e := range s.session.TakeEffects() {
		switch e := e.(type) {
		case session.ProduceAcquire:
			s.acquire(e.Settings)
		case session.ProduceAppend:
			charged = true
			job := &sendJob{ProduceAppend: e, refund: m.refund, left: len(e.Records)}
			job.ctx, job.finish = s.h.publish(s.ctx, e.Topic, len(e.Records), m.bytes, e.Trace)
			s.jobs.push(job)
		}
	}
	if !charged {
		m.refund()
	}
	return nil
}

// publish begins the span of a send, and what is measured of it; the returned
// function ends both.
func (h *Handler) publish(ctx context.Context, topic string, records int, bytes int64, own *typev1.TraceContext) (context.Context, func(client.Result)) {
	h.metrics.producedBytes.Add(float64(bytes - int64(records)*session.RecordOverhead))
	begun := h.cfg.Now()
	ctx, end := h.tracing.publish(ctx, topic, records, own)
	return ctx, func(r client.Result) {
		h.metrics.answered(begun, h.cfg.Now())
		end(r)
	}
}

// acquire finds a producer for the stream.
func (s *produceStream) acquire(settings session.ProduceSettings) {
	producer, release, err := s.h.producers.get(settings)
	if err != nil {
		s.session.Fail(err)
		return
	}
	s.producer, s.releaseProducer, s.settings = producer, release, settings
	s.session.Opened()
}

// read receives messages as permits come. A message waits here for its share of
// the budget, so that what all streams hold is bounded.
func (s *produceStream) read() {
	for {
		select {
		case <-s.permits:
		case <-s.ctx.Done():
			return
		}
		m := received{refund: func() {}}
		m.message, m.err = s.stream.Recv()
		if m.err == nil && m.message.GetSend() != nil {
			m.bytes = session.SendSize(m.message, len(m.message.GetSend().GetRecords()))
			refund, err := s.h.charge(s.ctx, m.bytes)
			if err != nil {
				return
			}
			m.refund = refund
		}
		select {
		case s.messages <- m:
		case <-s.ctx.Done():
			m.refund()
			return
		}
		if m.err != nil {
			return
		}
	}
}

// feed hands sends to the producer, in order.
func (s *produceStream) feed() {
	for {
		job, ok := s.jobs.pop(s.ctx)
		if !ok {
			s.jobs.drain(func(j *sendJob) { j.abandon() })
			return
		}
		s.handOver(job)
	}
}

// handOver gives the producer the records of a send. A failure that concerns the
// topic, or a deadline, fails what is left of the send at once.
func (s *produceStream) handOver(job *sendJob) {
	ctx, cancel := context.WithDeadline(job.ctx, job.Deadline)
	defer cancel()
	var rest error // of what follows
	if s.stoppedTopics[job.Topic] {
		rest = errTopicStopped(job.Topic)
	}
	for i, r := range job.Records {
		err := rest
		if err == nil {
			err = s.hand(ctx, job, i, r)
			if err == nil {
				continue
			}
			if concernsTopic(err) {
				rest = err
			}
			if rest != nil && s.settings.StopPartition {
				// Which partition the record was for is not known, so all of them stop.
				s.stoppedTopics[job.Topic] = true
				rest = errTopicStopped(job.Topic)
			}
		}
		s.done(job, i, notTakenResult(job.Topic, r, err))
	}
}

func errTopicStopped(topic string) error {
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED,
		"an earlier record for topic %q failed before its partition was known, and the stream was opened to stop partitions on errors; open a new stream and send again from the failed record", topic).
		With("topic", topic)
}

// notTakenResult is the result of a record that the producer did not take in.
func notTakenResult(topic string, r *gatewayv1.ProduceRecord, err error) client.Result {
	partition := int32(-1)
	if r.Partition != nil {
		partition = r.GetPartition()
	} else if n, perr := strconv.ParseInt(rpc.FromError(err).Metadata["partition"], 10, 32); perr == nil {
		partition = int32(n)
	}
	return client.Result{Topic: topic, Partition: partition, Offset: -1, LeaderEpoch: -1, Err: err}
}

// hand gives the producer one record.
func (s *produceStream) hand(ctx context.Context, job *sendJob, i int, r *gatewayv1.ProduceRecord) error {
	rctx, finish := s.h.tracing.record(ctx, job.Topic, r)
	err := s.producer.Send(rctx, toClientRecord(job.Topic, r, s.h.cfg.Now()), func(result client.Result) {
		if finish != nil {
			finish(result)
		}
		s.done(job, i, result)
	})
	if err == nil {
		return nil
	}
	err = notTaken(err, job.Topic)
	if finish != nil {
		finish(client.Result{Err: err, Partition: -1})
	}
	return err
}

// notTaken is the error of a record that the producer did not take in: whatever
// the reason, it is not in the log and never will be.
func notTaken(err error, topic string) error {
	e := rpc.FromError(err)
	if e.Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED {
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED,
			"the delivery timeout passed while the record waited for room or for topic %q to be looked up; see whether the mesh is well, or send less at once: %w", topic, err)
	}
	return e.WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE)
}

// concernsTopic reports whether later records for the same topic would fail alike.
func concernsTopic(err error) bool {
	switch rpc.ReasonOf(err) {
	case typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, typev1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE,
		typev1.ErrorReason_ERROR_REASON_INVALID_RECORD, typev1.ErrorReason_ERROR_REASON_PARTITION_STOPPED:
		return false
	}
	return true
}

// done notes the result of one record; it runs on the producer's goroutines too.
func (s *produceStream) done(job *sendJob, index int, r client.Result) {
	s.h.metrics.result(r)
	job.done(r)
	s.mu.Lock()
	s.results = append(s.results, recordDone{job.Seq, index, r})
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeResults tells the session what has become of records.
func (s *produceStream) takeResults() {
	s.mu.Lock()
	results := s.results
	s.results = nil
	s.mu.Unlock()
	for _, d := range results {
		s.session.Done(d.seq, d.index, toSessionResult(d.result))
	}
}

// done counts a record; the last one ends the span and gives the bytes back.
func (j *sendJob) done(r client.Result) {
	j.mu.Lock()
	j.left--
	if j.last.Err == nil {
		j.last = r
	}
	last, over := j.last, j.left == 0
	j.mu.Unlock()
	if over {
		j.finish(last)
		j.refund()
	}
}

// abandon is for a send that never reached the producer, because its client went.
func (j *sendJob) abandon() {
	j.finish(client.Result{Partition: -1, Err: context.Canceled})
	j.refund()
}

func toSessionResult(r client.Result) session.RecordResult {
	return session.RecordResult{Partition: r.Partition, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Err: r.Err, MaybeDuplicated: r.MaybeDuplicated}
}

// toClientRecord is a record as the client library takes it; now stamps one without
// a timestamp. It aliases r, which the library copies.
func toClientRecord(topic string, r *gatewayv1.ProduceRecord, now time.Time) client.Record {
	out := client.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: now}
	if r.TimestampMs != nil {
		out.Timestamp = time.UnixMilli(*r.TimestampMs)
	}
	if len(r.Headers) > 0 {
		out.Headers = make([]client.Header, len(r.Headers))
		for i, h := range r.Headers {
			out.Headers[i] = client.Header{Key: h.GetKey(), Value: h.GetValue()}
		}
	}
	return out
}

// resetTimer sets a timer to go off at a time; never for the zero time.
func resetTimer(t *time.Timer, at, now time.Time) {
	if at.IsZero() {
		t.Stop()
		return
	}
	t.Reset(max(at.Sub(now), 0))
}
