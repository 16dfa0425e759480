package coordinator

import (
	"errors"
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/libs/service"
)

// DefaultPort is where a coordinator listens unless told otherwise.
const DefaultPort = 5330

// Config holds the settings of a coordinator. Those that Kafka has carry its names.
type Config struct {
	service.Common

	SessionTimeoutMs      int64 `config:"group.consumer.session.timeout.ms" default:"15000" help:"Silence after which a member is expelled, where it names none."`
	MinSessionTimeoutMs   int64 `config:"group.consumer.min.session.timeout.ms" default:"100" help:"Shortest session timeout that a member may ask for."`
	MaxSessionTimeoutMs   int64 `config:"group.consumer.max.session.timeout.ms" default:"1800000" help:"Longest session timeout that a member may ask for."`
	RebalanceTimeoutMs    int64 `config:"group.rebalance.timeout.ms" default:"900000" help:"Time to give up a revoked partition, where a member names none."`
	MaxRebalanceTimeoutMs int64 `config:"group.max.rebalance.timeout.ms" default:"86400000" help:"Longest rebalance timeout that a member may ask for."`
	InitialDelayMs        int64 `config:"group.initial.rebalance.delay.ms" default:"100" help:"How long a rebalance waits for more members to join; the first member of an empty group does not wait."`
	MaxSize               int   `config:"group.consumer.max.size" default:"2000" help:"Most members of a group."`
	MaxPartitions         int   `config:"group.max.partitions" default:"20000" help:"Most partitions that one group shares."`
	MaxGroups             int   `config:"group.max.groups.per.shard" default:"20000" help:"Most groups in one shard."`
	OffsetMetadataMax     int   `config:"offset.metadata.max.bytes" default:"4096" help:"Most bytes of metadata kept with an offset."`

	RetentionMinutes    int64 `config:"offsets.retention.minutes" default:"10080" help:"How long a group without members and its offsets are kept; 0: for ever."`
	CommitTimeoutMs     int64 `config:"offsets.commit.timeout.ms" default:"10000" help:"How long one append to a shard may take before its outcome counts as unknown."`
	LoadTimeoutMs       int64 `config:"offsets.load.timeout.ms" default:"300000" help:"How long one attempt to read a shard may take."`
	LoadThreads         int   `config:"offsets.load.parallelism" default:"8" help:"Shards that are read at the same time."`
	MaxQueuedAnswers    int   `config:"group.max.queued.answers" default:"100000" help:"Most answers of a shard that may wait for its log; more requests are refused."`
	MaxQueuedBytes      int   `config:"group.max.queued.bytes" default:"67108864" help:"Most bytes of a shard's records that may wait for its log; more requests are refused."`
	MaxQueuedRequests   int   `config:"group.max.queued.requests" default:"4096" help:"Most requests that may wait for a shard; more wait in their streams."`
	MaxQueuedFrames     int   `config:"group.stream.max.queued.frames" default:"16384" help:"Most frames that a stream may leave unread before it is ended."`
	MaxMembersPerStream int   `config:"group.stream.max.members" default:"10000" help:"Most members that one stream may carry."`
}

// DefaultConfig returns the documented defaults. It names no address to listen on;
// New takes 127.0.0.1 and DefaultPort then.
func DefaultConfig() Config {
	var cfg Config
	config.SetDefaults(&cfg)
	return cfg
}

// Validate joins everything that is wrong with the settings.
func (c *Config) Validate() error {
	errs := []error{c.Common.Validate(), c.core().Validate()}
	for _, l := range []struct {
		key   string
		value int64
	}{
		{"offsets.commit.timeout.ms", c.CommitTimeoutMs},
		{"offsets.load.timeout.ms", c.LoadTimeoutMs},
		{"offsets.load.parallelism", int64(c.LoadThreads)},
		{"group.max.queued.requests", int64(c.MaxQueuedRequests)},
		{"group.stream.max.queued.frames", int64(c.MaxQueuedFrames)},
		{"group.stream.max.members", int64(c.MaxMembersPerStream)},
	} {
		if l.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %d is not allowed; use at least 1", l.key, l.value))
		}
	}
	return errors.Join(errs...)
}

// core is what the pure group core is given of it.
func (c *Config) core() group.Config {
	cfg := group.DefaultConfig()
	cfg.SessionTimeout = milliseconds(c.SessionTimeoutMs)
	cfg.MinSessionTimeout = milliseconds(c.MinSessionTimeoutMs)
	cfg.MaxSessionTimeout = milliseconds(c.MaxSessionTimeoutMs)
	cfg.RebalanceTimeout = milliseconds(c.RebalanceTimeoutMs)
	cfg.MaxRebalanceTimeout = milliseconds(c.MaxRebalanceTimeoutMs)
	cfg.JoinDelay = milliseconds(c.InitialDelayMs)
	cfg.OffsetsRetention = time.Duration(c.RetentionMinutes) * time.Minute
	cfg.MaxMembers, cfg.MaxPartitions, cfg.MaxGroups = c.MaxSize, c.MaxPartitions, c.MaxGroups
	cfg.MaxOffsetMetadata, cfg.MaxQueued, cfg.MaxQueuedBytes = c.OffsetMetadataMax, c.MaxQueuedAnswers, c.MaxQueuedBytes
	return cfg
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
