package client

import (
	"sync"
	"sync/atomic"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// consumerProgress is how far a consumer has come, for its member's pings and its
// auto-commits, which go out while the application is busy.
type consumerProgress struct {
	born   time.Time
	mu     sync.Mutex
	member *Member // of all; nil: by hand
	all    map[TopicPartition]*consumerPart
}

// progressMark is how far it has come in one partition.
type progressMark struct {
	delivered atomic.Int64 // next offset; -1: none yet
	since     atomic.Int64 // clock when the oldest unreleased record was handed out; 0: there is none

	mu       sync.Mutex
	released Position // worked on; NextOffset -1: not known yet
	saved    int64    // next offset that is committed; -1: none of ours
}

// clock is a monotonic time, above 0.
func (c *consumerProgress) clock() int64 { return int64(time.Since(c.born)) + 1 }

// add begins with a partition of a member.
func (c *consumerProgress) add(m *Member, p *consumerPart) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[TopicPartition]*consumerPart)
	}
	c.member, c.all[p.assigned.TopicPartition] = m, p
}

func (c *consumerProgress) remove(tp TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, tp)
}

// unsaved is a commit of everything that was worked on and is not committed; nil:
// there is nothing. It reads only what a partition begins with, and its mark.
func (c *consumerProgress) unsaved() *consumerCommit {
	c.mu.Lock()
	defer c.mu.Unlock()
	commit := &consumerCommit{member: c.member, epochs: make(map[TopicPartition]int64), parts: make(map[TopicPartition]*consumerPart)}
	for tp, p := range c.all {
		if released, saved := p.mark.place(); released.NextOffset >= 0 && released.NextOffset != saved {
			commit.positions = append(commit.positions, released)
			commit.epochs[tp], commit.parts[tp] = p.assigned.AssignmentEpoch, p
		}
	}
	if len(commit.positions) == 0 {
		return nil
	}
	return commit
}

// deliver notes that records up to an offset are in the application's hands.
func (m *progressMark) deliver(next, clock int64) {
	m.delivered.Store(next)
	if m.since.Load() == 0 {
		m.since.Store(clock)
	}
}

// release notes that the application has worked on everything up to a position.
func (m *progressMark) release(pos Position) {
	m.since.Store(0)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.released = pos
}

// pass notes that there was nothing to hand out up to a position, and whether
// anything before it waits to be released.
func (m *progressMark) pass(pos Position, waits bool) {
	m.delivered.Store(pos.NextOffset)
	if !waits {
		m.release(pos)
	}
}

// moved notes that reading goes on from another place.
func (m *progressMark) moved(pos Position) {
	m.delivered.Store(pos.NextOffset)
	m.release(pos)
}

// save notes what is committed.
func (m *progressMark) save(next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = next
}

// place is what was worked on, and what of it is committed.
func (m *progressMark) place() (released Position, saved int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.released, m.saved
}

// report tells how far every partition has come, and what holds it back. It is
// called from the member's goroutine.
func (k *Consumer) report() []MemberProgress {
	k.progress.mu.Lock()
	out := make([]MemberProgress, 0, len(k.progress.all))
	now := k.progress.clock()
	for tp, part := range k.progress.all {
		released, _ := part.mark.place()
		p := MemberProgress{TopicPartition: tp, DeliveredNext: part.mark.delivered.Load(), ProcessedNext: released.NextOffset, Waiting: waitingApplication}
		if since := part.mark.since.Load(); since > 0 {
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
