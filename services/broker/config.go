package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/libs/vfs"
)

// DefaultPort is where a broker listens unless told otherwise.
const DefaultPort = 5331

// Config is a broker's configuration. Where Kafka has a setting of that meaning,
// the name is Kafka's.
type Config struct {
	service.Common

	LogDirs               []string      `config:"log.dirs" default:"leat-data" help:"Folders of the replicas, one for each disk, separated by commas. New replicas go to the emptiest; one that fails goes offline alone."`
	RecoveryThreads       int           `config:"num.recovery.threads.per.data.dir" default:"0" help:"Logs that are opened or created at a time. 0: by the number of processors."`
	FlushCheckpointMs     int64         `config:"log.flush.offset.checkpoint.interval.ms" default:"60000" help:"Milliseconds between writings of the recovery points. What lies behind them is read again after an unclean stop."`
	WatermarkCheckpointMs int64         `config:"replica.high.watermark.checkpoint.interval.ms" default:"5000" help:"Milliseconds between writings of the high watermarks."`
	MessageMaxBytes       int           `config:"message.max.bytes" default:"16711680" help:"Largest encoded batch of any topic, in bytes; max.message.bytes of a topic cannot raise it."`
	FetchMaxBytes         int           `config:"fetch.max.bytes" default:"8388608" help:"Largest fetch response, in bytes; a larger first batch goes alone."`
	FetchMemoryBytes      int64         `config:"fetch.memory.bytes" default:"268435456" help:"Bytes of fetch responses that may be on their way to all readers before responses are cut to 64 KiB."`
	MaxDecodedBytes       int           `config:"max.decoded.bytes" default:"67108864" help:"Most bytes that a compressed batch may unpack to."`
	ValidateRecords       bool          `config:"validate.records" default:"true" help:"Check every record of a batch before it is stored, not only the batch's header and checksum."`
	ProduceMaxInFlight    int           `config:"produce.max.in.flight.batches" default:"64" help:"Batches that may be unanswered on one produce stream; one partition may hold half of them."`
	FetchMaxPartitions    int           `config:"fetch.max.partitions" default:"10000" help:"Partitions that one fetch stream may ask for."`
	DiskWatchdog          time.Duration `config:"disk.watchdog.timeout" default:"10s" help:"How long one write or sync may take before the disk counts as hung and the broker lets itself be replaced."`

	ReplicaLagTimeMaxMs int64 `config:"replica.lag.time.max.ms" default:"10000" help:"Milliseconds for which a follower may not have caught up with its leader before it leaves the in-sync set."`
	ReplicaFetchWindow  int64 `config:"replica.fetch.window.bytes" default:"1048576" help:"Bytes of one partition that may be on their way to this broker, as a follower, before it has stored them; a larger batch goes alone."`

	ControlledShutdown     bool  `config:"controlled.shutdown.enable" default:"true" help:"Have the leaderships moved to other brokers before an orderly stop, for at most a third of shutdown.timeout."`
	ProducerIDExpirationMs int64 `config:"producer.id.expiration.ms" default:"86400000" help:"Milliseconds for which a partition remembers an idempotent producer that sends nothing; a retry that comes later is refused."`

	ReserveBytes      int64 `config:"log.dir.reserve.bytes" default:"-1" help:"Bytes of each disk that records may not fill, kept for deletions, cleaning and checkpoints; the first half also for internal topics. Below them produce is refused with DISK_FULL. -1: a twentieth of the disk, at most 1 GiB. 0: none."`
	ThrottleBytes     int64 `config:"log.dir.throttle.bytes" default:"-1" help:"Free bytes of a disk below which appends are slowed down. -1: twice the reserve."`
	ThrottleRateBytes int64 `config:"log.dir.throttle.rate.bytes.per.second" default:"16777216" help:"Bytes a second that all appends to a disk may have while they are slowed down. 0: they are not."`
	WarnBytes         int64 `config:"log.dir.warn.bytes" default:"-1" help:"Free bytes of a disk below which the log and the metrics warn. -1: four times the reserve."`
	MaxOpenFiles      int   `config:"log.max.open.files" default:"0" help:"Files that all logs together keep open; those used last stay open, the others are opened again when needed. 0: half of what the system allows the process."`

	RetentionCheckMs   int64 `config:"log.retention.check.interval.ms" default:"300000" help:"Milliseconds between looks for segments that are too old or too many. A disk that is short of room is looked at more often."`
	CleanerEnable      bool  `config:"log.cleaner.enable" default:"true" help:"Compact topics whose cleanup.policy says so."`
	CleanerBackoffMs   int64 `config:"log.cleaner.backoff.ms" default:"15000" help:"Milliseconds between looks for logs that are due to be compacted."`
	CleanerBufferBytes int64 `config:"log.cleaner.dedupe.buffer.size" default:"134217728" help:"Bytes of memory that the cleaner may use for keys; more keys take several passes."`
	CleanerRateBytes   int64 `config:"log.cleaner.io.max.bytes.per.second" default:"0" help:"Bytes a second that the cleaner may read and write together. 0: no limit."`

	// FS replaces the operating system's file system, for tests.
	FS vfs.FS
	// BootID names the life of the host, for tests; empty: the system's.
	BootID string
}

// DefaultConfig is the configuration of a broker on which nothing is set.
func DefaultConfig() Config {
	var c Config
	config.SetDefaults(&c)
	return c
}

// Validate reports everything that is wrong with the configuration, joined.
func (c *Config) Validate() error {
	errs := []error{c.Common.Validate()}
	check := func(ok bool, key string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %v is not allowed; choose %s", key, value, want))
		}
	}
	largest := rpc.MaxMessageBytes - rpc.MessageOverhead
	check(c.NodeID >= 1, "node.id", c.NodeID, "1 or more, the same at every start: a broker's disks belong to it")
	check(len(c.LogDirs) > 0, "log.dirs", c.LogDirs, "at least one folder")
	check(c.RecoveryThreads >= 0 && c.RecoveryThreads <= 1024, "num.recovery.threads.per.data.dir", c.RecoveryThreads, "0 to 1024")
	check(c.FlushCheckpointMs >= 10 && c.FlushCheckpointMs <= 24*3600*1000, "log.flush.offset.checkpoint.interval.ms", c.FlushCheckpointMs, "10 to 86400000")
	check(c.WatermarkCheckpointMs >= 10 && c.WatermarkCheckpointMs <= 24*3600*1000, "replica.high.watermark.checkpoint.interval.ms", c.WatermarkCheckpointMs, "10 to 86400000")
	check(c.MessageMaxBytes >= 1024 && c.MessageMaxBytes <= largest, "message.max.bytes", c.MessageMaxBytes, fmt.Sprintf("1024 to %d", largest))
	check(c.FetchMaxBytes >= 1024 && c.FetchMaxBytes <= largest, "fetch.max.bytes", c.FetchMaxBytes, fmt.Sprintf("1024 to %d", largest))
	check(c.FetchMemoryBytes >= 0, "fetch.memory.bytes", c.FetchMemoryBytes, "0 or more")
	check(c.ReserveBytes >= -1, "log.dir.reserve.bytes", c.ReserveBytes, "-1 or more")
	check(c.ThrottleBytes >= -1, "log.dir.throttle.bytes", c.ThrottleBytes, "-1 or more")
	check(c.ThrottleRateBytes >= 0, "log.dir.throttle.rate.bytes.per.second", c.ThrottleRateBytes, "0 or more")
	check(c.WarnBytes >= -1, "log.dir.warn.bytes", c.WarnBytes, "-1 or more")
	check(c.MaxOpenFiles >= 0, "log.max.open.files", c.MaxOpenFiles, "0 or more")
	check(c.RetentionCheckMs >= 1 && c.RetentionCheckMs <= 24*3600*1000, "log.retention.check.interval.ms", c.RetentionCheckMs, "1 to 86400000")
	check(c.CleanerBackoffMs >= 1 && c.CleanerBackoffMs <= 24*3600*1000, "log.cleaner.backoff.ms", c.CleanerBackoffMs, "1 to 86400000")
	check(c.CleanerBufferBytes >= commitlog.MinDedupeBufferBytes, "log.cleaner.dedupe.buffer.size", c.CleanerBufferBytes, fmt.Sprintf("%d or more", commitlog.MinDedupeBufferBytes))
	check(c.CleanerRateBytes >= 0, "log.cleaner.io.max.bytes.per.second", c.CleanerRateBytes, "0 or more")
	check(c.MaxDecodedBytes >= 1024, "max.decoded.bytes", c.MaxDecodedBytes, "1024 or more")
	check(c.ProduceMaxInFlight >= 2 && c.ProduceMaxInFlight <= 10_000, "produce.max.in.flight.batches", c.ProduceMaxInFlight, "2 to 10000")
	check(c.FetchMaxPartitions >= 1 && c.FetchMaxPartitions <= 1_000_000, "fetch.max.partitions", c.FetchMaxPartitions, "1 to 1000000")
	check(c.ProducerIDExpirationMs >= 1000 && c.ProducerIDExpirationMs <= 365*24*3600*1000, "producer.id.expiration.ms", c.ProducerIDExpirationMs, "1000 to 31536000000")
	check(c.ReplicaLagTimeMaxMs >= 100 && c.ReplicaLagTimeMaxMs <= 24*3600*1000, "replica.lag.time.max.ms", c.ReplicaLagTimeMaxMs, "100 to 86400000")
	check(c.ReplicaFetchWindow >= 1024 && c.ReplicaFetchWindow <= int64(rpc.MaxMessageBytes), "replica.fetch.window.bytes", c.ReplicaFetchWindow, fmt.Sprintf("1024 to %d", rpc.MaxMessageBytes))
	check(c.DiskWatchdog > 0, "disk.watchdog.timeout", c.DiskWatchdog, "a time above 0")
	return errors.Join(errs...)
}
