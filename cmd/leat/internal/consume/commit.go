package consume

import (
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// commit is one that has not been answered.
type commit struct {
	sequence  int64
	positions map[Partition]int64
}

// dirty are the partitions held whose printed records are not all committed.
func (e *engine) dirty() map[Partition]int64 {
	positions := map[Partition]int64{}
	for p, pl := range e.places {
		if (pl.assigned || pl.revoking) && pl.flushed > pl.committed && pl.flushed >= 0 {
			positions[p] = pl.flushed
		}
	}
	return positions
}

// uncommitted are the partitions of which records have been printed, or may have been
// by a write that did not come back, that are not committed.
func (e *engine) uncommitted() map[Partition]int64 {
	positions := e.dirty()
	if e.writing == nil {
		return positions
	}
	for p, pl := range e.places {
		if m, ok := e.writing.marks[pl]; ok {
			positions[p] = m.next
		}
	}
	return positions
}

// commitDue sends a commit if it is time for one and there is something new.
// One is under way at a time.
func (e *engine) commitDue(now time.Time) {
	if !e.commits() || e.commit != nil || e.leaving {
		return
	}
	hurry := e.finishing || e.revokingAny()
	if !hurry && now.Before(e.commitNext) {
		return
	}
	if hurry && now.Before(e.commitNext.Add(commitRetry-commitEvery)) && e.summary.CommitErr != nil {
		return // the last one failed a moment ago
	}
	positions := e.dirty()
	if len(positions) == 0 {
		return
	}
	e.commitSeq++
	e.commit = &commit{e.commitSeq, positions}
	request := &gatewayv1.ConsumeCommit{Sequence: e.commitSeq}
	for p, next := range positions {
		epoch := e.places[p].flushedEpoch
		request.Positions = append(request.Positions, &gatewayv1.ConsumePosition{
			Topic: p.Topic, Partition: p.Partition, NextOffset: next, LeaderEpoch: &epoch, TopicId: []byte(e.places[p].topicID),
		})
	}
	e.session.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Commit{Commit: request}})
	e.commitNext = now.Add(commitEvery)
}

func (e *engine) handleCommitResult(m *gatewayv1.ConsumeCommitResult) {
	c := e.commit
	if c == nil || m.GetSequence() != c.sequence {
		return
	}
	e.commit = nil
	e.summary.CommitErr = nil
	for _, refused := range m.GetRefused() {
		p := Partition{refused.GetTopic(), refused.GetPartition()}
		if _, asked := c.positions[p]; !asked {
			continue // it was of a topic that is gone
		}
		delete(c.positions, p)
		e.refused(p, rpc.FromProto(refused.GetError()))
	}
	if err := rpc.FromProto(m.GetError()); err != nil {
		for p := range c.positions {
			e.refused(p, err)
		}
		return
	}
	for p, next := range c.positions {
		if pl := e.places[p]; pl != nil {
			pl.committed = max(pl.committed, next)
		}
	}
}

// refused handles a position that did not take effect. One that can take effect
// later stays dirty; any other belongs to somebody else by now.
func (e *engine) refused(p Partition, err *rpc.Error) {
	if err == nil {
		return
	}
	e.summary.CommitErr = err
	if rpc.Retryable(err) {
		return
	}
	e.cfg.Note("the commit of %s was refused, so its last records may be printed again: %s (%s)", p, err.Message, rpc.ReasonName(err.Reason))
	if pl := e.places[p]; pl != nil {
		pl.assigned = false
		if pl.revoking {
			pl.revokeBy = time.Time{}
		}
	}
}

func (e *engine) handleRevoke(m *gatewayv1.ConsumeRevoke) {
	pl := e.place(m.GetTopic(), m.GetPartition())
	pl.assigned, pl.revoking = false, true
	within := m.GetWithin().AsDuration()
	if within <= 0 || within > finishLimit {
		within = finishLimit
	}
	pl.revokeBy = time.Now().Add(within / 2)
	e.changedAt = time.Now()
	e.flushedAt = time.Time{} // have step flush, commit and give it up at once
	e.session.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoking{
		Revoking: &gatewayv1.ConsumeRevoking{Partitions: []*gatewayv1.PartitionName{{Topic: m.GetTopic(), Partition: m.GetPartition()}}},
	}})
}

// giveUpRevoked hands back the partitions whose last records are committed, or
// cannot be in time.
func (e *engine) giveUpRevoked(now time.Time) {
	var names []*gatewayv1.PartitionName
	for p, pl := range e.places {
		if !pl.revoking {
			continue
		}
		printed := pl.flushed <= pl.committed && (pl.next <= pl.flushed || e.outputLost)
		if e.commits() && !printed && now.Before(pl.revokeBy) {
			continue
		}
		pl.revoking = false
		names = append(names, &gatewayv1.PartitionName{Topic: p.Topic, Partition: p.Partition})
	}
	if len(names) > 0 {
		e.session.send(&gatewayv1.ConsumeRequest{Message: &gatewayv1.ConsumeRequest_Revoked{Revoked: &gatewayv1.ConsumeRevoked{Partitions: names}}})
	}
}
