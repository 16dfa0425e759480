package client

import (
	"errors"
	"fmt"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
)

// ResetPolicy says where a partition without a position starts, and where one goes
// on whose position lies outside the log.
type ResetPolicy int

// The reset policies.
const (
	ResetLatest   ResetPolicy = iota // at the visible end
	ResetEarliest                    // at the log start offset
	ResetNone                        // nowhere: an error of the partition
)

func (r ResetPolicy) proto() coordinatorv1.OffsetResetPolicy {
	switch r {
	case ResetEarliest:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST
	case ResetNone:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE
	default:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST
	}
}

// spec is the offset that the policy asks for; nil: none.
func (r ResetPolicy) spec() *typev1.OffsetSpec {
	switch r {
	case ResetEarliest:
		return Earliest()
	case ResetNone:
		return nil
	default:
		return Latest()
	}
}

// ConsumerConfig configures a Consumer. Zero values mean the defaults stated.
type ConsumerConfig struct {
	// Group to join. With a group and nothing subscribed to, and without a group,
	// partitions are taken by hand: see Consumer.Assign.
	Group string
	// Topics and TopicPattern (RE2) are subscribed to in the group.
	Topics       []string
	TopicPattern string
	// InstanceID makes the membership static; empty: dynamic.
	InstanceID string
	// Assignor is "uniform" or "range"; empty: uniform.
	Assignor string
	// SessionTimeout; 0: 15 s.
	SessionTimeout time.Duration
	// RebalanceTimeout; 0: 15 min.
	RebalanceTimeout time.Duration
	// Reset applies where there is no position, and on a genuine OFFSET_OUT_OF_RANGE.
	Reset ResetPolicy
	// AutoCommitInterval commits what earlier Polls handed out, every this often; 0:
	// 5 s; negative: never. It needs a group.
	AutoCommitInterval time.Duration
	// Fetch configures reading.
	Fetch FetcherConfig
	// OnAssigned and OnRevoked tell of changes, from within Poll or Close; nil: nobody
	// is told. What is revoked is committed, if auto-commit is on, after OnRevoked.
	OnAssigned, OnRevoked func([]AssignedPartition)
}

// Validate joins everything that is wrong with the configuration.
func (c ConsumerConfig) Validate() error {
	var errs []error
	if c.subscribes() && c.Group == "" {
		errs = append(errs, errors.New("consumer: topics are subscribed to without a group; name one, or take partitions by hand"))
	}
	if c.Fetch.Replica != nil && c.Group != "" {
		errs = append(errs, errors.New("consumer: Fetch.Replica reads one broker's replicas, which a group does not; leave one out"))
	}
	if c.Reset < ResetLatest || c.Reset > ResetNone {
		errs = append(errs, fmt.Errorf("consumer: reset policy %d is none of latest, earliest and none", c.Reset))
	}
	if c.subscribes() {
		errs = append(errs, c.member().Validate())
	}
	return errors.Join(append(errs, c.Fetch.Validate())...)
}

func (c ConsumerConfig) subscribes() bool { return len(c.Topics) > 0 || c.TopicPattern != "" }

func (c ConsumerConfig) member() MemberConfig {
	return MemberConfig{
		Group: c.Group, InstanceID: c.InstanceID, Topics: c.Topics, TopicPattern: c.TopicPattern, Assignor: c.Assignor,
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout, ResetPolicy: c.Reset.proto(),
	}
}

// ConsumerRecord is a record with its place.
type ConsumerRecord struct {
	Topic string
	TopicPartition
	Offset      int64
	LeaderEpoch int32
	Timestamp   time.Time // to the millisecond
	Key, Value  []byte    // nil is null
	Headers     []Header
	Trace       *typev1.TraceContext // of the broker's span; nil: not traced
}

// Position is a place in a partition.
type Position struct {
	TopicPartition
	NextOffset  int64
	LeaderEpoch int32 // of the record before it; -1: unknown. Mind that 0 is an epoch
}
