package handler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/gateway/internal/session"
)

// producerKey is what streams must have in common to share a producer, and with
// it batches.
type producerKey struct {
	acks        typev1.Acks
	compression typev1.CompressionType
	partitioner gatewayv1.Partitioner
	linger      time.Duration
	delivery    time.Duration
}

// producerPool shares producers among streams, so that small streams fill batches
// together. Durations are rounded up to a ladder of steps to keep the kinds few;
// sessions have their delivery timeout rounded already, and tell it.
type producerPool struct {
	mesh   Mesh
	limits Limits
	logger *slog.Logger

	mu        sync.Mutex
	closed    bool
	producers map[producerKey]*pooledProducer
	closing   sync.WaitGroup
}

type pooledProducer struct {
	producer Producer
	users    int
}

func newProducerPool(mesh Mesh, limits Limits, logger *slog.Logger) *producerPool {
	return &producerPool{mesh: mesh, limits: limits, logger: logger, producers: map[producerKey]*pooledProducer{}}
}

// get returns a producer for the settings, and what to call when it is not used
// any more. Streams that stop partitions on errors have one of their own.
func (p *producerPool) get(s session.ProduceSettings) (Producer, func(), error) {
	key := producerKey{
		acks: s.Acks, compression: s.Compression, partitioner: s.Partitioner,
		linger: session.StepUp(s.Linger, time.Millisecond), delivery: session.StepUp(s.DeliveryTimeout, time.Second),
	}
	if s.StopPartition {
		return p.own(key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_DRAINING, "the gateway is stopping; use another one")
	}
	e := p.producers[key]
	if e == nil {
		if !p.makeRoom() {
			return nil, nil, rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
				"%d combinations of acks, compression, partitioner, linger and delivery timeout are in use at this gateway, which is its limit; use settings that others use, or raise max.producers",
				p.limits.MaxProducers).With("limit", "max.producers")
		}
		made, err := p.mesh.NewProducer(p.config(key))
		if err != nil {
			return nil, nil, err
		}
		e = &pooledProducer{producer: made}
		p.producers[key] = e
	}
	e.users++
	return e.producer, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.users--
	}), nil
}

// makeRoom drops a producer that nobody uses if there are too many. What it still
// carries for streams that broke gets its time.
func (p *producerPool) makeRoom() bool {
	if len(p.producers) < p.limits.MaxProducers {
		return true
	}
	for key, e := range p.producers {
		if e.users > 0 {
			continue
		}
		delete(p.producers, key)
		p.closing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), key.delivery)
			defer cancel()
			p.end(ctx, e.producer)
		})
		return true
	}
	return false
}

// own makes a producer for one stream. When the stream has ended nobody waits for
// its results, so it ends at once.
func (p *producerPool) own(key producerKey) (Producer, func(), error) {
	cfg := p.config(key)
	cfg.StopPartition = true
	made, err := p.mesh.NewProducer(cfg)
	if err != nil {
		return nil, nil, err
	}
	return made, sync.OnceFunc(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p.end(ctx, made)
	}), nil
}

func (p *producerPool) end(ctx context.Context, producer Producer) {
	if err := producer.Close(ctx); err != nil && ctx.Err() == nil {
		p.logger.Warn("closing a producer failed", "error", err)
	}
}

// close ends all producers.
func (p *producerPool) close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	producers := p.producers
	p.producers = map[producerKey]*pooledProducer{}
	p.mu.Unlock()
	for _, e := range producers {
		p.closing.Go(func() { p.end(ctx, e.producer) })
	}
	p.closing.Wait()
}

func (p *producerPool) config(key producerKey) client.ProducerConfig {
	cfg := client.ProducerConfig{
		Acks: key.acks, Linger: key.linger, BatchBytes: p.limits.BatchBytes, Compression: codec(key.compression),
		Partitioner: partitioner(key.partitioner), DeliveryTimeout: key.delivery,
		// The handler's budget is what bounds records, before they come here.
		MaxBufferedBytes: 2 * p.limits.MaxProduceBytes,
		TraceHeaders:     true,
	}
	if cfg.Linger == 0 {
		cfg.Linger = -1
	}
	return cfg
}

// codec is the record package's name of a compression type.
func codec(c typev1.CompressionType) record.Compression {
	switch c {
	case typev1.CompressionType_COMPRESSION_TYPE_GZIP:
		return record.CompressionGzip
	case typev1.CompressionType_COMPRESSION_TYPE_SNAPPY:
		return record.CompressionSnappy
	case typev1.CompressionType_COMPRESSION_TYPE_LZ4:
		return record.CompressionLZ4
	case typev1.CompressionType_COMPRESSION_TYPE_ZSTD:
		return record.CompressionZstd
	}
	return record.CompressionNone
}

func partitioner(p gatewayv1.Partitioner) client.PartitionerFactory {
	switch p {
	case gatewayv1.Partitioner_PARTITIONER_STICKY:
		return client.Sticky
	case gatewayv1.Partitioner_PARTITIONER_ROUND_ROBIN:
		return client.RoundRobin
	case gatewayv1.Partitioner_PARTITIONER_RANDOM:
		return client.Random
	}
	return client.Murmur2
}

// String is for logs.
func (k producerKey) String() string {
	return fmt.Sprintf("acks %s, %s, %s, linger %s, delivery timeout %s", k.acks, k.compression, k.partitioner, k.linger, k.delivery)
}
