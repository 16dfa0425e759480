package partition

import "time"

// waiter is a produce that has not been answered, or has been answered and is with
// the log.
type waiter struct {
	req      int64
	acks     Acks
	deadline time.Duration
	records  int32
	base     int64 // -1 until appended
	end      int64
	epoch    int32
	answered bool
}

// onProduce takes a batch or refuses it.
func (s *State) onProduce(p *Produce) {
	s.at(p.Now)
	w := waiter{req: p.Req, acks: p.Acks, deadline: p.Deadline, records: p.Records, base: -1, epoch: s.rec.leaderEpoch}
	if reason := s.refuseProduce(p); reason != ReasonNone {
		s.reply(&w, Rejected, reason)
		return
	}
	if p.Fence != nil && s.fence.less(*p.Fence) {
		s.fence = *p.Fence
	}
	s.queue.push(w)
	s.appendNext()
	s.wake(p.Deadline)
}

// refuseProduce says why a batch may not be appended, before anything happens.
func (s *State) refuseProduce(p *Produce) Reason {
	if reason := s.refusal(); reason != ReasonNone {
		return reason
	}
	switch {
	case s.full:
		return ReasonDiskFull
	case s.stopping:
		return ReasonDraining
	case p.LeaderEpoch >= 0 && p.LeaderEpoch < s.rec.leaderEpoch:
		return ReasonStaleLeaderEpoch
	case p.LeaderEpoch > s.rec.leaderEpoch:
		return ReasonUnknownLeaderEpoch
	case !s.rec.shard && p.Fence != nil:
		return ReasonFenceNotAllowed
	case s.rec.shard && (p.Fence == nil || p.Fence.less(s.fence)):
		return ReasonShardFenced
	case p.Acks == AcksAll && s.belowMin():
		return ReasonNotEnoughReplicas
	case p.Deadline <= p.Now:
		return ReasonDeadline
	case s.queue.len()+s.own.len()+s.all.len()+len(s.again) >= maxQueued:
		return ReasonLimit
	}
	return ReasonNone
}

// belowMin reports whether the committed in-sync set is too small to commit.
func (s *State) belowMin() bool { return len(s.rec.isr) < s.rec.minISR }

// appendNext hands the next batch to the log, one at a time: so what was not
// handed over is known not to be there.
func (s *State) appendNext() {
	l := &s.log
	if s.role != leading || l.op.kind != opNone || s.queue.len() == 0 || s.refusal() != ReasonNone || s.full {
		return
	}
	l.op = logOp{kind: opAppend, op: l.newOp(), w: s.queue.pop()}
	l.op.w.epoch = s.rec.leaderEpoch
	s.out.append = Append{Op: l.op.op, Req: l.op.w.req, Epoch: l.op.w.epoch, Base: l.end}
	s.emit(&s.out.append)
}

// batchAppended lets a batch that is in the log wait for what its acks ask.
func (s *State) batchAppended(op *logOp, a *Appended) {
	w, l := &op.w, &s.log
	if a.Base != l.end || a.End != a.Base+int64(w.records) {
		// The log and the core disagree about where records are; whatever was
		// answered from here on might name the wrong record.
		s.reply(w, Unknown, ReasonInternalBug)
		s.breach(errorf("append %d took offsets [%d,%d) where [%d,%d) were due", a.Op, a.Base, a.End, l.end, l.end+int64(w.records)))
		return
	}
	s.followersCaughtUp()
	s.grow(a.End, a.Now)
	l.maxEpochSeen = max(l.maxEpochSeen, w.epoch)
	l.epochs = l.epochs.assign(w.epoch, a.Base)
	w.base, w.end = a.Base, a.End
	if s.mayWait(w) {
		if w.acks == AcksAll {
			s.all.push(*w)
		} else {
			s.own.push(*w)
		}
	}
	s.watchLag()
	s.syncIfDue()
	s.advance()
	s.appendNext()
}

// mayWait reports whether a batch that the log has answered for is still to be
// answered to its producer, in the leader epoch in which it was appended.
func (s *State) mayWait(w *waiter) bool {
	return !w.answered && s.down == ReasonNone && s.role == leading && w.epoch == s.rec.leaderEpoch
}

// onDuplicate lets a batch that was appended before wait like its original. Its
// original may be there and not committed, also in the log of a new leader.
func (s *State) onDuplicate(d *Duplicate) {
	op, ok := s.log.takeOp(d.Op, opAppend)
	if !ok {
		return
	}
	w := &op.w
	if d.Base < 0 || d.End > s.log.end || d.End != d.Base+int64(w.records) {
		s.reply(w, Unknown, ReasonInternalBug)
		s.breach(errorf("append %d is said to be a duplicate of offsets [%d,%d) of a log that ends at %d", d.Op, d.Base, d.End, s.log.end))
		return
	}
	w.base, w.end = d.Base, d.End
	if s.mayWait(w) {
		s.again = append(s.again, *w)
	}
	s.settle()
	s.advance()
	s.appendNext()
}

// answer replies to the waiters whose condition holds. own and all are in the order
// of offsets; acks=1 may overtake acks=all.
func (s *State) answer() {
	counted, hw := s.log.counted(), s.log.hw
	for s.own.len() > 0 && s.own.first().end <= counted {
		s.accept(s.own.first())
		s.own.pop()
	}
	for s.all.len() > 0 && s.all.first().end <= min(counted, hw) {
		s.accept(s.all.first())
		s.all.pop()
	}
	if len(s.again) == 0 {
		return
	}
	keep := s.again[:0]
	for i := range s.again {
		w := &s.again[i]
		if w.end <= counted && (w.acks != AcksAll || w.end <= hw) {
			s.accept(w)
		} else {
			keep = append(keep, *w)
		}
	}
	s.again = keep
}

// accept answers a waiter that got what it waited for.
func (s *State) accept(w *waiter) {
	s.emitReply(Reply{Req: w.req, Outcome: OK, Base: w.base, Epoch: w.epoch, Acks: w.acks, Records: w.records})
}

// reply answers a waiter that did not, once.
func (s *State) reply(w *waiter, outcome Outcome, reason Reason) {
	if w.answered {
		return
	}
	w.answered = true
	s.emitReply(Reply{Req: w.req, Outcome: outcome, Reason: reason, Base: -1, Epoch: -1, Acks: w.acks, Records: w.records})
}

// answerWhere ends the produces for which which holds: what the log never saw is
// not done, the rest unknown.
func (s *State) answerWhere(which func(*waiter) bool, notDone, unknown Reason) {
	end := func(outcome Outcome, reason Reason) func(*waiter) bool {
		return func(w *waiter) bool {
			if !which(w) {
				return true
			}
			s.reply(w, outcome, reason)
			return false
		}
	}
	s.queue.filter(end(Rejected, notDone))
	if s.log.op.kind == opAppend && which(&s.log.op.w) {
		s.reply(&s.log.op.w, Unknown, unknown)
	}
	after := end(Unknown, unknown)
	s.own.filter(after)
	s.all.filter(after)
	keep := s.again[:0]
	for i := range s.again {
		if after(&s.again[i]) {
			keep = append(keep, s.again[i])
		}
	}
	s.again = keep
}

// answerAll answers everybody.
func (s *State) answerAll(notDone, unknown Reason) {
	s.answerWhere(func(*waiter) bool { return true }, notDone, unknown)
	s.answerStartsAll(unknown)
}

// answerShrunk answers those whom the in-sync set has become too small for. Their
// batches stay in the log.
func (s *State) answerShrunk() {
	if s.belowMin() {
		s.answerWhere(func(w *waiter) bool { return w.acks == AcksAll }, ReasonNotEnoughReplicas, ReasonNotEnoughReplicasAfterAppend)
	}
}

// expire answers those whose deadline has passed.
func (s *State) expire() {
	next := time.Duration(0)
	s.answerWhere(func(w *waiter) bool {
		if w.deadline <= s.now {
			return true
		}
		if !w.answered && (next == 0 || w.deadline < next) {
			next = w.deadline
		}
		return false
	}, ReasonDeadline, ReasonDeadline)
	if at := s.expireStarts(); at > 0 && (next == 0 || at < next) {
		next = at
	}
	if next > 0 {
		s.wake(next)
	}
}
