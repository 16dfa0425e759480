package partition

import "time"

const (
	// A session with the leader is opened again so long after it ended, doubled each
	// time until something is copied.
	minRetry = 20 * time.Millisecond
	maxRetry = time.Second
)

// follow is the session with the leader.
type follow struct {
	next    int64 // sessions opened so far
	sess    int64 // 0: none at the moment
	agreed  bool
	retryAt time.Duration
	backoff time.Duration

	// What the leader told in this session; -1: nothing yet.
	leaderHW    int64
	leaderStart int64

	copies   fifo[copyRun] // runs that wait to be appended
	expected int64         // where the next run begins
}

// copyRun is a run of batches that the leader sent.
type copyRun struct{ ref, base, end int64 }

func (s *State) beginFollowing() {
	s.follow.backoff, s.follow.retryAt = 0, 0
	if !s.log.flushing.OS {
		s.sync()
	}
	s.openLeader()
}

// stopFollowing ends the session. What is being appended is the log's affair; its
// result is taken note of.
func (s *State) stopFollowing() {
	if s.follow.sess != 0 {
		s.emit(CloseLeader{Sess: s.follow.sess})
	}
	s.endSession()
	if s.role == following {
		s.role = idle
	}
}

// endSession forgets the session and what it brought.
func (s *State) endSession() {
	f := &s.follow
	for _, c := range f.copies.all() {
		s.emit(DropRef{Ref: c.ref})
	}
	f.copies.clear()
	f.sess, f.agreed = 0, false
}

// openLeader opens a session, once the log stands still.
func (s *State) openLeader() {
	f := &s.follow
	if s.role != following || f.sess != 0 || s.log.op.kind != opNone || s.full {
		return
	}
	if f.retryAt > s.now {
		s.wake(f.retryAt)
		return
	}
	f.next++
	f.sess, f.agreed, f.leaderHW, f.leaderStart = f.next, false, -1, -1
	s.sayHello()
}

// sayHello tells the leader where this log ends.
func (s *State) sayHello() {
	s.out.open = OpenLeader{
		Sess: s.follow.sess, Leader: s.rec.leader, Epoch: s.rec.leaderEpoch, LastEpoch: s.log.epochs.last(), End: s.log.end,
	}
	s.emit(&s.out.open)
}

// onLeaderGone opens another session after a while.
func (s *State) onLeaderGone(e LeaderGone) {
	s.at(e.Now)
	if s.role != following || s.follow.sess != e.Sess {
		return
	}
	s.endSession()
	s.later()
}

// reopen leaves a session in which something does not fit.
func (s *State) reopen() {
	s.emit(CloseLeader{Sess: s.follow.sess})
	s.endSession()
	s.later()
}

// later opens the next session after a while.
func (s *State) later() {
	f := &s.follow
	f.backoff = min(max(2*f.backoff, minRetry), maxRetry)
	f.retryAt = s.now + f.backoff
	s.wake(f.retryAt)
}

// retryLeader opens a session when it is time to.
func (s *State) retryLeader() {
	if s.follow.sess == 0 {
		s.openLeader()
	}
}

// onEpochEnd takes one step towards the common prefix: the leader's end for this
// log's last epoch, or for the last one before it that the leader has. It is
// repeated until both agree, and before that nothing else of the session counts.
func (s *State) onEpochEnd(e *EpochEnd) {
	s.at(e.Now)
	f, l := &s.follow, &s.log
	if s.role != following || e.Sess != f.sess || e.LeaderEpoch != s.rec.leaderEpoch || f.agreed || l.op.kind != opNone {
		return
	}
	fresh := l.start == l.end && l.end == e.LogStart && !l.absent
	switch {
	case fresh && e.Agreed:
		l.refetch = false // there is nothing in it that could be wrong
		s.agree(e)
	case l.absent, l.refetch, l.end < e.LogStart, l.end < e.TombstonesBelow && !fresh:
		// The copy is no good, or what it lacks is gone at the leader, or deletions that
		// it has not seen are: deleted keys would live on in it.
		s.beginAnew(e)
	case !e.Agreed:
		s.cutBack(e)
	case !s.isAnswered(e):
		s.reopen() // it agrees to something else than this log
	default:
		s.agree(e)
	}
}

// beginAnew empties the log. A session in which the leader has agreed to the log
// that was is left first: its positions would speak of another log.
func (s *State) beginAnew(e *EpochEnd) {
	if e.Agreed {
		s.emit(CloseLeader{Sess: s.follow.sess})
		s.endSession()
	}
	s.startReset(e.LogStart)
}

// isAnswered reports whether an agreement speaks of this log.
func (s *State) isAnswered(e *EpochEnd) bool {
	last := s.log.epochs.last()
	return last < 0 || e.LastEpoch == last && s.log.end <= e.End
}

// cutBack truncates to where both logs may still be equal.
func (s *State) cutBack(e *EpochEnd) {
	l := &s.log
	own, to := l.epochs.endOf(e.LastEpoch, l.end)
	if e.LastEpoch < 0 || own < 0 && l.start == l.end {
		s.cutAll(e)
		return
	}
	switch {
	case own < 0:
		// The leader has none of the epochs in this log. Where they begin is known also
		// while word of a later log start is on its way.
		to = max(l.start, l.epochs[0].Start)
	case own == e.LastEpoch:
		to = min(to, e.End)
	}
	unclean := to < l.hw
	switch {
	case to >= l.end:
		s.reopen() // an answer to something else
	case unclean && !s.mayLoseCommitted():
		s.breach(errorf("the leader of epoch %d has nothing in common with this log above offset %d, below the high watermark %d", s.rec.leaderEpoch, to, l.hw))
	case to <= e.LogStart || to < l.start:
		s.startReset(e.LogStart)
	default:
		s.startTruncate(to, unclean)
	}
}

// cutAll begins anew at the leader's log start: its log knows no epoch as old as the
// last one here, or this one holds no record and knows newer epochs only; nothing
// tells whether the logs were ever equal. They may have
// been: records below the leader's log start are gone there, and compaction may have
// taken all of an epoch from a log that was copied later. So this proves no loss, and
// a replica that counts for what was committed does not give it up for that; what the
// leader says is perhaps out of date.
func (s *State) cutAll(e *EpochEnd) {
	if e.LogStart < s.log.hw && s.rec.member && !s.mayLoseCommitted() {
		s.reopen()
		return
	}
	s.startReset(e.LogStart)
}

// mayLoseCommitted reports whether the leader may have been elected uncleanly, so
// that what was committed is gone.
func (s *State) mayLoseCommitted() bool {
	return s.rec.unclean || s.rec.uncleanAt > 0 && s.rec.uncleanAt > s.log.epochs.last()
}

// agree begins to copy: from here on this log is a prefix of the leader's.
func (s *State) agree(e *EpochEnd) {
	f := &s.follow
	f.agreed, f.retryAt = true, 0
	f.expected = s.log.end
	s.out.tellLeader = true
	s.heard(e.HW, e.LogStart)
	s.noteReplaced()
}

// heard takes note of the leader's marks.
func (s *State) heard(hw, start int64) {
	f := &s.follow
	f.leaderHW, f.leaderStart = max(f.leaderHW, hw), max(f.leaderStart, start)
	s.advance()
	s.followStart()
}

// followHW raises the high watermark to the leader's, as far as this log counts.
func (s *State) followHW() {
	f := &s.follow
	if !f.agreed {
		return
	}
	if to := min(f.leaderHW, s.log.counted()); to > s.log.hw {
		s.moveHW(to)
		s.followStart()
	}
}

// followStart lets the log begin where the leader's does.
func (s *State) followStart() {
	if s.role == following && s.follow.agreed {
		s.moveStart(min(s.follow.leaderStart, s.log.hw))
	}
}

// onBatch takes a run of batches that continues the log, and drops any other.
func (s *State) onBatch(e *Batch) {
	s.at(e.Now)
	f := &s.follow
	switch {
	case s.role != following, e.Sess != f.sess, !f.agreed, e.LeaderEpoch != s.rec.leaderEpoch:
		s.emit(DropRef{Ref: e.Ref})
		return
	case e.End <= f.expected:
		s.emit(DropRef{Ref: e.Ref}) // it is there already
	case e.Base != f.expected, f.copies.len() >= maxQueued:
		// Something in between got lost, or the leader keeps to no window.
		s.emit(DropRef{Ref: e.Ref})
		s.reopen()
		return
	default:
		f.copies.push(copyRun{ref: e.Ref, base: e.Base, end: e.End})
		f.expected = e.End
		s.copyNext()
	}
	s.heard(e.HW, e.Start)
}

// onWatermark takes the leader's marks.
func (s *State) onWatermark(e *Watermark) {
	s.at(e.Now)
	f := &s.follow
	if s.role == following && e.Sess == f.sess && f.agreed && e.LeaderEpoch == s.rec.leaderEpoch {
		s.heard(e.HW, e.Start)
	}
}

// copyNext hands the next run to the log.
func (s *State) copyNext() {
	f, l := &s.follow, &s.log
	if s.role != following || !f.agreed || f.copies.len() == 0 || l.op.kind != opNone || s.full || s.down != ReasonNone {
		return
	}
	c := f.copies.pop()
	l.op = logOp{kind: opCopy, op: l.newOp(), base: c.base, end: c.end, sess: f.sess}
	s.out.copy = AppendCopy{Op: l.op.op, Ref: c.ref, Base: c.base, End: c.end}
	s.emit(&s.out.copy)
}

// copyAppended takes note of a run that is in the log.
func (s *State) copyAppended(op *logOp, a *Appended) {
	l := &s.log
	if a.Base != op.base || a.Base != l.end || a.End < a.Base || a.End > op.end {
		s.breach(errorf("copy %d took offsets [%d,%d) where [%d,%d) were due", a.Op, a.Base, a.End, op.base, op.end))
		return
	}
	s.grow(a.End, a.Now)
	for _, e := range a.Epochs {
		l.epochs = l.epochs.assign(e.Epoch, e.Start)
	}
	l.maxEpochSeen = max(l.maxEpochSeen, a.LastEpoch, l.epochs.last())
	if a.LastEpoch > l.epochs.last() || l.epochs.last() > s.rec.leaderEpoch {
		s.breach(errorf("copy %d brought records of leader epoch %d; the epochs known are up to %d, the leader's is %d", a.Op, a.LastEpoch, l.epochs.last(), s.rec.leaderEpoch))
		return
	}
	if s.fence.less(a.Fence) {
		s.fence = a.Fence
	}
	s.syncIfDue()
	if s.role == following && op.sess == s.follow.sess && a.End < op.end {
		s.reopen()
		return
	}
	s.follow.backoff = 0 // it works
	s.out.tellLeader = true
	s.advance()
	s.copyNext()
	s.openLeader()
}

// copyRefused leaves the session: the log will not take what the leader has, or not
// now.
func (s *State) copyRefused(op *logOp) {
	if s.role == following && op.sess == s.follow.sess {
		s.reopen()
		return
	}
	s.openLeader()
}
