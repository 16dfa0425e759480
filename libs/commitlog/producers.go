package commitlog

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/leat-io/leat/libs/record"
)

const (
	// keptBatches is how many of a producer's last batches are known again when they
	// are sent once more.
	keptBatches = 5
	// maxProducers bounds how many producers one log remembers. Above it the ones
	// that were idle longest are forgotten, as if their time had come.
	maxProducers = 100_000
	// noTransaction stands for no open transaction.
	noTransaction = -1
)

// producerBatch is what is remembered of a batch.
type producerBatch struct {
	baseSeq, lastSeq int32
	base, last       int64 // offsets
	timestamp        int64 // ms, the greatest of the batch
}

// producer is what a log remembers of a producer id.
type producer struct {
	epoch    int16
	count    int8                       // of batches
	batches  [keptBatches]producerBatch // the oldest first
	lastSeen int64                      // ms by the log's clock
	txnFirst int64                      // first offset of its open transaction, or noTransaction
}

// latest is the newest batch; the producer has at least one.
func (p *producer) latest() *producerBatch { return &p.batches[p.count-1] }

func (p *producer) add(b producerBatch) {
	if p.count == keptBatches {
		copy(p.batches[:], p.batches[1:])
		p.count--
	}
	p.batches[p.count] = b
	p.count++
}

// producerState is what a log remembers of its producers after the batch that ends
// before offset. Log.mu guards it.
type producerState struct {
	offset int64
	byID   map[int64]*producer
	fence  record.Fence // the highest; zero without any
}

func newProducerState(offset int64) producerState {
	return producerState{offset: offset, byID: map[int64]*producer{}}
}

// apply notes a batch that is in the log. fence is that of a FENCE, else zero.
func (s *producerState) apply(h *record.Header, kind int16, fence record.Fence, now int64) {
	s.offset = h.NextOffset()
	if s.fence.Less(fence) {
		s.fence = fence
	}
	if h.ProducerID < 0 {
		return
	}
	p := s.byID[h.ProducerID]
	if p == nil {
		if len(s.byID) >= maxProducers {
			s.forgetIdlest()
		}
		p = &producer{txnFirst: noTransaction}
		s.byID[h.ProducerID] = p
	}
	if h.ProducerEpoch != p.epoch {
		p.epoch, p.count = h.ProducerEpoch, 0
	}
	p.lastSeen = max(p.lastSeen, now)
	if h.Attributes.Control() {
		if kind == record.ControlAbort || kind == record.ControlCommit {
			p.txnFirst = noTransaction
		}
		return
	}
	if h.Attributes.Transactional() && p.txnFirst == noTransaction {
		p.txnFirst = h.BaseOffset
	}
	p.add(producerBatch{h.BaseSequence, h.LastSequence(), h.BaseOffset, h.LastOffset(), h.MaxTimestamp})
}

// forgetIdlest makes room, for many at once so that it is rare.
func (s *producerState) forgetIdlest() {
	ids := make([]int64, 0, len(s.byID))
	for id, p := range s.byID {
		if p.txnFirst == noTransaction {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int {
		return cmp.Or(cmp.Compare(s.byID[a].lastSeen, s.byID[b].lastSeen), cmp.Compare(a, b))
	})
	for _, id := range ids[:min(len(ids), maxProducers/10)] {
		delete(s.byID, id)
	}
}

// expire forgets producers that were idle since before a time in ms.
func (s *producerState) expire(before int64) int {
	n := 0
	for id, p := range s.byID {
		if p.lastSeen < before && p.txnFirst == noTransaction {
			delete(s.byID, id)
			n++
		}
	}
	return n
}

// ProducerVerdict says what is to be done with a batch of an idempotent producer.
type ProducerVerdict uint8

// The verdicts.
const (
	// ProducerOK: append it.
	ProducerOK ProducerVerdict = iota
	// ProducerDuplicate: it is in the log; answer with its original offset.
	ProducerDuplicate
	// ProducerOutOfOrder: batches before it are missing, or it lies too far back to
	// be known again.
	ProducerOutOfOrder
	// ProducerUnknown: it goes on with a sequence, and the log knows nothing of its
	// producer: either batches before it are missing, or the producer was idle for
	// producer.id.expiration.ms.
	ProducerUnknown
	// ProducerFenced: the producer has a higher epoch by now.
	ProducerFenced
)

// ProducerCheck answers CheckProducer.
type ProducerCheck struct {
	Verdict ProducerVerdict
	// BaseOffset, LastOffset and Timestamp are those of the original of a duplicate;
	// BaseOffset is -1 for anything else.
	BaseOffset int64
	LastOffset int64
	Timestamp  int64
	// Epoch and NextSequence are what the log expects of the producer;
	// record.NoProducerEpoch and 0 when it knows nothing of it.
	Epoch        int16
	NextSequence int32
}

// CheckProducer compares a batch with what the log remembers of its producer,
// batches that are not durable yet included. A batch without a producer id, or a
// control batch of the current epoch, is ProducerOK. The caller lets no other batch
// of the log be appended between CheckProducer and the Append that follows it.
func (l *Log) CheckProducer(h *record.Header) ProducerCheck {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.producers.check(h)
}

func (s *producerState) check(h *record.Header) ProducerCheck {
	c := ProducerCheck{BaseOffset: -1, LastOffset: -1, Timestamp: record.NoTimestamp, Epoch: record.NoProducerEpoch}
	if h.ProducerID < 0 {
		return c
	}
	p := s.byID[h.ProducerID]
	if p == nil {
		if h.BaseSequence > 0 && !h.Attributes.Control() {
			c.Verdict = ProducerUnknown
		}
		return c
	}
	c.Epoch = p.epoch
	if p.count > 0 {
		c.NextSequence = nextSequence(p.latest().lastSeq)
	}
	switch {
	case h.ProducerEpoch < p.epoch:
		c.Verdict = ProducerFenced
		return c
	case h.Attributes.Control():
		return c
	case h.ProducerEpoch > p.epoch, p.count == 0:
		if h.BaseSequence != 0 {
			c.Verdict = ProducerOutOfOrder
		}
		return c
	}
	for i := range p.batches[:p.count] {
		if b := &p.batches[i]; b.baseSeq == h.BaseSequence && b.lastSeq == h.LastSequence() {
			c.Verdict, c.BaseOffset, c.LastOffset, c.Timestamp = ProducerDuplicate, b.base, b.last, b.timestamp
			return c
		}
	}
	if h.BaseSequence != c.NextSequence {
		c.Verdict = ProducerOutOfOrder
	}
	return c
}

// nextSequence wraps from 2³¹−1 to 0.
func nextSequence(s int32) int32 {
	if s == math.MaxInt32 {
		return 0
	}
	return s + 1
}

// Fence is the highest fence in the log; zero without any. It outlives the expiry
// of producers, retention and compaction.
func (l *Log) Fence() record.Fence {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.producers.fence
}

// Producers is the number of producers that the log remembers.
func (l *Log) Producers() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.producers.byID)
}

// OpenTransactions is the first offset of the oldest open transaction, and how many
// are open.
func (l *Log) OpenTransactions() (first int64, count int) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first = -1
	for _, p := range l.producers.byID {
		if p.txnFirst != noTransaction {
			if count++; first < 0 || p.txnFirst < first {
				first = p.txnFirst
			}
		}
	}
	return first, count
}

// ExpireProducers forgets producers that were idle for producer.id.expiration.ms,
// and returns how many. Retain does it too.
func (l *Log) ExpireProducers(now time.Time) int {
	before := now.Add(-l.config().ProducerExpiration).UnixMilli()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.producers.expire(before)
}
