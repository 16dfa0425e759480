package client

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// accumulator is what a producer holds for one partition: batches that are being
// filled, wait, are in flight, or have failed and will be sent again. It decides
// what is sent when; it has no lock, no clock and no connection. In order of their
// places in line, batches are in failed, inflight, ready and open.
//
// The order of records is kept through retries in this way. After a failure that
// may pass, nothing more is sent until everything in flight has ended; then what
// has failed goes first, one batch alone until one has succeeded. An idempotent
// producer's batches go under their numbers, which see to the rest: see sequences.
//
// Without idempotence, a failed batch that a later one has overtaken is not sent
// again: it would come after it. To make that rare, the first batch to a new leader
// goes alone, too: once a leader has taken one batch of an epoch, it takes no later
// one after refusing an earlier one for not being the leader.
type accumulator struct {
	cfg *accumulatorConfig
	ids *sequences // nil: not idempotent

	open     *batch
	ready    []*batch
	inflight []*batch
	failed   []*batch

	lastSeq    int64
	lastOK     int64 // highest number that was stored
	probing    bool  // one batch alone, until one has succeeded
	recovering bool  // nothing is sent until inflight is empty
	failures   int   // in a row
	notBefore  time.Time
	failedAt   Leader    // of the newest failure
	troubled   time.Time // when the failures in a row began
	// awaitsLeader says that notBefore stands because no leader was known.
	awaitsLeader bool
	flushUpTo    int64 // batches up to this number do not linger
	stopped      *rpc.Error
	finished     []finishedBatch // to be reported, in order
}

// accumulatorConfig is what the accumulators of a producer share.
type accumulatorConfig struct {
	linger         time.Duration
	batchBytes     int
	batchRecords   int
	compression    record.Compression
	delivery       time.Duration
	maxInFlight    int
	noRetryUnknown bool
	stopPartition  bool
	noAcks         bool
	noID           func() *rpc.Error // why there is no producer id; nil: nobody knows
	backoff        func(failures int) time.Duration
}

// waiter is one record's callback.
type waiter struct {
	done func(Result)
	cost int64
}

// seqStep is the distance between the numbers of batches: room for the parts of
// one that has to be split.
const seqStep = 1 << 20

// batch is a run of records that share their fate.
type batch struct {
	seq      int64
	room     int64           // numbers from seq on that are the batch's own
	builder  *record.Builder // nil once sealed
	bytes    []byte          // encoded, once sealed
	waiters  []waiter
	created  time.Time
	deadline time.Time
	attempts int
	unknown  bool // an attempt may have stored it
	last     *rpc.Error
	reported bool // its waiters have been told; it is only waited for
	sentTo   Leader
	alone    bool // when it was sent last, nothing before it was without an end

	records   int            // sealed in it
	rank      int64          // of its number among all of the partition
	number    producerNumber // of an idempotent producer; noNumber: none yet
	encoded   producerNumber // what is in bytes
	unknownAt int32          // highest leader epoch at which an attempt may have stored it; -1: none
	call      *produceCall   // of the last attempt
	giveUpAt  time.Time      // when its answer is no longer waited for; zero: until the stream ends
	doubtAt   time.Time      // when the leader it was sent to comes into doubt; zero: never
	over      chan struct{}
	parent    *batch // it is a part of
	parts     int    // that are not over

	// Tracing: the first sampled record's context, and the others'.
	first trace.SpanContext
	links []trace.Link
	span  trace.Span
	// carried is the span's context as it travels; nil: not traced.
	carried *typev1.TraceContext
}

// finishedBatch is a batch with what became of it.
type finishedBatch struct {
	*batch
	offset int64
	epoch  int32
	err    *rpc.Error
}

// add takes a record in. It returns the number of the batch that the record has
// closed, or 0, and an error where the record cannot be taken at all.
func (a *accumulator) add(r *record.Record, w waiter, sc trace.SpanContext, maxBytes int, now time.Time) (closed int64, err error) {
	if a.stopped != nil {
		return 0, a.stopped
	}
	if a.open != nil && a.full(r) {
		if err := a.seal(); err != nil {
			return 0, err
		}
		closed = a.lastSeq
	}
	for {
		if a.open == nil {
			if a.open, err = a.newBatch(maxBytes, now); err != nil {
				return closed, err
			}
		}
		ok, err := a.open.builder.Append(r)
		if err != nil {
			if a.open.builder.Len() == 0 {
				a.open = nil
				a.lastSeq -= seqStep
			}
			return closed, err
		}
		if ok {
			break
		}
		if err := a.seal(); err != nil {
			return closed, err
		}
		closed = a.lastSeq
	}
	b := a.open
	b.waiters = append(b.waiters, w)
	b.trace(sc)
	if b.builder.Size() >= a.cfg.batchBytes || a.cfg.batchRecords > 0 && b.builder.Len() >= a.cfg.batchRecords {
		if err := a.seal(); err != nil {
			return closed, err
		}
		closed = a.lastSeq
	}
	return closed, nil
}

// full reports whether the record belongs in the next batch.
func (a *accumulator) full(r *record.Record) bool {
	return a.open.builder.Len() > 0 && a.open.builder.Size()+record.RecordSizeUpperBound(r) > a.cfg.batchBytes
}

func (a *accumulator) newBatch(maxBytes int, now time.Time) (*batch, error) {
	o := record.DefaultBuilderOptions()
	o.Compression, o.MaxBytes = a.cfg.compression, maxBytes
	builder, err := record.NewBuilder(o)
	if err != nil {
		return nil, rpc.Errorf(reasonInternalBug, "batch of at most %d bytes: %w", maxBytes, err).WithOutcome(outcomeNotDone)
	}
	a.lastSeq += seqStep
	return &batch{
		seq: a.lastSeq, room: seqStep, builder: builder, created: now, deadline: now.Add(a.cfg.delivery), over: make(chan struct{}),
		number: noNumber, encoded: noNumber, unknownAt: -1,
	}, nil
}

// seal encodes the open batch and puts it in line. If that fails, which only a bug
// makes happen, its records fail.
func (a *accumulator) seal() error {
	b := a.open
	a.open = nil
	if a.ids != nil {
		b.encoded = a.ids.expected(a.ready)
		b.builder.SetProducer(b.encoded.id, b.encoded.epoch, b.encoded.first)
	}
	b.records = b.builder.Len()
	bytes, err := b.builder.Build()
	b.builder = nil
	if err != nil {
		e := rpc.Errorf(reasonInternalBug, "encode a batch: %w", err).WithOutcome(outcomeNotDone)
		a.finish(b, e)
		return e
	}
	b.bytes = bytes
	a.ready = append(a.ready, b)
	return nil
}

// next takes the batch that is to be sent now into flight; nil: none is, and what
// will change that is another event or the time of due.
func (a *accumulator) next(now time.Time) *batch {
	if !a.mayGo(now) {
		return nil
	}
	if len(a.ready) == 0 {
		// An open batch is closed only when it can go: until then it may grow.
		if a.open == nil || !a.lingered(now) {
			return nil
		}
		if a.seal() != nil {
			return nil
		}
	}
	b := a.ready[0]
	a.ready[0] = nil
	a.ready = a.ready[1:]
	if a.ids != nil && !b.numbered() {
		a.ids.number(b)
	}
	b.attempts++
	b.alone = len(a.inflight) == 0
	a.awaitsLeader = false
	a.inflight = append(a.inflight, b)
	return b
}

// mayGo reports whether a batch may be sent now, if there is one.
func (a *accumulator) mayGo(now time.Time) bool { return a.hasRoom() && !now.Before(a.notBefore) }

// hasRoom reports whether one more batch may be in flight.
func (a *accumulator) hasRoom() bool {
	limit := a.cfg.maxInFlight
	if a.probing || len(a.ready) > 0 && a.ready[0].parent != nil || len(a.inflight) > 0 && a.inflight[0].parent != nil {
		// A part that has to be split again must not be overtaken.
		limit = 1
	}
	if a.ids != nil && (len(a.ready) == 0 || !a.ready[0].numbered()) && !a.ids.mayNumber(a.inflight) {
		return false
	}
	return !a.recovering && len(a.inflight) < limit
}

func (a *accumulator) lingered(now time.Time) bool {
	return a.open.seq <= a.flushUpTo || !now.Before(a.open.created.Add(a.cfg.linger))
}

// hasWork reports whether anything waits to be sent.
func (a *accumulator) hasWork(now time.Time) bool {
	return len(a.ready) > 0 || a.open != nil && a.lingered(now)
}

// due is when the accumulator must be looked at again, if nothing else happens;
// zero: never.
func (a *accumulator) due(now time.Time) time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, list := range [][]*batch{a.failed, a.inflight, a.ready} {
		for _, b := range list {
			if !b.reported {
				sooner(b.deadline)
				break // they are in order
			}
		}
	}
	for _, b := range a.inflight {
		if !b.giveUpAt.IsZero() {
			sooner(b.giveUpAt)
		}
		if !b.doubtAt.IsZero() {
			sooner(b.doubtAt)
		}
	}
	if a.open != nil {
		sooner(a.open.deadline)
	}
	if !a.hasRoom() {
		return at
	}
	switch {
	case len(a.ready) > 0 || a.open != nil && a.lingered(now):
		sooner(a.notBefore)
	case a.open != nil:
		linger := a.open.created.Add(a.cfg.linger)
		if linger.Before(a.notBefore) {
			linger = a.notBefore
		}
		sooner(linger)
	}
	return at
}

// hold keeps everything back for a while, because the leader is not known; why is
// told if time runs out.
func (a *accumulator) hold(now time.Time, why *rpc.Error) {
	a.fails(now)
	a.notBefore = now.Add(a.cfg.backoff(a.failures))
	a.probing, a.awaitsLeader = true, true
	for _, b := range a.ready {
		b.last = why
	}
	if a.open != nil {
		a.open.last = why
	}
}

// maxLinks bounds the traces that one batch is linked to.
const maxLinks = 32

// trace notes the context of a sampled record.
func (b *batch) trace(sc trace.SpanContext) {
	switch {
	case !sc.IsValid() || !sc.IsSampled():
	case !b.first.IsValid():
		b.first = sc
	case len(b.links) < maxLinks && sc.SpanID() != b.first.SpanID():
		b.links = append(b.links, trace.Link{SpanContext: sc})
	}
}
