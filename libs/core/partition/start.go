package partition

import (
	"slices"
	"time"
)

// startWaiter is a request to move the log start that has not been answered.
type startWaiter struct {
	req      int64
	offset   int64
	deadline time.Duration
}

// onStartWanted begins to move the log start, or refuses to.
func (s *State) onStartWanted(e *StartWanted) {
	s.at(e.Now)
	offset := e.Offset
	if offset == -1 {
		offset = s.log.hw
	}
	reason := s.refusal()
	switch {
	case reason != ReasonNone:
	case s.stopping:
		reason = ReasonDraining
	case offset < 0 || offset > s.log.hw:
		reason = ReasonOffsetOutOfRange
	case e.Deadline <= e.Now:
		reason = ReasonDeadline
	case len(s.starts) >= maxStarts:
		reason = ReasonLimit
	}
	if reason != ReasonNone {
		s.refuse(e.Req, Rejected, reason)
		return
	}
	s.starts = append(s.starts, startWaiter{req: e.Req, offset: offset, deadline: e.Deadline})
	s.moveStartNext()
	s.answerStarts()
	s.wake(e.Deadline)
}

// moveStartNext moves the log start as far as anybody wants it.
func (s *State) moveStartNext() {
	to := int64(-1)
	for i := range s.starts {
		to = max(to, s.starts[i].offset)
	}
	s.moveStart(to)
}

// startEverywhere is the log start that every in-sync replica has applied; the sets
// are those of the high watermark.
func (s *State) startEverywhere() int64 {
	low := s.log.start
	for i := range s.peers {
		p := &s.peers[i]
		if !p.counts() {
			continue
		}
		if !p.agreed {
			return -1
		}
		low = min(low, p.start)
	}
	return low
}

// answerStarts answers the requests that are done everywhere.
func (s *State) answerStarts() {
	if len(s.starts) == 0 {
		return
	}
	done := s.startEverywhere()
	s.starts = slices.DeleteFunc(s.starts, func(w startWaiter) bool {
		if w.offset > done {
			return false
		}
		s.emitReply(Reply{Req: w.req, Outcome: OK, Base: s.log.start, Epoch: s.rec.leaderEpoch})
		return true
	})
}

// answerStartsAll answers every request: the log start may have moved, here or
// elsewhere.
func (s *State) answerStartsAll(reason Reason) {
	for i := range s.starts {
		s.refuse(s.starts[i].req, Unknown, reason)
	}
	s.starts = s.starts[:0]
}

// expireStarts answers those whose deadline has passed, and returns the next
// deadline, 0 without any.
func (s *State) expireStarts() time.Duration {
	next := time.Duration(0)
	s.starts = slices.DeleteFunc(s.starts, func(w startWaiter) bool {
		if w.deadline <= s.now {
			s.refuse(w.req, Unknown, ReasonDeadline)
			return true
		}
		if next == 0 || w.deadline < next {
			next = w.deadline
		}
		return false
	})
	return next
}
