package client

import (
	"sync"
	"sync/atomic"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// consumerProgress is how far a consumer has come, for its member's pings, which
// go out while the application is busy.
type consumerProgress struct {
	born time.Time
	mu   sync.Mutex
	all  map[TopicPartition]*progressMark
}

// progressMark is how far it has come in one partition.
type progressMark struct {
	delivered, processed atomic.Int64 // next offsets; -1: none yet
	since                atomic.Int64 // clock when the oldest unreleased record was handed out; 0: there is none
}

// clock is a monotonic time, above 0.
func (c *consumerProgress) clock() int64 { return int64(time.Since(c.born)) + 1 }

// add begins with a partition.
func (c *consumerProgress) add(tp TopicPartition) *progressMark {
	m := &progressMark{}
	m.delivered.Store(-1)
	m.processed.Store(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[TopicPartition]*progressMark)
	}
	c.all[tp] = m
	return m
}

func (c *consumerProgress) remove(tp TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, tp)
}

// deliver notes that records up to an offset are in the application's hands.
func (m *progressMark) deliver(next, clock int64) {
	m.delivered.Store(next)
	if m.since.Load() == 0 {
		m.since.Store(clock)
	}
}

// release notes that the application has worked on everything.
func (m *progressMark) release() {
	m.processed.Store(m.delivered.Load())
	m.since.Store(0)
}

// pass notes that there was nothing to hand out below an offset.
func (m *progressMark) pass(next int64) {
	m.delivered.Store(next)
	if m.since.Load() == 0 {
		m.processed.Store(next)
	}
}

// moved notes that reading goes on from another place.
func (m *progressMark) moved(next int64) {
	m.delivered.Store(next)
	m.processed.Store(next)
	m.since.Store(0)
}

// report tells how far every partition has come, and what holds it back. It is
// called from the member's goroutine.
func (k *Consumer) report() []MemberProgress {
	k.progress.mu.Lock()
	out := make([]MemberProgress, 0, len(k.progress.all))
	now := k.progress.clock()
	for tp, m := range k.progress.all {
		p := MemberProgress{TopicPartition: tp, DeliveredNext: m.delivered.Load(), ProcessedNext: m.processed.Load(), Waiting: waitingApplication}
		if since := m.since.Load(); since > 0 {
			p.OldestUnprocessed = max(time.Duration(now-since), 1)
			p.Detail = "records that were handed out have not been released"
		}
		out = append(out, p)
	}
	k.progress.mu.Unlock()
	for i := range out {
		if p := &out[i]; p.OldestUnprocessed == 0 {
			p.Waiting, p.Detail = k.fetcher.holdup(p.TopicPartition)
		}
	}
	return out
}

// Short names of what a partition may wait for.
const (
	waitingNothing     = coordinatorv1.WaitingFor_WAITING_FOR_NOTHING
	waitingBroker      = coordinatorv1.WaitingFor_WAITING_FOR_BROKER
	waitingNetwork     = coordinatorv1.WaitingFor_WAITING_FOR_NETWORK
	waitingCredit      = coordinatorv1.WaitingFor_WAITING_FOR_CREDIT
	waitingApplication = coordinatorv1.WaitingFor_WAITING_FOR_APPLICATION
)

// holdup tells what a partition of which nothing is in the application's hands waits
// for.
func (f *Fetcher) holdup(tp TopicPartition) (coordinatorv1.WaitingFor, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[tp]
	switch {
	case p == nil || p.paused:
		return waitingApplication, "it is paused, or its start is being looked up"
	case p.failed:
		return waitingApplication, "it stands still after an error, until the application seeks"
	case p.received > p.delivered:
		return waitingApplication, "records lie ready to be taken"
	case p.waiting != nil && rpc.IsReason(p.waiting, reasonUnreachable, reasonConnectionLost):
		return waitingNetwork, p.waiting.Error()
	case p.waiting != nil:
		return waitingBroker, p.waiting.Error()
	case p.seenEnd <= p.received:
		return waitingNothing, ""
	case p.at != nil && f.held[p.at.key] >= f.cfg.CreditBytes:
		return waitingCredit, "records of other partitions fill what may be held, until the application releases them"
	}
	return waitingBroker, "records are being asked for"
}
