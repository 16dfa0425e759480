package client

import (
	"context"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
)

// MemberConfig configures a membership in a group. Zero values mean the defaults
// stated.
type MemberConfig struct {
	Group string
	// MemberID is a unique name, drawn once for each life of the member; empty: one
	// is drawn.
	MemberID string
	// Attach is the attach number of the membership that is resumed, and Owned what
	// the member still holds; 0: a new member.
	Attach int64
	Owned  []OwnedPartition
	// InstanceID makes the membership static; empty: dynamic.
	InstanceID string
	// Topics and TopicPattern (RE2) say what is subscribed to.
	Topics       []string
	TopicPattern string
	// Assignor is "uniform" or "range"; empty: uniform.
	Assignor string
	// SessionTimeout is the silence after which the member is expelled; 0: 15 s.
	SessionTimeout time.Duration
	// RebalanceTimeout is the time to give up a revoked partition; 0: 15 min.
	RebalanceTimeout time.Duration
	// ClientID and ClientHost are for people; empty: those of the Client.
	ClientID, ClientHost string
	// ResetPolicy says where a partition without committed offset starts.
	ResetPolicy coordinatorv1.OffsetResetPolicy
	// Alive is asked before each ping; false: no ping is sent, so that a dead
	// application loses its session. Nil: always alive. It must not block.
	Alive func() bool
}

// OwnedPartition is a partition that a member holds.
type OwnedPartition struct {
	TopicPartition
	// AssignmentEpoch is the group epoch in which the member got it.
	AssignmentEpoch int64
}

// AssignedPartition is a partition with its start.
type AssignedPartition struct {
	OwnedPartition
	Topic string
	// StartOffset is the committed offset; -1: none, the reset policy says.
	StartOffset int64
	// StartLeaderEpoch was committed with it; -1: unknown.
	StartLeaderEpoch int32
}

// Assignment is the whole set that a member should hold: what it holds beyond it
// is revoked. The member's duty: stop handing out what is revoked, commit, then Ack
// with what is left; what is new may be read once it has been acknowledged.
type Assignment struct {
	MemberEpoch int64
	GroupEpoch  int64
	Partitions  []AssignedPartition
	// Cause is for people.
	Cause string
	// RevocationTimeout is the time within which what is revoked must be given up; 0:
	// nothing is revoked.
	RevocationTimeout time.Duration
}

// MemberEvent is news of a membership: exactly one field is set.
type MemberEvent struct {
	// Attached says that the coordinator has the membership on record; again after
	// each resume.
	Attached *Attached
	// Assignment is the newest one; older ones that were not read are left out.
	Assignment *Assignment
	// Waiting is an error that is being retried, for people: *rpc.Error.
	Waiting error
	// Fenced ends the membership: *rpc.Error. Its action REJOIN means: drop everything
	// and join anew; STOP: another process has taken the place. It is the last event.
	Fenced error
}

// Attached tells under which numbers the membership is on record.
type Attached struct {
	MemberID       string
	Attach         int64
	MemberEpoch    int64
	SessionTimeout time.Duration
}

// CommitOffset is a position to commit.
type CommitOffset struct {
	TopicPartition
	NextOffset      int64  // of the next record to be read
	LeaderEpoch     int32  // of the record before it; -1: unknown
	Metadata        string // at most 4 KiB
	AssignmentEpoch int64  // in which the member got the partition
}

// CommitResult tells which partitions were refused while the others took effect.
type CommitResult struct {
	Refused map[TopicPartition]error // *rpc.Error; nil: none
}

// Member is a membership in a group. Its methods are safe for concurrent use, but
// Next is for one goroutine at a time. It resumes by itself after a broken stream
// or a moved coordinator, and pings by itself.
type Member struct{}

// JoinGroup begins a membership and returns at once; Next tells how it goes. The
// error is about the configuration. The member must be ended with Leave or Detach.
func (c *Client) JoinGroup(cfg MemberConfig) (*Member, error) { return nil, errStub }

// ID is the member id.
func (m *Member) ID() string { return "" }

// Attach is the current attach number; 0: not attached yet.
func (m *Member) Attach() int64 { return 0 }

// Next returns the next event, waiting for it. The errors are those of ctx, and
// CANCELLED after the end of the membership.
func (m *Member) Next(ctx context.Context) (MemberEvent, error) { return MemberEvent{}, errStub }

// Ready returns a channel that has a value when Next may have an event.
func (m *Member) Ready() <-chan struct{} { return nil }

// Revoking says at once that a revocation has begun.
func (m *Member) Revoking(partitions ...OwnedPartition) {}

// Ack says that the member has taken in the assignment of the epoch, and holds
// exactly owned: what is missing has been given up for good. It is repeated by
// itself after a resume. An epoch that is not the newest is ignored.
func (m *Member) Ack(memberEpoch int64, owned []OwnedPartition) {}

// Commit commits positions of partitions that the member holds, waiting for the
// answer; through a resume it is sent again. STALE_COMMIT and the like come for
// each partition in the result. When ctx ends first the outcome is UNKNOWN.
func (m *Member) Commit(ctx context.Context, offsets []CommitOffset) (CommitResult, error) {
	return CommitResult{}, errStub
}

// DeliverUntil is when deliveries must stop: one session timeout after the sending
// of the last confirmed ping; zero before the first attachment. It moves on as long
// as the coordinator confirms the membership.
func (m *Member) DeliverUntil() time.Time { return time.Time{} }

// Leave leaves the group, so that the partitions move at once, and ends the
// member. When ctx ends first the session timeout does it.
func (m *Member) Leave(ctx context.Context) error { return errStub }

// Detach ends the member here without leaving: it may be resumed, with its id,
// attach number and owned partitions, until the session timeout.
func (m *Member) Detach() {}
