package client

import (
	"errors"
	"fmt"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
)

// Idempotence says whether the mesh recognises batches that are sent again.
type Idempotence int

// The choices.
const (
	// IdempotenceDefault is on, unless another setting rules it out: acks other than
	// all, or more than 5 batches in flight.
	IdempotenceDefault Idempotence = iota
	// IdempotenceOn refuses settings that rule it out.
	IdempotenceOn
	// IdempotenceOff: what is sent again after an unknown outcome may be there twice.
	IdempotenceOff
)

// ProducerConfig configures a Producer. Zero values mean the defaults stated.
type ProducerConfig struct {
	// Acks says whose storing a result waits for; unspecified: all.
	Acks typev1.Acks
	// Idempotence makes each record be stored once and in order however often it has to
	// be sent (enable.idempotence). It needs acks all.
	Idempotence Idempotence
	// Linger is how long a batch waits for more records before it is sent; 0: 5 ms;
	// negative: not at all.
	Linger time.Duration
	// BatchBytes closes a batch, uncompressed and encoded; 0: 64 KiB. A larger record
	// goes alone, up to the topic's max.message.bytes.
	BatchBytes int
	// BatchRecords closes a batch; 0: no limit of its own.
	BatchRecords int
	// Compression is the codec of batches.
	Compression record.Compression
	// Partitioner makes the partitioner of each topic; nil: Murmur2.
	Partitioner PartitionerFactory
	// DeliveryTimeout bounds the time from Send to its result; 0: 2 min.
	DeliveryTimeout time.Duration
	// AckTimeout is how long a broker may wait for acks in one attempt; 0: 30 s; more
	// than 10 min counts as that.
	AckTimeout time.Duration
	// MaxBufferedBytes bounds the records without a result; Send blocks beyond it; 0:
	// 32 MiB.
	MaxBufferedBytes int64
	// MaxInFlightPerPartition bounds unanswered batches of a partition; 0: 5, which is
	// the most that idempotence allows.
	MaxInFlightPerPartition int
	// NoRetryUnknown reports an unknown outcome at once instead of sending the batch
	// again, which may store it twice without idempotence.
	NoRetryUnknown bool
	// StopPartition makes every record of a partition fail with PARTITION_STOPPED,
	// not done, after the first that failed. At most one batch of a partition is in
	// flight then.
	StopPartition bool
	// TraceHeaders adds a traceparent header to sampled records that have none.
	TraceHeaders bool
}

// Validate joins everything that is wrong with the configuration.
func (c ProducerConfig) Validate() error {
	var errs []error
	if c.Acks < typev1.Acks_ACKS_UNSPECIFIED || c.Acks > typev1.Acks_ACKS_ALL {
		errs = append(errs, fmt.Errorf("producer: acks %d is none of none, leader and all", c.Acks))
	}
	if c.Compression < record.CompressionNone || c.Compression > record.CompressionZstd {
		errs = append(errs, fmt.Errorf("producer: compression %d is not one of Kafka's codecs; choose one from %d to %d", c.Compression, record.CompressionNone, record.CompressionZstd))
	}
	if c.Idempotence < IdempotenceDefault || c.Idempotence > IdempotenceOff {
		errs = append(errs, fmt.Errorf("producer: idempotence %d is none of default, on and off", c.Idempotence))
	}
	if c.Idempotence == IdempotenceOn {
		if c.Acks != typev1.Acks_ACKS_ALL && c.Acks != typev1.Acks_ACKS_UNSPECIFIED {
			errs = append(errs, errors.New("producer: idempotence needs acks all: ask for that, or switch idempotence off"))
		}
		if c.MaxInFlightPerPartition > maxIdempotentInFlight {
			errs = append(errs, fmt.Errorf("producer: idempotence allows %d batches of a partition in flight, not %d: lower MaxInFlightPerPartition, or switch idempotence off", maxIdempotentInFlight, c.MaxInFlightPerPartition))
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"BatchBytes", int64(c.BatchBytes)},
		{"BatchRecords", int64(c.BatchRecords)},
		{"DeliveryTimeout", int64(c.DeliveryTimeout)},
		{"AckTimeout", int64(c.AckTimeout)},
		{"MaxBufferedBytes", c.MaxBufferedBytes},
		{"MaxInFlightPerPartition", int64(c.MaxInFlightPerPartition)},
	} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("producer: %s is %d; it must not be negative", f.name, f.v))
		}
	}
	return errors.Join(errs...)
}

func (c ProducerConfig) withDefaults() ProducerConfig {
	c.Acks = or(c.Acks, typev1.Acks_ACKS_ALL)
	c.Linger = max(or(c.Linger, 5*time.Millisecond), 0)
	c.BatchBytes = or(c.BatchBytes, 64<<10)
	c.DeliveryTimeout = or(c.DeliveryTimeout, 2*time.Minute)
	c.AckTimeout = min(or(c.AckTimeout, 30*time.Second), maxAckTimeout)
	c.MaxBufferedBytes = or(c.MaxBufferedBytes, 32<<20)
	c.MaxInFlightPerPartition = or(c.MaxInFlightPerPartition, 5)
	if c.StopPartition {
		c.MaxInFlightPerPartition = 1
	}
	if c.Idempotence == IdempotenceDefault {
		c.Idempotence = IdempotenceOn
		if c.Acks != typev1.Acks_ACKS_ALL || c.MaxInFlightPerPartition > maxIdempotentInFlight {
			c.Idempotence = IdempotenceOff
		}
	}
	if c.Partitioner == nil {
		c.Partitioner = Murmur2
	}
	return c
}

// maxAckTimeout is the longest wait for acks that brokers take.
const maxAckTimeout = 10 * time.Minute
