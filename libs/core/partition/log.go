package partition

import "time"

// logState is what the core knows of the log. It follows from what operations
// reported, whoever leads by then.
type logState struct {
	opened       bool
	verdict      Verdict // Intact also once it is settled
	standing     bool    // a verdict is on record, and the next start will find it
	absent       bool    // there is nothing to append to until a Reset
	refetch      bool    // the copy is not intact: it is fetched again as a whole
	keeping      bool    // such a copy was, or will be, set aside
	hwFound      int64   // checkpoint of the high watermark at the opening
	maxEpochSeen int32
	start        int64
	end          int64
	durable      int64
	hw           int64
	epochs       epochs

	flushing   Flushing
	unsynced   int64         // records appended since the last sync began
	dirtySince time.Duration // when the first of them was appended

	nextOp   int64
	op       logOp // the outstanding Append, AppendCopy, Truncate or Reset
	syncing  bool
	syncOp   int64
	syncVoid bool // what the running sync reports belongs to a log that was cut since
	moving   bool
	moveOp   int64
	moveTo   int64
}

type opKind int8

const (
	opNone opKind = iota
	opAppend
	opCopy
	opTruncate
	opReset
)

// logOp is an operation that the log has not answered yet.
type logOp struct {
	kind      opKind
	op        int64
	w         waiter // of an append
	base, end int64  // of a copy; end is To of the others
	sess      int64  // of the follower's session that asked
	unclean   bool   // a truncation below the high watermark
}

// counted is the end that counts for commits: what is durable, or with
// durability=os what is in the log.
func (l *logState) counted() int64 {
	if l.flushing.OS {
		return l.end
	}
	return l.durable
}

func (l *logState) newOp() int64 {
	l.nextOp++
	return l.nextOp
}

// takeOp ends the outstanding operation if it is the one named and of a kind.
func (l *logState) takeOp(op int64, kinds ...opKind) (logOp, bool) {
	if l.op.kind == opNone || l.op.op != op {
		return logOp{}, false
	}
	for _, k := range kinds {
		if l.op.kind == k {
			o := l.op
			l.op = logOp{}
			return o, true
		}
	}
	return logOp{}, false
}

// onOpened takes over what the log was found to hold.
func (s *State) onOpened(o *Opened) {
	l := &s.log
	if l.opened {
		return
	}
	l.opened, l.verdict, l.standing = true, o.Verdict, o.Verdict != Intact
	l.absent = o.Absent || o.Verdict == Missing || o.Verdict == Corrupt
	l.epochs = append(l.epochs[:0], o.Epochs...)
	if len(o.Epochs) == 0 && o.End > o.Start {
		// Records without an epoch would pass for an empty log, which agrees with any.
		l.epochs = l.epochs.assign(max(o.MaxEpochSeen, 0), o.Start)
	}
	l.maxEpochSeen = max(o.MaxEpochSeen, l.epochs.last())
	l.start, l.end, l.durable, l.hwFound = min(o.Start, o.End), o.End, o.Durable, o.HW
	l.hw = max(min(o.HW, l.counted()), l.start)
	if s.fence.less(o.Fence) {
		s.fence = o.Fence
	}
	switch o.Verdict {
	case Cut, Corrupt:
		l.refetch, l.keeping = true, true
	case Missing:
		l.refetch = true
	}
	s.judge()
	if s.withheld() {
		s.emit(Withhold{Reason: ReasonReplicaWithheld})
	}
	s.settle()
	s.advance()
}

// onAppended takes note of what the log holds now, whoever leads.
func (s *State) onAppended(a *Appended) {
	s.at(a.Now)
	op, ok := s.log.takeOp(a.Op, opAppend, opCopy)
	if !ok {
		return
	}
	if op.kind == opAppend {
		s.batchAppended(&op, a)
	} else {
		s.copyAppended(&op, a)
	}
	s.settle()
}

// grow takes note of records at the end of the log.
func (s *State) grow(to int64, now time.Duration) {
	l := &s.log
	if l.unsynced == 0 {
		l.dirtySince = now
	}
	l.unsynced += to - l.end
	l.end = to
}

// onAppendRefused goes on without what the log did not take.
func (s *State) onAppendRefused(e AppendRefused) {
	s.at(e.Now)
	op, ok := s.log.takeOp(e.Op, opAppend, opCopy)
	if !ok {
		return
	}
	if op.kind == opCopy {
		s.copyRefused(&op)
	} else {
		reason := ReasonBatchRefused
		if e.Full {
			reason = ReasonDiskFull
		}
		s.reply(&op.w, Rejected, reason)
	}
	s.settle()
	s.appendNext()
}

// syncIfDue asks for a Sync when an append calls for one.
func (s *State) syncIfDue() {
	f := s.log.flushing
	switch {
	case !f.OS, f.Messages > 0 && s.log.unsynced >= f.Messages:
		s.sync()
	case f.Interval > 0:
		s.wake(s.log.dirtySince + f.Interval)
	}
}

// sync asks for a Sync unless one is running or there is nothing to sync. What
// was appended meanwhile is synced by the next one, all together.
func (s *State) sync() {
	l := &s.log
	cutting := l.op.kind == opTruncate || l.op.kind == opReset
	if l.syncing || cutting || !l.opened || l.absent || l.durable >= l.end || s.down != ReasonNone || s.full {
		return
	}
	l.syncing, l.syncVoid, l.syncOp = true, false, l.newOp()
	l.unsynced = 0
	s.out.sync.Op = l.syncOp
	s.emit(&s.out.sync)
}

// onSynced takes note of what is durable and answers all that waited for it.
func (s *State) onSynced(e *Synced) {
	s.at(e.Now)
	l := &s.log
	if !l.syncing || l.syncOp != e.Op {
		return
	}
	l.syncing = false
	if !l.syncVoid {
		// The log may have gone on since; what it says about itself beyond what the
		// core has seen appended is not ours to count yet.
		l.durable = max(l.durable, min(e.End, l.end))
		s.out.tellLeader = true
		s.advance()
	}
	if !l.flushing.OS {
		s.sync()
	}
}

// startTruncate asks for the log to be cut.
func (s *State) startTruncate(to int64, unclean bool) {
	l := &s.log
	l.syncVoid = l.syncing
	l.op = logOp{kind: opTruncate, op: l.newOp(), end: to, sess: s.follow.sess, unclean: unclean}
	s.out.truncate = Truncate{Op: l.op.op, To: to, Unclean: unclean, From: l.end, HW: l.hw}
	s.emit(&s.out.truncate)
}

// startReset asks for the log to begin anew.
func (s *State) startReset(to int64) {
	l := &s.log
	l.syncVoid = l.syncing
	l.op = logOp{kind: opReset, op: l.newOp(), end: to, sess: s.follow.sess}
	s.out.begin = Reset{Op: l.op.op, To: to, Keep: l.keeping}
	s.emit(&s.out.begin)
}

// onTruncated takes note of where the log ends now.
func (s *State) onTruncated(e *Truncated) {
	s.at(e.Now)
	op, ok := s.log.takeOp(e.Op, opTruncate, opReset)
	if !ok {
		return
	}
	l := &s.log
	if e.End > op.end || op.kind == opReset && e.End != op.end || op.kind == opTruncate && !op.unclean && e.End < l.hw {
		s.breach(errorf("a log that was to end at %d ends at %d; the high watermark is %d", op.end, e.End, l.hw))
		return
	}
	l.epochs = append(l.epochs[:0], e.Epochs...)
	l.end, l.durable = e.End, min(l.durable, e.End)
	if op.kind == opReset {
		// Nothing of the old log is left, also nothing that was committed: this copy
		// counts for nothing until its leader has counted it in again.
		l.start, l.durable = e.End, e.End
		l.absent, l.refetch = false, false
		s.out.resetDone = true
		s.moveHW(e.End)
	} else if op.unclean {
		s.out.resetDone = true
		s.moveHW(min(l.hw, e.End))
	}
	if !l.flushing.OS {
		s.sync()
	}
	s.settle()
	switch {
	case s.role != following:
	case s.follow.sess == 0:
		s.openLeader()
	case op.sess == s.follow.sess:
		s.sayHello()
	}
}

// onIOFailed takes the replica down: a failed write or fsync is never retried
// into success.
func (s *State) onIOFailed(e IOFailed) {
	l := &s.log
	if l.syncing && l.syncOp == e.Op {
		l.syncing = false
	}
	if l.moving && l.moveOp == e.Op {
		l.moving = false
	}
	switch e.Kind {
	case FailedFull:
		// What is visible stays so: a full disk can be read.
		s.full = true
		s.answerAll(ReasonDiskFull, ReasonDiskFull)
		if s.role == following {
			s.leaveRole()
		}
	case FailedBug:
		s.fail(ReasonInternalBug)
	default:
		s.fail(ReasonDiskOffline)
	}
	if l.op.kind != opNone && l.op.op == e.Op {
		l.op = logOp{}
	}
}

// moveStart asks for the log to begin later.
func (s *State) moveStart(to int64) {
	l := &s.log
	if l.moving || to <= l.start || l.absent || s.down != ReasonNone {
		return
	}
	l.moving, l.moveOp, l.moveTo = true, l.newOp(), to
	s.out.move = MoveStart{Op: l.moveOp, To: to}
	s.emit(&s.out.move)
}

// onStartMoved takes note that records are gone. Only committed ones may go: beyond
// the high watermark nobody knows yet what the log will hold.
func (s *State) onStartMoved(e StartMoved) {
	s.at(e.Now)
	l := &s.log
	if l.moving && l.moveOp == e.Op {
		l.moving = false
	}
	if e.Start > l.hw {
		s.breach(errorf("the log was cut to begin at %d, above the high watermark %d", e.Start, l.hw))
		return
	}
	if e.Start > l.start {
		l.start = e.Start
		l.epochs = l.epochs.from(e.Start)
		s.out.tellHW, s.out.tellLeader = true, true
	}
	switch s.role {
	case leading:
		s.answerStarts()
		s.moveStartNext()
	case following:
		s.followStart()
	}
}
