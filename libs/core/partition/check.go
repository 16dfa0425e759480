package partition

import "fmt"

// marks are what an assertion compares before and after a Step.
type marks struct {
	hw, durable, end, start int64
	opened                  bool
	cutting                 bool // a Truncate or Reset was outstanding
	proposal                int64
	partEpoch               int64
}

func (s *State) marks() marks {
	l := &s.log
	return marks{
		hw: l.hw, durable: l.durable, end: l.end, start: l.start, opened: l.opened,
		cutting:  l.op.kind == opTruncate || l.op.kind == opReset,
		proposal: s.proposal.id, partEpoch: s.rec.partEpoch,
	}
}

func errorf(format string, args ...any) error { return fmt.Errorf("partition core: "+format, args...) }

// check states what holds after every Step.
func (s *State) check(before *marks) error {
	if err := s.checkLog(before); err != nil {
		return err
	}
	if err := s.checkSessions(before); err != nil {
		return err
	}
	for _, e := range s.effects {
		if err := s.checkEffect(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) checkLog(before *marks) error {
	l := &s.log
	switch {
	case !before.opened:
	case l.hw < before.hw && !s.out.resetDone:
		return errorf("the high watermark went from %d back to %d", before.hw, l.hw)
	case !before.cutting && (l.durable < before.durable || l.end < before.end):
		return errorf("the log went back: end %d to %d, durable end %d to %d", before.end, l.end, before.durable, l.durable)
	case l.start < before.start && !s.out.resetDone:
		return errorf("the log start went from %d back to %d", before.start, l.start)
	}
	switch {
	case l.opened && l.hw > l.counted():
		return errorf("the high watermark %d is above the end that counts, %d", l.hw, l.counted())
	case l.durable > l.end:
		return errorf("the durable end %d is above the end %d", l.durable, l.end)
	case l.hw < l.start:
		return errorf("the log start %d is above the high watermark %d", l.start, l.hw)
	case l.op.kind == opAppend && l.op.w.epoch > l.maxEpochSeen && l.op.w.epoch > s.rec.leaderEpoch:
		return errorf("an append in leader epoch %d, which the metadata does not know", l.op.w.epoch)
	}
	return nil
}

// checkSessions states what the high watermark rests on, again and by itself.
func (s *State) checkSessions(before *marks) error {
	if s.proposal.id != before.proposal && before.proposal != 0 && s.role == leading && s.rec.partEpoch <= before.partEpoch {
		return errorf("proposal %d went without a record that resolves it", before.proposal)
	}
	if s.log.hw <= before.hw || !before.opened || s.out.resetDone {
		return nil
	}
	switch s.role {
	case leading:
		if len(s.rec.isr) < s.rec.minISR {
			return errorf("the high watermark rose to %d below min.insync.replicas", s.log.hw)
		}
		for _, b := range s.rec.isr {
			if err := s.checkMember(b); err != nil {
				return err
			}
		}
		for _, r := range s.proposal.isr {
			if err := s.checkMember(r.Broker); err != nil {
				return err
			}
		}
	case following:
		if !s.follow.agreed {
			return errorf("the high watermark rose to %d before the leader agreed", s.log.hw)
		}
	default:
		return errorf("the high watermark rose to %d on a replica that neither leads nor follows", s.log.hw)
	}
	return nil
}

func (s *State) checkMember(broker int32) error {
	if broker == s.self.Broker {
		return nil
	}
	p := s.peer(broker)
	if p == nil || p.sess == 0 || !p.agreed || s.countedOf(p) < s.log.hw {
		return errorf("the high watermark rose to %d without broker %d", s.log.hw, broker)
	}
	return nil
}

func (s *State) checkEffect(e Effect) error {
	l := &s.log
	switch e := e.(type) {
	case *Reply:
		return s.checkReply(e)
	case *Append:
		if e.Epoch < l.maxEpochSeen {
			return errorf("an append in leader epoch %d where the log has seen %d", e.Epoch, l.maxEpochSeen)
		}
		if s.role != leading || s.rec.leader != s.self {
			return errorf("an append on a replica that does not lead")
		}
	case *AppendCopy:
		if s.rec.leaderEpoch < l.maxEpochSeen {
			return errorf("a copy in leader epoch %d where the log has seen %d", s.rec.leaderEpoch, l.maxEpochSeen)
		}
		if s.role != following || !s.follow.agreed || e.Base != l.end {
			return errorf("a copy of [%d,%d) that is not agreed to follow %d", e.Base, e.End, l.end)
		}
	case *Truncate:
		if e.To < l.hw && !e.Unclean {
			return errorf("a truncation to %d, below the high watermark %d", e.To, l.hw)
		}
	case *Serve:
		if e.UpTo > l.hw {
			return errorf("a read up to %d passes the high watermark %d", e.UpTo, l.hw)
		}
	case *MoveStart:
		if e.To > l.hw {
			return errorf("the log is to begin at %d, above the high watermark %d", e.To, l.hw)
		}
	case *Propose:
		if e.ID != s.proposal.id {
			return errorf("proposal %d beside proposal %d", e.ID, s.proposal.id)
		}
	}
	return nil
}

func (s *State) checkReply(e *Reply) error {
	if e.Outcome != OK || e.Base < 0 || e.Records == 0 {
		return nil
	}
	end := e.Base + int64(e.Records)
	switch {
	case e.Acks == AcksAll && end > s.log.hw:
		return errorf("an acks=all reply for offsets below %d passes the high watermark %d", end, s.log.hw)
	case end > s.log.counted():
		return errorf("a reply for offsets below %d passes the end that counts, %d", end, s.log.counted())
	case s.down != ReasonNone || s.full:
		return errorf("a reply says OK on a replica that takes nothing (down: %v, full: %v)", s.down, s.full)
	}
	return nil
}

// breach stops the replica after a failed assertion. Nothing that this Step
// wanted to say is said: who waits is told that the outcome is unknown.
func (s *State) breach(err error) {
	if s.violation != nil {
		return
	}
	s.violation = err
	kept := make([]Effect, 0, len(s.effects))
	var dropped []waiter
	for _, e := range s.effects {
		switch e := e.(type) {
		case *Reply:
			if e.Outcome == OK {
				e = &Reply{Req: e.Req, Outcome: Unknown, Reason: ReasonInternalBug, Base: -1, Epoch: -1, Acks: e.Acks, Records: e.Records}
			}
			kept = append(kept, e)
		case *Serve:
			kept = append(kept, &Reply{Req: e.Req, Outcome: Rejected, Reason: ReasonInternalBug, Base: -1, Epoch: -1})
		case *Append:
			// It is not handed over; the log will never answer for it.
			dropped = append(dropped, s.log.op.w)
			s.log.op = logOp{}
		case *AppendCopy:
			kept = append(kept, DropRef{Ref: e.Ref})
			s.log.op = logOp{}
		case *Truncate, *Reset:
			s.log.op = logOp{}
		case *Sync:
			s.log.syncing = false
		case *MoveStart:
			s.log.moving = false
		case DropRef, CloseSess, CloseLeader, Wait, Resign, Withhold, WakeAt:
			kept = append(kept, e)
		}
	}
	s.effects = kept
	for i := range dropped {
		s.reply(&dropped[i], Rejected, ReasonInternalBug)
	}
	s.out.tellHW, s.out.tellLeader = false, false
	s.fail(ReasonInternalBug)
}
