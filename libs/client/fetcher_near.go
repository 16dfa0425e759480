package client

import (
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Reading from the nearest replica: where the leader is in another rack, a replica
// in the reader's own that is in sync serves it, up to the high watermark that it
// knows. Whatever goes wrong there sends the reader to the leader for a while, and
// only the leader's word about a position counts: a follower may be behind. What was
// seen goes along with each asking, so that nothing seen is ever taken back.

const (
	// nearPause is how long a partition is read at its leader after the replica in the
	// rack has failed it.
	nearPause = 10 * time.Second
	// nearTries is how often a replica in the rack is asked that is behind what was
	// seen, before the leader is: it follows by a round trip or so.
	nearTries = 4
	// nearRefresh is how old metadata may get while replicas are read: one that has
	// fallen behind leaves the in-sync replicas.
	nearRefresh = 10 * time.Second
)

// fetchSource is where a partition is read.
type fetchSource struct {
	Leader      // its address, and the leader epoch that is known; -1: none
	follow bool // it may be a replica that follows
	near   bool // it was chosen for its rack
}

func (s fetchSource) key() streamKey { return streamKey{s.Addr, s.follow} }

// source is where a partition is to be read now: at the replica asked for, at one in
// the reader's rack, or at its leader. The lock is held.
func (f *Fetcher) source(tp TopicPartition, p *fetchPart, now time.Time) (fetchSource, bool) {
	leader, ok := f.client.leader(tp)
	epoch := int32(-1)
	if ok {
		epoch = leader.Epoch
	}
	if f.cfg.Replica != nil {
		n, known := f.client.source.Broker(*f.cfg.Replica)
		return fetchSource{Leader: Leader{ID: n.ID, Addr: n.Addr, Epoch: epoch}, follow: true}, known
	}
	if f.cfg.Rack != "" && !now.Before(p.nearAfter) {
		if n, found := f.nearest(tp, leader.ID, ok); found {
			return fetchSource{Leader: Leader{ID: n.ID, Addr: n.Addr, Epoch: epoch}, follow: true, near: true}, true
		}
	}
	return fetchSource{Leader: leader}, ok
}

// nearest finds an in-sync replica in the reader's rack; none where the leader itself
// is there. Several share the partitions of a topic.
func (f *Fetcher) nearest(tp TopicPartition, leader int32, led bool) (Node, bool) {
	if n, ok := f.client.source.Broker(leader); led && ok && n.Rack == f.cfg.Rack {
		return Node{}, false
	}
	part, ok := f.client.source.Partition(tp)
	if !ok {
		return Node{}, false
	}
	var all []Node
	for _, id := range part.ISR {
		if n, ok := f.client.source.Broker(id); ok && n.Rack == f.cfg.Rack && (!led || id != leader) {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return Node{}, false
	}
	return all[int(tp.Partition)%len(all)], true
}

// follow moves a partition whose source has moved, and ends the wait for a leader.
// The lock is held.
func (f *Fetcher) follow(tp TopicPartition, p *fetchPart, now time.Time) {
	src, ok := f.source(tp, p, now)
	if !ok {
		if p.at != nil && p.near { // not in sync any more, or gone, and nobody leads
			f.detach(p)
			p.notBefore = now
		}
		return
	}
	switch {
	case p.at == nil && src.Epoch > p.epoch:
		p.notBefore = now
	case p.at == nil:
	case p.near != src.near || p.near && p.at.key != src.key():
		f.detach(p)
		p.notBefore = now
	case !p.near && src.Epoch > p.epoch && src.Addr != p.at.key.addr:
		f.detach(p)
		p.notBefore = now
	}
}

// lookNear goes back to the rack in time, and has the metadata kept young while
// followers are read. It returns when to look again. The lock is held.
func (f *Fetcher) lookNear(now time.Time) time.Time {
	next := now.Add(nearRefresh)
	near := false
	for tp, p := range f.parts {
		switch {
		case p.at == nil:
		case p.near:
			near = true
		case p.nearAfter.IsZero():
		case now.Before(p.nearAfter):
			if p.nearAfter.Before(next) {
				next = p.nearAfter
			}
		default:
			p.nearAfter = time.Time{}
			f.follow(tp, p, now)
		}
	}
	if near && now.Sub(f.lookedNear) >= nearRefresh {
		f.lookedNear = now
		f.client.refreshSoon()
	}
	return next
}

// leaveNear deals with the failure of a replica in the rack: one that is behind what
// was seen is asked again for a moment, and then, and for every other reason, the
// leader is. The lock is held.
func (f *Fetcher) leaveNear(p *fetchPart, err *rpc.Error, now time.Time) {
	behind := rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_OFFSET_NOT_AVAILABLE, typev1.ErrorReason_ERROR_REASON_UNKNOWN_LEADER_EPOCH)
	if p.nearTries++; behind && p.nearTries < nearTries {
		p.notBefore = now.Add(f.client.cfg.backoff(p.nearTries))
		return
	}
	f.client.cfg.Logger.Debug("a replica in the rack could not be read; the leader is read for a while",
		"topic", p.start.Topic, "partition", p.start.Partition, "rack", f.cfg.Rack, "error", err)
	p.nearTries, p.nearAfter, p.notBefore = 0, now.Add(nearPause), now
	f.client.refreshSoon()
}

// visibleEnd is the greatest visible end of a partition that is known; false: none
// is.
func (f *Fetcher) visibleEnd(tp TopicPartition) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[tp]
	if p == nil || p.seenEnd < 0 {
		return 0, false
	}
	return p.seenEnd, true
}
