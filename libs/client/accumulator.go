package client

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// accumulator is what a producer holds for one partition: batches that are being
// filled, wait, are in flight, or have failed and will be sent again. It decides
// what is sent when; it has no lock, no clock and no connection. In order of their
// numbers, batches are in failed, inflight, ready and open.
//
// The order of records is kept through retries in this way. After a failure that
// may pass, nothing more is sent until everything in flight has ended; then what
// has failed goes first, one batch alone until one has succeeded. A failed batch
// that a later one has overtaken is not sent again: it would come after it. To
// make that rare, the first batch to a new leader goes alone, too: once a leader
// has taken one batch of an epoch, it takes no later one after refusing an earlier
// one for not being the leader.
type accumulator struct {
	cfg *accumulatorConfig

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
	over     chan struct{}
	parent   *batch // it is a part of
	parts    int    // that are not over

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
	return &batch{seq: a.lastSeq, room: seqStep, builder: builder, created: now, deadline: now.Add(a.cfg.delivery), over: make(chan struct{})}, nil
}

// seal encodes the open batch and puts it in line. If that fails, which only a bug
// makes happen, its records fail.
func (a *accumulator) seal() error {
	b := a.open
	a.open = nil
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
	b.attempts++
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
	a.failures++
	a.notBefore = now.Add(a.cfg.backoff(a.failures))
	a.probing, a.awaitsLeader = true, true
	for _, b := range a.ready {
		b.last = why
	}
	if a.open != nil {
		a.open.last = why
	}
}

// ended takes in what became of a batch in flight. retry says that the failure may
// pass.
func (a *accumulator) ended(b *batch, offset int64, epoch int32, err *rpc.Error, retry bool, now time.Time) {
	i := slices.Index(a.inflight, b)
	if i < 0 {
		return
	}
	a.inflight = slices.Delete(a.inflight, i, i+1)
	if err == nil {
		a.lastOK, a.failures, a.probing = max(a.lastOK, b.seq), 0, false
		a.report(finishedBatch{batch: b, offset: offset, epoch: epoch})
	} else {
		b.last = err
		maybe := mayHaveHappened(err)
		b.unknown = b.unknown || maybe
		switch {
		case err.Reason == reasonRecordTooLarge && len(b.waiters) > 1 && a.split(b) == nil:
			a.recovering = true
		case b.reported: // only its end was waited for
		case !retry || a.cfg.noAcks || maybe && a.cfg.noRetryUnknown:
			a.finish(b, err)
		default:
			a.failed = append(a.failed, b)
			a.recovering = true
		}
	}
	if a.recovering && len(a.inflight) == 0 {
		a.recover(now, err)
	}
}

// recover puts what has failed first in line, unless it was overtaken.
func (a *accumulator) recover(now time.Time, err *rpc.Error) {
	failed := a.failed
	a.failed, a.recovering, a.probing = nil, false, true
	slices.SortFunc(failed, bySeq)
	var again, overtaken []*batch
	for _, b := range failed {
		if b.seq < a.lastOK {
			overtaken = append(overtaken, b)
		} else {
			again = append(again, b)
		}
	}
	a.ready = append(again, a.ready...)
	a.failures++
	wait := a.cfg.backoff(a.failures)
	if err != nil && err.Leader == nil {
		wait = max(wait, err.RetryDelay)
	}
	a.notBefore = now.Add(wait)
	for _, b := range overtaken {
		a.finish(b, rpc.Errorf(b.last.Reason, "a later batch of the partition was stored meanwhile, so that another try would break the order: %w", b.last))
	}
}

// expire fails batches whose time has run out. One in flight is still waited for,
// so that the order holds, but its records are told now.
func (a *accumulator) expire(now time.Time) {
	var late []*batch
	sift := func(list []*batch) []*batch {
		return slices.DeleteFunc(list, func(b *batch) bool {
			if now.Before(b.deadline) {
				return false
			}
			late = append(late, b)
			return true
		})
	}
	for _, b := range a.inflight {
		if !now.Before(b.deadline) && !b.reported {
			b.unknown = true
			late = append(late, b)
		}
	}
	a.failed, a.ready = sift(a.failed), sift(a.ready)
	if a.open != nil && !now.Before(a.open.deadline) {
		late = append(late, a.open)
		a.open = nil
	}
	slices.SortFunc(late, bySeq)
	for _, b := range late {
		a.finish(b, a.timeout(b))
	}
}

func bySeq(x, y *batch) int { return cmp.Compare(x.seq, y.seq) }

func (a *accumulator) timeout(b *batch) *rpc.Error {
	e := rpc.Errorf(reasonDeadlineExceeded, "the records were not acknowledged within %v", a.cfg.delivery)
	if b.last != nil {
		e = rpc.Errorf(reasonDeadlineExceeded, "the records were not acknowledged within %v; last problem: %w", a.cfg.delivery, b.last).
			With("last_reason", rpc.ReasonName(b.last.Reason))
	}
	return e
}

// fail ends everything that is not in flight, and what is in flight with an
// unknown outcome.
func (a *accumulator) fail(err *rpc.Error) {
	for _, b := range slices.Clone(a.inflight) {
		if !b.reported {
			b.unknown = true
			a.finish(b, err)
		}
	}
	all := append(append(a.failed, a.ready...), a.openList()...)
	a.failed, a.ready, a.open = nil, nil, nil
	for _, b := range all {
		a.finish(b, err)
	}
}

func (a *accumulator) openList() []*batch {
	if a.open == nil {
		return nil
	}
	return []*batch{a.open}
}

// finish ends a batch with an error whose outcome covers all attempts.
func (a *accumulator) finish(b *batch, err *rpc.Error) {
	outcome := outcomeNotDone
	if b.unknown {
		outcome = outcomeUnknown
	}
	a.report(finishedBatch{batch: b, offset: -1, epoch: -1, err: err.WithOutcome(outcome)})
	if a.cfg.stopPartition {
		a.stop(err)
	}
}

// stop fails everything that waits and everything that comes, after a failure.
func (a *accumulator) stop(err *rpc.Error) {
	if a.stopped != nil {
		return
	}
	a.stopped = rpc.Errorf(reasonPartitionStopped, "an earlier record of the partition failed (%s), and the producer stops there: deal with it, then send the rest again with another producer",
		rpc.ReasonName(err.Reason))
	a.fail(a.stopped)
}

// report puts the end of a batch in line for its waiters, once.
func (a *accumulator) report(f finishedBatch) {
	if f.reported {
		return
	}
	f.reported = true
	a.finished = append(a.finished, f)
}

// takeFinished hands over what is to be reported.
func (a *accumulator) takeFinished() []finishedBatch {
	f := a.finished
	a.finished = nil
	return f
}

// flush makes everything that is here go without lingering, and returns what must
// be waited for.
func (a *accumulator) flush() []*batch {
	a.flushUpTo = a.lastSeq
	var all []*batch
	for _, list := range [][]*batch{a.failed, a.inflight, a.ready, a.openList()} {
		for _, b := range list {
			if !b.reported {
				all = append(all, b)
			}
		}
	}
	return all
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

// split puts the halves of a batch where it has failed: the topic's limit was
// lowered after it had been encoded, and what fits alone must go through.
func (a *accumulator) split(b *batch) error {
	records, err := record.Decode(b.bytes, 0)
	if err != nil {
		return err
	}
	if len(records) != len(b.waiters) || b.room < 2 {
		return fmt.Errorf("%d records in a batch of %d, with room for %d parts", len(records), len(b.waiters), b.room)
	}
	half := len(records) / 2
	var parts []*batch
	for i, part := range [][]record.Record{records[:half], records[half:]} {
		o := record.DefaultBuilderOptions()
		o.Compression, o.MaxBytes = a.cfg.compression, record.BatchSizeUpperBound(part)
		builder, err := record.NewBuilder(o)
		if err != nil {
			return err
		}
		for j := range part {
			if ok, err := builder.Append(&part[j]); err != nil || !ok {
				return fmt.Errorf("split a batch: record %d does not fit: %w", j, err)
			}
		}
		bytes, err := builder.Build()
		if err != nil {
			return err
		}
		p := &batch{seq: b.seq + int64(i)*(b.room/2), room: b.room / 2, bytes: bytes, waiters: b.waiters[:half:half], created: b.created, deadline: b.deadline,
			attempts: b.attempts, unknown: b.unknown, last: b.last, reported: b.reported, over: make(chan struct{}), parent: b}
		if i == 1 {
			p.waiters = b.waiters[half:]
		}
		p.first, p.links = b.first, b.links
		parts = append(parts, p)
	}
	b.parts = len(parts)
	a.failed = append(a.failed, parts...)
	return nil
}
