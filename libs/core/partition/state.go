package partition

import "time"

const (
	// maxQueued bounds the batches that wait here for their append or their answer,
	// and the runs that wait to be copied. Streams have windows of their own; this is
	// the last line.
	maxQueued = 8192
	// maxStarts bounds the requests to move the log start that wait here.
	maxStarts = 1024
)

// role is what the replica does at the moment.
type role int8

const (
	idle role = iota
	leading
	following
)

// State is the state of one replica. Make it with New.
type State struct {
	self     Replica
	settings Settings
	now      time.Duration // the latest time told
	nowTold  bool          // by the event of this Step

	rec record // what the metadata stream says
	log logState

	role       role
	epochStart int64 // of a leader: end of the log when it began to lead

	// As leader.
	fence    Fence
	peers    []peer
	proposal proposal
	nextProp int64
	leaseAt  time.Duration // when the lease was renewed last; 0: not yet
	// Produces in the order of arrival: queue is not handed to the log yet (the one
	// that is with the log stands in log.op), own and all are in the log and wait for
	// the end that counts or the high watermark, again are duplicates.
	queue  fifo[waiter]
	own    fifo[waiter]
	all    fifo[waiter]
	again  []waiter
	starts []startWaiter

	follow follow // as follower

	wakeAt     time.Duration // 0: no Tick asked for
	forgivenAt time.Duration // when a late Tick was last made allowance for; 0: not yet

	down      Reason // why nothing is served any more; ReasonNone: it is
	full      bool   // the log takes nothing more for want of space; reads go on
	stopping  bool
	violation error

	effects []Effect
	out     outbox
}

// New makes the state of a replica of which nothing is known yet.
func New(self Replica) *State {
	s := &State{self: self, settings: Settings{LagTimeMax: DefaultLagTimeMax, LeaseTTL: DefaultLeaseTTL}}
	s.rec.partEpoch, s.rec.leaderEpoch, s.log.maxEpochSeen = -1, -1, -1
	return s
}

// Step applies one event. The effects are valid until the next Step.
func (s *State) Step(ev Event) []Effect {
	clear(s.effects)
	s.effects = s.effects[:0]
	s.out.reset()
	s.nowTold = false
	before := s.marks()
	if !s.stepLeader(ev) && !s.stepFollower(ev) {
		s.stepReplica(ev)
	}
	s.flush()
	if err := s.check(&before); err != nil && s.violation == nil {
		s.breach(err)
	}
	return s.effects
}

// stepReplica applies the events that concern any replica.
func (s *State) stepReplica(ev Event) {
	switch e := ev.(type) {
	case *Record:
		s.onRecord(e)
	case *Opened:
		s.onOpened(e)
	case Flushing:
		s.log.flushing = e
	case Settings:
		s.onSettings(e)
	case *Read:
		s.onRead(e)
	case *Appended:
		s.onAppended(e)
	case AppendRefused:
		s.onAppendRefused(e)
	case *Synced:
		s.onSynced(e)
	case *Truncated:
		s.onTruncated(e)
	case IOFailed:
		s.onIOFailed(e)
	case StartMoved:
		s.onStartMoved(e)
	case VerdictCleared:
		s.log.standing, s.out.tellLeader = false, true
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
}

// stepLeader applies the events that concern a leader.
func (s *State) stepLeader(ev Event) bool {
	switch e := ev.(type) {
	case *Produce:
		s.onProduce(e)
	case *Duplicate:
		s.onDuplicate(e)
	case *StartWanted:
		s.onStartWanted(e)
	case *Hello:
		s.onHello(e)
	case *Position:
		s.onPosition(e)
	case Gone:
		s.onGone(e)
	case ProposalHint:
		s.onProposalHint(e)
	case LeaseRenewed:
		s.onLeaseRenewed(e)
	default:
		return false
	}
	return true
}

// stepFollower applies the events that concern a follower.
func (s *State) stepFollower(ev Event) bool {
	switch e := ev.(type) {
	case *EpochEnd:
		s.onEpochEnd(e)
	case *Batch:
		s.onBatch(e)
	case *Watermark:
		s.onWatermark(e)
	case LeaderGone:
		s.onLeaderGone(e)
	default:
		return false
	}
	return true
}

func (s *State) onSettings(e Settings) {
	if e.LagTimeMax <= 0 {
		e.LagTimeMax = DefaultLagTimeMax
	}
	if e.LeaseTTL <= 0 {
		e.LeaseTTL = DefaultLeaseTTL
	}
	s.settings = e
	s.watchLag()
}

// at takes note of the time that an event tells.
func (s *State) at(now time.Duration) {
	if now > 0 {
		s.now, s.nowTold = max(s.now, now), true
	}
}

// Leads reports whether this replica leads and its log is open.
func (s *State) Leads() bool { return s.refusal() == ReasonNone }

// Follows reports whether this replica follows the leader on record, in a session
// whose common prefix has been agreed on.
func (s *State) Follows() (agreed bool) { return s.role == following && s.follow.agreed }

// Leader is the leader on record and its epoch; the zero Replica is none.
func (s *State) Leader() (Replica, int32) { return s.rec.leader, s.rec.leaderEpoch }

// PartitionEpoch is that of the record applied last, -1 without any.
func (s *State) PartitionEpoch() int64 { return s.rec.partEpoch }

// HighWatermark is the offset below which records are committed.
func (s *State) HighWatermark() int64 { return s.log.hw }

// Start is the first offset of the log.
func (s *State) Start() int64 { return s.log.start }

// End is the offset after the last record in the log.
func (s *State) End() int64 { return s.log.end }

// Durable is the offset after the last record known to be durable.
func (s *State) Durable() int64 { return s.log.durable }

// LastEpoch is the leader epoch of the last record in the log, -1 without any.
func (s *State) LastEpoch() int32 { return s.log.epochs.last() }

// NeedsLease reports whether commits depend on LeaseRenewed: this replica leads
// alone a topic that allows unclean elections.
func (s *State) NeedsLease() bool { return s.role == leading && s.leaseCounts() }

// Down says why the replica serves nothing; ReasonNone: it is not down. It stays
// down for the rest of the process's life, but for ReasonReplicaWithheld.
func (s *State) Down() Reason {
	if s.down == ReasonNone && s.withheld() {
		return ReasonReplicaWithheld
	}
	return s.down
}

// Idle reports whether nothing is queued, in flight or waiting.
func (s *State) Idle() bool {
	return s.queue.len()+s.own.len()+s.all.len()+len(s.again)+len(s.starts)+s.follow.copies.len() == 0 &&
		s.log.op.kind == opNone && !s.log.syncing && !s.log.moving
}

// Member is what a leader knows of one of the partition's replicas.
type Member struct {
	Broker  int32
	Agreed  bool          // it is known where it stands
	End     int64         // -1 unless Agreed
	Durable int64         // -1 unless Agreed
	Behind  time.Duration // since it was last caught up; 0 while it is
}

// Members are the other replicas as the leader sees them, appended to dst; none
// where this replica does not lead.
func (s *State) Members(dst []Member) []Member {
	if s.role != leading {
		return dst
	}
	for i := range s.peers {
		p := &s.peers[i]
		m := Member{Broker: p.broker, Agreed: p.agreed, End: -1, Durable: -1}
		if p.agreed {
			m.End, m.Durable = p.end, p.durable
		}
		if !s.caughtUp(p) {
			m.Behind = s.now - p.caughtUp
		}
		dst = append(dst, m)
	}
	return dst
}

// ISR are the in-sync replicas of the record applied last; valid until the next
// Step.
func (s *State) ISR() []int32 { return s.rec.isr }

// Violation is the first assertion that failed, nil as long as none did.
func (s *State) Violation() error { return s.violation }

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
	s.stopFollowing()
	s.endLeadership(reason)
	s.emit(Resign{Reason: reason})
	s.emit(Withhold{Reason: reason})
}

// onTick does what time asks for, and asks for the next Tick.
func (s *State) onTick(now time.Duration) {
	s.forgive(now)
	s.at(now)
	s.wakeAt = 0
	s.expire()
	if f := s.log.flushing; f.OS && f.Interval > 0 && s.log.unsynced > 0 {
		if at := s.log.dirtySince + f.Interval; at > s.now {
			s.wake(at)
		} else {
			s.sync()
		}
	}
	switch s.role {
	case leading:
		s.advance()
		s.repeatProposal()
		s.reviewISR()
	case following:
		s.retryLeader()
	}
}

// wake asks for a Tick, unless an earlier one was asked for.
func (s *State) wake(at time.Duration) {
	if s.wakeAt == 0 || at < s.wakeAt {
		s.wakeAt = max(at, 1)
		s.emit(WakeAt{At: s.wakeAt})
	}
}
