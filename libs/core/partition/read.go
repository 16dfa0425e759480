package partition

// onRead says what a reader may have now.
func (s *State) onRead(r *Read) {
	if reason := s.refuseRead(r); reason != ReasonNone {
		s.refuse(r.Req, Rejected, reason)
		return
	}
	from, hw := r.Offset, s.log.hw
	switch {
	case r.Kind == ReadEarliest:
		from = s.log.start
	case r.Kind == ReadLatest:
		from = hw
	case r.Offset == hw:
		s.emit(Wait{Req: r.Req})
		return
	}
	s.out.serve = Serve{Req: r.Req, From: from, UpTo: hw}
	s.emit(&s.out.serve)
}

// refuseRead says why a reader gets nothing.
func (s *State) refuseRead(r *Read) Reason {
	reason := s.refusal()
	settled := s.log.hw >= s.epochStart
	if reason != ReasonNone {
		if !r.AllowFollower || s.down != ReasonNone || !s.log.opened || s.withheld() || s.rec.leader == s.self {
			return reason
		}
		settled = false // the leader may be ahead at any time
	}
	switch {
	case s.log.op.kind == opReset:
		return ReasonOffsetNotAvailable // it is being emptied
	case r.ClientEpoch > s.rec.leaderEpoch:
		return ReasonUnknownLeaderEpoch
	case r.ClientSeen > s.log.hw && (!settled || r.ClientEpoch < 0):
		// The visible end never goes back for a client: this replica is behind. A leader
		// that has confirmed the start of its epoch, and of whose successors the client
		// has not heard, is not: what it lacks was lost by an unclean election, and the
		// reader is told by what it has read.
		return ReasonOffsetNotAvailable
	case r.Kind == ReadEarliest:
		return ReasonNone
	case r.Kind == ReadLatest:
		if reason == ReasonNone && !settled {
			return ReasonOffsetNotAvailable
		}
		return ReasonNone
	case r.Offset < s.log.start:
		return ReasonOffsetOutOfRange
	case r.Offset < s.log.hw:
		return ReasonNone
	case r.Offset == s.log.hw:
		if reason == ReasonNone && !settled {
			return ReasonOffsetNotAvailable
		}
		return ReasonNone
	case settled && r.Offset > s.log.end:
		return ReasonOffsetOutOfRange
	}
	return ReasonOffsetNotAvailable
}
