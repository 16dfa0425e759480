package partition

// onHello takes one step towards the common prefix. Positions count only in a
// session in which both sides have agreed on it under this leader epoch.
func (s *State) onHello(e *Hello) {
	s.at(e.Now)
	if reason := s.refuseHello(e); reason != ReasonNone {
		s.emit(CloseSess{Sess: e.Sess, Reason: reason})
		return
	}
	p := s.peer(e.From.Broker)
	if p.sess != e.Sess {
		if p.sess != 0 {
			s.emit(CloseSess{Sess: p.sess, Reason: ReasonSuperseded})
		}
		s.forget(p)
		if p.incarnation != e.From.Incarnation {
			p.backoff, p.retryAt = 0, 0 // what was refused was another process
		}
		p.sess, p.newest, p.incarnation = e.Sess, e.Sess, e.From.Incarnation
	}
	if p.agreed {
		// It changes nothing; the answer may have got lost on the way.
		s.sendEpochEnd(e, true)
		return
	}
	p.agreed = s.agrees(e)
	s.sendEpochEnd(e, p.agreed)
	if !p.agreed {
		return
	}
	// What it told before it knew of the agreement is no position: it may still find
	// reason to begin anew.
	p.end, p.durable, p.start, p.partEpoch = 0, 0, 0, -1
	p.toldHW, p.toldStart = s.log.hw, s.log.start
	p.markEnd, p.markTime = s.log.end, s.now
	s.out.batches = SendBatches{Sess: p.sess, From: e.End}
	s.emit(&s.out.batches)
}

// refuseHello says why there is no session, or ReasonNone.
func (s *State) refuseHello(e *Hello) Reason {
	if reason := s.refusal(); reason != ReasonNone {
		return reason
	}
	p := s.peer(e.From.Broker)
	switch {
	case e.LeaderEpoch < s.rec.leaderEpoch:
		return ReasonStaleLeaderEpoch
	case e.LeaderEpoch > s.rec.leaderEpoch:
		return ReasonUnknownLeaderEpoch
	case p == nil:
		return ReasonUnknownReplica
	case e.Sess < p.newest || e.Sess == p.newest && p.sess == 0:
		return ReasonSuperseded
	}
	return ReasonNone
}

// agrees reports whether everything in the follower's log is in this one too, as
// far as it matters: what lies below the log start is gone here.
func (s *State) agrees(e *Hello) bool {
	if e.End < s.log.start || e.End > s.log.end {
		return false
	}
	if e.LastEpoch < 0 {
		return true // its log is empty
	}
	// An epoch that this log knows nothing of any more does not do, also where the
	// follower's log ends at this one's start: what lies below it there was perhaps
	// never committed, and would be served.
	epoch, end := s.log.epochs.endOf(e.LastEpoch, s.log.end)
	return epoch == e.LastEpoch && e.End <= end
}

func (s *State) sendEpochEnd(e *Hello, agreed bool) {
	epoch, end := s.log.epochs.endOf(e.LastEpoch, s.log.end)
	if epoch < 0 {
		end = s.log.start // nothing of the follower's log is in this one
	}
	s.out.epochEnd = SendEpochEnd{
		Sess: e.Sess, LeaderEpoch: s.rec.leaderEpoch, LastEpoch: epoch, End: end, Agreed: agreed,
		LogStart: s.log.start, HW: s.log.hw,
	}
	s.emit(&s.out.epochEnd)
}

// forget makes a peer unknown: from here on its position counts for nothing.
func (s *State) forget(p *peer) {
	if s.caughtUp(p) {
		p.caughtUp = max(p.caughtUp, s.now)
	}
	p.sess, p.agreed = 0, false
	p.end, p.durable, p.start, p.partEpoch = 0, 0, 0, -1
}

// onPosition takes note of how far a follower has come.
func (s *State) onPosition(e *Position) {
	s.at(e.Now)
	if s.role != leading {
		return // the session was closed
	}
	p := s.peerOf(e.Sess)
	if p == nil || !p.agreed || e.LeaderEpoch != s.rec.leaderEpoch {
		return
	}
	if e.Durable > e.End || e.Start > e.End {
		s.emit(CloseSess{Sess: e.Sess, Reason: ReasonPositionInvalid})
		s.forget(p)
		return
	}
	p.end, p.durable = max(p.end, e.End), max(p.durable, e.Durable)
	p.start, p.partEpoch = max(p.start, e.Start), max(p.partEpoch, e.PartEpoch)
	s.noteCaughtUp(p)
	if p.counts() {
		s.advance()
		s.answerStarts()
	}
	if !p.isr {
		s.growISR()
	}
}

// onGone ends a session.
func (s *State) onGone(e Gone) {
	s.at(e.Now)
	p := s.peerOf(e.Sess)
	if s.role != leading || p == nil || e.Sess == 0 {
		return
	}
	s.forget(p)
	s.watchLag()
}
