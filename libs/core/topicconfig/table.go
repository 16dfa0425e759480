package topicconfig

import "math"

// Kind is the type of a config's value.
type Kind string

// The kinds of values.
const (
	KindInt     Kind = "int"     // 32-bit integer
	KindLong    Kind = "long"    // 64-bit integer
	KindDouble  Kind = "double"  // floating point number
	KindBoolean Kind = "boolean" // true or false
	KindString  Kind = "string"  // one of Definition.Allowed
	KindList    Kind = "list"    // several of Definition.Allowed, separated by commas
)

// Definition describes one config.
type Definition struct {
	Key         string   // Kafka's name, or ours where Kafka has none
	Kind        Kind     // type of the value
	Default     string   // value where none is set
	Min, Max    float64  // inclusive range of a number
	Allowed     []string // the words a string or list takes
	Fixed       bool     // it cannot change once the topic exists
	Description string   // what it does, one sentence, units included
}

// The keys of topic configs.
const (
	CleanupPolicy               = "cleanup.policy"
	CompressionType             = "compression.type"
	DeleteRetentionMs           = "delete.retention.ms"
	Durability                  = "durability"
	FileDeleteDelayMs           = "file.delete.delay.ms"
	FlushMessages               = "flush.messages"
	FlushMs                     = "flush.ms"
	IndexIntervalBytes          = "index.interval.bytes"
	MaxCompactionLagMs          = "max.compaction.lag.ms"
	MaxMessageBytes             = "max.message.bytes"
	MessageTimestampType        = "message.timestamp.type"
	MinCleanableDirtyRatio      = "min.cleanable.dirty.ratio"
	MinCompactionLagMs          = "min.compaction.lag.ms"
	MinInsyncReplicas           = "min.insync.replicas"
	RetentionBytes              = "retention.bytes"
	RetentionMs                 = "retention.ms"
	SegmentBytes                = "segment.bytes"
	SegmentIndexBytes           = "segment.index.bytes"
	SegmentJitterMs             = "segment.jitter.ms"
	SegmentMs                   = "segment.ms"
	UncleanLeaderElectionEnable = "unclean.leader.election.enable"
)

const (
	unlimited = "9223372036854775807" // no limit, as Kafka writes it
	maxLong   = float64(math.MaxInt64)
	maxInt    = float64(math.MaxInt32)

	// maxMessageBytes leaves room for the envelope in a 16 MiB gRPC message.
	maxMessageBytes = 15 << 20
)

// Definitions returns the table, sorted by key. The slice is the caller's.
func Definitions() []Definition {
	return []Definition{
		{
			Key: CleanupPolicy, Kind: KindList, Default: "delete", Allowed: []string{"delete", "compact"},
			Description: "What happens to old records: delete drops whole segments by age and size, compact keeps the newest record of each key; both may be given.",
		},
		{
			Key: CompressionType, Kind: KindString, Default: "producer", Allowed: []string{"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"},
			Description: "Codec of stored batches; producer keeps what the producer chose.",
		},
		{
			Key: DeleteRetentionMs, Kind: KindLong, Default: "86400000", Max: maxLong,
			Description: "How long a tombstone stays readable in a compacted topic, in milliseconds.",
		},
		{
			Key: Durability, Kind: KindString, Default: "fsync", Allowed: []string{"fsync", "os"}, Fixed: true,
			Description: "When a record counts as stored: fsync once it is on the disk, os once it is in the page cache of the operating system. Fixed when the topic is created.",
		},
		{
			Key: FileDeleteDelayMs, Kind: KindLong, Default: "60000", Max: maxLong,
			Description: "How long the file of a dropped segment is kept, in milliseconds.",
		},
		{
			Key: FlushMessages, Kind: KindLong, Default: unlimited, Min: 1, Max: maxLong,
			Description: "With durability=os, the most records that are not yet on the disk.",
		},
		{
			Key: FlushMs, Kind: KindLong, Default: unlimited, Max: maxLong,
			Description: "With durability=os, the longest time a record is not yet on the disk, in milliseconds.",
		},
		{
			Key: IndexIntervalBytes, Kind: KindInt, Default: "4096", Max: maxInt,
			Description: "Bytes of log between two entries of the offset index.",
		},
		{
			Key: MaxCompactionLagMs, Kind: KindLong, Default: unlimited, Min: 1, Max: maxLong,
			Description: "Longest time a record stays uncompacted, in milliseconds.",
		},
		{
			Key: MaxMessageBytes, Kind: KindInt, Default: "1048576", Min: 128, Max: maxMessageBytes,
			Description: "Largest encoded batch of records, in bytes, after compression.",
		},
		{
			Key: MessageTimestampType, Kind: KindString, Default: "CreateTime", Allowed: []string{"CreateTime", "LogAppendTime"},
			Description: "Whether a record's timestamp is the producer's or that of the append.",
		},
		{
			Key: MinCleanableDirtyRatio, Kind: KindDouble, Default: "0.5", Max: 1,
			Description: "Share of a compacted log that must be uncompacted before it is cleaned.",
		},
		{
			Key: MinCompactionLagMs, Kind: KindLong, Default: "0", Max: maxLong,
			Description: "Shortest time a record stays uncompacted, in milliseconds.",
		},
		{
			Key: MinInsyncReplicas, Kind: KindInt, Default: "2", Min: 1, Max: maxInt,
			Description: "In-sync replicas that a write with acks=all needs; not above the replication factor. Where none is set it is 2 with three replicas or more, and 1 with fewer.",
		},
		{
			Key: RetentionBytes, Kind: KindLong, Default: "-1", Min: -1, Max: maxLong,
			Description: "Bytes that a partition keeps before it drops its oldest segments; -1: no limit.",
		},
		{
			Key: RetentionMs, Kind: KindLong, Default: "604800000", Min: -1, Max: maxLong,
			Description: "How long a partition keeps records, in milliseconds; -1: for ever.",
		},
		{
			Key: SegmentBytes, Kind: KindInt, Default: "1073741824", Min: 1024, Max: maxInt,
			Description: "Size at which a new segment is begun, in bytes.",
		},
		{
			Key: SegmentIndexBytes, Kind: KindInt, Default: "10485760", Min: 64, Max: maxInt,
			Description: "Size of a segment's offset index, in bytes; a full index begins a new segment.",
		},
		{
			Key: SegmentJitterMs, Kind: KindLong, Default: "0", Max: maxLong,
			Description: "Most milliseconds taken off segment.ms at random, so that segments do not roll all at once.",
		},
		{
			Key: SegmentMs, Kind: KindLong, Default: "604800000", Min: 1, Max: maxLong,
			Description: "Age at which a new segment is begun, in milliseconds.",
		},
		{
			Key: UncleanLeaderElectionEnable, Kind: KindBoolean, Default: "false",
			Description: "Whether a replica that may lack acknowledged records can become leader when no other is left. This loses records.",
		},
	}
}

// Lookup finds a definition by its key.
func Lookup(key string) (Definition, bool) {
	for _, d := range Definitions() {
		if d.Key == key {
			return d, true
		}
	}
	return Definition{}, false
}

// gone names keys of Kafka, past or present, that mean nothing here, and what
// takes their place.
func gone(key string) (string, bool) {
	switch key {
	case "replica.lag.max.messages":
		return "a replica falls out of sync by time only: set replica.lag.time.max.ms on the brokers", true
	case "message.format.version":
		return "batches are always stored in format v2; leave it out", true
	case "message.downconversion.enable":
		return "batches are never converted to older formats; leave it out", true
	case "message.timestamp.difference.max.ms":
		return "set message.timestamp.type=LogAppendTime if producers' clocks cannot be trusted", true
	case "preallocate":
		return "segments are never preallocated; leave it out", true
	case "leader.replication.throttled.replicas", "follower.replication.throttled.replicas":
		return "throttling belongs to a reassignment, not to a topic; leave it out", true
	case "remote.storage.enable", "local.retention.ms", "local.retention.bytes":
		return "there is no tiered storage yet; use retention.ms and retention.bytes", true
	}
	return "", false
}
