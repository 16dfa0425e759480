package partition

// outbox holds what effects point to, so that a Step allocates nothing once it has
// grown. Of most effects a Step has one at most.
type outbox struct {
	append     Append
	copy       AppendCopy
	sync       Sync
	truncate   Truncate
	begin      Reset
	move       MoveStart
	checkpoint CheckpointHW
	visible    Visible
	serve      Serve
	epochEnd   SendEpochEnd
	batches    SendBatches
	propose    Propose
	open       OpenLeader
	position   SendPosition
	replies    []Reply
	watermarks []SendHW
	hwMoved    bool // checkpoint and visible have been emitted
	tellHW     bool // every follower is to hear of the high watermark and the log start
	tellLeader bool // the leader is to hear of the position
	resetDone  bool // the log began anew in this Step, or lost committed records to an unclean election
}

func (o *outbox) reset() {
	o.replies, o.watermarks = o.replies[:0], o.watermarks[:0]
	o.hwMoved, o.tellHW, o.tellLeader, o.resetDone = false, false, false, false
}

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// emitReply emits a reply. Growing the slice leaves earlier pointers with the array
// they point into, which is as good.
func (s *State) emitReply(r Reply) {
	s.out.replies = append(s.out.replies, r)
	s.emit(&s.out.replies[len(s.out.replies)-1])
}

// refuse answers a request that was not taken.
func (s *State) refuse(req int64, outcome Outcome, reason Reason) {
	s.emitReply(Reply{Req: req, Outcome: outcome, Reason: reason, Base: -1, Epoch: -1})
}

// moveHW sets the high watermark and tells of it.
func (s *State) moveHW(to int64) {
	s.log.hw = to
	s.out.checkpoint.HW, s.out.visible.HW = to, to
	s.out.tellHW = true
	if s.out.hwMoved {
		return
	}
	s.out.hwMoved = true
	s.emit(&s.out.checkpoint)
	s.emit(&s.out.visible)
}

// flush emits what is said once a Step, however often it changed.
func (s *State) flush() {
	if s.out.tellHW && s.role == leading {
		for i := range s.peers {
			p := &s.peers[i]
			if !p.agreed || p.toldHW == s.log.hw && p.toldStart == s.log.start {
				continue
			}
			p.toldHW, p.toldStart = s.log.hw, s.log.start
			s.out.watermarks = append(s.out.watermarks, SendHW{Sess: p.sess, HW: s.log.hw, Start: s.log.start})
			s.emit(&s.out.watermarks[len(s.out.watermarks)-1])
		}
	}
	if s.out.tellLeader && s.role == following && s.follow.agreed {
		partEpoch := s.rec.partEpoch
		if s.log.standing {
			// As a member of the in-sync set it would count on, and after a restart the
			// verdict would bar it, perhaps as the last one.
			partEpoch = -1
		}
		s.out.position = SendPosition{
			Sess: s.follow.sess, LeaderEpoch: s.rec.leaderEpoch, PartEpoch: partEpoch,
			LastEpoch: s.log.epochs.last(), End: s.log.end, Durable: s.log.durable, Start: s.log.start,
		}
		s.emit(&s.out.position)
	}
}
