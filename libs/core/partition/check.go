package partition

import "fmt"

// marks are what an assertion compares before and after a Step.
type marks struct {
	hw, durable, end int64
	opened           bool
}

func (s *State) marks() marks {
	return marks{hw: s.hw, durable: s.durable, end: s.end, opened: s.opened}
}

func errorf(format string, args ...any) error { return fmt.Errorf("partition core: "+format, args...) }

// check states what holds after every Step.
func (s *State) check(before marks) error {
	if before.opened && s.hw < before.hw {
		return errorf("the high watermark went from %d back to %d", before.hw, s.hw)
	}
	if s.opened && s.hw > s.counted() {
		return errorf("the high watermark %d is above the end that counts, %d", s.hw, s.counted())
	}
	if before.opened && (s.durable < before.durable || s.end < before.end) {
		return errorf("the log went back: end %d to %d, durable end %d to %d", before.end, s.end, before.durable, s.durable)
	}
	if s.durable > s.end {
		return errorf("the durable end %d is above the end %d", s.durable, s.end)
	}
	for _, e := range s.effects {
		switch e := e.(type) {
		case *Reply:
			if e.Outcome != OK || e.Base < 0 {
				continue
			}
			end := e.Base + int64(e.Records)
			if e.Acks == AcksAll && end > s.hw {
				return errorf("an acks=all reply for offsets below %d passes the high watermark %d", end, s.hw)
			}
			if end > s.counted() {
				return errorf("a reply for offsets below %d passes the end that counts, %d", end, s.counted())
			}
			if s.down != ReasonNone || s.full {
				return errorf("a reply says OK on a replica that takes nothing (down: %v, full: %v)", s.down, s.full)
			}
		case *Append:
			if e.Epoch < s.maxEpochSeen {
				return errorf("an append in leader epoch %d where the log has seen %d", e.Epoch, s.maxEpochSeen)
			}
			if s.leader != s.self {
				return errorf("an append on a replica that does not lead")
			}
		case *Serve:
			if e.UpTo > s.hw {
				return errorf("a read up to %d passes the high watermark %d", e.UpTo, s.hw)
			}
		}
	}
	return nil
}

// breach stops the replica after a failed assertion. Nothing that this Step
// wanted to say is said: who waits is told that the outcome is unknown.
func (s *State) breach(err error) {
	s.violation = err
	wanted := append([]Effect(nil), s.effects...)
	var dropped *waiter
	kept := s.effects[:0]
	for _, e := range wanted {
		switch e := e.(type) {
		case *Reply:
			if e.Outcome == OK {
				kept = append(kept, &Reply{Req: e.Req, Outcome: Unknown, Reason: ReasonInternalBug, Base: -1, Epoch: -1, Acks: e.Acks, Records: e.Records})
				continue
			}
			kept = append(kept, e)
		case *Serve:
			kept = append(kept, &Reply{Req: e.Req, Outcome: Rejected, Reason: ReasonInternalBug, Base: -1, Epoch: -1})
		case *Append:
			// It is not handed over; the log will never answer for it.
			dropped = s.inflight
			s.inflight = nil
		case *Sync:
			s.syncing = false
		case *Visible, *CheckpointHW:
		default:
			kept = append(kept, e)
		}
	}
	s.effects = kept
	if dropped != nil {
		s.reply(dropped, Rejected, ReasonInternalBug)
	}
	s.fail(ReasonInternalBug)
}
