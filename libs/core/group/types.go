package group

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// TopicID is the id of one life of a topic.
type TopicID [16]byte

// Part names one partition of one life of a topic.
type Part struct {
	Topic     TopicID
	Partition int32
}

func (p Part) String() string { return fmt.Sprintf("%x-%d", p.Topic[:4], p.Partition) }

// compareParts orders by topic id, then by number.
func compareParts(a, b Part) int {
	if c := bytes.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.Partition, b.Partition)
}

// Owned is a tenure of a partition.
type Owned struct {
	Part
	// Epoch is the group epoch in which the member got it.
	Epoch int64
	// Revoking says that the member has been asked to give it up.
	Revoking bool
}

// Now is the time at which an event happens.
type Now struct {
	// Mono is monotonic time since any fixed moment; above 0.
	Mono time.Duration
	// WallMs is the time written into records, in milliseconds since the epoch.
	WallMs int64
}

// Config holds limits and defaults. Start from DefaultConfig.
type Config struct {
	// SessionTimeout is the default silence after which a member is expelled.
	SessionTimeout time.Duration
	// MinSessionTimeout and MaxSessionTimeout bound what members may ask for.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// RebalanceTimeout is the default time to give up a revoked partition and to
	// acknowledge an assignment.
	RebalanceTimeout time.Duration
	// MaxRebalanceTimeout bounds what members may ask for.
	MaxRebalanceTimeout time.Duration
	// JoinDelay is how long a rebalance waits for more members to join. The first
	// member of an empty group does not wait.
	JoinDelay time.Duration
	// RetryDelay is the pause before an append or fence is tried again.
	RetryDelay time.Duration
	// StartDelay is the pause before a start that was not found is looked for again.
	StartDelay time.Duration
	// ResetTimeout is the default time that a reset of offsets waits for partitions to
	// be given up.
	ResetTimeout time.Duration
	// OffsetsRetention is how long a group without members and its offsets are kept,
	// from when it became empty, was last committed to by hand, or was loaded; 0: for
	// ever.
	OffsetsRetention time.Duration
	// MaxGroups, MaxMembers and MaxPartitions bound the groups of the shard, the
	// members of a group, and the partitions that one group shares.
	MaxGroups, MaxMembers, MaxPartitions int
	// MaxOffsetMetadata is the most bytes of metadata kept with an offset.
	MaxOffsetMetadata int
	// MaxQueued is the most answers that may wait for one append, MaxQueuedBytes
	// about the most bytes of records.
	MaxQueued, MaxQueuedBytes int
}

// DefaultConfig returns the published defaults.
func DefaultConfig() Config {
	return Config{
		SessionTimeout:      15 * time.Second,
		MinSessionTimeout:   100 * time.Millisecond,
		MaxSessionTimeout:   30 * time.Minute,
		RebalanceTimeout:    15 * time.Minute,
		MaxRebalanceTimeout: 24 * time.Hour,
		JoinDelay:           100 * time.Millisecond,
		RetryDelay:          100 * time.Millisecond,
		StartDelay:          250 * time.Millisecond,
		ResetTimeout:        30 * time.Second,
		OffsetsRetention:    7 * 24 * time.Hour,
		MaxGroups:           20_000,
		MaxMembers:          2_000,
		MaxPartitions:       20_000,
		MaxOffsetMetadata:   4096,
		MaxQueued:           100_000,
		MaxQueuedBytes:      64 << 20,
	}
}

// Validate joins everything that is wrong with the limits.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.MinSessionTimeout > 0, "the smallest session timeout must be above 0, not %v", c.MinSessionTimeout)
	check(c.SessionTimeout >= c.MinSessionTimeout && c.SessionTimeout <= c.MaxSessionTimeout,
		"the session timeout %v must lie between %v and %v", c.SessionTimeout, c.MinSessionTimeout, c.MaxSessionTimeout)
	check(c.RebalanceTimeout > 0 && c.RebalanceTimeout <= c.MaxRebalanceTimeout,
		"the rebalance timeout %v must lie above 0 and up to %v", c.RebalanceTimeout, c.MaxRebalanceTimeout)
	check(c.JoinDelay >= 0, "the join delay must not be negative, it is %v", c.JoinDelay)
	check(c.OffsetsRetention >= 0, "the retention of offsets must not be negative, it is %v", c.OffsetsRetention)
	check(c.StartDelay > 0, "the delay of starts must be above 0, not %v", c.StartDelay)
	check(c.ResetTimeout > 0, "the timeout of resets must be above 0, not %v", c.ResetTimeout)
	check(c.RetryDelay > 0, "the retry delay must be above 0, not %v", c.RetryDelay)
	check(c.MaxGroups > 0 && c.MaxMembers > 0 && c.MaxPartitions > 0 && c.MaxQueued > 0 && c.MaxQueuedBytes > 0,
		"the limits of groups (%d), members (%d), partitions (%d), queued answers (%d) and their bytes (%d) must be above 0",
		c.MaxGroups, c.MaxMembers, c.MaxPartitions, c.MaxQueued, c.MaxQueuedBytes)
	check(c.MaxOffsetMetadata >= 0, "the limit of offset metadata must not be negative, it is %d", c.MaxOffsetMetadata)
	return errors.Join(errs...)
}

// Topic is what the core knows of a topic.
type Topic struct {
	ID         TopicID
	Name       string
	Partitions int32
	// Internal topics match no pattern.
	Internal bool
}

// TopicView is an immutable picture of all topics, shared between shards.
type TopicView struct {
	byName map[string]Topic
	byID   map[TopicID]Topic
	names  []string
}

// NewTopicView makes a view; topics being deleted should not be in it.
func NewTopicView(topics []Topic) *TopicView {
	v := &TopicView{byName: make(map[string]Topic, len(topics)), byID: make(map[TopicID]Topic, len(topics))}
	for _, t := range topics {
		v.byName[t.Name] = t
		v.byID[t.ID] = t
	}
	for name := range v.byName {
		v.names = append(v.names, name)
	}
	slices.Sort(v.names)
	return v
}

// ByID finds a topic by its id.
func (v *TopicView) ByID(id TopicID) (Topic, bool) {
	t, ok := v.byID[id]
	return t, ok
}

// changedNames lists names whose topic appeared, vanished, changed its id or its
// number of partitions between two views.
func changedNames(old, new *TopicView) map[string]bool {
	changed := make(map[string]bool)
	for name, t := range new.byName {
		if old.byName[name] != t {
			changed[name] = true
		}
	}
	for name := range old.byName {
		if _, ok := new.byName[name]; !ok {
			changed[name] = true
		}
	}
	return changed
}
