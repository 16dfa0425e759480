package consume

import (
	"context"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// Standing is how a group stands with one of its members.
type Standing struct {
	// Stable says that every member holds what it should and has said so.
	Stable bool
	// Partitions is how many the member holds.
	Partitions int
}

// standing is what came of asking for it.
type standing struct {
	Standing
	err     error
	changed time.Time // the last change of the assignment by the time of the question
}

// settled reports whether the group has no more partitions for this member, which holds
// some or none: it has said so since the last change here. A coordinator or leader that
// stands still looks the same as one that has nothing more to give, so time says nothing;
// it decides only where the group cannot be asked.
func (e *engine) settled(now time.Time, assigned int) bool {
	if e.cfg.Standing == nil {
		quiet := now.Sub(e.changedAt)
		return assigned > 0 && quiet > settleSome || quiet > settleNone
	}
	if e.settledAt.Equal(e.changedAt) {
		return true
	}
	if e.asking || now.Before(e.askAt) {
		return false
	}
	e.asking, e.askAt = true, now.Add(settleAsk)
	changed, member := e.changedAt, e.memberID
	go func() {
		ctx, cancel := context.WithTimeout(e.ctx, silenceLimit)
		defer cancel()
		s, err := e.cfg.Standing(ctx, member)
		e.standing <- standing{s, err, changed}
	}()
	return false
}

// stands takes in how the group stands.
func (e *engine) stands(s standing) {
	e.asking = false
	switch {
	case s.err != nil && !rpc.Retryable(s.err):
		e.cfg.Standing = nil
	case s.err == nil && s.Stable && s.Partitions <= e.given():
		e.settledAt = s.changed
	}
}

// given is how many partitions the group has given this member, as far as that was heard:
// one of them may have failed.
func (e *engine) given() int {
	n := 0
	for _, pl := range e.places {
		if pl.assigned || pl.failed {
			n++
		}
	}
	return n
}
