package partition

// leaseCounts reports whether commits depend on the lease: the leader is alone in
// the in-sync set of a topic that allows unclean elections, so that another replica
// may be elected as soon as the lease is over.
func (s *State) leaseCounts() bool {
	return s.rec.unclean && len(s.rec.isr) == 1 && len(s.rec.replicas) > 1
}

// leaseHolds reports whether the lease, as far as it counts, is known to hold now.
func (s *State) leaseHolds() bool {
	if !s.leaseCounts() {
		return true
	}
	if s.leaseAt == 0 {
		return false
	}
	if !s.nowTold {
		s.wake(s.now) // without the time nothing is known; the Tick tells it
		return false
	}
	return s.now < s.leaseAt+s.settings.LeaseTTL
}

func (s *State) onLeaseRenewed(e LeaseRenewed) {
	// The time of the sending is in the past: it says nothing about now.
	s.leaseAt = max(s.leaseAt, e.Now)
	if s.NeedsLease() && s.bound() > s.log.hw {
		s.wake(s.now)
	}
}

// bound is the smallest end that counts over the committed in-sync set and the
// unresolved proposal; -1 while a member is unknown.
func (s *State) bound() int64 {
	to := s.log.counted()
	for i := range s.peers {
		p := &s.peers[i]
		if !p.counts() {
			continue
		}
		if !p.agreed {
			return -1
		}
		to = min(to, s.countedOf(p))
	}
	return to
}

// advance raises the high watermark as far as the in-sync set allows, and answers
// whoever waited for it.
func (s *State) advance() {
	switch s.role {
	case leading:
		if s.belowMin() {
			break
		}
		if to := s.bound(); to > s.log.hw && s.leaseHolds() {
			s.moveHW(to)
		}
	case following:
		s.followHW()
	}
	s.answer()
}
