package controller

import (
	"strings"
	"testing"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/core/topicconfig"
)

func TestEveryTopicConfigHasADefaultSetting(t *testing.T) {
	cfg := DefaultConfig()
	for _, d := range topicconfig.Definitions() {
		if err := config.Set(&cfg, d.Key, d.Default); err != nil {
			t.Errorf("%s: %v", d.Key, err)
		}
	}
	if got := cfg.TopicDefaults.Map(); len(got) != len(topicconfig.Definitions()) || got["segment.bytes"] != "1073741824" {
		t.Errorf("the map: %v", got)
	}
	if len(DefaultConfig().TopicDefaults.Map()) != 0 {
		t.Error("something is set by default")
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := DefaultConfig()
	good.Listen = "127.0.0.1:0"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"num.partitions":               func(c *Config) { c.NumPartitions = 0 },
		"offsets.topic.num.partitions": func(c *Config) { c.OffsetsTopicNumPartitions = 10_001 },
		"default.replication.factor":   func(c *Config) { c.DefaultReplicationFactor = -1 },
		"leader.imbalance.check":       func(c *Config) { c.LeaderImbalanceCheckIntervalSeconds = 0 },
		"retention.ms":                 func(c *Config) { c.RetentionMs = "long" },
		"flush.ms":                     func(c *Config) { c.FlushMs = "5" },
		"listen":                       func(c *Config) { c.Listen = "0.0.0.0:5329" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
