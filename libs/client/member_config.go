package client

import (
	"errors"
	"fmt"
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
	// MaxProcessing has the member expelled if nothing of a partition is released for
	// this long although a record waits for it, as Progress tells; 0: never.
	MaxProcessing time.Duration
	// ResetPolicy says where a partition without committed offset starts: the
	// coordinator finds that place and commits it before it assigns the partition.
	// ResetDuration goes with BY_DURATION, and ResetTimestamp with TIMESTAMP.
	ResetPolicy    coordinatorv1.OffsetResetPolicy
	ResetDuration  time.Duration
	ResetTimestamp time.Time
	// LeaveStarts has the coordinator commit no start: a partition without a committed
	// offset comes with StartOffset -1.
	LeaveStarts bool
	// LastSign tells when the application last gave a sign of life. The session counts
	// from then, whatever is sent for the application meanwhile, and no ping is sent
	// until there is a newer sign than the last ping told of: so an application that
	// stands still loses its partitions one session timeout after its last sign, and
	// deliveries to it stop then. Nil: it lives as long as the Member does. It must not
	// block, nor call the Member.
	LastSign func() time.Time
	// Progress tells with each ping how far the member has come in the partitions that
	// it holds; nil: it is not told. It must not block.
	Progress func() []MemberProgress

	// tellRevoking says at once, without the application, that handing out has stopped
	// when an assignment takes partitions away. Whoever sets it looks for assignments
	// before handing anything out.
	tellRevoking bool
}

// MemberProgress is how far a member has come in one partition.
type MemberProgress struct {
	TopicPartition
	// DeliveredNext is the offset after the last record handed out, and ProcessedNext
	// the one below which everything was released; -1: nothing was.
	DeliveredNext, ProcessedNext int64
	// OldestUnprocessed is for how long the oldest record that was handed out and not
	// released has waited; 0: there is none.
	OldestUnprocessed time.Duration
	// Waiting is what the partition waits for, and Detail says so for people.
	Waiting coordinatorv1.WaitingFor
	Detail  string // cut to 255 bytes
}

// Validate joins everything that is wrong with the configuration.
func (c MemberConfig) Validate() error {
	var errs []error
	if c.Group == "" || len(c.Group) > 255 {
		errs = append(errs, fmt.Errorf("member: the group name has %d bytes; use 1 to 255", len(c.Group)))
	}
	if len(c.Topics) == 0 && c.TopicPattern == "" {
		errs = append(errs, errors.New("member: nothing is subscribed to; name topics or give a pattern"))
	}
	if c.SessionTimeout < 0 || c.RebalanceTimeout < 0 {
		errs = append(errs, errors.New("member: timeouts must not be negative"))
	}
	if c.MaxProcessing < 0 || c.ResetDuration < 0 {
		errs = append(errs, errors.New("member: MaxProcessing and ResetDuration must not be negative"))
	}
	if c.Attach < 0 {
		errs = append(errs, fmt.Errorf("member: the attach number is %d; it must not be negative", c.Attach))
	}
	return errors.Join(errs...)
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
	// StartOffset is the committed offset; -1: none, which comes only under the reset
	// policy none and with LeaveStarts.
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
