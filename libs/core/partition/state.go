package partition

import (
	"slices"
	"time"
)

// maxQueued bounds the batches that wait here for their append or their answer.
// Streams have windows of their own; this is the last line.
const maxQueued = 8192

// State is the state of one replica. Make it with New.
type State struct {
	self Replica

	// What the metadata stream says.
	known       bool // a record was applied
	generation  int64
	revision    int64
	partEpoch   int64
	leader      Replica
	leaderEpoch int32
	isr         []int32
	minISR      int32
	shard       bool

	// What the log says.
	opened       bool
	verdict      Verdict
	maxEpochSeen int32
	start        int64
	end          int64
	durable      int64
	hw           int64
	epochStart   int64 // end of the log when the present leadership began

	flushing   Flushing
	unsynced   int64         // records appended since the last sync began
	dirtySince time.Duration // when the first of them was appended
	fence      Fence

	// Produces in the order of arrival: queue is not handed to the log yet,
	// inflight is with the log, waiting is in the log and not answered.
	queue    []waiter
	inflight *waiter
	waiting  []waiter

	nextOp  int64
	syncing bool
	syncOp  int64
	wakeAt  time.Duration // 0: no Tick asked for

	down      Reason // why nothing is served any more; ReasonNone: it is
	full      bool   // the log takes nothing more for want of space; reads go on
	stopping  bool
	violation error

	effects []Effect
}

// waiter is a produce that has not been answered, or has been answered at its
// deadline and is still on its way.
type waiter struct {
	op, req  int64
	acks     Acks
	deadline time.Duration
	records  int32
	base     int64 // -1 until appended
	end      int64
	epoch    int32
	answered bool
}

// New makes the state of a replica of which nothing is known yet.
func New(self Replica) *State {
	return &State{self: self, leaderEpoch: -1, maxEpochSeen: -1, partEpoch: -1}
}

// Step applies one event. The effects are valid until the next Step.
func (s *State) Step(ev Event) []Effect {
	clear(s.effects)
	s.effects = s.effects[:0]
	before := s.marks()
	switch e := ev.(type) {
	case *Record:
		s.onRecord(e)
	case *Opened:
		s.onOpened(e)
	case Flushing:
		s.flushing = e
	case *Produce:
		s.onProduce(e)
	case *Read:
		s.onRead(e)
	case *Appended:
		s.onAppended(e)
	case *Synced:
		s.onSynced(e)
	case IOFailed:
		s.onIOFailed(e)
	case AppendRefused:
		s.onAppendRefused(e)
	case StartMoved:
		s.onStartMoved(e)
	case Flush:
		s.sync()
	case Tick:
		s.onTick(e.Now)
	case Deleted:
		s.fail(ReasonTopicDeleted)
	case DiskOffline:
		s.fail(ReasonDiskOffline)
	case Stop:
		s.stopping = true
	}
	if err := s.check(before); err != nil && s.violation == nil {
		s.breach(err)
	}
	return s.effects
}

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// Leads reports whether this replica leads and its log is open.
func (s *State) Leads() bool { return s.refusal() == ReasonNone }

// Leader is the leader on record and its epoch; the zero Replica is none.
func (s *State) Leader() (Replica, int32) { return s.leader, s.leaderEpoch }

// HighWatermark is the offset below which records are committed.
func (s *State) HighWatermark() int64 { return s.hw }

// Start is the first offset of the log.
func (s *State) Start() int64 { return s.start }

// End is the offset after the last record in the log.
func (s *State) End() int64 { return s.end }

// Durable is the offset after the last record known to be durable.
func (s *State) Durable() int64 { return s.durable }

// Down says why the replica serves nothing for the rest of the process's life;
// ReasonNone: it is not down.
func (s *State) Down() Reason { return s.down }

// Idle reports whether nothing is queued, in flight or waiting.
func (s *State) Idle() bool {
	return len(s.queue) == 0 && s.inflight == nil && len(s.waiting) == 0 && !s.syncing
}

// Violation is the first assertion that failed, nil as long as none did.
func (s *State) Violation() error { return s.violation }

// onStartMoved takes note that records are gone. Only committed ones may go: beyond
// the high watermark nobody knows yet what the log will hold.
func (s *State) onStartMoved(e StartMoved) {
	if e.Start > s.hw {
		s.breach(errorf("the log was cut to begin at %d, above the high watermark %d", e.Start, s.hw))
		return
	}
	s.start = max(s.start, e.Start)
}

// onRecord applies a partition record unless it is older than the one applied.
func (s *State) onRecord(r *Record) {
	if s.known {
		if r.Generation < s.generation || r.Generation == s.generation && r.Revision < s.revision {
			return
		}
		// A restored mesh starts a new generation, whose epochs are above all
		// earlier ones; so lower epochs are old news in any case.
		if r.PartEpoch < s.partEpoch || r.LeaderEpoch < s.leaderEpoch {
			return
		}
	}
	ledBefore := s.known && s.leader == s.self
	epochBefore := s.leaderEpoch
	s.known = true
	s.generation, s.revision = r.Generation, r.Revision
	s.partEpoch, s.leaderEpoch, s.leader = r.PartEpoch, r.LeaderEpoch, r.Leader
	s.isr = append(s.isr[:0], r.ISR...)
	s.minISR = r.MinISR
	s.shard = r.Shard
	if f := (Fence{ShardEpoch: r.ShardEpoch}); r.Shard && s.fence.less(f) {
		s.fence = f
	}
	leadsNow := s.leader == s.self
	if ledBefore && (!leadsNow || s.leaderEpoch != epochBefore) {
		s.endLeadership(ReasonNotLeader)
		s.emit(Resign{Reason: ReasonNotLeader})
	}
	if leadsNow && (!ledBefore || s.leaderEpoch != epochBefore) {
		s.epochStart = s.end
	}
	s.advance()
}

// onOpened takes over what the log was found to hold.
func (s *State) onOpened(o *Opened) {
	if s.opened {
		return
	}
	s.opened = true
	s.verdict = o.Verdict
	s.maxEpochSeen = o.MaxEpochSeen
	s.start, s.end, s.durable = o.Start, o.End, o.Durable
	s.hw = max(min(o.HW, s.counted()), s.start)
	s.epochStart = s.end
	if s.fence.less(o.Fence) {
		s.fence = o.Fence
	}
	if o.Verdict == Cut || o.Verdict == Missing || o.Verdict == Corrupt {
		s.fail(ReasonReplicaWithheld)
		return
	}
	s.advance()
}

// refusal says why this replica may not act as leader, or ReasonNone.
func (s *State) refusal() Reason {
	switch {
	case s.down != ReasonNone:
		return s.down
	case !s.known:
		return ReasonLeaderNotAvailable
	case s.leader == Replica{}:
		return ReasonLeaderNotAvailable
	case s.leader != s.self:
		return ReasonNotLeader
	case !s.opened:
		return ReasonLeaderNotAvailable
	case s.leaderEpoch < s.maxEpochSeen:
		return ReasonMetadataRegressed
	}
	return ReasonNone
}

// counted is the end that counts for commits: what is durable, or with
// durability=os what is in the log.
func (s *State) counted() int64 {
	if s.flushing.OS {
		return s.end
	}
	return s.durable
}

// advance raises the high watermark as far as the committed in-sync set allows,
// and answers whoever waited for it.
func (s *State) advance() {
	if s.refusal() == ReasonNone && len(s.isr) >= int(s.minISR) && len(s.isr) == 1 && s.isr[0] == s.self.Broker {
		if to := s.counted(); to > s.hw {
			s.hw = to
			s.emit(&CheckpointHW{HW: to})
			s.emit(&Visible{HW: to})
		}
	}
	s.answer()
}

// answer replies to the waiters whose condition holds. They are in offset order,
// but acks=1 may overtake acks=all, so that one pass over all is needed.
func (s *State) answer() {
	counted := s.counted()
	keep := s.waiting[:0]
	for i := range s.waiting {
		w := &s.waiting[i]
		done := w.end <= counted && (w.acks != AcksAll || w.end <= s.hw)
		if !done {
			keep = append(keep, *w)
			continue
		}
		if !w.answered {
			s.emit(&Reply{Req: w.req, Outcome: OK, Base: w.base, Epoch: w.epoch, Acks: w.acks, Records: w.records})
		}
	}
	s.waiting = keep
}

// endLeadership answers everybody: what the log never saw is not done, the rest
// unknown.
func (s *State) endLeadership(reason Reason) {
	for i := range s.queue {
		s.reply(&s.queue[i], Rejected, reason)
	}
	s.queue = s.queue[:0]
	if s.inflight != nil {
		s.reply(s.inflight, Unknown, reason)
	}
	for i := range s.waiting {
		s.reply(&s.waiting[i], Unknown, reason)
	}
	s.waiting = s.waiting[:0]
}

// reply answers a waiter once.
func (s *State) reply(w *waiter, outcome Outcome, reason Reason) {
	if w.answered {
		return
	}
	w.answered = true
	s.emit(&Reply{Req: w.req, Outcome: outcome, Reason: reason, Base: -1, Epoch: -1, Acks: w.acks, Records: w.records})
}

// fail takes the replica down for the rest of the process's life.
func (s *State) fail(reason Reason) {
	if s.down != ReasonNone {
		// A deletion outranks a fault: what is left to say is that it is gone.
		if reason == ReasonTopicDeleted && s.down != reason {
			s.down = reason
			s.emit(Resign{Reason: reason})
		}
		return
	}
	s.down = reason
	s.endLeadership(reason)
	s.emit(Resign{Reason: reason})
	s.emit(Withhold{Reason: reason})
}

// onTick answers those whose deadline has passed.
func (s *State) onTick(now time.Duration) {
	s.wakeAt = 0
	next := time.Duration(0)
	later := func(at time.Duration) {
		if next == 0 || at < next {
			next = at
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(w waiter) bool {
		if w.deadline > now {
			later(w.deadline)
			return false
		}
		s.reply(&w, Rejected, ReasonDeadline)
		return true
	})
	expire := func(w *waiter) {
		if w.answered {
			return
		}
		if w.deadline > now {
			later(w.deadline)
			return
		}
		s.reply(w, Unknown, ReasonDeadline)
	}
	if s.inflight != nil {
		expire(s.inflight)
	}
	for i := range s.waiting {
		expire(&s.waiting[i])
	}
	if s.flushing.OS && s.flushing.Interval > 0 && s.unsynced > 0 {
		if at := s.dirtySince + s.flushing.Interval; at > now {
			later(at)
		} else {
			s.sync()
		}
	}
	if next > 0 {
		s.wake(next)
	}
}

// wake asks for a Tick, unless an earlier one was asked for.
func (s *State) wake(at time.Duration) {
	if s.wakeAt == 0 || at < s.wakeAt {
		s.wakeAt = at
		s.emit(WakeAt{At: at})
	}
}
