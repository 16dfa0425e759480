package replication

import (
	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// session is one partition's session on a stream, seen from the leader. Its
// exported methods are called by the replica with the replica's lock held.
type session struct {
	st   *stream
	wire int64 // the follower's number
	r    *replica.Replica
	id   int64 // the replica's number

	window int64

	// Guarded by st.mu.
	queued, dead bool
	answer       *brokerv1.ReplicateEpochEnd // to be sent
	producers    int64                       // offset below which they are to be sent; 0: they are not
	err          *rpc.Error                  // the session ends with it
	sending      bool
	next         int64 // offset to send next
	tombstones   int64 // up to where they had been removed when the last hello was answered
	sent         []run // on the way, the oldest first
	onTheWay     int64
	hw, start    int64
	toldHW       int64
	toldStart    int64
	marked       bool // in st.marked
}

// run is a run of batches that the follower has not stored yet.
type run struct {
	next  int64 // offset after it
	bytes int64
}

var _ replica.Follower = (*session)(nil)

// EpochEnd answers the follower's hello.
func (s *session) EpochEnd(e replica.EpochEnd) {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.answer = &brokerv1.ReplicateEpochEnd{
		Session: s.wire, LeaderEpoch: e.LeaderEpoch, LastEpoch: e.LastEpoch, EndOffset: e.End, Agreed: e.Agreed,
		LogStartOffset: e.LogStart, HighWatermark: e.HW, TombstonesRemovedBelow: e.TombstonesBelow,
	}
	s.hw, s.start, s.tombstones = e.HW, e.LogStart, e.TombstonesBelow
	s.toldHW, s.toldStart = e.HW, e.LogStart
	s.st.enqueue(s)
}

// Producers has sent what the log remembers of producers below an offset.
func (s *session) Producers(offset int64) {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.producers = offset
	s.st.enqueue(s)
}

// Send has everything from an offset on sent as the log grows.
func (s *session) Send(from int64) {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.sending, s.next = true, from
	s.st.enqueue(s)
}

// Grown says that there is more to send.
func (s *session) Grown() {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	if s.sending && s.onTheWay < s.window {
		s.st.enqueue(s)
	}
}

// Watermark says where the high watermark and the log start are.
func (s *session) Watermark(hw, start int64) {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.hw, s.start = hw, start
	s.st.mark(s)
}

// Close ends the session from the leader's side.
func (s *session) Close(err *rpc.Error) {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.err, s.sending = err, false
	s.st.enqueue(s)
}

// stored frees the window of what the follower has stored. The caller holds st.mu.
func (s *session) stored(end int64) {
	freed := int64(0)
	for len(s.sent) > 0 && s.sent[0].next <= end {
		freed += s.sent[0].bytes
		s.sent = s.sent[1:]
	}
	if freed == 0 {
		return
	}
	if len(s.sent) == 0 {
		s.sent = nil // an idle session keeps nothing
	}
	full := s.onTheWay >= s.window
	s.onTheWay -= freed
	s.st.release(freed)
	if full && s.sending && s.onTheWay < s.window {
		s.st.enqueue(s)
	}
}
