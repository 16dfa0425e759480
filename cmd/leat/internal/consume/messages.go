package consume

import (
	"errors"
	"fmt"
	"io"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// handle takes an event. An error ends the Run.
func (e *engine) handle(ev event) error {
	if ev.session != e.session {
		return nil // of a session that was given up
	}
	e.heardAt = time.Now()
	if ev.err != nil {
		if errors.Is(ev.err, io.EOF) {
			if e.leaving {
				return errDone
			}
			return e.broken(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNREACHABLE, "the gateway ended the stream"))
		}
		return e.broken(rpc.FromError(ev.err))
	}
	switch m := ev.response.GetMessage().(type) {
	case *gatewayv1.ConsumeResponse_Opened:
		e.handleOpened(m.Opened)
	case *gatewayv1.ConsumeResponse_Status:
		e.handleStatus(rpc.FromProto(m.Status.GetWaitingFor()))
	case *gatewayv1.ConsumeResponse_Assigned:
		e.handleAssigned(m.Assigned)
	case *gatewayv1.ConsumeResponse_Records:
		e.handleRecords(m.Records)
	case *gatewayv1.ConsumeResponse_Progress:
		pl := e.place(m.Progress.GetTopic(), m.Progress.GetPartition())
		if e.reads(pl) {
			pl.skipTo(m.Progress.GetNextOffset())
		}
	case *gatewayv1.ConsumeResponse_CommitResult:
		e.handleCommitResult(m.CommitResult)
	case *gatewayv1.ConsumeResponse_PartitionError:
		return e.handlePartitionError(m.PartitionError)
	case *gatewayv1.ConsumeResponse_Revoke:
		e.handleRevoke(m.Revoke)
	case *gatewayv1.ConsumeResponse_Drain:
		return e.broken(rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "the gateway is stopping"))
	case *gatewayv1.ConsumeResponse_Fenced:
		e.fenced = rpc.FromProto(m.Fenced.GetError())
	case *gatewayv1.ConsumeResponse_Closed:
		if e.leaving {
			return errDone
		}
		e.finish()
		e.endSession() // nothing more comes, and a commit needs another stream
	}
	return nil
}

func (e *engine) handleOpened(o *gatewayv1.ConsumeOpened) {
	e.opened, e.everOpened, e.fenced = true, true, nil
	e.memberID, e.attach = o.GetMemberId(), o.GetAttach()
	e.backoff.Reset()
	now := time.Now()
	if !e.lostSince.IsZero() && e.lostSince != e.started {
		e.cfg.Note("connected to the gateway again")
	}
	e.lostSince, e.changedAt = time.Time{}, now
	e.goesOn()
}

// handleStatus notes what the stream waits for; the user is told if it lasts.
func (e *engine) handleStatus(err *rpc.Error) {
	if err == nil {
		return
	}
	if e.waiting == nil {
		e.waitingFrom = time.Now()
	}
	e.waiting = err
}

// tellWaiting tells the user about waiting that has lasted, once.
func (e *engine) tellWaiting(now time.Time) {
	if e.waiting != nil && !e.waitingTold && now.Sub(e.waitingFrom) > statusPatient {
		e.waitingTold = true
		e.cfg.Note("waiting: %s (%s)", e.waiting.Message, rpc.ReasonName(e.waiting.Reason))
	}
}

// goesOn says that the stream waits no more.
func (e *engine) goesOn() { e.waiting, e.waitingTold = nil, false }

// handleAssigned begins with a partition, where the group says or, if this
// process has printed further already, behind that. The place is committed with
// the next commit, also if nothing is printed: the group is to go on there, even
// if whoever comes next would start elsewhere in a partition without an offset.
func (e *engine) handleAssigned(a *gatewayv1.ConsumeAssigned) {
	pl := e.place(a.GetTopic(), a.GetPartition())
	if id := string(a.GetTopicId()); id != pl.topicID {
		if pl.topicID != "" {
			pl = e.startOver(a)
		}
		pl.topicID = id
	}
	if p := (Partition{a.GetTopic(), a.GetPartition()}); e.cfg.Ends != nil && !knows(e.cfg.Ends, p) {
		e.cfg.Ends[p] = a.GetStartOffset() // it was made after the start
	}
	pl.assigned, pl.revoking, pl.failed = true, false, false
	if e.grouped() && a.GetStartOffset() >= 0 && a.GetStartOffset() < pl.committed {
		e.goBack(a, pl)
	}
	if pl.next < a.GetStartOffset() {
		pl.skipTo(a.GetStartOffset())
		pl.flushed, pl.flushedEpoch = pl.next, pl.epoch
	}
	e.changedAt = time.Now()
}

func knows(ends map[Partition]int64, p Partition) bool {
	_, ok := ends[p]
	return ok
}

// goBack begins again where the group has been reset to: below what this process has
// committed, where nothing else would have the partition start.
func (e *engine) goBack(a *gatewayv1.ConsumeAssigned, pl *place) {
	e.cfg.Note("the group was reset; partition %s/%d is read from offset %d again", a.GetTopic(), a.GetPartition(), a.GetStartOffset())
	if e.commit != nil {
		delete(e.commit.positions, Partition{a.GetTopic(), a.GetPartition()}) // its answer is about what was before
	}
	e.forgetMark(pl)
	pl.next, pl.flushed, pl.committed = a.GetStartOffset(), a.GetStartOffset(), a.GetStartOffset()
	pl.epoch, pl.flushedEpoch = -1, -1
}

// startOver forgets what was read of a topic that was deleted: the one that has
// its name now begins anew. Without following, it has no records that were there
// at the start.
func (e *engine) startOver(a *gatewayv1.ConsumeAssigned) *place {
	p := Partition{a.GetTopic(), a.GetPartition()}
	e.cfg.Note("topic %s was deleted and made again; partition %d is read from offset %d", p.Topic, p.Partition, a.GetStartOffset())
	delete(e.places, p)
	if rpc.IsReason(e.summary.PartitionErr, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC, typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED) {
		e.summary.PartitionErr = nil // it goes on after all
	}
	if e.commit != nil {
		delete(e.commit.positions, p) // its answer is about the old one
	}
	if e.cfg.Ends != nil {
		e.cfg.Ends[p] = a.GetStartOffset()
	}
	return e.place(p.Topic, p.Partition)
}

// reads reports whether records of the partition are to be printed.
func (e *engine) reads(pl *place) bool {
	return !e.finishing && !pl.failed && !pl.revoking && (pl.assigned || !e.grouped())
}

func (e *engine) handleRecords(m *gatewayv1.ConsumeRecords) {
	e.goesOn()
	pl := e.place(m.GetTopic(), m.GetPartition())
	if !e.reads(pl) {
		e.owed += m.GetCost()
		return
	}
	e.held += m.GetCost()
	end, bounded := e.cfg.Ends[Partition{m.GetTopic(), m.GetPartition()}]
	for _, r := range m.GetRecords() {
		if r.GetOffset() < pl.next {
			continue // printed before a stream broke
		}
		if bounded && r.GetOffset() >= end {
			pl.skipTo(end)
			return
		}
		if e.cfg.MaxMessages > 0 && e.summary.Records >= e.cfg.MaxMessages {
			e.finish()
			return
		}
		before := len(e.out)
		e.out = e.cfg.Format(e.out, m.GetTopic(), m.GetPartition(), r)
		e.summary.Records++
		e.summary.Bytes += int64(len(e.out) - before)
		pl.next, pl.epoch, pl.delivered = r.GetOffset()+1, r.GetLeaderEpoch(), true
	}
	pl.next = max(pl.next, m.GetNextOffset())
	if e.cfg.MaxMessages > 0 && e.summary.Records >= e.cfg.MaxMessages {
		e.finish()
	}
	if len(e.out) >= flushBytes && e.writing == nil {
		e.flushedAt = time.Time{} // step flushes before it goes on
	}
}

func (e *engine) handlePartitionError(m *gatewayv1.ConsumePartitionError) error {
	err := rpc.FromProto(m.GetError())
	if err == nil {
		return nil
	}
	pl := e.place(m.GetTopic(), m.GetPartition())
	switch err.Action {
	case typev1.Action_ACTION_RETRY, typev1.Action_ACTION_REOPEN:
		e.handleStatus(err) // the gateway goes on trying
	case typev1.Action_ACTION_DROP_PARTITION:
		// A partition that the group has given to another goes on there; that of a
		// topic that is gone goes nowhere.
		pl.assigned = false
		if !e.grouped() || !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_STALE_COMMIT) {
			e.partitionFails(m, pl, err)
		}
	default:
		if !pl.delivered {
			return err // most likely the position asked for is wrong
		}
		e.partitionFails(m, pl, err)
	}
	return nil
}

// partitionFails ends the reading of one partition; the others go on.
func (e *engine) partitionFails(m *gatewayv1.ConsumePartitionError, pl *place, err *rpc.Error) {
	pl.failed = true
	if e.summary.PartitionErr == nil {
		e.summary.PartitionErr = err
	}
	e.cfg.Note("partition %s/%d stops: %s (%s)", m.GetTopic(), m.GetPartition(), err.Message, rpc.ReasonName(err.Reason))
}

// broken handles the end of a stream: the next one resumes, or joins anew.
func (e *engine) broken(err *rpc.Error) error {
	e.endSession()
	if e.leaving || e.finishing && !e.everOpened {
		return errDone
	}
	if e.fenced != nil {
		err, e.fenced = e.fenced, nil
	}
	if !e.everOpened && err.Reason == typev1.ErrorReason_ERROR_REASON_UNREACHABLE {
		return err // nothing was reached yet: better say so at once
	}
	switch {
	case err.Action == typev1.Action_ACTION_REJOIN:
		if lost := len(e.dirty()); e.finishing && e.commits() && lost > 0 {
			e.summary.CommitErr = err
			return errDone
		}
		e.memberID, e.attach = "", 0
		for _, pl := range e.places {
			pl.assigned, pl.revoking = false, false
		}
		e.cfg.Note("joining the group anew: %s", err.Message)
	case rpc.Retryable(err):
		if e.lostSince.IsZero() {
			e.cfg.Note("lost the gateway (%s); trying again", rpc.ReasonName(err.Reason))
		}
	default:
		if e.finishing && e.commits() {
			e.summary.CommitErr = err
			return errDone
		}
		return err
	}
	if e.lostSince.IsZero() {
		e.lostSince = time.Now()
	}
	e.reconnectAt = time.Now().Add(e.backoff.Next())
	return nil
}

func (e *engine) endSession() {
	if e.session == nil {
		return
	}
	e.session.end()
	e.session, e.opened, e.commit, e.owed = nil, false, nil, 0
}

// String names the partition as people write it.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }
