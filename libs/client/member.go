package client

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// Member is a membership in a group. Its methods are safe for concurrent use, but
// Next is for one goroutine at a time. It resumes by itself after a broken stream
// or a moved coordinator, and pings by itself.
type Member struct {
	client *Client
	cfg    MemberConfig

	mu     sync.Mutex
	attach int64
	epoch  int64 // that the coordinator knows the member to be in
	owned  []OwnedPartition
	acked  int64 // member epoch of the newest Ack; 0: none
	ackDue bool
	begun  []OwnedPartition // revocations to be told
	// commits without a result, in the order of the calls.
	commits []*memberCommit
	lastSeq int64
	leaving bool
	final   *rpc.Error // set once the membership has ended

	session   time.Duration
	confirmed time.Time // when the last confirmed sign of life was given
	sign      time.Time // the application's newest; run's alone

	// What Next has to tell.
	attached   *Attached
	assignment *Assignment
	waiting    *rpc.Error
	fenced     *rpc.Error
	ready      chan struct{}

	wake   chan struct{} // has a value when there is something to send
	ended  chan struct{} // closed when the goroutine has ended
	cancel context.CancelFunc
}

// memberCommit is a commit that waits for its result.
type memberCommit struct {
	offsets []*coordinatorv1.OffsetCommit
	seq     int64 // under the present attach; 0: not sent
	ever    bool  // sent under any attach
	done    chan struct{}
	result  CommitResult
	err     error
}

// JoinGroup begins a membership and returns at once; Next tells how it goes. The
// error is about the configuration. The member must be ended with Leave or Detach.
func (c *Client) JoinGroup(cfg MemberConfig) (*Member, error) {
	if err := cfg.Validate(); err != nil {
		return nil, rpc.Errorf(reasonInvalidRequest, "%w", err)
	}
	if cfg.MemberID == "" {
		cfg.MemberID = rand.Text()
	}
	cfg.ClientID = or(cfg.ClientID, c.cfg.ClientID)
	m := &Member{
		client: c, cfg: cfg, attach: cfg.Attach, owned: slices.Clone(cfg.Owned), session: or(cfg.SessionTimeout, 15*time.Second),
		sign: time.Now(), ready: make(chan struct{}, 1), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(c.ctx)
	m.cancel = cancel
	c.spawn(func() {
		defer close(m.ended)
		m.run(ctx)
	})
	return m, nil
}

// ID is the member id.
func (m *Member) ID() string { return m.cfg.MemberID }

// Attach is the current attach number; 0: not attached yet.
func (m *Member) Attach() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attach
}

// Next returns the next event, waiting for it. The errors are those of ctx, and
// CANCELLED after the end of the membership.
func (m *Member) Next(ctx context.Context) (MemberEvent, error) {
	for {
		if e, ok := m.TryNext(); ok {
			return e, nil
		}
		select {
		case <-m.ready:
		case <-m.ended:
			if e, ok := m.TryNext(); ok {
				return e, nil
			}
			return MemberEvent{}, closedError("membership")
		case <-ctx.Done():
			return MemberEvent{}, contextError(ctx, "wait for news of group "+m.cfg.Group, nil).WithOutcome(outcomeNotDone)
		}
	}
}

// TryNext is Next without waiting; false: there is none.
func (m *Member) TryNext() (MemberEvent, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var e MemberEvent
	switch {
	case m.attached != nil:
		e.Attached, m.attached = m.attached, nil
	case m.waiting != nil:
		e.Waiting, m.waiting = m.waiting, nil
	case m.fenced != nil:
		e.Fenced, m.fenced, m.assignment = m.fenced, nil, nil
	case m.assignment != nil:
		e.Assignment, m.assignment = m.assignment, nil
	default:
		return e, false
	}
	if m.attached != nil || m.waiting != nil || m.assignment != nil || m.fenced != nil {
		poke(m.ready)
	}
	return e, true
}

// Ready returns a channel that has a value when TryNext may have an event.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Revoking says at once that a revocation has begun.
func (m *Member) Revoking(partitions ...OwnedPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun = append(m.begun, partitions...)
	poke(m.wake)
}

// Ack says that the member has taken in the assignment of the epoch, and holds
// exactly owned: what is missing has been given up for good. It may be called as
// often as what is held changes, and is repeated by itself after a resume.
func (m *Member) Ack(memberEpoch int64, owned []OwnedPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owned, m.acked, m.ackDue = slices.Clone(owned), max(m.acked, memberEpoch), true
	poke(m.wake)
}

// Commit commits positions of partitions that the member holds, waiting for the
// answer; through a resume it is sent again. STALE_COMMIT and the like come for
// each partition in the result. When ctx ends first the outcome is UNKNOWN.
func (m *Member) Commit(ctx context.Context, offsets []CommitOffset) (CommitResult, error) {
	commit := &memberCommit{offsets: commitsToProto(offsets), done: make(chan struct{})}
	m.mu.Lock()
	if m.final != nil {
		defer m.mu.Unlock()
		return CommitResult{}, m.final
	}
	m.commits = append(m.commits, commit)
	m.mu.Unlock()
	poke(m.wake)
	select {
	case <-commit.done:
		return commit.result, commit.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.commits, commit)
	if i < 0 {
		return commit.result, commit.err
	}
	m.commits = slices.Delete(m.commits, i, i+1)
	err := contextError(ctx, "wait for the result of a commit", nil).With("group", m.cfg.Group)
	if !commit.ever {
		err = err.WithOutcome(outcomeNotDone)
	} else {
		err = err.WithOutcome(outcomeUnknown)
	}
	return CommitResult{}, err
}

// DeliverUntil is when deliveries must stop: one session timeout after the sending
// of the last confirmed ping, or, with LastSign, after the sign that it told of; zero before the first attachment. It moves on as long
// as the coordinator confirms the membership.
func (m *Member) DeliverUntil() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.confirmed.IsZero() {
		return time.Time{}
	}
	return m.confirmed.Add(m.session)
}

// Leave leaves the group, so that the partitions move at once, and ends the
// member. When ctx ends first the session timeout does it. An ended membership has
// left already.
func (m *Member) Leave(ctx context.Context) error {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	poke(m.wake)
	var err error
	select {
	case <-m.ended:
	case <-ctx.Done():
		err = contextError(ctx, "leave group "+m.cfg.Group, nil)
	}
	m.Detach()
	return err
}

// Detach ends the member here without leaving: it may be resumed, with its id,
// attach number and owned partitions, until the session timeout.
func (m *Member) Detach() {
	m.cancel()
	<-m.ended
}

// tellWaiting says what is being retried. Equal news is not told twice in a row.
func (m *Member) tellWaiting(err *rpc.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = err
	poke(m.ready)
}

// finish ends the membership: nobody waits any more.
func (m *Member) finish(err *rpc.Error, tell bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.final = err
	if tell {
		m.fenced, m.waiting = err, nil
	}
	for _, c := range m.commits {
		c.err = err.WithOutcome(outcomeNotDone)
		if c.ever {
			c.err = err.WithOutcome(outcomeUnknown)
		}
		close(c.done)
	}
	m.commits = nil
	poke(m.ready)
}

func commitsToProto(offsets []CommitOffset) []*coordinatorv1.OffsetCommit {
	out := make([]*coordinatorv1.OffsetCommit, 0, len(offsets))
	for _, o := range offsets {
		out = append(out, &coordinatorv1.OffsetCommit{
			TopicId: o.TopicID.Bytes(), Partition: o.Partition, NextOffset: o.NextOffset, LeaderEpoch: o.LeaderEpoch,
			Metadata: o.Metadata, AssignmentEpoch: o.AssignmentEpoch,
		})
	}
	return out
}
