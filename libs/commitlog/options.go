package commitlog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"
)

// Config is what an operator may set per topic, and change while the log runs.
// Zero fields take the default.
type Config struct {
	// SegmentBytes is the size at which a segment is closed (segment.bytes). A
	// batch that is larger gets a segment of its own.
	SegmentBytes int64
	// SegmentIndexBytes bounds each index file of a segment (segment.index.bytes).
	SegmentIndexBytes int64
	// SegmentAge is the age at which a segment is closed (segment.ms).
	SegmentAge time.Duration
	// IndexIntervalBytes is how many bytes of log lie between two index entries
	// (index.interval.bytes).
	IndexIntervalBytes int64
	// MaxMessageBytes is the largest encoded batch (max.message.bytes).
	MaxMessageBytes int
	// TimestampType says whose timestamps records carry (message.timestamp.type).
	TimestampType record.TimestampType

	// Cleanup says what becomes of old records (cleanup.policy); zero is
	// CleanupDelete.
	Cleanup Cleanup
	// RetentionAge is how long records are kept, by their timestamps
	// (retention.ms); zero or less keeps them whatever their age. The shortest time
	// is a nanosecond.
	RetentionAge time.Duration
	// RetentionBytes is how many bytes of .log files are kept (retention.bytes);
	// zero or less keeps all.
	RetentionBytes int64
	// FileDeleteDelay is how long a segment's files lie under another name before
	// they are removed (file.delete.delay.ms).
	FileDeleteDelay time.Duration
	// ProducerExpiration is how long an idle producer is remembered
	// (producer.id.expiration.ms).
	ProducerExpiration time.Duration

	// FlushMessages and FlushAge bound what a log with durability=os leaves unsynced
	// (flush.messages, flush.ms); zero or less sets no bound. See NeedsFlush.
	FlushMessages int64
	FlushAge      time.Duration
}

// Cleanup is a set of cleanup policies.
type Cleanup uint8

// The cleanup policies.
const (
	CleanupDelete  Cleanup = 1 << iota // retention by age and size
	CleanupCompact                     // the newest record of each key stays (see CleanOptions)
)

// Defaults and limits of Config.
const (
	DefaultSegmentBytes       = 1 << 30
	MinSegmentBytes           = 64 << 10
	MaxSegmentBytes           = math.MaxInt32
	DefaultSegmentIndexBytes  = 10 << 20
	MinSegmentIndexBytes      = 4 << 10
	DefaultSegmentAge         = 7 * 24 * time.Hour
	DefaultIndexIntervalBytes = 4 << 10
	DefaultMaxMessageBytes    = 1 << 20
	DefaultFileDeleteDelay    = time.Minute
	DefaultProducerExpiration = 24 * time.Hour
)

// WithDefaults returns a copy whose zero fields have their defaults.
func (c Config) WithDefaults() Config {
	setDefault(&c.SegmentBytes, DefaultSegmentBytes)
	setDefault(&c.SegmentIndexBytes, DefaultSegmentIndexBytes)
	setDefault(&c.SegmentAge, DefaultSegmentAge)
	setDefault(&c.IndexIntervalBytes, DefaultIndexIntervalBytes)
	setDefault(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	setDefault(&c.Cleanup, CleanupDelete)
	setDefault(&c.FileDeleteDelay, DefaultFileDeleteDelay)
	setDefault(&c.ProducerExpiration, DefaultProducerExpiration)
	return c
}

func setDefault[T int | int64 | time.Duration | Cleanup](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate joins everything that is wrong with the values, each named as the
// topic config it comes from.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, name string, value, low, high any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v; choose a value from %v to %v", name, value, low, high))
		}
	}
	check(c.SegmentBytes >= MinSegmentBytes && c.SegmentBytes <= MaxSegmentBytes,
		"segment.bytes", c.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	check(c.SegmentIndexBytes >= MinSegmentIndexBytes && c.SegmentIndexBytes <= math.MaxInt32,
		"segment.index.bytes", c.SegmentIndexBytes, MinSegmentIndexBytes, math.MaxInt32)
	check(c.SegmentAge > 0, "segment.ms", c.SegmentAge.Milliseconds(), 1, "any")
	check(c.IndexIntervalBytes > 0 && c.IndexIntervalBytes <= math.MaxInt32,
		"index.interval.bytes", c.IndexIntervalBytes, 1, math.MaxInt32)
	check(c.MaxMessageBytes > record.HeaderSize && c.MaxMessageBytes <= record.MaxBatchSize,
		"max.message.bytes", c.MaxMessageBytes, record.HeaderSize+1, record.MaxBatchSize)
	check(c.TimestampType == record.CreateTime || c.TimestampType == record.LogAppendTime,
		"message.timestamp.type", int(c.TimestampType), record.CreateTime, record.LogAppendTime)
	check(c.Cleanup <= CleanupDelete|CleanupCompact, "cleanup.policy", uint8(c.Cleanup), CleanupDelete, CleanupDelete|CleanupCompact)
	check(c.FileDeleteDelay >= 0, "file.delete.delay.ms", c.FileDeleteDelay.Milliseconds(), 0, "any")
	check(c.ProducerExpiration > 0, "producer.id.expiration.ms", c.ProducerExpiration.Milliseconds(), 1, "any")
	return errors.Join(errs...)
}

// Options says where a log lives and what its owner knows about its past.
type Options struct {
	// Config holds the topic's settings.
	Config Config
	// FS is the file system; nil is that of the operating system.
	FS vfs.FS
	// Dir is the replica's folder, <topic>-<partition> by custom. It is made if it
	// is absent.
	Dir string
	// Topic, Partition and TopicID identify the log. A folder that holds another
	// topic id is refused.
	Topic     string
	Partition int32
	TopicID   [16]byte
	// RecoveryPoint is the offset below which everything was durable when the
	// owner last noted it; 0 when unknown.
	RecoveryPoint int64
	// HighWatermark is the owner's last checkpoint of the high watermark; 0 when
	// unknown.
	HighWatermark int64
	// CleanShutdown says that the last owner closed this log and noted so durably.
	// Nothing is scanned then.
	CleanShutdown bool
	// Files bounds how many files are open, together with all other logs that were
	// given the same one; nil is DefaultOpenFiles for this log alone.
	Files *FileCache
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Logger gets what recovery found; nil is silence.
	Logger *slog.Logger
}

// WithDefaults returns a copy whose zero fields have their defaults.
func (o Options) WithDefaults() Options {
	o.Config = o.Config.WithDefaults()
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Files == nil {
		o.Files = NewFileCache(DefaultOpenFiles)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Validate joins everything that is wrong with the options, before any I/O.
func (o Options) Validate() error {
	errs := []error{o.Config.Validate()}
	if o.Dir == "" {
		errs = append(errs, errors.New("the log's folder is not named; set Dir"))
	}
	if o.Topic == "" {
		errs = append(errs, errors.New("the topic is not named; set Topic"))
	}
	if o.Partition < 0 {
		errs = append(errs, fmt.Errorf("the partition is %d; it counts from 0", o.Partition))
	}
	if o.TopicID == ([16]byte{}) {
		errs = append(errs, errors.New("the topic id is all zero; set TopicID"))
	}
	if o.RecoveryPoint < 0 || o.HighWatermark < 0 {
		errs = append(errs, fmt.Errorf("recovery point %d and high watermark %d must not be negative", o.RecoveryPoint, o.HighWatermark))
	}
	return errors.Join(errs...)
}
