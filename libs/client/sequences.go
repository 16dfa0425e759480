package client

import (
	"math"
	"slices"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// maxIdempotentInFlight is how many unanswered batches of an idempotent producer a
// partition may have: as many as brokers know again when they are sent once more.
const maxIdempotentInFlight = 5

// sequences is what an idempotent producer holds for one partition: the producer
// id, and the epoch and sequence with which it goes on there. Within one epoch a
// log takes the batches of a partition in the order of their sequences and without
// a gap, each once.
//
// What follows from that is all that the accumulator relies on. A batch may be sent
// again under its number as often as needed. One whose predecessor is missing for
// good can never be stored under its number, so that it may be given another one.
// The number of a batch that may have been stored is never given to other records:
// where one is given up the partition goes on with the next epoch, unless a later
// batch of the same epoch turns out to be stored.
type sequences struct {
	id    int64 // none: the batches wait
	epoch int16
	next  int32
	given int64 // numbers so far
	// brokenAt is the place in line of the newest batch that was given up after it
	// had got a number; 0: there is none. What comes after it needs a new epoch.
	brokenAt int64
	// holeAt is the place in line of the first of those that was certainly not stored,
	// so that nothing after it is; 0: there is none.
	holeAt int64
	// spent says that the id is not to be used here any more. Another id does not keep
	// late attempts of what was given up from being stored, as another epoch does: their
	// outcome is unknown, as was said, but their order is not kept. It takes 32,767
	// epochs to come to that.
	spent bool
}

// producerNumber is the place of a batch among all of its producer in a partition.
type producerNumber struct {
	id    int64
	epoch int16
	first int32 // sequence of the first record
}

var noNumber = producerNumber{id: record.NoProducerID, epoch: record.NoProducerEpoch, first: record.NoSequence}

// newSequences waits for a producer id.
func newSequences() *sequences { return &sequences{id: record.NoProducerID} }

// adopt goes on with an id where it stands in the partition.
func (s *sequences) adopt(id int64, at partitionSequence) {
	*s = sequences{given: s.given, id: id, epoch: at.epoch, next: at.next, spent: at.epoch < 0}
}

// wantsID reports whether an id is needed before anything new can be sent.
func (s *sequences) wantsID() bool {
	return s.id < 0 || s.spent || s.brokenAt > 0 && s.epoch == math.MaxInt16
}

// mayNumber reports whether a batch may get its number now: a new epoch begins only
// when nothing of the older one is on its way, and no batch is to be so far behind
// another that its leader would not know it again.
func (s *sequences) mayNumber(inflight []*batch) bool {
	if s.wantsID() || len(inflight) > 0 && (s.brokenAt > 0 || s.given+1-inflight[0].rank >= maxIdempotentInFlight) {
		return false
	}
	return true
}

// number gives a batch its place.
func (s *sequences) number(b *batch) {
	if s.brokenAt > 0 {
		s.epoch++
		s.next, s.brokenAt, s.holeAt = 0, 0, 0
	}
	s.given++
	b.rank = s.given
	b.number = producerNumber{s.id, s.epoch, s.next}
	s.next = advance(s.next, b.records)
	if b.encoded == b.number {
		return
	}
	if b.attempts > 0 {
		// An attempt that was given up may be on its way out of this process yet.
		b.bytes = slices.Clone(b.bytes)
	}
	record.PatchProducer(b.bytes, nil, b.number.id, b.number.epoch, b.number.first)
	b.encoded = b.number
}

// advance is the sequence n records further on; it wraps from 2³¹−1 to 0.
func advance(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) & math.MaxInt32)
}

// expected is the number that a batch sealed now will most likely get, behind what
// waits already.
func (s *sequences) expected(ready []*batch) producerNumber {
	if n := len(ready); n > 0 && ready[n-1].encoded.id == s.id {
		last := ready[n-1]
		return producerNumber{last.encoded.id, last.encoded.epoch, advance(last.encoded.first, last.records)}
	}
	return producerNumber{s.id, s.epoch, s.next}
}

// stored notes that a batch is in the log, and with it all before it.
func (s *sequences) stored(b *batch) {
	if b.seq > s.brokenAt {
		s.brokenAt, s.holeAt = 0, 0
	}
}

// gaveUp notes that a batch with a number will not be sent any more.
func (s *sequences) gaveUp(b *batch) {
	s.brokenAt = max(s.brokenAt, b.seq)
	if b.unknownAt < 0 && (s.holeAt == 0 || b.seq < s.holeAt) {
		s.holeAt = b.seq
	}
}

// isSequenceError reports whether a broker refused a batch because of its number.
func isSequenceError(err *rpc.Error) bool {
	if err == nil {
		return false
	}
	switch err.Reason {
	case reasonOutOfOrder, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID,
		typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED, typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE:
		return true
	}
	return false
}

// numbered reports whether a batch has a number that it keeps.
func (b *batch) numbered() bool { return b.number.id >= 0 }

// unnumber frees a batch that is certainly not stored under its number, and never
// will be.
func (b *batch) unnumber() {
	b.number, b.unknownAt, b.unknown = noNumber, -1, false
}

// settle decides about the batches that wait with numbers, which is about those
// that were sent before: in order, each keeps its number, gets another one, or is
// given up.
func (a *accumulator) settle() {
	s := a.ids
	if s == nil || len(a.inflight) > 0 {
		return
	}
	for len(a.ready) > 0 && a.ready[0].numbered() {
		b := a.ready[0]
		switch refused := b.alone && isSequenceError(b.last); {
		case s.holeAt > 0 && b.seq > s.holeAt:
			unnumberAll(a.ready)
			return
		case !refused:
			a.keepNumbers()
			return
		case b.last.Reason == typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED:
			s.spent = true
		case b.last.Reason == typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE:
			b.unknown, b.unknownAt = true, max(b.unknownAt, b.sentTo.Epoch)
		}
		// Everything before it is accounted for, and yet its leader does not take it: the
		// log has lost what came before, or has forgotten the producer. So it is not
		// stored here. Nor will it be by an attempt that is still on its way to the leader
		// of an earlier epoch; only one on its way to this leader could come late.
		if b.unknownAt < b.sentTo.Epoch {
			s.brokenAt = max(s.brokenAt, b.seq)
			unnumberAll(a.ready)
			return
		}
		a.ready = a.ready[1:]
		a.finish(b, b.last)
	}
}

// keepNumbers lets batches keep their numbers. Where one was given up, so that the
// epoch ends anyway, that holds only up to the first that is known not to be stored:
// from there on none is.
func (a *accumulator) keepNumbers() {
	if a.ids.brokenAt == 0 {
		return
	}
	for i, b := range a.ready {
		if !b.numbered() {
			return
		}
		if b.unknownAt < 0 || a.ids.holeAt > 0 && b.seq > a.ids.holeAt {
			unnumberAll(a.ready[i:])
			return
		}
	}
}

// unnumberAll frees the batches at the head of a list that have numbers.
func unnumberAll(list []*batch) {
	for _, b := range list {
		if !b.numbered() {
			return
		}
		b.unnumber()
	}
}

// wantsID reports whether nothing more can be sent until there is a producer id: for
// the first time, or because the one that was used is spent and what has a number of
// it has ended.
func (a *accumulator) wantsID() bool {
	if a.ids == nil || !a.ids.wantsID() || a.recovering || len(a.inflight) > 0 {
		return false
	}
	return len(a.ready) > 0 && !a.ready[0].numbered() || len(a.ready) == 0 && a.open != nil
}

// leaveOff is how another producer may go on with the id in the partition.
func (a *accumulator) leaveOff() partitionSequence {
	s := a.ids
	open := s.brokenAt > 0 || len(a.inflight)+len(a.failed) > 0 || len(a.ready) > 0 && a.ready[0].numbered()
	switch {
	case s.spent || open && s.epoch == math.MaxInt16:
		return partitionSequence{epoch: -1}
	case open:
		return partitionSequence{epoch: s.epoch + 1}
	}
	return partitionSequence{epoch: s.epoch, next: s.next}
}
