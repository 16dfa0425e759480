package partition

// onProduce takes a batch or refuses it.
func (s *State) onProduce(p *Produce) {
	w := waiter{req: p.Req, acks: p.Acks, deadline: p.Deadline, records: p.Records, base: -1, epoch: s.leaderEpoch}
	if reason := s.refuseProduce(p); reason != ReasonNone {
		s.reply(&w, Rejected, reason)
		return
	}
	if p.Fence != nil && s.fence.less(*p.Fence) {
		s.fence = *p.Fence
	}
	s.queue = append(s.queue, w)
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
	case p.LeaderEpoch >= 0 && p.LeaderEpoch < s.leaderEpoch:
		return ReasonStaleLeaderEpoch
	case p.LeaderEpoch > s.leaderEpoch:
		return ReasonUnknownLeaderEpoch
	case !s.shard && p.Fence != nil:
		return ReasonFenceNotAllowed
	case s.shard && (p.Fence == nil || p.Fence.less(s.fence)):
		return ReasonShardFenced
	case p.Acks == AcksAll && len(s.isr) < int(s.minISR):
		return ReasonNotEnoughReplicas
	case p.Deadline <= p.Now:
		return ReasonDeadline
	case len(s.queue)+len(s.waiting) >= maxQueued:
		return ReasonLimit
	}
	return ReasonNone
}

// appendNext hands the next batch to the log, one at a time: so what was not
// handed over is known not to be there.
func (s *State) appendNext() {
	if s.inflight != nil || len(s.queue) == 0 || s.refusal() != ReasonNone || s.full {
		return
	}
	w := s.queue[0]
	s.queue = append(s.queue[:0], s.queue[1:]...)
	s.nextOp++
	w.op = s.nextOp
	w.epoch = s.leaderEpoch
	s.inflight = &w
	s.emit(&Append{Op: w.op, Req: w.req, Epoch: w.epoch, Base: s.end})
}

// onAppended takes note of what the log holds now, whoever leads, and lets the
// batch wait for what its acks ask.
func (s *State) onAppended(a *Appended) {
	if s.inflight == nil || s.inflight.op != a.Op {
		return
	}
	w := *s.inflight
	s.inflight = nil
	if a.Base != s.end || a.End != a.Base+int64(w.records) {
		// The log and the core disagree about where records are; whatever was
		// answered from here on might name the wrong record.
		s.reply(&w, Unknown, ReasonInternalBug)
		s.breach(errorf("append %d took offsets [%d,%d) where [%d,%d) were due", a.Op, a.Base, a.End, s.end, s.end+int64(w.records)))
		return
	}
	s.end = a.End
	s.maxEpochSeen = max(s.maxEpochSeen, w.epoch)
	if s.unsynced == 0 {
		s.dirtySince = a.Now
	}
	s.unsynced += int64(w.records)
	w.base, w.end = a.Base, a.End
	if !w.answered && s.down == ReasonNone && s.leader == s.self && w.epoch == s.leaderEpoch {
		s.waiting = append(s.waiting, w)
	}
	s.syncIfDue()
	s.advance()
	s.appendNext()
}

// onAppendRefused answers the batch and goes on with the next one.
func (s *State) onAppendRefused(e AppendRefused) {
	if s.inflight == nil || s.inflight.op != e.Op {
		return
	}
	reason := ReasonBatchRefused
	if e.Full {
		reason = ReasonDiskFull
	}
	s.reply(s.inflight, Rejected, reason)
	s.inflight = nil
	s.appendNext()
}

// syncIfDue asks for a Sync when an append calls for one.
func (s *State) syncIfDue() {
	f := s.flushing
	switch {
	case !f.OS, f.Messages > 0 && s.unsynced >= f.Messages:
		s.sync()
	case f.Interval > 0:
		s.wake(s.dirtySince + f.Interval)
	}
}

// sync asks for a Sync unless one is running or there is nothing to sync. What
// was appended meanwhile is synced by the next one, all together.
func (s *State) sync() {
	if s.syncing || !s.opened || s.durable >= s.end || s.down != ReasonNone || s.full {
		return
	}
	s.nextOp++
	s.syncing, s.syncOp = true, s.nextOp
	s.unsynced = 0
	s.emit(&Sync{Op: s.syncOp})
}

// onSynced takes note of what is durable and answers all that waited for it.
func (s *State) onSynced(e *Synced) {
	if !s.syncing || s.syncOp != e.Op {
		return
	}
	s.syncing = false
	// The log may have gone on since; what it says about itself beyond what the
	// core has seen appended is not ours to count yet.
	s.durable = max(s.durable, min(e.End, s.end))
	s.advance()
	if !s.flushing.OS {
		s.sync()
	}
}

// onIOFailed takes the replica down: a failed write or fsync is never retried
// into success.
func (s *State) onIOFailed(e IOFailed) {
	if s.syncing && s.syncOp == e.Op {
		s.syncing = false
	}
	if w := s.inflight; w != nil && w.op == e.Op {
		defer func() { s.inflight = nil }()
	}
	switch e.Kind {
	case FailedFull:
		// What is visible stays so: a full disk can be read.
		s.full = true
		s.endLeadership(ReasonDiskFull)
	case FailedBug:
		s.fail(ReasonInternalBug)
	default:
		s.fail(ReasonDiskOffline)
	}
}
