package replication

import (
	"sync"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/replica"
)

// stream is one follower's stream.
type stream struct {
	s        *Server
	m        *replica.Manager
	gs       brokerv1.ReplicationService_ReplicateServer
	follower partition.Replica

	// mu is taken after a replica's lock by the sessions' methods; so no replica is
	// called while it is held.
	mu       sync.Mutex
	sessions map[int64]*session // by the follower's numbers
	queue    []*session         // to be looked at, each at most once; served in turn
	full     []*session         // could send, and the stream has too much on the way
	onTheWay int64              // bytes that the follower has not stored yet
	refusals []refusal          // of hellos that found no replica
	marksDue time.Time          // when watermarks go at the latest; zero: none wait
	marked   []*session         // have a watermark to tell and nothing else
	closed   bool

	news       chan struct{} // there is something to look at
	superseded chan struct{} // closed when the follower has opened another stream
}

type refusal struct {
	wire int64
	err  *rpc.Error
}

func newStream(s *Server, m *replica.Manager, gs brokerv1.ReplicationService_ReplicateServer, follower partition.Replica) *stream {
	return &stream{
		s: s, m: m, gs: gs, follower: follower, sessions: map[int64]*session{},
		news: make(chan struct{}, 1), superseded: make(chan struct{}),
	}
}

// read takes what the follower says until it ends the stream.
func (st *stream) read() error {
	for {
		req, err := st.gs.Recv()
		if err != nil {
			return err
		}
		switch msg := req.GetMessage().(type) {
		case *brokerv1.ReplicateRequest_Hello:
			if err := st.s.checkLife(st.follower); err != nil {
				return err
			}
			for _, h := range msg.Hello.GetPartitions() {
				if err := st.hello(h); err != nil {
					return err
				}
			}
		case *brokerv1.ReplicateRequest_Positions:
			for _, p := range msg.Positions.GetPositions() {
				st.position(p)
			}
		case *brokerv1.ReplicateRequest_Stop:
			for _, wire := range msg.Stop.GetSessions() {
				st.stop(wire)
			}
		default:
			return protocolError("only hellos, positions and stops may follow initial on a replicate stream")
		}
	}
}

// hello opens a session, or goes on agreeing in one.
func (st *stream) hello(h *brokerv1.HelloPartition) error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	sess := st.sessions[h.GetSession()]
	known := sess != nil
	if !known {
		if len(st.sessions) >= maxSessions {
			st.mu.Unlock()
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "more than %d sessions on one replicate stream: stop those that are not needed", maxSessions).With("limit", "sessions of a replicate stream")
		}
		r, err := st.m.Lookup(h.GetTopicId(), h.GetPartition())
		if err != nil {
			st.refusals = append(st.refusals, refusal{h.GetSession(), err})
			st.mu.Unlock()
			signal(st.news)
			return nil
		}
		window := h.GetWindowBytes()
		if window <= 0 {
			window = DefaultWindow
		}
		sess = &session{st: st, wire: h.GetSession(), r: r, id: st.m.NextSession(), window: min(window, maxWindow)}
		st.sessions[sess.wire] = sess
	}
	ended := sess.err != nil
	st.mu.Unlock()
	if !ended {
		sess.r.Hello(sess, sess.id, st.follower, h.GetLeaderEpoch(), h.GetLastEpoch(), h.GetEndOffset(), h.GetWantsProducers())
	}
	return nil
}

// position takes note of how far the follower has come.
func (st *stream) position(p *brokerv1.ReplicaPosition) {
	st.mu.Lock()
	sess := st.sessions[p.GetSession()]
	if sess != nil {
		sess.stored(p.GetEndOffset())
	}
	st.mu.Unlock()
	if sess == nil {
		return // it was closed from this side, and the news has not arrived there
	}
	sess.r.FollowerPosition(sess.id, replica.FollowerPosition{
		LeaderEpoch: p.GetLeaderEpoch(), PartEpoch: p.GetPartitionEpoch(), LastEpoch: p.GetLastEpoch(),
		End: p.GetEndOffset(), Durable: p.GetDurableEndOffset(), Start: p.GetLogStartOffset(),
	})
}

// stop ends a session that the follower does not want any more.
func (st *stream) stop(wire int64) {
	st.mu.Lock()
	sess := st.sessions[wire]
	if sess != nil {
		st.remove(sess)
	}
	st.mu.Unlock()
	if sess != nil {
		sess.r.FollowerGone(sess.id)
	}
}

// remove takes a session off the books. The caller holds mu.
func (st *stream) remove(sess *session) {
	sess.dead = true
	if st.sessions[sess.wire] == sess {
		delete(st.sessions, sess.wire)
	}
	st.release(sess.onTheWay)
	sess.onTheWay, sess.sent = 0, nil
}

// release gives bytes of the stream's bound back. The caller holds mu.
func (st *stream) release(bytes int64) {
	before := st.onTheWay
	st.onTheWay -= bytes
	if before >= MaxStreamBytes && st.onTheWay < MaxStreamBytes {
		for _, sess := range st.full {
			st.enqueue(sess)
		}
		st.full = nil
		signal(st.news)
	}
}

// enqueue has the sender look at a session. The caller holds mu.
func (st *stream) enqueue(sess *session) {
	if sess.dead || sess.queued {
		return
	}
	sess.queued = true
	st.queue = append(st.queue, sess)
	signal(st.news)
}

// close ends every session.
func (st *stream) close() {
	st.mu.Lock()
	st.closed = true
	all := make([]*session, 0, len(st.sessions))
	for _, sess := range st.sessions {
		all = append(all, sess)
		sess.dead = true
	}
	clear(st.sessions)
	st.queue, st.full, st.marked, st.refusals = nil, nil, nil, nil
	st.mu.Unlock()
	for _, sess := range all {
		sess.r.FollowerGone(sess.id)
	}
}
