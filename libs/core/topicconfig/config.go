package topicconfig

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Config is a topic's configuration in force.
type Config struct {
	CleanupDelete               bool    // old segments are dropped
	CleanupCompact              bool    // the newest record of each key is kept
	CompressionType             string  // "producer", "uncompressed", "gzip", "snappy", "lz4" or "zstd"
	DeleteRetentionMs           int64   // milliseconds
	Durability                  string  // "fsync" or "os"
	FileDeleteDelayMs           int64   // milliseconds
	FlushMessages               int64   // records; MaxInt64: no limit
	FlushMs                     int64   // milliseconds; MaxInt64: no limit
	IndexIntervalBytes          int32   // bytes
	MaxCompactionLagMs          int64   // milliseconds
	MaxMessageBytes             int32   // bytes
	MessageTimestampType        string  // "CreateTime" or "LogAppendTime"
	MinCleanableDirtyRatio      float64 // 0 to 1
	MinCompactionLagMs          int64   // milliseconds
	MinInsyncReplicas           int32   // replicas, from 1; 0: none is set, see MinISR
	RetentionBytes              int64   // bytes; -1: no limit
	RetentionMs                 int64   // milliseconds; -1: no limit
	SegmentBytes                int32   // bytes
	SegmentIndexBytes           int32   // bytes
	SegmentJitterMs             int64   // milliseconds
	SegmentMs                   int64   // milliseconds
	UncleanLeaderElectionEnable bool    // an unclean leader may be elected
}

// CleanupPolicy is the policy as Kafka writes it: "delete", "compact" or
// "compact,delete".
func (c Config) CleanupPolicy() string {
	switch {
	case c.CleanupCompact && c.CleanupDelete:
		return "compact,delete"
	case c.CleanupCompact:
		return "compact"
	default:
		return "delete"
	}
}

// FsyncBeforeAck tells whether a record counts as stored only once it is on the
// disk.
func (c Config) FsyncBeforeAck() bool { return c.Durability != "os" }

// automaticMinISR is min.insync.replicas where none is set: with three replicas one
// may fail while writes go on and are stored twice; of two, neither may.
func automaticMinISR(replicas int32) int32 {
	if replicas >= 3 {
		return 2
	}
	return 1
}

// MinISR is the smallest sufficient ISR of a partition with so many replicas: what
// is set, though never more than there are, or else 2 of three or more replicas,
// and 1 of fewer.
func (c Config) MinISR(replicas int32) int32 {
	if c.MinInsyncReplicas == 0 {
		return automaticMinISR(replicas)
	}
	return max(min(c.MinInsyncReplicas, replicas), 1)
}

// Default returns the configuration of a topic on which nothing is set.
func Default() Config {
	c, err := Parse(nil, nil)
	if err != nil {
		// The table contradicts itself, which its test rules out.
		panic(err)
	}
	return c
}

// Parse turns stored configs into a Config: those of the topic over defaults,
// the mesh's, over the table's. Unknown keys are left aside, so that what a newer
// release wrote can be read; a value that does not parse is a *ValueError.
func Parse(defaults, topic map[string]string) (Config, error) {
	value := func(d Definition) string {
		if v, ok := topic[d.Key]; ok {
			return v
		}
		if v, ok := defaults[d.Key]; ok {
			return v
		}
		return d.Default
	}
	var c Config
	var errs []error
	for _, d := range Definitions() {
		v := value(d)
		if err := check(d, v); err != nil {
			errs = append(errs, err)
			continue
		}
		c.set(d.Key, v)
	}
	if !isSet(MinInsyncReplicas, defaults, topic) {
		c.MinInsyncReplicas = 0
	}
	return c, errors.Join(errs...)
}

// set stores a value that check has accepted.
func (c *Config) set(key, v string) {
	long, _ := strconv.ParseInt(v, 10, 64)
	switch key {
	case CleanupPolicy:
		words := splitList(v)
		c.CleanupDelete = slices.Contains(words, "delete")
		c.CleanupCompact = slices.Contains(words, "compact")
	case CompressionType:
		c.CompressionType = v
	case DeleteRetentionMs:
		c.DeleteRetentionMs = long
	case Durability:
		c.Durability = v
	case FileDeleteDelayMs:
		c.FileDeleteDelayMs = long
	case FlushMessages:
		c.FlushMessages = long
	case FlushMs:
		c.FlushMs = long
	case IndexIntervalBytes:
		c.IndexIntervalBytes = int32(long)
	case MaxCompactionLagMs:
		c.MaxCompactionLagMs = long
	case MaxMessageBytes:
		c.MaxMessageBytes = int32(long)
	case MessageTimestampType:
		c.MessageTimestampType = v
	case MinCleanableDirtyRatio:
		c.MinCleanableDirtyRatio, _ = strconv.ParseFloat(v, 64)
	case MinCompactionLagMs:
		c.MinCompactionLagMs = long
	case MinInsyncReplicas:
		c.MinInsyncReplicas = int32(long)
	case RetentionBytes:
		c.RetentionBytes = long
	case RetentionMs:
		c.RetentionMs = long
	case SegmentBytes:
		c.SegmentBytes = int32(long)
	case SegmentIndexBytes:
		c.SegmentIndexBytes = int32(long)
	case SegmentJitterMs:
		c.SegmentJitterMs = long
	case SegmentMs:
		c.SegmentMs = long
	case UncleanLeaderElectionEnable:
		c.UncleanLeaderElectionEnable = v == "true"
	}
}

// Validate checks configs as they are to be set on a topic, over the defaults of
// the mesh. It returns every fault joined, in the order of the keys:
// *UnknownKeyError, *GoneKeyError, *ValueError, *ConflictError.
func Validate(defaults, topic map[string]string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(topic)) {
		if instead, ok := gone(key); ok {
			errs = append(errs, &GoneKeyError{Key: key, Instead: instead})
			continue
		}
		d, ok := Lookup(key)
		if !ok {
			errs = append(errs, &UnknownKeyError{Key: key, Nearest: nearest(key)})
			continue
		}
		if err := check(d, topic[key]); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	c, err := Parse(defaults, topic)
	if err != nil {
		return err
	}
	for _, key := range []string{FlushMessages, FlushMs} {
		if _, set := topic[key]; set && c.FsyncBeforeAck() {
			errs = append(errs, &ConflictError{
				Key: key, Other: Durability + "=fsync",
				Why: "every record is on the disk before it is acknowledged; leave it out, or create the topic with durability=os",
			})
		}
	}
	return errors.Join(errs...)
}

// ValidateChange checks that nothing changes that is fixed for a living topic.
// It compares what is in force, so that saying the same again is no change. The
// fault is a *FixedError.
func ValidateChange(defaults, before, after map[string]string) error {
	var errs []error
	for _, d := range Definitions() {
		if !d.Fixed {
			continue
		}
		was, is := inForce(d, defaults, before), inForce(d, defaults, after)
		if was != is {
			errs = append(errs, &FixedError{Key: d.Key, Old: was, New: is})
		}
	}
	return errors.Join(errs...)
}

// isSet tells whether a key has a value of its own, on the topic or in the mesh.
func isSet(key string, defaults, topic map[string]string) bool {
	_, onTopic := topic[key]
	_, inMesh := defaults[key]
	return onTopic || inMesh
}

func inForce(d Definition, defaults, topic map[string]string) string {
	if v, ok := topic[d.Key]; ok {
		return v
	}
	if v, ok := defaults[d.Key]; ok {
		return v
	}
	return d.Default
}

// Source says where a value in force comes from.
type Source string

// The places a value can come from.
const (
	SourceTopic   Source = "topic"   // set on the topic
	SourceCluster Source = "cluster" // a default of the mesh
	SourceDefault Source = "default" // the table's default
)

// Entry is one config in force.
type Entry struct {
	Definition
	Value  string // in force
	Source Source // where it comes from
}

// Effective lists every config in force on a topic whose partitions have so many
// replicas, sorted by key.
func Effective(defaults, topic map[string]string, replicas int32) []Entry {
	defs := Definitions()
	entries := make([]Entry, 0, len(defs))
	for _, d := range defs {
		e := Entry{Definition: d, Value: d.Default, Source: SourceDefault}
		if d.Key == MinInsyncReplicas {
			e.Value = strconv.Itoa(int(automaticMinISR(replicas)))
		}
		if v, ok := defaults[d.Key]; ok {
			e.Value, e.Source = v, SourceCluster
		}
		if v, ok := topic[d.Key]; ok {
			e.Value, e.Source = v, SourceTopic
		}
		entries = append(entries, e)
	}
	return entries
}

// check tells whether a key takes a value.
func check(d Definition, v string) error {
	fault := &ValueError{Key: d.Key, Value: v, Want: want(d)}
	switch d.Kind {
	case KindInt, KindLong:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || float64(n) < d.Min || float64(n) > d.Max {
			return fault
		}
	case KindDouble:
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || math.IsNaN(f) || f < d.Min || f > d.Max {
			return fault
		}
	case KindBoolean:
		if v != "true" && v != "false" {
			return fault
		}
	case KindString:
		if !slices.Contains(d.Allowed, v) {
			return fault
		}
	case KindList:
		words := splitList(v)
		if len(words) == 0 {
			return fault
		}
		for _, w := range words {
			if !slices.Contains(d.Allowed, w) {
				return fault
			}
		}
	}
	return nil
}

// want says what a key takes, for people.
func want(d Definition) string {
	switch d.Kind {
	case KindInt, KindLong:
		if d.Max >= maxLong {
			return fmt.Sprintf("a whole number from %.0f", d.Min)
		}
		return fmt.Sprintf("a whole number from %.0f to %.0f", d.Min, d.Max)
	case KindDouble:
		return fmt.Sprintf("a number from %g to %g", d.Min, d.Max)
	case KindBoolean:
		return "true or false"
	case KindList:
		return "one or more of " + strings.Join(d.Allowed, ", ") + ", separated by commas"
	default:
		return "one of " + strings.Join(d.Allowed, ", ")
	}
}

func splitList(v string) []string {
	var words []string
	for w := range strings.SplitSeq(v, ",") {
		if w = strings.TrimSpace(w); w != "" {
			words = append(words, w)
		}
	}
	return words
}
