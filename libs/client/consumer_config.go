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
	ResetLatest     ResetPolicy = iota // at the visible end
	ResetEarliest                      // at the log start offset
	ResetNone                          // nowhere: an error of the partition
	ResetByDuration                    // at the first record of the last ConsumerConfig.ResetDuration, or else at the visible end
)

// String is for people.
func (r ResetPolicy) String() string {
	switch r {
	case ResetEarliest:
		return "earliest"
	case ResetNone:
		return "none"
	case ResetByDuration:
		return "by duration"
	default:
		return "latest"
	}
}

func (r ResetPolicy) proto() coordinatorv1.OffsetResetPolicy {
	switch r {
	case ResetEarliest:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_EARLIEST
	case ResetNone:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_NONE
	case ResetByDuration:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_BY_DURATION
	default:
		return coordinatorv1.OffsetResetPolicy_OFFSET_RESET_POLICY_LATEST
	}
}

// resetSpec is the offset that the reset policy asks for now; nil: none.
func (c ConsumerConfig) resetSpec(now time.Time) *typev1.OffsetSpec {
	switch c.Reset {
	case ResetEarliest:
		return Earliest()
	case ResetNone:
		return nil
	case ResetByDuration:
		return AtTimestamp(now.Add(-c.ResetDuration))
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
	// MaxProcessing has the member expelled if nothing of a partition is released for
	// this long although a record waits for it; 0: never, then a stuck application
	// is shown as stuck and keeps its partitions.
	MaxProcessing time.Duration
	// Reset applies where there is no position, and on a genuine OFFSET_OUT_OF_RANGE of
	// the partition's leader; never because of anything that may pass.
	Reset ResetPolicy
	// ResetDuration is how far back ResetByDuration goes, from when the start is looked
	// up.
	ResetDuration time.Duration
	// AutoCommitInterval commits what was handed out and released, every this often; 0:
	// 5 s; negative: never. It needs a group.
	AutoCommitInterval time.Duration
	// AtMostOnce commits the positions after records before these are handed out: a
	// record is never handed out twice, and what a crash finds between is lost. There is
	// no auto-commit then.
	AtMostOnce bool
	// ClientRack reads from a replica in this rack, where one is in sync; empty: from the
	// leaders. It is the same as Fetch.Rack.
	ClientRack string
	// Fetch configures reading.
	Fetch FetcherConfig
	// OnAssigned, OnRevoked and OnLost tell of changes, from within Poll, Records or
	// Close; nil: nobody is told. They must not call those; Commit and Seek are fine.
	//
	// OnRevoked comes before a partition is given up: what it commits takes effect, and
	// what was released is committed after it if auto-commit is on. OnLost says that the
	// membership was lost: the partitions may be another member's already, and nothing
	// of them can be committed any more. Without an OnLost, OnRevoked is called instead.
	OnAssigned, OnRevoked, OnLost func([]AssignedPartition)
}

// withDefaults fills in what is not set.
func (c ConsumerConfig) withDefaults() ConsumerConfig {
	c.AutoCommitInterval = or(c.AutoCommitInterval, 5*time.Second)
	if c.Group == "" || c.AtMostOnce {
		c.AutoCommitInterval = -1
	}
	c.Fetch.Rack = or(c.Fetch.Rack, c.ClientRack)
	return c
}

// Validate joins everything that is wrong with the configuration.
func (c ConsumerConfig) Validate() error {
	var errs []error
	if c.subscribes() && c.Group == "" {
		errs = append(errs, errors.New("consumer: topics are subscribed to without a group; name one, or take partitions by hand"))
	}
	if c.AtMostOnce && c.Group == "" {
		errs = append(errs, errors.New("consumer: AtMostOnce commits before records are handed out, which needs a group; name one"))
	}
	if c.AtMostOnce && c.AutoCommitInterval > 0 {
		errs = append(errs, errors.New("consumer: AtMostOnce commits by itself; leave AutoCommitInterval out"))
	}
	if c.Fetch.Replica != nil && c.Group != "" {
		errs = append(errs, errors.New("consumer: Fetch.Replica reads one broker's replicas, which a group does not; leave one out"))
	}
	if c.ClientRack != "" && c.Fetch.Rack != "" && c.ClientRack != c.Fetch.Rack {
		errs = append(errs, fmt.Errorf("consumer: ClientRack is %q and Fetch.Rack %q; set one", c.ClientRack, c.Fetch.Rack))
	}
	if c.Reset < ResetLatest || c.Reset > ResetByDuration {
		errs = append(errs, fmt.Errorf("consumer: reset policy %d is none of latest, earliest, none and by duration", c.Reset))
	}
	if (c.Reset == ResetByDuration) != (c.ResetDuration > 0) {
		errs = append(errs, fmt.Errorf("consumer: ResetDuration is %v; it must be above 0 with ResetByDuration, and is 0 otherwise", c.ResetDuration))
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
		SessionTimeout: c.SessionTimeout, RebalanceTimeout: c.RebalanceTimeout, MaxProcessing: c.MaxProcessing,
		ResetPolicy: c.Reset.proto(), ResetDuration: c.ResetDuration,
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
	// Metadata is kept with a commit of the position; at most 4 KiB.
	Metadata string
}
