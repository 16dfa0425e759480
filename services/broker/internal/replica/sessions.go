package replica

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/rpc"
)

// Follower is the leader's end of a session with a follower. Its methods are called
// with the replica's lock held: they do not block and do not call the replica.
type Follower interface {
	// EpochEnd answers the last Hello.
	EpochEnd(EpochEnd)
	// Producers has sent what ProducersBelow gives. The follower makes it durable and
	// says hello again.
	Producers(offset int64)
	// Send has everything from an offset on sent as the log grows. It comes once.
	Send(from int64)
	// Grown says that the log has grown.
	Grown()
	// Watermark says where the high watermark and the log start are; only the newest
	// counts.
	Watermark(hw, start int64)
	// Close ends the session. Nothing is called afterwards.
	Close(*rpc.Error)
}

// EpochEnd is a leader's answer to a hello.
type EpochEnd struct {
	LeaderEpoch     int32
	LastEpoch       int32 // greatest epoch of the leader's log that is not above the follower's, -1: none
	End             int64 // the leader's end for it
	Agreed          bool
	LogStart, HW    int64 // the leader's
	TombstonesBelow int64 // the leader has removed tombstones below it
}

// FollowerPosition is where a follower stands.
type FollowerPosition struct {
	LeaderEpoch int32
	PartEpoch   int64
	LastEpoch   int32
	End         int64
	Durable     int64
	Start       int64
}

// leaderSession is a session of a follower with this replica.
type leaderSession struct {
	f       Follower
	sending bool
	parked  *partition.Hello // names a newer leader epoch than is known here yet
	wants   bool             // the follower's log is empty and lacks what is known of producers
}

// NextSession gives a session number, above all earlier ones.
func (m *Manager) NextSession() int64 { return m.lastSession.Add(1) }

// Hello opens the session of a follower, or repeats itself in it. A hello of a leader
// epoch that this replica has not heard of waits for the record that brings it: the
// follower was merely told first.
// wantsProducers says that the follower's log is empty and should know first what is
// remembered of producers below it.
func (r *Replica) Hello(f Follower, sess int64, from partition.Replica, leaderEpoch, lastEpoch int32, end int64, wantsProducers bool) {
	hello := &partition.Hello{Sess: sess, From: from, LeaderEpoch: leaderEpoch, LastEpoch: lastEpoch, End: end, Now: r.m.now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		f.Close(r.readError(commitlog.ErrClosed))
		return
	}
	s := r.sessions[sess]
	if s == nil {
		s = &leaderSession{f: f}
		if r.sessions == nil {
			r.sessions = map[int64]*leaderSession{}
		}
		r.sessions[sess] = s
	}
	s.wants = wantsProducers
	if _, epoch := r.core.Leader(); leaderEpoch > epoch {
		s.parked = hello
		return
	}
	s.parked = nil
	r.hear(s, hello)
}

// hear answers a hello, with the producers if they are wanted first: until the follower
// has them its log must not count. The caller holds mu.
func (r *Replica) hear(s *leaderSession, hello *partition.Hello) {
	if _, epoch := r.core.Leader(); s.wants && hello.LeaderEpoch == epoch && r.core.Leads() {
		s.f.Producers(hello.End)
		return
	}
	r.step(hello)
}

// ProducersBelow is what the log remembers of producers by batches below an offset; nil
// while there is no log.
func (r *Replica) ProducersBelow(offset int64) []byte {
	if log := r.log(); log != nil {
		return log.ProducersBelow(offset)
	}
	return nil
}

// unpark tells the hellos that waited for a record. The caller holds mu.
func (r *Replica) unpark() {
	_, epoch := r.core.Leader()
	for _, s := range r.sessions {
		if h := s.parked; h != nil && h.LeaderEpoch <= epoch {
			s.parked = nil
			h.Now = r.m.now()
			r.hear(s, h)
		}
	}
}

// FollowerPosition takes note of where a follower stands.
func (r *Replica) FollowerPosition(sess int64, p FollowerPosition) {
	now := r.m.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions[sess] == nil {
		return
	}
	r.copies.reached(sess, p.End)
	r.step(&partition.Position{
		Sess: sess, LeaderEpoch: p.LeaderEpoch, PartEpoch: p.PartEpoch, LastEpoch: p.LastEpoch, End: p.End, Durable: p.Durable, Start: p.Start, Now: now,
	})
}

// FollowerGone ends a session of which the follower, or its stream, is gone. Nothing
// is called on it afterwards; an unknown one is ignored.
func (r *Replica) FollowerGone(sess int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[sess]
	if s == nil {
		return
	}
	delete(r.sessions, sess)
	r.copies.end(sess)
	if s.parked == nil {
		r.step(partition.Gone{Sess: sess, Now: r.m.now()})
	}
}

// closeSession ends a session from this side. The caller holds mu.
func (r *Replica) closeSession(sess int64, err *rpc.Error) {
	if s := r.sessions[sess]; s != nil {
		delete(r.sessions, sess)
		r.copies.end(sess)
		s.f.Close(err)
	}
}

// closeSessions ends all of them, also that with the leader. The caller holds mu.
func (r *Replica) closeSessions(err *rpc.Error) {
	for sess := range r.sessions {
		r.closeSession(sess, err)
	}
	r.closeUpstream()
}

// grown tells followers that there is more to send. The caller holds mu.
func (r *Replica) grown() {
	for _, s := range r.sessions {
		if s.sending {
			s.f.Grown()
		}
	}
}

// sessionError says why a session ends. The caller holds mu.
func (r *Replica) sessionError(reason partition.Reason) *rpc.Error {
	name := r.Name()
	leader, epoch := r.core.Leader()
	var e *rpc.Error
	switch reason {
	case partition.ReasonUnknownReplica:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "the follower is on record as no replica of %s, or as its leader: refresh the metadata", name).
			WithAction(typev1.Action_ACTION_RETRY)
	case partition.ReasonSuperseded:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED, "the follower has opened a newer session for %s", name)
	case partition.ReasonPositionInvalid:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the follower of %s told a position that cannot be in epoch %d: open a new session", name, epoch)
	case partition.ReasonNotLeader:
		e = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_LEADER, "broker %d does not lead %s: follow broker %d, which leads in epoch %d", r.m.cfg.Self.Broker, name, leader.Broker, epoch).
			WithLeader(leader.Broker, r.m.brokerAddress(leader.Broker), int64(epoch))
	default:
		e = r.describe(reason)
	}
	return e.With("topic", r.Topic, "partition", itoa(int64(r.Key.Partition)))
}

// LogRun is a run of batches as they lie in the leader's log.
type LogRun struct {
	Payload *rpc.Payload // whole batches, nil at the end; the caller's
	Next    int64        // where to read on
	End     int64        // of the log
	Epoch   int32        // leader epoch
	HW      int64
	Start   int64 // of the log
	// TombstonesBelow is up to where tombstones had been removed when it was read.
	TombstonesBelow int64
	Trace           *typev1.TraceContext
}

// ReadLog reads for a follower: whole batches up to the end of the log, committed or
// not; at most maxBytes, but the first one in any case. The caller sends them only
// if its session stands when ReadLog has returned.
func (r *Replica) ReadLog(from int64, maxBytes int) (LogRun, *rpc.Error) {
	log := r.log()
	if log == nil {
		return LogRun{}, r.readError(commitlog.ErrClosed)
	}
	// As far as the core knows of it: else a follower could answer for a batch before
	// the leader itself counts it.
	r.mu.Lock()
	run := LogRun{Next: from, End: r.core.End(), HW: r.core.HighWatermark(), Start: r.core.Start()}
	_, run.Epoch = r.core.Leader()
	r.mu.Unlock()
	if from >= run.End {
		return run, nil
	}
	buf, res, err := r.readBatches(log, from, run.End, maxBytes)
	if err != nil {
		return LogRun{}, r.copyFailed(log, err)
	}
	// After the reading: a cleaning notes this before any of it can be seen.
	run.Next, run.TombstonesBelow = res.NextOffset, log.TombstonesBelow()
	switch {
	case len(res.Data) > 0:
		run.Payload = buf.Payload(len(res.Data))
	case res.NextOffset > from:
		// The log ends in a gap, and its followers must come to its end all the same: while
		// too few are in sync nothing is appended behind it.
		buf.Free()
		var filler []byte
		filler, run.Next = log.Filler(from, res.NextOffset)
		run.Payload = rpc.NewPayload(filler)
	default:
		buf.Free()
		return run, nil
	}
	if r.m.cfg.Tracer != nil {
		r.mu.Lock()
		run.Trace = r.traceOf(from, run.Next)
		r.mu.Unlock()
	}
	return run, nil
}

// copyFailed makes an error of a read for a follower. Offsets that retention took
// away meanwhile are no fault: the follower begins anew.
func (r *Replica) copyFailed(log *commitlog.Log, err error) *rpc.Error {
	var outOfRange *commitlog.OffsetOutOfRangeError
	if errors.As(err, &outOfRange) {
		return r.readError(err)
	}
	return r.readBroken(log, err)
}

// traceOf is the context of the newest append within a range. The caller holds mu.
func (r *Replica) traceOf(from, to int64) *typev1.TraceContext {
	span, ok := r.ring.newest(from, to)
	if !ok {
		return nil
	}
	return rpc.InjectTrace(trace.ContextWithSpanContext(context.Background(), span))
}

// Followers is how many sessions of followers have agreed with this leader.
func (r *Replica) Followers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.sessions {
		if s.sending {
			n++
		}
	}
	return n
}
