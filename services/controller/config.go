package controller

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/topicconfig"
	"github.com/leat-io/leat/libs/service"
)

// Config is a controller's configuration.
type Config struct {
	service.Common

	NumPartitions             int32 `config:"num.partitions" default:"1" help:"Partitions of a topic that is created without a number."`
	DefaultReplicationFactor  int32 `config:"default.replication.factor" default:"0" help:"Replicas of a topic that is created without a number; 0: 3, or as many as there are brokers where there are fewer."`
	OffsetsTopicNumPartitions int32 `config:"offsets.topic.num.partitions" default:"50" help:"Partitions of __consumer_offsets; fixed once it exists."`

	AutoLeaderRebalanceEnable           bool  `config:"auto.leader.rebalance.enable" default:"true" help:"Give leadership back to preferred leaders, at most 100 a second, once they are in sync."`
	LeaderImbalanceCheckIntervalSeconds int32 `config:"leader.imbalance.check.interval.seconds" default:"10" help:"Time between looks for preferred leaders that do not lead."`
	TopicDefaults
}

// TopicDefaults are the defaults of the mesh for topic configs, by the topic
// configs' own names. Empty: Leat's default. The leading controller's count.
type TopicDefaults struct {
	CleanupPolicy               string `config:"cleanup.policy" help:"Default of the topic config cleanup.policy."`
	CompressionType             string `config:"compression.type" help:"Default of the topic config compression.type."`
	DeleteRetentionMs           string `config:"delete.retention.ms" help:"Default of the topic config delete.retention.ms."`
	Durability                  string `config:"durability" help:"Default of the topic config durability, for topics created from then on."`
	FileDeleteDelayMs           string `config:"file.delete.delay.ms" help:"Default of the topic config file.delete.delay.ms."`
	FlushMessages               string `config:"flush.messages" help:"Default of the topic config flush.messages; with durability=os only."`
	FlushMs                     string `config:"flush.ms" help:"Default of the topic config flush.ms; with durability=os only."`
	IndexIntervalBytes          string `config:"index.interval.bytes" help:"Default of the topic config index.interval.bytes."`
	MaxCompactionLagMs          string `config:"max.compaction.lag.ms" help:"Default of the topic config max.compaction.lag.ms."`
	MaxMessageBytes             string `config:"max.message.bytes" help:"Default of the topic config max.message.bytes."`
	MessageTimestampType        string `config:"message.timestamp.type" help:"Default of the topic config message.timestamp.type."`
	MinCleanableDirtyRatio      string `config:"min.cleanable.dirty.ratio" help:"Default of the topic config min.cleanable.dirty.ratio."`
	MinCompactionLagMs          string `config:"min.compaction.lag.ms" help:"Default of the topic config min.compaction.lag.ms."`
	MinInsyncReplicas           string `config:"min.insync.replicas" help:"Default of the topic config min.insync.replicas."`
	RetentionBytes              string `config:"retention.bytes" help:"Default of the topic config retention.bytes."`
	RetentionMs                 string `config:"retention.ms" help:"Default of the topic config retention.ms."`
	SegmentBytes                string `config:"segment.bytes" help:"Default of the topic config segment.bytes."`
	SegmentIndexBytes           string `config:"segment.index.bytes" help:"Default of the topic config segment.index.bytes."`
	SegmentJitterMs             string `config:"segment.jitter.ms" help:"Default of the topic config segment.jitter.ms."`
	SegmentMs                   string `config:"segment.ms" help:"Default of the topic config segment.ms."`
	UncleanLeaderElectionEnable string `config:"unclean.leader.election.enable" help:"Default of the topic config unclean.leader.election.enable. Allowing it loses records."`
}

// Map gives the defaults that are set, by key.
func (d TopicDefaults) Map() map[string]string {
	set := map[string]string{}
	v := reflect.ValueOf(d)
	for i := range v.NumField() {
		if value := v.Field(i).String(); value != "" {
			set[v.Type().Field(i).Tag.Get("config")] = value
		}
	}
	return set
}

// DefaultConfig is a configuration with every default.
func DefaultConfig() Config {
	var cfg Config
	config.SetDefaults(&cfg)
	return cfg
}

// Validate reports every fault, joined.
func (c *Config) Validate() error {
	errs := []error{c.Common.Validate()}
	for key, n := range map[string]int32{"num.partitions": c.NumPartitions, "offsets.topic.num.partitions": c.OffsetsTopicNumPartitions} {
		if n < 1 || n > cluster.MaxPartitions {
			errs = append(errs, fmt.Errorf("%s: %d is not between 1 and %d", key, n, cluster.MaxPartitions))
		}
	}
	if c.DefaultReplicationFactor < 0 {
		errs = append(errs, fmt.Errorf("default.replication.factor: %d is not possible; give 1 or more, or 0 for 3 or as many as there are brokers", c.DefaultReplicationFactor))
	}
	if c.LeaderImbalanceCheckIntervalSeconds < 1 {
		errs = append(errs, fmt.Errorf("leader.imbalance.check.interval.seconds: %d; give at least 1, or set auto.leader.rebalance.enable=false",
			c.LeaderImbalanceCheckIntervalSeconds))
	}
	if err := topicconfig.Validate(nil, c.TopicDefaults.Map()); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// uncleanMargin is what an unclean election waits beyond the lease's time: a leader
// that cannot renew its lease has stopped committing on its own by then.
const uncleanMargin = 2 * time.Second

// folderWait is how long the first leader of a topic waits for replicas that have
// not been made.
const folderWait = 3 * time.Second

// rebalanceInterval is 0 if preferred leaders are left alone.
func (c *Config) rebalanceInterval() time.Duration {
	if !c.AutoLeaderRebalanceEnable {
		return 0
	}
	return time.Duration(c.LeaderImbalanceCheckIntervalSeconds) * time.Second
}

func (c *Config) limits() cluster.Limits {
	return cluster.Limits{
		DefaultPartitions:        c.NumPartitions,
		DefaultReplicationFactor: c.DefaultReplicationFactor,
		OffsetsPartitions:        c.OffsetsTopicNumPartitions,
	}
}
