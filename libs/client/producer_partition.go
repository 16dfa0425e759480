package client

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// producerPartition carries out what the accumulator of a partition decides.
type producerPartition struct {
	p     *Producer
	topic *producerTopic
	tp    TopicPartition
	name  string // of the topic

	mu     sync.Mutex // before the locks of senders
	acc    accumulator
	closed bool
	// seenEpoch is the highest leader epoch that a batch went to: never to an older one
	// again, which could not tell what has become of it.
	seenEpoch int32
	// checking says that somebody looks whether the topic is still there.
	checking bool

	// Ends of batches are told one after the other, in order, by one goroutine at a
	// time and without mu.
	tell    []finishedBatch
	telling bool

	timer timerEntry // of p.timers
}

func newProducerPartition(p *Producer, topic *producerTopic, t *Topic, number int32) *producerPartition {
	part := &producerPartition{p: p, topic: topic, tp: TopicPartition{TopicID: t.ID, Partition: number}, name: t.Name}
	part.acc.cfg = &p.acc
	part.acc.probing = true
	if p.cfg.Idempotence == IdempotenceOn {
		part.acc.ids = newSequences()
	}
	part.timer.part = part
	return part
}

// add takes a record in, whose cost is reserved.
func (pp *producerPartition) add(r *record.Record, w waiter, sc trace.SpanContext, t *Topic) error {
	pp.mu.Lock()
	if pp.closed {
		pp.mu.Unlock()
		pp.p.release(w.cost)
		return closedError("producer")
	}
	now := time.Now()
	closed, err := pp.acc.add(r, w, sc, int(t.MaxMessageBytes), now)
	if err == nil {
		pp.p.records.Add(1)
	}
	pp.pump(now)
	pp.unlockAndTell()
	if closed > 0 {
		pp.topic.mu.Lock()
		pp.topic.partitioner.BatchClosed(pp.tp.Partition)
		pp.topic.mu.Unlock()
	}
	if err != nil {
		pp.p.release(w.cost)
		if errors.Is(err, record.ErrRecordTooLarge) {
			return tooLarge(t, pp.tp.Partition, record.SizeOf(r))
		}
		return rpc.FromError(err).With("topic", pp.name, "partition", itoa(pp.tp.Partition))
	}
	return nil
}

// stopAfter stops the partition after a failure, if the producer is made so.
func (pp *producerPartition) stopAfter(err *rpc.Error) {
	if !pp.p.cfg.StopPartition {
		return
	}
	pp.mu.Lock()
	pp.acc.stop(err)
	pp.unlockAndTell()
}

// step looks at what time has brought.
func (pp *producerPartition) step() {
	pp.mu.Lock()
	now := time.Now()
	pp.withdrawLate(now)
	pp.acc.expire(now)
	pp.acc.desert(now)
	if addr := pp.acc.doubts(now); addr != "" {
		pp.p.client.refreshDoubting(addr)
	}
	pp.pump(now)
	pp.unlockAndTell()
}

// withdrawLate takes back late batches that wait for a connection to their broker:
// they were certainly not stored, which nobody could tell of one that was sent. The
// lock is held.
func (pp *producerPartition) withdrawLate(now time.Time) {
	for _, b := range slices.Clone(pp.acc.inflight) {
		if now.Before(b.deadline) || b.reported || b.call == nil || !pp.p.senders.withdraw(b.sentTo.Addr, b.call) {
			continue
		}
		pp.acc.ended(b, -1, -1, rpc.Errorf(reasonUnreachable, "broker %s, which leads the partition, could not be reached", b.sentTo.Addr).
			WithOutcome(outcomeNotDone), true, now)
	}
}

// keenPolling is how long after its first failure a partition has metadata asked
// for over and over, so that a new leader is found as soon as anybody knows it.
// After that it is asked for with each attempt.
const keenPolling = 5 * time.Second

// leader is where the partition is led, unless that is known to be over.
func (pp *producerPartition) leader() (Leader, bool) {
	l, ok := pp.p.client.leader(pp.tp)
	return l, ok && l.Epoch >= pp.seenEpoch
}

// metadataChanged ends the wait for a leader, if there is one now, and in time the
// wait for one that leads no more.
func (pp *producerPartition) metadataChanged() {
	pp.mu.Lock()
	now := time.Now()
	leader, ok := pp.leader()
	if ok {
		pp.acc.movedTo(leader, now)
		pp.acc.desert(now)
		pp.acc.hurry(leader, now)
		if pp.acc.awaitsLeader {
			pp.acc.notBefore, pp.acc.awaitsLeader = now, false
		}
	}
	pp.pump(now)
	if pp.acc.failures > 0 && now.Before(pp.acc.notBefore) && now.Sub(pp.acc.troubled) < keenPolling && pp.acc.hasWork(now) {
		pp.p.client.refreshElsewhere()
	}
	pp.unlockAndTell()
}

// pump sends what may be sent. The lock is held.
func (pp *producerPartition) pump(now time.Time) {
	if pp.acc.wantsID() {
		pp.p.provideID(pp)
	}
	for pp.acc.mayGo(now) && pp.acc.hasWork(now) {
		leader, ok := pp.leader()
		if !ok {
			pp.p.client.refreshSoon()
			pp.checkTopic()
			pp.acc.hold(now, rpc.Errorf(reasonLeaderUnavailable, "partition %d of topic %q has no leader that is known", pp.tp.Partition, pp.name))
			break
		}
		open := pp.acc.open
		b := pp.acc.next(now)
		if b == nil {
			break
		}
		if open != nil && pp.acc.open == nil {
			// It goes because its linger is over. Nobody holds topic.mu who waits for mu.
			pp.topic.mu.Lock()
			pp.topic.partitioner.BatchClosed(pp.tp.Partition)
			pp.topic.mu.Unlock()
		}
		pp.send(b, leader, now)
	}
	pp.p.timers.set(&pp.timer, pp.acc.due(now))
}

// checkTopic looks, now and then, whether a topic without a leader is still there,
// so that its records do not wait for their timeout in vain. The lock is held.
func (pp *producerPartition) checkTopic() {
	if pp.checking || pp.acc.failures < 2 {
		return
	}
	pp.checking = true
	pp.p.client.spawn(func() {
		_, err := pp.p.client.source.TopicByID(pp.p.ctx, pp.tp.TopicID)
		pp.mu.Lock()
		pp.checking = false
		if rpc.IsReason(err, reasonUnknownTopic, reasonTopicDeleted) {
			pp.acc.fail(rpc.Errorf(reasonTopicDeleted, "topic %q was deleted while records waited for it: %w", pp.name, err))
		}
		pp.unlockAndTell()
	})
}

func (pp *producerPartition) send(b *batch, leader Leader, now time.Time) {
	if b.attempts > 1 {
		pp.p.retries.Add(1)
	}
	pp.startSpan(b)
	b.sentTo, b.giveUpAt, b.doubtAt = leader, time.Time{}, time.Time{}
	if pp.p.cfg.Acks != typev1.Acks_ACKS_NONE {
		b.doubtAt = now.Add(unansweredDoubt)
	}
	pp.seenEpoch = max(pp.seenEpoch, leader.Epoch)
	attempt := b.attempts
	timeout := max(min(pp.p.cfg.AckTimeout, b.deadline.Sub(now)), time.Millisecond)
	b.call = &produceCall{
		part: pp.tp, epoch: leader.Epoch, acks: pp.p.cfg.Acks, timeout: timeout, bytes: b.bytes, trace: b.carried,
		done: func(a produceAnswer) { pp.ended(b, attempt, a) },
	}
	err := pp.p.senders.submit(leader.Addr, b.call)
	if err != nil {
		retry := pp.p.client.mayPass(pp.tp, leader.Addr, err)
		pp.acc.ended(b, -1, -1, err, retry, now)
		return
	}
	pp.p.refreshUnanswered(now)
}

// ended takes the answer to an attempt in; one that was given up on is too late.
func (pp *producerPartition) ended(b *batch, attempt int, a produceAnswer) {
	retry := false
	if a.err != nil {
		retry = pp.p.client.mayPass(pp.tp, a.addr, a.err)
	}
	pp.mu.Lock()
	if b.attempts != attempt {
		pp.mu.Unlock()
		return
	}
	now := time.Now()
	pp.acc.ended(b, a.offset, a.epoch, a.err, retry, now)
	if leader, ok := pp.leader(); ok && a.err != nil {
		pp.acc.hurry(leader, now)
	}
	pp.withdrawLate(now)
	pp.acc.expire(now)
	pp.pump(now)
	pp.unlockAndTell()
}

// flush makes what is here go at once and returns what to wait for; closing, it
// also lets nothing more in.
func (pp *producerPartition) flush(closing bool) []*batch {
	pp.mu.Lock()
	pp.closed = pp.closed || closing
	waits := pp.acc.flush()
	for _, f := range pp.tell {
		waits = append(waits, f.batch)
	}
	pp.pump(time.Now())
	pp.unlockAndTell()
	return waits
}

// abandon fails what is left.
func (pp *producerPartition) abandon(err *rpc.Error) {
	pp.mu.Lock()
	pp.acc.fail(err)
	pp.p.timers.set(&pp.timer, time.Time{})
	pp.unlockAndTell()
}

// unlockAndTell unlocks, and tells the ends of batches unless another goroutine is
// at it.
func (pp *producerPartition) unlockAndTell() {
	pp.tell = append(pp.tell, pp.acc.takeFinished()...)
	if pp.telling {
		pp.mu.Unlock()
		return
	}
	pp.telling = true
	for len(pp.tell) > 0 {
		f := pp.tell[0]
		pp.mu.Unlock()
		pp.report(f)
		pp.mu.Lock()
		pp.tell = pp.tell[1:]
	}
	pp.tell, pp.telling = nil, false
	pp.mu.Unlock()
}

// report tells the waiters of a batch.
func (pp *producerPartition) report(f finishedBatch) {
	n := int64(len(f.waiters))
	res := Result{Topic: pp.name, TopicID: pp.tp.TopicID, Partition: pp.tp.Partition, Offset: -1, LeaderEpoch: -1}
	switch {
	case f.err == nil:
		pp.p.acknowledged.Add(n)
		res.LeaderEpoch, res.MaybeDuplicated = f.epoch, f.unknown && pp.p.cfg.Idempotence != IdempotenceOn
	case f.err.Outcome == outcomeUnknown:
		pp.p.unknown.Add(n)
	default:
		pp.p.failed.Add(n)
	}
	if f.err != nil && pp.p.cfg.Acks == typev1.Acks_ACKS_NONE {
		pp.p.unacknowledged.Add(1)
	}
	if f.err != nil {
		res.Err = f.err.With("topic", pp.name, "partition", itoa(pp.tp.Partition))
	}
	f.endSpan(f.err)
	for i, w := range f.waiters {
		if f.err == nil && f.offset >= 0 {
			res.Offset = f.offset + int64(i)
		}
		pp.p.release(w.cost) // who has the result does not find the record buffered
		if w.done != nil {
			w.done(res)
		}
	}
	f.waiters = nil
	close(f.over)
	for b := f.batch; b.parent != nil; b = b.parent {
		if b.parent.parts--; b.parent.parts > 0 {
			break
		}
		b.parent.endSpan(nil)
		close(b.parent.over)
	}
}

// startSpan begins the span of a batch that holds a sampled record: a child of the
// first one's, linked to the others'.
func (pp *producerPartition) startSpan(b *batch) {
	if b.span != nil || !b.first.IsValid() {
		return
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), b.first)
	ctx, b.span = pp.p.client.tracer.Start(ctx, "send "+pp.name, trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(b.links...),
		trace.WithAttributes(
			attribute.String("messaging.system", "leat"),
			attribute.String("messaging.operation.name", "send"),
			attribute.String("messaging.destination.name", pp.name),
			attribute.String("messaging.destination.partition.id", itoa(pp.tp.Partition)),
			attribute.Int("messaging.batch.message_count", len(b.waiters)),
		))
	b.carried = rpc.InjectTrace(ctx)
}

func (b *batch) endSpan(err *rpc.Error) {
	if b.span == nil {
		return
	}
	b.span.SetAttributes(attribute.Int("messaging.leat.attempts", b.attempts))
	if err != nil {
		b.span.SetAttributes(attribute.String("error.type", rpc.ReasonName(err.Reason)))
		b.span.SetStatus(otelcodes.Error, err.Message)
	}
	b.span.End()
}

// withTraceHeader adds a traceparent header unless there is one.
func withTraceHeader(ctx context.Context, headers []Header) []Header {
	for _, h := range headers {
		if string(h.Key) == "traceparent" {
			return headers
		}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	parent := carrier.Get("traceparent")
	if parent == "" {
		return headers
	}
	return append(headers[:len(headers):len(headers)], Header{Key: []byte("traceparent"), Value: []byte(parent)})
}

func itoa[T int | int32 | int64](n T) string { return strconv.FormatInt(int64(n), 10) }
