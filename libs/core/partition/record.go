package partition

import "slices"

// record is what the metadata stream says about the partition.
type record struct {
	known       bool // one was applied
	generation  int64
	revision    int64
	partEpoch   int64
	leader      Replica
	leaderEpoch int32
	replicas    []int32
	isr         []int32
	minISR      int
	unclean     bool
	uncleanAt   int32
	barred      bool // this broker is
	member      bool // this broker is in ISR or ELR
	onRecord    bool
	shard       bool
}

// older reports whether a record is older than the one applied.
func (c *record) older(r *Record) bool {
	if !c.known {
		return false
	}
	if r.Generation < c.generation || r.Generation == c.generation && r.Revision < c.revision {
		return true
	}
	// A restored mesh starts a new generation, whose epochs are above all earlier
	// ones; so lower epochs are old news in any case.
	return r.PartEpoch < c.partEpoch || r.LeaderEpoch < c.leaderEpoch
}

func (c *record) take(r *Record, self Replica) {
	c.known = true
	c.generation, c.revision = r.Generation, r.Revision
	c.partEpoch, c.leaderEpoch, c.leader = r.PartEpoch, r.LeaderEpoch, r.Leader
	c.replicas = append(c.replicas[:0], r.Replicas...)
	c.isr = append(c.isr[:0], r.ISR...)
	c.minISR = max(int(r.MinISR), 1)
	c.unclean, c.uncleanAt = r.Unclean, r.UncleanEpoch
	c.member = slices.Contains(r.ISR, self.Broker) || slices.Contains(r.ELR, self.Broker)
	c.barred = slices.Contains(r.Barred, self.Broker)
	c.onRecord = r.OnRecord || r.Leader == self
	c.shard = r.Shard
}

// onRecord applies a partition record unless it is older than the one applied.
func (s *State) onRecord(r *Record) {
	s.at(r.Now)
	if s.rec.older(r) {
		return
	}
	before, epochBefore, partBefore := s.rec.leader, s.rec.leaderEpoch, s.rec.partEpoch
	s.rec.take(r, s.self)
	if f := (Fence{ShardEpoch: r.ShardEpoch}); r.Shard && s.fence.less(f) {
		s.fence = f
	}
	s.judge()
	if before != s.rec.leader || epochBefore != s.rec.leaderEpoch || s.role != s.wanted() {
		s.leaveRole()
	}
	switch s.role {
	case leading:
		s.keepLeading(r.PartEpoch > partBefore)
	case following:
		s.out.tellLeader = true
	}
	s.settle()
	s.noteReplaced()
	s.advance()
}

// wanted is the role that the record calls for.
func (s *State) wanted() role {
	switch {
	case s.down != ReasonNone, !s.rec.known, !s.log.opened, s.rec.leader == Replica{}:
		return idle
	case s.rec.leaderEpoch < s.log.maxEpochSeen:
		// The log has seen a newer leader epoch than the metadata: etcd went back in
		// time. Whatever this record says is not to be acted on.
		return idle
	case s.rec.leader == s.self:
		if s.log.verdict != Intact {
			return idle
		}
		return leading
	case s.rec.leader.Broker == s.self.Broker, !slices.Contains(s.rec.replicas, s.self.Broker), s.full:
		return idle
	}
	return following
}

// settle enters the role that the record calls for, once the log stands still: what
// is still being appended belongs to the role before, and where the log ends is
// known only then.
func (s *State) settle() {
	want := s.wanted()
	if s.role == want || s.log.op.kind != opNone {
		return
	}
	if want == leading && s.log.absent {
		// It is elected with nothing in its hands, by an operator. Offsets that were
		// committed once are not given to other records.
		s.startReset(max(s.log.hwFound, s.log.end))
		s.log.keeping = false // what was set aside is the operator's
		return
	}
	s.role = want
	switch want {
	case leading:
		s.beginLeadership()
	case following:
		s.beginFollowing()
	}
}

// leaveRole ends what the replica did under the record before.
func (s *State) leaveRole() {
	switch s.role {
	case leading:
		s.endLeadership(ReasonNotLeader)
		s.emit(Resign{Reason: ReasonNotLeader})
	case following:
		s.stopFollowing()
	}
	s.role = idle
}

// judge settles the verdict on the replica: the stream shows this incarnation on
// record and the replica not barred.
func (s *State) judge() {
	if !s.log.opened || s.log.verdict == Intact || !s.rec.known || !s.rec.onRecord || s.rec.barred {
		return
	}
	s.log.verdict = Intact
	if s.rec.leader == s.self {
		// It is elected as it is; nobody has a better copy.
		s.log.refetch = false
		s.log.keeping = s.log.absent
	}
	s.emit(ClearVerdict{})
}

// noteReplaced tells that a copy fetched again is in sync.
func (s *State) noteReplaced() {
	// One that is still barred is in the set by the record only.
	if s.log.keeping && !s.log.refetch && s.log.verdict == Intact && slices.Contains(s.rec.isr, s.self.Broker) && (s.role == leading || s.role == following && s.follow.agreed) {
		s.log.keeping = false
		s.emit(Replaced{})
	}
}

// withheld reports whether the replica is not to be served from.
func (s *State) withheld() bool {
	return s.log.opened && (s.log.absent || s.log.refetch || s.log.verdict != Intact && s.log.verdict != UncleanOS)
}

// refusal says why this replica may not act as leader, or ReasonNone.
func (s *State) refusal() Reason {
	switch {
	case s.down != ReasonNone:
		return s.down
	case !s.rec.known, s.rec.leader == Replica{}:
		return ReasonLeaderNotAvailable
	case s.rec.leader != s.self:
		return ReasonNotLeader
	case !s.log.opened:
		return ReasonLeaderNotAvailable
	case s.log.verdict != Intact, s.withheld():
		return ReasonReplicaWithheld
	case s.rec.leaderEpoch < s.log.maxEpochSeen:
		return ReasonMetadataRegressed
	case s.role != leading:
		return ReasonLeaderNotAvailable // what the log is doing comes first
	}
	return ReasonNone
}
