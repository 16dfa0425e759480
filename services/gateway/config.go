package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/leat-io/leat/libs/config"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/service"
	"github.com/leat-io/leat/services/gateway/internal/handler"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// DefaultPort is where a gateway listens unless told otherwise.
const DefaultPort = 5328

// Config holds the settings of a gateway. Start from DefaultConfig.
type Config struct {
	service.Common

	MaxProduceStreams   int           `config:"max.produce.streams" default:"1024" help:"Produce streams open at once; further ones are refused."`
	MaxConsumeStreams   int           `config:"max.consume.streams" default:"1024" help:"Consume streams open at once; further ones are refused."`
	MaxInFlightRecords  int           `config:"max.in.flight.records" default:"50000" help:"Unanswered records of one produce stream, beyond which it is not read."`
	MaxInFlightBytes    int64         `config:"max.in.flight.bytes" default:"16777216" help:"Unanswered bytes of one produce stream, 128 for each record included, beyond which it is not read."`
	MaxBufferedBytes    int64         `config:"max.buffered.bytes" default:"134217728" help:"Bytes of records without a result, 128 for each included, over all produce streams and calls; further ones wait."`
	MaxSendRecords      int           `config:"max.send.records" default:"10000" help:"Records in one send."`
	MaxProducers        int           `config:"max.producers" default:"64" help:"Combinations of produce settings in use at once; streams with the same ones share batches."`
	Linger              time.Duration `config:"linger" default:"5ms" help:"How long a batch waits for more records, where the stream does not say."`
	BatchBytes          int           `config:"batch.size" default:"65536" help:"Bytes at which a batch is sent without waiting longer."`
	DeliveryTimeout     time.Duration `config:"delivery.timeout" default:"2m" help:"Time after which a send is answered, known or not, where the stream does not say."`
	FetchBytes          int64         `config:"fetch.buffer.bytes" default:"524288" help:"Bytes read ahead for one consume stream."`
	MaxResponseBytes    int           `config:"fetch.response.bytes" default:"262144" help:"Bytes that a broker sends at once, but for a larger batch."`
	MaxDecodedBytes     int           `config:"max.decoded.bytes" default:"67108864" help:"What one batch may unpack to; a larger one is an error of its partition."`
	MaxStreamPartitions int           `config:"max.stream.partitions" default:"10000" help:"Partitions that one consume stream may name."`
	MaxUnread           int           `config:"max.unread.messages" default:"4096" help:"Answers other than records that may wait for one client; beyond it the stream is not read."`
	MaxCommits          int           `config:"max.unanswered.commits" default:"64" help:"Commits of one stream on their way; beyond it the stream is not read."`
	OpenTimeout         time.Duration `config:"open.timeout" default:"10s" help:"How long a stream may take to send its open message."`
	AdminTimeout        time.Duration `config:"admin.timeout" default:"30s" help:"Longest an admin call without a deadline may take."`
	ProxiedClients      bool          `config:"proxied.clients" default:"false" help:"Clients come through a proxy that answers HTTP/2 pings in their place: a group's member lives only as long as it sends messages, ping for example, within its session timeout."`
	MarksTimeout        time.Duration `config:"describe.timeout" default:"2s" help:"How long a description waits for brokers or controllers that do not answer."`
}

// DefaultConfig has every default; Listen is left to the caller.
func DefaultConfig() Config {
	var cfg Config
	config.SetDefaults(&cfg)
	return cfg
}

// Validate joins everything that is wrong with the configuration.
func (c *Config) Validate() error {
	errs := []error{c.Common.Validate()}
	atLeast := func(key string, v, least int64) {
		if v < least {
			errs = append(errs, fmt.Errorf("%s: %d is too small; use at least %d", key, v, least))
		}
	}
	atLeast("max.produce.streams", int64(c.MaxProduceStreams), 1)
	atLeast("max.consume.streams", int64(c.MaxConsumeStreams), 1)
	atLeast("max.in.flight.records", int64(c.MaxInFlightRecords), 1)
	atLeast("max.in.flight.bytes", c.MaxInFlightBytes, 1)
	atLeast("max.buffered.bytes", c.MaxBufferedBytes, rpc.MaxMessageBytes)
	atLeast("max.send.records", int64(c.MaxSendRecords), 1)
	atLeast("max.producers", int64(c.MaxProducers), 1)
	atLeast("batch.size", int64(c.BatchBytes), 1024)
	atLeast("fetch.buffer.bytes", c.FetchBytes, 1024)
	atLeast("fetch.response.bytes", int64(c.MaxResponseBytes), 1024)
	atLeast("max.decoded.bytes", int64(c.MaxDecodedBytes), 1<<20)
	atLeast("max.stream.partitions", int64(c.MaxStreamPartitions), 1)
	atLeast("max.unread.messages", int64(c.MaxUnread), 1)
	atLeast("max.unanswered.commits", int64(c.MaxCommits), 1)
	for _, d := range []struct {
		key string
		v   time.Duration
	}{{"delivery.timeout", c.DeliveryTimeout}, {"open.timeout", c.OpenTimeout}, {"admin.timeout", c.AdminTimeout}, {"describe.timeout", c.MarksTimeout}} {
		if d.v <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not above 0", d.key, d.v))
		}
	}
	if c.Linger < 0 || c.Linger > maxLinger {
		errs = append(errs, fmt.Errorf("linger: %s is not between 0 and %s", c.Linger, maxLinger))
	}
	return errors.Join(errs...)
}

// Bounds of what clients may ask for.
const (
	maxLinger          = 10 * time.Second
	maxDeliveryTimeout = time.Hour
	chunkBytes         = 128 << 10 // of records in one message

	// Once a second, the most that gRPC allows, a silent client's connection is asked
	// for a sign of life, from which a group member's session counts. It ends after ten
	// seconds of silence, so that a client which merely stalls keeps its streams.
	pingAfter   = time.Second
	pingTimeout = 9 * time.Second
)

// drainTimeout is how long streams go on once the gateway stops, and leaves a part
// of the shutdown for what comes after them.
func (c *Config) drainTimeout() time.Duration { return c.ShutdownTimeout / 2 }

func (c *Config) limits() handler.Limits {
	return handler.Limits{
		Produce: session.ProduceLimits{
			MaxInFlightRecords: c.MaxInFlightRecords, MaxInFlightBytes: c.MaxInFlightBytes, MaxSendRecords: c.MaxSendRecords,
			OpenTimeout: c.OpenTimeout, DeliveryTimeout: c.DeliveryTimeout, MaxDeliveryTimeout: maxDeliveryTimeout,
			Linger: c.Linger, MaxLinger: maxLinger, DrainTimeout: c.drainTimeout(),
		},
		Consume: session.ConsumeLimits{
			OpenTimeout: c.OpenTimeout, DrainTimeout: c.drainTimeout(), MaxPartitions: c.MaxStreamPartitions,
			MaxCommits: c.MaxCommits, MaxUnread: c.MaxUnread, ChunkBytes: chunkBytes, MaxMessageBytes: rpc.MaxMessageBytes,
		},
		MaxProduceStreams: c.MaxProduceStreams, MaxConsumeStreams: c.MaxConsumeStreams, MaxProduceBytes: c.MaxBufferedBytes,
		MaxProducers: c.MaxProducers, BatchBytes: c.BatchBytes, FetchBytes: c.FetchBytes,
		MaxResponseBytes: c.MaxResponseBytes, MaxDecodedBytes: c.MaxDecodedBytes,
		AdminTimeout: c.AdminTimeout, MarksTimeout: c.MarksTimeout, ProxiedClients: c.ProxiedClients, PingAfter: pingAfter,
	}
}
