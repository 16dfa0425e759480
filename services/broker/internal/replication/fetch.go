package replication

import (
	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// fetch is one partition's session on a link, seen from the follower. Its exported
// methods are called by the replica with the replica's lock held.
type fetch struct {
	l     *link
	r     *replica.Replica
	sess  int64 // the replica's number
	wire  int64 // number on the link
	epoch int32 // leader epoch in which the replica follows

	// Guarded by l.mu.
	dead    bool
	queued  bool // in l.todo
	hello   *brokerv1.HelloPartition
	sent    bool  // the leader has heard of the session on the present stream
	askedAt int64 // in ticks, when the last hello was sent; while it is in l.asked
	told    bool  // pos is to be told
	pos     replica.FollowerPosition
}

var _ replica.Upstream = (*fetch)(nil)

// Hello tells the leader where the log ends.
func (f *fetch) Hello(lastEpoch int32, end int64, wantsProducers bool) {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.dead {
		return
	}
	f.told = false
	f.hello = &brokerv1.HelloPartition{
		Session: f.wire, TopicId: f.r.Key.Topic.Bytes(), Partition: f.r.Key.Partition, LeaderEpoch: f.epoch,
		LastEpoch: lastEpoch, EndOffset: end, WindowBytes: l.f.cfg.Window, WantsProducers: wantsProducers,
	}
	l.enqueue(f)
}

// Position tells the leader how far the log has come; only the newest counts.
func (f *fetch) Position(p replica.FollowerPosition) {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	if f.dead {
		return
	}
	f.pos, f.told = p, true
	f.l.enqueue(f)
}

// Close ends the session from the follower's side.
func (f *fetch) Close() {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.dead {
		return
	}
	l.remove(f)
	if f.sent {
		l.stops = append(l.stops, f.wire)
	}
	signal(l.news)
}

// remove takes a fetch off the books. The caller holds l.mu.
func (l *link) remove(f *fetch) {
	f.dead = true
	delete(l.fetches, f.wire)
	delete(l.asked, f.wire)
}

// enqueue has the sender look at a fetch. The caller holds l.mu.
func (l *link) enqueue(f *fetch) {
	if f.dead || f.queued {
		return
	}
	f.queued = true
	l.todo = append(l.todo, f)
	signal(l.news)
}
