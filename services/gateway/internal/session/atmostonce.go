package session

import (
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// With at_most_once the position after a batch is committed before any record of it
// is handed out, so that nobody hands it out again. What the client is then not
// given, because it leaves or has to give the partition up, is committed back.

// commitFirst commits the position after a batch, and holds it until that is done.
func (c *Consume) commitFirst(b *batch) {
	if !c.settings.AtMostOnce {
		return
	}
	p := b.part
	next := b.event.NextOffset
	if p.end >= 0 {
		next = min(next, p.end)
	}
	epoch := b.event.LeaderEpoch
	co := &commit{gate: b, parts: []*part{p}, positions: []*gatewayv1.ConsumePosition{{
		Topic: p.topic, Partition: p.id.Partition, NextOffset: next, LeaderEpoch: &epoch,
	}}}
	b.gate = co
	c.commit(co)
}

// gateRetry is the pause before a commit that a batch waits for is made again.
const gateRetry = 100 * time.Millisecond

// opened takes in what became of a commit that a batch waits for, and reports whether
// the batch has to wait on: the commit is made again while its outcome is unknown or it
// may yet succeed.
func (c *Consume) opened(now time.Time, co *commit, p *part, err, refused error) (again bool) {
	b := co.gate
	if c.batch != b {
		return false // it was dropped meanwhile
	}
	if err == nil {
		err = refused
	}
	switch {
	case err == nil:
		b.gate = nil
	case rpc.Retryable(err) || rpc.FromError(err).Outcome == typev1.Outcome_OUTCOME_UNKNOWN:
		c.Waiting(err)
		b.retryAt = now.Add(gateRetry)
		return true
	default:
		p.committed = -1
		c.failPart(p, rpc.FromError(err))
	}
	return false
}

// retryGate makes the commit again that a batch waits for, once it is time.
func (c *Consume) retryGate(now time.Time) {
	if b := c.batch; b != nil && b.gate != nil && !b.retryAt.IsZero() && !now.Before(b.retryAt) {
		b.retryAt = time.Time{}
		c.commit(b.gate)
	}
}

// passOver commits a position that moved without records once everything there is has
// been passed by, so that the lag reaches 0.
func (c *Consume) passOver(p *part) {
	if !c.settings.AtMostOnce || p.pending > 0 || p.position <= p.committed || p.position < p.highMark {
		return
	}
	c.commitPosition(p)
}

// giveBack commits the place up to which records were handed out, if more than that
// has been committed.
func (c *Consume) giveBack(p *part) {
	if !c.settings.AtMostOnce || p.committed <= p.position || p.revokeDone {
		return
	}
	c.commitPosition(p)
}

func (c *Consume) commitPosition(p *part) {
	epoch := p.lastEpoch
	c.commit(&commit{parts: []*part{p}, positions: []*gatewayv1.ConsumePosition{{
		Topic: p.topic, Partition: p.id.Partition, NextOffset: p.position, LeaderEpoch: &epoch,
	}}})
}
