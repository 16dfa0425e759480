package partition

import "time"

const (
	// A proposal is sent again so long after its call ended, doubled each time.
	minRepeat = 50 * time.Millisecond
	maxRepeat = 2 * time.Second
	// A change that the controller refused is proposed again so much later: mostly it
	// concerns a follower that is about to be unfenced.
	minRefused = 100 * time.Millisecond
	maxRefused = 5 * time.Second
	// A Tick that is late by more than this part of replica.lag.time.max.ms is.
	forgiven = 10
)

// proposal is the one that is not resolved; id 0: none. Its members count for the
// high watermark until a record with a higher partition epoch has been applied: no
// answer, error or timeout tells whether it was committed.
type proposal struct {
	id        int64
	partEpoch int64
	isr       []Replica
	ended     bool // the call that carried it has
	repeatAt  time.Duration
	backoff   time.Duration
}

// propose proposes the in-sync set that keep and add call for.
func (s *State) propose(keep, add func(*peer) bool) {
	s.nextProp++
	p := &s.proposal
	*p = proposal{id: s.nextProp, partEpoch: s.rec.partEpoch, isr: p.isr[:0], backoff: minRepeat}
	// In the order of the record, so that it stays as it was where nothing changes.
	for _, b := range s.rec.isr {
		if b == s.self.Broker {
			p.isr = append(p.isr, Replica{Broker: b})
			continue
		}
		if m := s.peer(b); m != nil && keep(m) {
			p.isr = append(p.isr, Replica{Broker: b})
		}
	}
	for i := range s.peers {
		if m := &s.peers[i]; !m.isr && add(m) {
			p.isr = append(p.isr, Replica{Broker: m.broker, Incarnation: m.incarnation})
		}
	}
	for i := range s.peers {
		s.peers[i].proposed = false
	}
	for _, r := range p.isr {
		if m := s.peer(r.Broker); m != nil {
			m.proposed = true
		}
	}
	s.emitProposal()
}

func (s *State) emitProposal() {
	p := &s.proposal
	s.out.propose = Propose{ID: p.id, LeaderEpoch: s.rec.leaderEpoch, PartEpoch: p.partEpoch, ISR: p.isr}
	s.emit(&s.out.propose)
}

// resolve ends the proposal: a record with a higher partition epoch was applied.
// Whom it did not change is not proposed again at once, lest a controller that
// refuses be asked without end.
func (s *State) resolve() {
	if s.proposal.id == 0 {
		return
	}
	for i := range s.peers {
		p := &s.peers[i]
		if was, is := p.isr, contains(s.rec.isr, p.broker); was == is && p.proposed != was {
			p.backoff = min(max(2*p.backoff, minRefused), maxRefused)
			p.retryAt = s.now + p.backoff
			s.wake(p.retryAt)
		} else if p.proposed != was {
			p.backoff, p.retryAt = 0, 0
		}
		p.proposed = false
	}
	s.proposal = proposal{isr: s.proposal.isr[:0]}
}

func contains(set []int32, broker int32) bool {
	for _, b := range set {
		if b == broker {
			return true
		}
	}
	return false
}

// onProposalHint plans to send the proposal again.
func (s *State) onProposalHint(e ProposalHint) {
	s.at(e.Now)
	p := &s.proposal
	if s.role != leading || p.id == 0 || p.id != e.ID || p.ended {
		return
	}
	p.ended, p.repeatAt = true, s.now+p.backoff
	p.backoff = min(2*p.backoff, maxRepeat)
	s.wake(p.repeatAt)
}

// repeatProposal sends the proposal again when it is time to.
func (s *State) repeatProposal() {
	p := &s.proposal
	switch {
	case p.id == 0 || !p.ended:
	case p.repeatAt > s.now:
		s.wake(p.repeatAt)
	default:
		p.ended = false
		s.emitProposal()
	}
}

// growISR proposes to add the followers that have everything that is or may have
// been committed: they have reached the high watermark and the epoch's start, and
// know the record that the proposal changes.
func (s *State) growISR() {
	if s.role != leading || s.proposal.id != 0 || s.down != ReasonNone {
		return
	}
	found := false
	for i := range s.peers {
		p := &s.peers[i]
		if s.mayJoin(p) && p.retryAt > s.now {
			s.wake(p.retryAt)
		}
		found = found || s.joins(p)
	}
	if found {
		s.propose(func(*peer) bool { return true }, s.joins)
	}
}

// joins reports whether a peer is to be added now.
func (s *State) joins(p *peer) bool { return s.mayJoin(p) && p.retryAt <= s.now }

func (s *State) mayJoin(p *peer) bool {
	return !p.isr && p.agreed && p.partEpoch == s.rec.partEpoch && contains(s.rec.replicas, p.broker) &&
		s.countedOf(p) >= max(s.log.hw, s.epochStart)
}

// caughtUp reports whether a peer has everything that is in the log now.
func (s *State) caughtUp(p *peer) bool { return p.agreed && s.countedOf(p) >= s.log.end }

// noteCaughtUp finds out when a peer was last caught up, after a position of it.
func (s *State) noteCaughtUp(p *peer) {
	switch counted := s.countedOf(p); {
	case counted >= s.log.end:
		p.caughtUp = max(p.caughtUp, s.now)
	case counted >= p.markEnd:
		p.caughtUp = max(p.caughtUp, p.markTime)
	default:
		return
	}
	p.markEnd, p.markTime = s.log.end, s.now
}

// followersCaughtUp takes note of who has everything, before the log grows.
func (s *State) followersCaughtUp() {
	if s.role != leading {
		return
	}
	for i := range s.peers {
		if p := &s.peers[i]; s.caughtUp(p) {
			p.caughtUp = max(p.caughtUp, s.now)
			p.markEnd, p.markTime = s.log.end, s.now
		}
	}
}

// forgive does not hold against followers that this process did not run for a while
// itself: a Tick that comes late tells so, and what they said meanwhile has not been
// heard yet. It does so now and then only, or a slow machine would keep the dead.
func (s *State) forgive(now time.Duration) {
	late := now - s.wakeAt
	again := s.forgivenAt > 0 && now-s.forgivenAt < 2*s.settings.LagTimeMax
	if s.role != leading || s.wakeAt == 0 || late < s.settings.LagTimeMax/forgiven || again {
		return
	}
	s.forgivenAt = now
	for i := range s.peers {
		p := &s.peers[i]
		p.caughtUp = min(p.caughtUp+late+s.settings.LagTimeMax/2, now)
	}
}

// watchLag asks for a Tick when the first member will have lagged for too long. Who
// has already is looked at again when the unresolved proposal is resolved.
func (s *State) watchLag() {
	if s.role != leading {
		return
	}
	for i := range s.peers {
		p := &s.peers[i]
		if !p.isr || s.caughtUp(p) {
			continue
		}
		if due := max(p.caughtUp+s.settings.LagTimeMax, p.retryAt); due > s.now || s.proposal.id == 0 {
			s.wake(due)
		}
	}
}

// lags reports whether a member has not been caught up for replica.lag.time.max.ms.
func (s *State) lags(p *peer) bool {
	return p.isr && !s.caughtUp(p) && p.caughtUp+s.settings.LagTimeMax <= s.now && p.retryAt <= s.now
}

// reviewISR proposes to drop who lags and to add who has caught up.
func (s *State) reviewISR() {
	s.dropLagging()
	s.growISR()
	s.watchLag()
}

func (s *State) dropLagging() {
	if s.proposal.id != 0 || s.down != ReasonNone {
		return
	}
	for i := range s.peers {
		if s.lags(&s.peers[i]) {
			s.propose(func(p *peer) bool { return !s.lags(p) }, s.joins)
			return
		}
	}
}
