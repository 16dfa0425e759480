package broker

import (
	"errors"
	"fmt"
	"time"

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

	LogDirs               []string      `config:"log.dirs" default:"leat-data" help:"Folders of the replicas, one for each disk, separated by commas. New replicas go to the one with the fewest."`
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
	check(c.MaxDecodedBytes >= 1024, "max.decoded.bytes", c.MaxDecodedBytes, "1024 or more")
	check(c.ProduceMaxInFlight >= 2 && c.ProduceMaxInFlight <= 10_000, "produce.max.in.flight.batches", c.ProduceMaxInFlight, "2 to 10000")
	check(c.FetchMaxPartitions >= 1 && c.FetchMaxPartitions <= 1_000_000, "fetch.max.partitions", c.FetchMaxPartitions, "1 to 1000000")
	check(c.DiskWatchdog > 0, "disk.watchdog.timeout", c.DiskWatchdog, "a time above 0")
	return errors.Join(errs...)
}
