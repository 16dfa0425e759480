package groups

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/owners"
	"github.com/leat-io/leat/tests/internal/rig"
)

// load is a producer that goes round the partitions of a topic, and a reader without
// a group that follows it: what it waits for, a group has to wait for, too.
type load struct {
	t        *testing.T
	topic    *client.Topic
	client   *client.Client
	producer *client.Producer
	halt     context.CancelFunc
	senders  sync.WaitGroup
	cancel   context.CancelFunc
	readers  sync.WaitGroup
	alone    *owners.Owners // what the reader was given

	mu   sync.Mutex
	ends []int64 // one past the last acknowledged record, by partition
}

// startLoad sends so many records a second.
func startLoad(t *testing.T, r *rig.Rig, name string, rate int) *load {
	t.Helper()
	l := &load{t: t, client: newClient(t, r, "load")}
	l.topic = lookUp(t, l.client, name)
	l.ends = make([]int64, len(l.topic.Partitions))
	l.alone = owners.New(len(l.ends), func(format string, args ...any) { t.Errorf("the reader without a group: "+format, args...) })
	var err error
	if l.producer, err = l.client.NewProducer(client.ProducerConfig{Linger: time.Millisecond, DeliveryTimeout: 2 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	var sending, reading context.Context
	sending, l.halt = context.WithCancel(context.Background())
	reading, l.cancel = context.WithCancel(context.Background())
	t.Cleanup(l.close)
	l.senders.Go(func() { l.send(sending, rate) })
	l.readers.Go(func() { l.read(reading) })
	mesh.Eventually(t, limit, "the load flows", func() (bool, string) {
		c := l.alone.Counts()
		return c.Delivered > 2*len(l.ends), fmt.Sprintf("%+v", c)
	})
	return l
}

func (l *load) send(ctx context.Context, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		partition := int32(n % len(l.ends))
		err := l.producer.Send(ctx, client.Record{Topic: l.topic.Name, Partition: &partition, Value: fmt.Appendf(nil, "record %d", n)}, l.note)
		if err != nil && ctx.Err() == nil && !rpc.Retryable(rpc.FromError(err)) {
			l.t.Errorf("the producer: %v", err)
			return
		}
	}
}

func (l *load) note(res client.Result) {
	if res.Err != nil {
		l.t.Errorf("the producer was told: %v", res.Err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[res.Partition] = max(l.ends[res.Partition], res.Offset+1)
}

func (l *load) read(ctx context.Context) {
	k, err := l.client.NewConsumer(client.ConsumerConfig{Reset: client.ResetEarliest})
	if err != nil {
		l.t.Error(err)
		return
	}
	defer func() { _ = k.Close(context.Background()) }() // it commits nothing
	var all []client.Position
	for n := range l.ends {
		all = append(all, client.Position{TopicPartition: client.TopicPartition{TopicID: l.topic.ID, Partition: int32(n)}, LeaderEpoch: -1})
	}
	if err := k.Assign(ctx, all...); err != nil {
		l.t.Errorf("the reader without a group: %v", err)
		return
	}
	for {
		got, err := k.Poll(ctx, 0)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			l.t.Errorf("the reader without a group: %v", err)
			return
		}
		now := time.Now()
		for i := range got {
			l.alone.Pass("the reader", int(got[i].Partition), got[i].Offset, now)
		}
		k.Release()
	}
}

// stop ends sending, waits for all outcomes and until the reader has everything,
// and returns the ends of the partitions.
func (l *load) stop() []int64 {
	l.t.Helper()
	l.halt()
	l.senders.Wait()
	if err := l.producer.Flush(within(l.t, 3*time.Minute)); err != nil {
		l.t.Errorf("flush: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	mesh.Eventually(l.t, limit, "the reader without a group gets everything", func() (bool, string) {
		return reached(l.alone.Ends(), l.ends)
	})
	return append([]int64(nil), l.ends...)
}

// reached says whether ends are what is wanted.
func reached(ends, want []int64) (bool, string) {
	for n := range want {
		if ends[n] < want[n] {
			return false, fmt.Sprintf("partition %d is read up to %d of %d", n, ends[n], want[n])
		}
	}
	return true, ""
}

func (l *load) close() {
	l.halt()
	l.senders.Wait()
	l.cancel()
	l.readers.Wait()
	patience := limit // what has no outcome when it is over counts as failed
	if l.t.Failed() {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = l.producer.Close(ctx) // note has told of what failed
}

// fill appends records to partition 0 of a topic and returns when they are stored.
func fill(t *testing.T, c *client.Client, name string, partitions, each int) {
	t.Helper()
	p, err := c.NewProducer(client.ProducerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, limit)
	for n := range each * partitions {
		partition := int32(n % partitions)
		err := p.Send(ctx, client.Record{Topic: name, Partition: &partition, Value: fmt.Appendf(nil, "record %d", n/partitions)}, func(res client.Result) {
			if res.Err != nil {
				t.Errorf("fill %s: %v", name, res.Err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// idle says whether a Poll ended because nothing came.
func idle(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() != nil && rpc.FromError(err).Reason == typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED
}
