package partition

// onRead says what a reader may have now.
func (s *State) onRead(r *Read) {
	if reason := s.refuseRead(r); reason != ReasonNone {
		s.emit(&Reply{Req: r.Req, Outcome: Rejected, Reason: reason, Base: -1, Epoch: -1})
		return
	}
	switch {
	case r.Kind == ReadEarliest:
		s.emit(&Serve{Req: r.Req, From: s.start, UpTo: s.hw})
	case r.Kind == ReadLatest:
		s.emit(&Serve{Req: r.Req, From: s.hw, UpTo: s.hw})
	case r.Offset == s.hw:
		s.emit(Wait{Req: r.Req})
	default:
		s.emit(&Serve{Req: r.Req, From: r.Offset, UpTo: s.hw})
	}
}

// refuseRead says why a reader gets nothing.
func (s *State) refuseRead(r *Read) Reason {
	if reason := s.refusal(); reason != ReasonNone {
		return reason
	}
	settled := s.hw >= s.epochStart
	switch {
	case r.ClientEpoch > s.leaderEpoch:
		return ReasonUnknownLeaderEpoch
	case r.ClientSeen > s.hw:
		// The visible end never goes back for a client: this replica is behind.
		return ReasonOffsetNotAvailable
	case r.Kind == ReadEarliest:
		return ReasonNone
	case r.Kind == ReadLatest:
		if !settled {
			return ReasonOffsetNotAvailable
		}
		return ReasonNone
	case r.Offset < s.start || r.Offset > s.end:
		return ReasonOffsetOutOfRange
	case r.Offset > s.hw, r.Offset == s.hw && !settled:
		return ReasonOffsetNotAvailable
	}
	return ReasonNone
}
