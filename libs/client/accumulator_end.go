package client

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

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
		if a.ids != nil {
			a.ids.stored(b)
		}
		a.report(finishedBatch{batch: b, offset: offset, epoch: epoch})
	} else {
		a.failedBatch(b, err, retry)
	}
	if a.recovering && len(a.inflight) == 0 {
		a.recover(now, err)
	} else {
		a.settle()
	}
}

// failedBatch sorts out what becomes of a batch whose attempt has failed.
func (a *accumulator) failedBatch(b *batch, err *rpc.Error, retry bool) {
	b.last = err
	maybe := mayHaveHappened(err)
	if maybe {
		b.unknown, b.unknownAt = true, max(b.unknownAt, b.sentTo.Epoch)
	}
	if b.sentTo.Epoch >= a.failedAt.Epoch {
		a.failedAt = b.sentTo
	}
	switch {
	case b.reported: // only its end was waited for
		if a.ids != nil {
			a.ids.gaveUp(b)
		}
	case err.Reason == reasonRecordTooLarge && len(b.waiters) > 1 && a.mayRenumber(b) && a.split(b) == nil:
		a.recovering = true
	case a.ids != nil && isSequenceError(err):
		a.failed = append(a.failed, b)
		a.recovering = true
	case !retry || a.cfg.noAcks || maybe && a.cfg.noRetryUnknown || a.ids == nil && err.Reason == reasonShrunkAfterAppend:
		// What is known to be in the log, and may yet be committed, is not sent again
		// where that would most likely store it twice.
		a.finish(b, err)
	default:
		a.failed = append(a.failed, b)
		a.recovering = true
	}
}

// mayRenumber reports whether the records of a batch may go in other batches.
func (a *accumulator) mayRenumber(b *batch) bool { return a.ids == nil || b.unknownAt < 0 }

// fails counts a failure in a row, and sets the pause that it costs.
func (a *accumulator) fails(now time.Time) {
	if a.failures == 0 {
		a.troubled = now
	}
	a.failures++
}

// hurry ends the pause after a failure once a leader is known that has not failed
// yet: one of a later epoch, or the same one under another address.
func (a *accumulator) hurry(l Leader, now time.Time) {
	if a.failures > 0 && !a.awaitsLeader && (l.Epoch > a.failedAt.Epoch || l.Epoch == a.failedAt.Epoch && l.Addr != a.failedAt.Addr && a.failures <= 2) {
		a.notBefore = now
	}
}

// recover puts what has failed first in line, unless it was overtaken.
func (a *accumulator) recover(now time.Time, err *rpc.Error) {
	failed := a.failed
	a.failed, a.recovering, a.probing = nil, false, true
	slices.SortFunc(failed, bySeq)
	var again, overtaken []*batch
	for i, b := range failed {
		if i > 0 && !b.alone && isSequenceError(b.last) {
			b.last = failed[i-1].last // which is what it was refused for
		}
		if b.seq < a.lastOK && a.ids == nil {
			overtaken = append(overtaken, b)
		} else {
			again = append(again, b)
		}
	}
	a.ready = append(again, a.ready...)
	a.fails(now)
	wait := a.cfg.backoff(a.failures)
	switch {
	case err == nil:
	case err.Leader == nil:
		wait = max(wait, err.RetryDelay)
	case err.Leader.Id >= 0 && a.failures == 1:
		wait = 0 // the leader is known
	}
	a.notBefore = now.Add(wait)
	a.settle()
	for _, b := range overtaken {
		a.finish(b, rpc.Errorf(b.last.Reason, "a later batch of the partition was stored meanwhile, so that another try would break the order: %w", b.last))
	}
}

// desertedWait is how long an answer is still waited for once another broker is
// known to lead: the old leader may only be slow to say so.
const desertedWait = time.Second

// movedTo takes in who leads now: what is in flight to another broker, under an
// older epoch, will soon be given up there.
//
// An idempotent producer gives up at once: its batches go to the new leader under
// the same numbers, whatever has become of them.
func (a *accumulator) movedTo(l Leader, now time.Time) {
	wait := desertedWait
	if a.ids != nil {
		wait = 0
	}
	for _, b := range a.inflight {
		if b.sentTo.Epoch < l.Epoch && b.sentTo.Addr != l.Addr && b.giveUpAt.IsZero() {
			b.giveUpAt = now.Add(wait)
		}
	}
}

// unansweredDoubt is how long an answer may take before it is asked elsewhere who
// leads: a broker that has been cut off may believe for long that it does.
const unansweredDoubt = 2 * time.Second

// doubts returns the address of a broker that has left a batch unanswered for long,
// once for each such time; empty: there is none.
func (a *accumulator) doubts(now time.Time) (addr string) {
	for _, b := range a.inflight {
		if !b.doubtAt.IsZero() && !now.Before(b.doubtAt) {
			b.doubtAt = now.Add(unansweredDoubt)
			addr = b.sentTo.Addr
		}
	}
	return addr
}

// desert gives up on answers of brokers that no longer lead. Whether the batches
// were stored is unknown.
func (a *accumulator) desert(now time.Time) {
	for _, b := range slices.Clone(a.inflight) {
		if !b.giveUpAt.IsZero() && !now.Before(b.giveUpAt) {
			a.ended(b, -1, -1, rpc.Errorf(reasonConnectionLost, "broker %s no longer leads the partition and has not answered", b.sentTo.Addr), true, now)
		}
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
	if len(late) > 0 && !a.recovering {
		a.settle()
	}
}

func bySeq(x, y *batch) int { return cmp.Compare(x.seq, y.seq) }

// timeout says why a batch ran out of time. Where nothing of it can have been
// stored, the reason is what stood in its way to the last, such as a full disk or
// a missing leader: that is what has to be mended.
func (a *accumulator) timeout(b *batch) *rpc.Error {
	if b.last == nil && a.ids != nil && a.ids.wantsID() && a.cfg.noID != nil {
		b.last = a.cfg.noID()
	}
	if b.last == nil {
		return rpc.Errorf(reasonDeadlineExceeded, "the records were not acknowledged within %v", a.cfg.delivery)
	}
	reason := reasonDeadlineExceeded
	if !b.unknown {
		reason = b.last.Reason
	}
	return rpc.Errorf(reason, "the records were not acknowledged within %v; last problem: %w", a.cfg.delivery, b.last).
		With("last_reason", rpc.ReasonName(b.last.Reason))
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
	if a.ids != nil && b.numbered() && !slices.Contains(a.inflight, b) {
		a.ids.gaveUp(b)
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
		p := &batch{
			seq: b.seq + int64(i)*(b.room/2), room: b.room / 2, bytes: bytes, waiters: b.waiters[:half:half], created: b.created, deadline: b.deadline,
			attempts: b.attempts, unknown: b.unknown, last: b.last, reported: b.reported, over: make(chan struct{}), parent: b,
			records: len(part), rank: b.rank, number: noNumber, encoded: noNumber, unknownAt: b.unknownAt,
		}
		if b.numbered() {
			// The halves take the place of the whole, so that what follows keeps its own.
			p.number = producerNumber{b.number.id, b.number.epoch, advance(b.number.first, i*half)}
			p.encoded = p.number
			record.PatchProducer(p.bytes, nil, p.number.id, p.number.epoch, p.number.first)
		}
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
