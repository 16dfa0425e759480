package session

import (
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
)

// commit is one that has no answer yet.
type commit struct {
	sequence  int64 // the client's; 0: auto-commit
	positions []*gatewayv1.ConsumePosition
	parts     []*part // in the order of positions
	refused   []*gatewayv1.ConsumePartitionError
	gate      *batch // what is held until it is committed; nil: nothing
}

// release notes how far records have been worked on. A partition that is not held
// any more may be named: it moved while the message was on its way.
func (c *Consume) release(m *gatewayv1.ConsumeRelease) {
	for _, pos := range m.GetPositions() {
		if pos.GetNextOffset() < 0 || len(pos.GetMetadata()) > maxCommitMetadata {
			c.partitionError(pos.GetTopic(), pos.GetPartition(), badPosition(pos))
			continue
		}
		if p := c.byName[name{pos.GetTopic(), pos.GetPartition()}]; p != nil && !p.revokeDone && p.isTopicOf(pos) {
			p.released = pos
			p.finished(pos.GetNextOffset())
		}
	}
}

func badPosition(pos *gatewayv1.ConsumePosition) *rpc.Error {
	if len(pos.GetMetadata()) > maxCommitMetadata {
		return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_METADATA_TOO_LARGE,
			"the metadata of partition %d of topic %q has %d bytes; keep it within %d", pos.GetPartition(), pos.GetTopic(), len(pos.GetMetadata()), maxCommitMetadata)
	}
	return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
		"next offset %d of partition %d of topic %q is negative; use the offset after the last record worked on", pos.GetNextOffset(), pos.GetPartition(), pos.GetTopic())
}

// receiveCommit commits what the client says, or everything released.
func (c *Consume) receiveCommit(m *gatewayv1.ConsumeCommit) {
	fail := func(reason typev1.ErrorReason, format string, args ...any) {
		c.commitResult(&gatewayv1.ConsumeCommitResult{Sequence: m.GetSequence(), Error: rpc.ToProto(rpc.Errorf(reason, format, args...))})
	}
	switch {
	case c.settings.Group == "":
		fail(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the stream reads without a group, so there is nothing to commit to; open with a group")
		return
	case c.settings.AtMostOnce:
		fail(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the stream commits before it hands out (at_most_once), and a commit of an earlier place would have records come twice; open without it to commit yourself")
		return
	case m.GetSequence() <= c.lastSeq:
		fail(typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "commit %d comes after commit %d; number them rising, from 1", m.GetSequence(), c.lastSeq)
		return
	}
	c.lastSeq = m.GetSequence()
	positions := m.GetPositions()
	if len(positions) == 0 {
		for _, p := range c.sortedParts() {
			if p.released != nil && !p.revokeDone {
				positions = append(positions, p.released)
			}
		}
	}
	co := &commit{sequence: m.GetSequence()}
	for _, pos := range positions {
		p := c.byName[name{pos.GetTopic(), pos.GetPartition()}]
		var err *rpc.Error
		switch {
		case p != nil && !p.isTopicOf(pos):
			err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED,
				"topic %q was deleted, and partition %d is one of a topic that was made since; drop what was read before", pos.GetTopic(), pos.GetPartition()).
				WithOutcome(typev1.Outcome_OUTCOME_NOT_DONE).WithAction(typev1.Action_ACTION_DROP_PARTITION)
		case p == nil || p.revokeDone:
			err = rpc.Errorf(typev1.ErrorReason_ERROR_REASON_STALE_COMMIT,
				"the stream does not hold partition %d of topic %q; drop it, its new owner reads from the last commit", pos.GetPartition(), pos.GetTopic())
		case pos.GetNextOffset() < 0 || len(pos.GetMetadata()) > maxCommitMetadata:
			err = badPosition(pos)
		default:
			co.positions = append(co.positions, pos)
			co.parts = append(co.parts, p)
			continue
		}
		co.refused = append(co.refused, &gatewayv1.ConsumePartitionError{Topic: pos.GetTopic(), Partition: pos.GetPartition(), Error: rpc.ToProto(err)})
	}
	c.commit(co)
}

// autoCommit commits what was released since it was last committed: of one
// partition, or of all for nil. Without auto-commit it does nothing.
func (c *Consume) autoCommit(only *part) {
	if c.settings.AutoCommitInterval <= 0 || c.settings.Group == "" {
		return
	}
	if only == nil && c.state == ConsumeActive && c.autoPending() {
		return // the coordinator is slower than the interval; the next one takes it all
	}
	co := &commit{}
	for _, p := range c.sortedParts() {
		if only != nil && p != only || only == nil && p.revokeDone || p.released == nil || p.released.GetNextOffset() == p.committed {
			continue
		}
		co.positions = append(co.positions, p.released)
		co.parts = append(co.parts, p)
	}
	if len(co.positions) > 0 {
		c.commit(co)
	}
}

// commitStarts commits where partitions start that had no committed offset: "latest"
// would mean another place after a restart, and what came between would be lost.
func (c *Consume) commitStarts() {
	starts := c.starts
	c.starts = nil
	co := &commit{}
	for _, p := range starts {
		if c.parts[p.id] != p || p.revokeDone || c.state == ConsumeEnded {
			continue
		}
		co.positions = append(co.positions, &gatewayv1.ConsumePosition{Topic: p.topic, Partition: p.id.Partition, NextOffset: p.position})
		co.parts = append(co.parts, p)
	}
	if len(co.positions) > 0 {
		c.commit(co)
	}
}

// autoPending reports whether an auto-commit has no answer yet.
func (c *Consume) autoPending() bool {
	for _, co := range c.commits {
		if co.sequence == 0 {
			return true
		}
	}
	return false
}

func (c *Consume) commit(co *commit) {
	if len(co.positions) == 0 {
		c.commitResult(&gatewayv1.ConsumeCommitResult{Sequence: co.sequence, Refused: co.refused})
		return
	}
	c.lastOp++
	c.commits[c.lastOp] = co
	e := ConsumeCommit{Op: c.lastOp, Offsets: make([]client.CommitOffset, len(co.positions))}
	for i, pos := range co.positions {
		p := co.parts[i]
		p.pending++
		p.committed = pos.GetNextOffset()
		epoch := int32(-1)
		if pos.LeaderEpoch != nil {
			epoch = pos.GetLeaderEpoch()
		}
		e.Offsets[i] = client.CommitOffset{
			TopicPartition: p.id, NextOffset: pos.GetNextOffset(), LeaderEpoch: epoch, Metadata: pos.GetMetadata(), AssignmentEpoch: p.epoch,
		}
	}
	c.do(e)
}

// Committed answers a ConsumeCommit.
func (c *Consume) Committed(now time.Time, op int64, r client.CommitResult, err error) {
	co, ok := c.commits[op]
	if !ok {
		return
	}
	delete(c.commits, op)
	m := &gatewayv1.ConsumeCommitResult{Sequence: co.sequence, Refused: co.refused, Error: rpc.ToProto(err)}
	for i, p := range co.parts {
		p.pending--
		refused := r.Refused[p.id]
		if co.gate != nil && c.opened(now, co, p, err, refused) {
			continue
		}
		switch {
		case err != nil:
		case refused != nil:
			m.Refused = append(m.Refused, &gatewayv1.ConsumePartitionError{Topic: p.topic, Partition: p.id.Partition, Error: rpc.ToProto(refused)})
		default:
			m.Committed = append(m.Committed, co.positions[i])
			p.acked = co.positions[i].GetNextOffset()
			if co.sequence > 0 && p.processed < p.acked && p.isTopicOf(co.positions[i]) {
				p.finished(p.acked)
			}
			continue
		}
		// The next auto-commit tries again.
		if p.committed == co.positions[i].GetNextOffset() {
			p.committed = -1
		}
	}
	if co.gate == nil && (co.sequence > 0 || err != nil || len(m.Refused) > 0) {
		c.commitResult(m)
	}
	c.reconcile(now)
	c.settle()
}

func (c *Consume) commitResult(m *gatewayv1.ConsumeCommitResult) {
	if c.state == ConsumeEnded {
		return
	}
	c.send(&gatewayv1.ConsumeResponse{Message: &gatewayv1.ConsumeResponse_CommitResult{CommitResult: m}})
}
