package group

import (
	"fmt"
	"time"
)

// Waiting is what holds a partition of a member back.
type Waiting uint8

// What a partition may wait for.
const (
	WaitingUnknown Waiting = iota
	WaitingNothing
	WaitingBroker
	WaitingNetwork
	WaitingCredit
	WaitingApplication
)

// Progress is how far a member has come in a partition, as it told itself.
type Progress struct {
	Part
	// Delivered is the offset after the last record handed out, Processed the offset
	// below which everything was released; -1: unknown.
	Delivered, Processed int64
	// OldestAge is how long the oldest record handed out and not released has waited;
	// 0: there is none.
	OldestAge time.Duration
	Waiting   Waiting
	// Detail is for people.
	Detail string
}

// told is progress with the times at which it was told and last moved.
type told struct {
	Progress
	at, moved time.Duration
}

// stuckAfter is how long nothing may be released, while a record waits, before a
// member is shown as stuck.
const stuckAfter = 30 * time.Second

// tell takes progress in, of partitions that the member holds.
func (s *State) tell(m *member, now Now, all []Progress) {
	for _, p := range all {
		if m.owned[p.Part] == nil {
			continue
		}
		next := told{Progress: p, at: now.Mono, moved: now.Mono}
		if last, ok := m.progress[p.Part]; ok && p.OldestAge > 0 && last.OldestAge > 0 && p.Processed == last.Processed {
			next.moved = last.moved
		}
		if m.progress == nil {
			m.progress = make(map[Part]told)
		}
		m.progress[p.Part] = next
		if m.maxProcessing > 0 && p.OldestAge > 0 {
			s.wakeBy(next.waits() + m.maxProcessing)
		}
	}
}

// waits is since when a record has waited while nothing was released.
func (t told) waits() time.Duration { return max(t.at-t.OldestAge, t.moved) }

// stuck says whether nothing moves although something should.
func (t told) stuck(now Now) bool {
	return t.OldestAge > 0 && now.Mono-t.moved > stuckAfter && now.Mono-t.at+t.OldestAge > stuckAfter
}

// stall is when the first partition will have made no progress for too long, and
// which one it is; 0: none will.
func (m *member) stall() (at time.Duration, which Part) {
	if m.maxProcessing == 0 {
		return 0, which
	}
	for p, t := range m.progress {
		if t.OldestAge == 0 {
			continue
		}
		if due := t.waits() + m.maxProcessing; at == 0 || due < at || due == at && compareParts(p, which) < 0 {
			at, which = due, p
		}
	}
	return at, which
}

// ending is why a membership ends against the member's will.
type ending struct {
	err   *Error
	cause string
}

// deadline tells when the member is to be expelled, and why. A member without a
// stream has its session; one that has a stream must also answer revocations and, if
// it wants that, make progress.
func (m *member) deadline() (time.Duration, func() ending) {
	session := time.Duration(m.value.SessionTimeout) * time.Millisecond
	at := m.seen + session
	why := func() ending {
		return ending{
			errorf(ReasonUnknownMember, "member %q was silent for its session timeout of %v; join anew", m.id, session),
			fmt.Sprintf("member %s was silent for its session timeout of %v", m.label(), session),
		}
	}
	if !m.attached {
		return at, why
	}
	rebalance := time.Duration(m.value.RebalanceTimeout) * time.Millisecond
	slow := func() ending {
		return ending{
			errorf(ReasonMemberFenced, "member %q did not acknowledge its assignment within its rebalance timeout of %v; join anew", m.id, rebalance),
			fmt.Sprintf("member %s did not acknowledge within its rebalance timeout of %v", m.label(), rebalance),
		}
	}
	if m.sentAt != 0 && m.sentAt+rebalance < at {
		at, why = m.sentAt+rebalance, slow
	}
	for _, h := range m.owned {
		if (h.revoking || !h.confirmed) && h.since+rebalance < at {
			at, why = h.since+rebalance, slow
		}
	}
	if stall, p := m.stall(); stall != 0 && stall < at {
		at, why = stall, func() ending {
			return ending{
				errorf(ReasonMemberFenced, "member %q released nothing of partition %v for its max.processing of %v; join anew", m.id, p, m.maxProcessing),
				fmt.Sprintf("member %s released nothing of a partition for its max.processing of %v", m.label(), m.maxProcessing),
			}
		}
	}
	return at, why
}
