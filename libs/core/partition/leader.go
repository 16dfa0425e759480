package partition

import (
	"slices"
	"time"
)

// peer is what a leader knows of another replica.
type peer struct {
	broker      int32
	isr         bool // of the committed record
	proposed    bool // of the unresolved proposal
	sess        int64
	newest      int64 // greatest session it ever had here
	incarnation uint64
	agreed      bool

	// Where it stands; of an agreed session.
	end, durable, start, partEpoch int64
	toldHW, toldStart              int64

	// It was caught up at caughtUp. markEnd was the leader's end at markTime: when the
	// follower gets there, it was caught up then.
	caughtUp time.Duration
	markEnd  int64
	markTime time.Duration

	// After a proposal about it that changed nothing.
	retryAt time.Duration
	backoff time.Duration
}

// counts reports whether the peer has a say in the high watermark: as a member of
// the committed in-sync set or of the unresolved proposal.
func (p *peer) counts() bool { return p.isr || p.proposed }

// counted is the peer's end that counts for commits.
func (s *State) countedOf(p *peer) int64 {
	if s.log.flushing.OS {
		return p.end
	}
	return p.durable
}

func (s *State) peer(broker int32) *peer {
	for i := range s.peers {
		if s.peers[i].broker == broker {
			return &s.peers[i]
		}
	}
	return nil
}

func (s *State) peerOf(sess int64) *peer {
	for i := range s.peers {
		if s.peers[i].sess == sess {
			return &s.peers[i]
		}
	}
	return nil
}

// beginLeadership starts with every follower unknown.
func (s *State) beginLeadership() {
	s.epochStart = s.log.end
	s.proposal = proposal{}
	s.peers = s.peers[:0]
	s.takeMembers()
	for i := range s.peers {
		s.peers[i].caughtUp = s.now
	}
	s.watchLag()
	if !s.log.flushing.OS {
		s.sync()
	}
	s.advance()
}

// keepLeading goes on under a newer record of the same leader epoch.
func (s *State) keepLeading(newPartEpoch bool) {
	if newPartEpoch {
		s.resolve()
	}
	s.takeMembers()
	s.answerShrunk()
	s.watchLag()
	s.answerStarts()
	s.growISR()
}

// takeMembers makes the peers those of the record.
func (s *State) takeMembers() {
	s.peers = slices.DeleteFunc(s.peers, func(p peer) bool {
		gone := !slices.Contains(s.rec.replicas, p.broker) && !slices.Contains(s.rec.isr, p.broker)
		if gone && p.sess != 0 {
			s.emit(CloseSess{Sess: p.sess, Reason: ReasonUnknownReplica})
		}
		return gone
	})
	for _, set := range [...][]int32{s.rec.replicas, s.rec.isr} {
		for _, b := range set {
			if b != s.self.Broker && s.peer(b) == nil {
				s.peers = append(s.peers, peer{broker: b, caughtUp: s.now})
			}
		}
	}
	for i := range s.peers {
		p := &s.peers[i]
		isr := slices.Contains(s.rec.isr, p.broker)
		if isr && !p.isr {
			p.caughtUp, p.retryAt, p.backoff = max(p.caughtUp, s.now), 0, 0
		}
		p.isr = isr
	}
}

// endLeadership answers everybody and ends every session: their positions mean
// nothing to the next leader.
func (s *State) endLeadership(reason Reason) {
	s.answerAll(reason, reason)
	for i := range s.peers {
		if sess := s.peers[i].sess; sess != 0 {
			s.emit(CloseSess{Sess: sess, Reason: reason})
		}
	}
	s.peers = s.peers[:0]
	s.proposal = proposal{}
	if s.role == leading {
		s.role = idle
	}
}
