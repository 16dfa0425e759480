package replication

import (
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// send looks at the sessions in turn and sends what they have, until the follower
// ends the stream or it breaks.
func (st *stream) send(read <-chan error) error {
	beat := time.NewTicker(HeartbeatInterval)
	defer beat.Stop()
	marks := time.NewTimer(time.Hour)
	defer marks.Stop()
	draining := st.s.cfg.Draining
	var drained time.Time // when the stream ends at the latest; zero: it goes on
	spoke := true
	for {
		select {
		case err := <-read:
			return endOfStream(err)
		case <-st.superseded:
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STREAM_SUPERSEDED, "broker %d has opened a newer replicate stream: go on with that one", st.follower.Broker)
		case <-draining:
			draining, drained = nil, time.Now().Add(drainGrace)
			beat.Reset(drainGrace / 20)
		case <-st.gs.Context().Done():
			return st.gs.Context().Err()
		default:
		}
		// What was produced before the drain waits for its followers.
		if !drained.IsZero() && (!st.m.Busy() || time.Now().After(drained)) {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "broker %d is stopping: follow the next leader", st.s.cfg.Broker.GetId())
		}
		sess, refused, due := st.next()
		switch {
		case refused != nil:
			spoke = true
			if err := st.sendError(refused.wire, refused.err); err != nil {
				return err
			}
			continue
		case sess != nil:
			spoke = true
			if err := st.serve(sess); err != nil {
				return err
			}
			continue
		case !due.IsZero():
			wait := time.Until(due)
			if wait <= 0 {
				spoke = true
				if err := st.sendMarks(); err != nil {
					return err
				}
				continue
			}
			marks.Reset(wait)
		}
		select {
		case <-st.news:
		case <-marks.C:
		case <-beat.C:
			if err := st.s.checkLife(st.follower); err != nil {
				return err
			}
			if !spoke {
				if err := st.sendWatermarks(nil); err != nil {
					return err
				}
			}
			spoke = false
		case err := <-read:
			return endOfStream(err)
		case <-st.superseded:
		case <-draining:
			draining, drained = nil, time.Now().Add(drainGrace)
			beat.Reset(drainGrace / 20)
		case <-st.gs.Context().Done():
		}
	}
}

// next takes what is to be looked at: a refusal, or the session whose turn it is,
// or the time at which watermarks go.
func (st *stream) next() (*session, *refusal, time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.refusals) > 0 {
		r := st.refusals[0]
		st.refusals = st.refusals[1:]
		return nil, &r, time.Time{}
	}
	for len(st.queue) > 0 {
		sess := st.queue[0]
		st.queue[0] = nil
		st.queue = st.queue[1:]
		sess.queued = false
		if !sess.dead {
			return sess, nil, time.Time{}
		}
	}
	st.queue = nil // lets the backing array go
	return nil, nil, st.marksDue
}

// serve sends what one session has: its end, an answer to a hello, or a run of
// batches. Errors are the stream's.
func (st *stream) serve(sess *session) error {
	st.mu.Lock()
	answer, producers, rerr := sess.answer, sess.producers, sess.err
	sess.answer, sess.producers = nil, 0
	if rerr != nil {
		st.remove(sess)
	}
	st.mu.Unlock()
	if rerr != nil {
		// A hello may have crossed the end.
		sess.r.FollowerGone(sess.id)
		return st.sendError(sess.wire, rerr)
	}
	if answer != nil {
		err := st.gs.Send(&brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_EpochEnd{EpochEnd: answer}})
		if err != nil {
			return err
		}
	}
	if producers > 0 {
		if err := st.sendProducers(sess, producers); err != nil {
			return err
		}
	}
	return st.sendRun(sess)
}

// sendProducers sends what the leader's log remembers of producers below an offset.
func (st *stream) sendProducers(sess *session, below int64) error {
	snapshot := sess.r.ProducersBelow(below)
	st.mu.Lock()
	dead := sess.dead || sess.err != nil || len(snapshot) == 0
	st.mu.Unlock()
	for !dead && len(snapshot) > 0 {
		n := min(len(snapshot), maxProducersPart)
		err := st.gs.Send(&brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_Producers{
			Producers: &brokerv1.ReplicateProducers{Session: sess.wire, Snapshot: snapshot[:n], Last: n == len(snapshot)},
		}})
		if err != nil {
			return err
		}
		snapshot = snapshot[n:]
	}
	return nil
}

// room is how many bytes of a session may go now; 0: none.
func (st *stream) room(sess *session) (from int64, bytes int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !sess.sending || sess.dead || sess.onTheWay >= sess.window {
		return 0, 0
	}
	if sess.answer != nil {
		return 0, 0 // a hello came in between: what is sent before its answer counts for nothing there
	}
	if st.onTheWay >= MaxStreamBytes {
		st.full = append(st.full, sess)
		return 0, 0
	}
	return sess.next, int(min(sess.window-sess.onTheWay, maxRun))
}

// sendRun sends the next run of batches of a session, if there is one and the window
// has room; a batch that is larger than the window goes alone.
func (st *stream) sendRun(sess *session) error {
	from, bytes := st.room(sess)
	if bytes == 0 {
		return nil
	}
	chunk, rerr := sess.r.ReadLog(from, bytes)
	if rerr != nil {
		return st.fail(sess, rerr)
	}
	size := int64(chunk.Payload.Len())
	st.mu.Lock()
	// The session is closed before the replica's log is changed in any other way than
	// by the leader's own appends; so what was read while it stood is the leader's.
	// Runs abut: where compaction left a gap, the run behind it begins before the gap.
	if sess.dead || !sess.sending || sess.next != from || size == 0 {
		st.mu.Unlock()
		chunk.Payload.Free()
		return nil
	}
	if from < chunk.TombstonesBelow && chunk.TombstonesBelow > sess.tombstones {
		// The follower may hold records whose deletion it would never hear of.
		st.mu.Unlock()
		chunk.Payload.Free()
		return st.fail(sess, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE,
			"tombstones below offset %d were removed from %s since this session began, which has come to %d: say hello again, and begin anew", chunk.TombstonesBelow, sess.r.Name(), from))
	}
	sess.next = chunk.Next
	sess.sent = append(sess.sent, run{next: chunk.Next, bytes: size})
	sess.onTheWay += size
	st.onTheWay += size
	sess.hw, sess.start = max(sess.hw, chunk.HW), max(sess.start, chunk.Start)
	sess.toldHW, sess.toldStart = sess.hw, sess.start
	msg := &brokerv1.ReplicateBatches{
		Session: sess.wire, LeaderEpoch: chunk.Epoch, BaseOffset: from, NextOffset: chunk.Next,
		HighWatermark: sess.hw, LogStartOffset: sess.start, Trace: chunk.Trace,
	}
	if chunk.Next < chunk.End {
		st.enqueue(sess)
	}
	st.mu.Unlock()
	st.s.cfg.Metrics.ReplicatedOut(int(size))
	return rpc.Send(st.gs, &brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_Batches{Batches: msg}}, chunk.Payload)
}

// fail ends a session whose log cannot be read on.
func (st *stream) fail(sess *session, rerr *rpc.Error) error {
	st.mu.Lock()
	dead := sess.dead
	st.remove(sess)
	st.mu.Unlock()
	if dead {
		return nil
	}
	sess.r.FollowerGone(sess.id)
	return st.sendError(sess.wire, rerr)
}

func (st *stream) sendError(wire int64, rerr *rpc.Error) error {
	return st.gs.Send(&brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_PartitionError{
		PartitionError: &brokerv1.ReplicateError{Session: wire, Error: rpc.ToProto(rerr)},
	}})
}

// mark notes that a session has a watermark to tell, which waits a little for
// records that carry it. The caller holds mu.
func (st *stream) mark(sess *session) {
	if sess.dead || sess.marked {
		return
	}
	sess.marked = true
	st.marked = append(st.marked, sess)
	if st.marksDue.IsZero() {
		st.marksDue = time.Now().Add(markDelay)
		signal(st.news)
	}
}

// sendMarks sends the watermarks that no records have carried meanwhile.
func (st *stream) sendMarks() error {
	st.mu.Lock()
	var list []*brokerv1.ReplicateWatermark
	for _, sess := range st.marked {
		sess.marked = false
		if sess.dead || sess.hw == sess.toldHW && sess.start == sess.toldStart {
			continue
		}
		sess.toldHW, sess.toldStart = sess.hw, sess.start
		list = append(list, &brokerv1.ReplicateWatermark{Session: sess.wire, HighWatermark: sess.hw, LogStartOffset: sess.start})
	}
	st.marked, st.marksDue = nil, time.Time{}
	st.mu.Unlock()
	for len(list) > 0 {
		n := min(len(list), maxMarks)
		if err := st.sendWatermarks(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// sendWatermarks sends one message of watermarks; without any it is a sign of life.
func (st *stream) sendWatermarks(list []*brokerv1.ReplicateWatermark) error {
	return st.gs.Send(&brokerv1.ReplicateResponse{Message: &brokerv1.ReplicateResponse_Watermarks{
		Watermarks: &brokerv1.ReplicateWatermarks{Watermarks: list},
	}})
}
