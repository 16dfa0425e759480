package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

// valueFor is a value with which a record alone in its batch takes size bytes.
func valueFor(size int) []byte {
	v := bytes.Repeat([]byte("x"), size)
	for record.SizeOf(&record.Record{Value: v}) > size {
		v = v[:len(v)-1]
	}
	return v
}

// case 18: records of limit-1, limit and limit+1 bytes between small ones. Only
// the one above the limit fails.
func TestRecordTooLargeFailsAlone(t *testing.T) {
	for c := record.CompressionNone; c <= record.CompressionZstd; c++ {
		t.Run(c.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const limit = 10_000
				m := newFakeMesh(t, 1)
				topic := m.topic("t", 1, limit)
				m.onBatch = func(_ *fakeBroker, _ *brokerv1.ProduceBatch, h record.Header) fault {
					if h.Size() > limit {
						return fault{err: rpc.Errorf(reasonRecordTooLarge, "%d", h.Size())}
					}
					return fault{}
				}
				p := newTestProducer(t, m.client(Config{}), ProducerConfig{Compression: c, Linger: time.Second})
				var stored atomic.Int32
				for i, size := range []int{100, limit - 1, 100, limit + 1, limit, 100} {
					err := p.Send(soon(t), Record{Topic: "t", Value: valueFor(size)}, func(r Result) {
						if r.Err != nil {
							t.Errorf("record %d: %v", i, r.Err)
						}
						stored.Add(1)
					})
					if size > limit {
						if e := rpc.FromError(err); !rpc.IsReason(err, reasonRecordTooLarge) || e.Outcome != outcomeNotDone || e.Metadata["limit_bytes"] != "10000" || e.Metadata["bytes"] != "10001" {
							t.Errorf("%d bytes: %v %v", size, err, e.Metadata)
						}
					} else if err != nil {
						t.Errorf("%d bytes: %v", size, err)
					}
				}
				if err := p.Flush(soon(t)); err != nil {
					t.Fatal(err)
				}
				if n := len(m.records(topic, 0)); n != 5 || stored.Load() != 5 {
					t.Errorf("%d records are stored and %d told of, want 5", n, stored.Load())
				}
			})
		})
	}
}

// A batch that was encoded under a higher limit is split until what fits alone has
// gone through.
func TestLoweredLimitSplitsBatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.onBatch = func(_ *fakeBroker, _ *brokerv1.ProduceBatch, h record.Header) fault {
			if h.Size() > 300 {
				return fault{err: rpc.Errorf(reasonRecordTooLarge, "%d", h.Size())}
			}
			return fault{}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{})
		var order []int64
		var failed int
		for i := range 20 {
			v := fmt.Appendf(nil, "%06d", i)
			if i == 9 {
				v = bytes.Repeat(v, 100)
			}
			if err := p.Send(soon(t), Record{Topic: "t", Value: v}, func(r Result) {
				if r.Err != nil {
					failed++
					return
				}
				order = append(order, r.Offset)
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(soon(t)); err != nil {
			t.Fatal(err)
		}
		if failed != 1 || len(order) != 19 {
			t.Fatalf("%d failed and %d stored", failed, len(order))
		}
		for i, r := range m.records(topic, 0) {
			n := i
			if i >= 9 {
				n++
			}
			if want := fmt.Sprintf("%06d", n); string(r.Value) != want || order[i] != int64(i) {
				t.Errorf("record %d is %s at %d, want %s", i, r.Value, order[i], want)
			}
		}
	})
}

func TestBuffersAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		hold := make(chan struct{})
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault { return fault{hold: hold} }
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{MaxBufferedBytes: 10_000})
		value := make([]byte, 3000)
		var sent int
		var err error
		for sent = 0; sent < 10 && err == nil; sent++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err = p.Send(ctx, Record{Topic: "t", Value: value}, nil)
			cancel()
		}
		if e := rpc.FromError(err); sent != 4 || !rpc.IsReason(err, reasonDeadlineExceeded) || e.Outcome != outcomeNotDone {
			t.Errorf("send %d: %v", sent, err)
		}
		if b := p.Stats().BufferedBytes; b > 10_000 || b < 9000 {
			t.Errorf("%d bytes are buffered", b)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- p.Send(t.Context(), Record{Topic: "t", Value: value}, nil) }()
		synctest.Wait()
		close(hold)
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// Who is told a record's result does not find that record buffered any more.
func TestAResultComesAfterItsMemory(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{})
		left := make(chan int64, 1)
		for i := range 10 {
			if err := p.Send(soon(t), Record{Topic: "t", Value: []byte("v")}, func(Result) {
				if i == 9 {
					left <- p.Stats().BufferedBytes
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if b := <-left; b != 0 {
			t.Errorf("%d bytes are buffered after the last result", b)
		}
	})
}

func TestSendAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: time.Hour})
		var told atomic.Int32
		for range 10 {
			if err := p.Send(soon(t), Record{Topic: "t", Value: []byte("v")}, func(r Result) {
				if r.Err == nil {
					told.Add(1)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
		if n := len(m.records(topic, 0)); n != 10 || told.Load() != 10 {
			t.Errorf("%d records stored and %d told of after a close", n, told.Load())
		}
		if err := p.Send(soon(t), Record{Topic: "t"}, nil); !rpc.IsReason(err, reasonCancelled) || rpc.FromError(err).Outcome != outcomeNotDone {
			t.Errorf("send after close: %v", err)
		}
	})
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault { return fault{silent: true} }
		p, err := m.client(Config{}).NewProducer(ProducerConfig{BatchRecords: 1})
		if err != nil {
			t.Fatal(err)
		}
		var outcomes []typev1.Outcome
		for range 2 {
			if err := p.Send(soon(t), Record{Topic: "t"}, func(r Result) { outcomes = append(outcomes, rpc.FromError(r.Err).Outcome) }); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); err == nil {
			t.Error("closed without an error")
		}
		if len(outcomes) != 2 || outcomes[0] != outcomeUnknown || outcomes[1] != outcomeNotDone {
			t.Errorf("outcomes %v: the first was sent, the second was not", outcomes)
		}
	})
}

func TestAcksNone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Acks: typev1.Acks_ACKS_NONE})
		r, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("v")})
		if err != nil || r.Offset != -1 {
			t.Fatal(r, err)
		}
		synctest.Wait()
		if n := len(m.records(topic, 0)); n != 1 {
			t.Errorf("%d records", n)
		}
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		if _, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("lost")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := p.Stats(); s.UnacknowledgedFailures != 1 {
			t.Errorf("%+v", s)
		}
		if _, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("w")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(m.records(topic, 0)); n != 2 {
			t.Errorf("%d records: the new leader was not found", n)
		}
		m.kill(2)
		if _, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("x")}); err == nil || p.Stats().UnacknowledgedFailures != 2 {
			t.Errorf("with nobody there: %v, %+v", err, p.Stats())
		}
	})
}

func TestStopPartition(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 2, 1000)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{StopPartition: true})
		zero, one := int32(0), int32(1)
		send := func(partition *int32, size int) error {
			_, err := p.SendSync(soon(t), Record{Topic: "t", Partition: partition, Value: make([]byte, size)})
			return err
		}
		if err := send(&zero, 10); err != nil {
			t.Fatal(err)
		}
		if err := send(&zero, 2000); !rpc.IsReason(err, reasonRecordTooLarge) {
			t.Fatal(err)
		}
		if err := send(&zero, 10); !rpc.IsReason(err, reasonPartitionStopped) || rpc.FromError(err).Outcome != outcomeNotDone {
			t.Errorf("after the failure: %v", err)
		}
		if err := send(&one, 10); err != nil {
			t.Errorf("another partition: %v", err)
		}
		if n := len(m.records(topic, 0)); n != 1 {
			t.Errorf("%d records", n)
		}
	})
}

func TestBadSends(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 2, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Partitioner: PartitionerFunc(func(*Record, *Topic) int32 { return 5 })})
		seven, minus := int32(7), int32(-1)
		for name, c := range map[string]struct {
			r      Record
			reason typev1.ErrorReason
		}{
			"unknown topic":          {Record{Topic: "nope"}, reasonUnknownTopic},
			"partition out of range": {Record{Topic: "t", Partition: &seven}, reasonUnknownPartition},
			"partition below 0":      {Record{Topic: "t", Partition: &minus}, reasonUnknownPartition},
			"bad partitioner":        {Record{Topic: "t"}, reasonUnknownPartition},
		} {
			if err := p.Send(soon(t), c.r, nil); !rpc.IsReason(err, c.reason) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// case 19: null, empty and present keys and values, and header values, and
// repeated header keys in their order, from the producer to the reader.
func TestNullEmptyAndPresentStayDifferent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{})
		p := newTestProducer(t, c, ProducerConfig{})
		kinds := [][]byte{nil, {}, []byte("x")}
		var headers []Header
		for _, v := range kinds {
			headers = append(headers, Header{Key: []byte("same"), Value: v})
		}
		zero := int32(0)
		for _, key := range kinds {
			for _, value := range kinds {
				if err := p.Send(soon(t), Record{Topic: "t", Partition: &zero, Key: key, Value: value, Headers: headers, Timestamp: time.UnixMilli(12345)}, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := p.Flush(soon(t)); err != nil {
			t.Fatal(err)
		}
		f := newTestFetcher(t, c, FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
		for n := 0; n < 9; {
			e, err := f.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range e.Records {
				if !same(r.Key, kinds[n/3]) || !same(r.Value, kinds[n%3]) || r.Timestamp != 12345 || len(r.Headers) != 3 {
					t.Errorf("record %d: %+v", n, r)
				}
				for i, h := range r.Headers {
					if string(h.Key) != "same" || !same(h.Value, kinds[i]) {
						t.Errorf("record %d, header %d: %+v", n, i, h)
					}
				}
				n++
			}
			e.Release()
		}
	})
}

func TestBatchSpanHasParentAndLinks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		tp := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		var carried string
		m.onBatch = func(_ *fakeBroker, b *brokerv1.ProduceBatch, _ record.Header) fault {
			carried = b.Trace.GetTraceparent()
			return fault{}
		}
		p := newTestProducer(t, m.client(Config{TracerProvider: tp}), ProducerConfig{TraceHeaders: true})
		tracer := tp.Tracer("test")
		first, span1 := tracer.Start(t.Context(), "one")
		second, span2 := tracer.Start(t.Context(), "two")
		for _, ctx := range []context.Context{t.Context(), first, second} {
			if err := p.Send(ctx, Record{Topic: "t"}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(soon(t)); err != nil {
			t.Fatal(err)
		}
		for _, s := range spans.Ended() {
			if s.Name() != "send t" {
				continue
			}
			if s.Parent().SpanID() != span1.SpanContext().SpanID() || len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != span2.SpanContext().SpanID() {
				t.Errorf("parent %v, links %v", s.Parent(), s.Links())
			}
			if want := fmt.Sprintf("00-%s-%s-01", s.SpanContext().TraceID(), s.SpanContext().SpanID()); carried != want {
				t.Errorf("%q came with the batch, want %q", carried, want)
			}
			for i, r := range m.records(topic, 0) {
				if traced := len(r.Headers) == 1; traced != (i > 0) {
					t.Errorf("record %d: headers %v", i, r.Headers)
				}
			}
			return
		}
		t.Error("no span of the batch")
	})
}

func TestProduceBatch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{})
		if _, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "a"), typev1.Acks_ACKS_ALL, nil); !rpc.IsReason(err, reasonLeaderUnavailable) {
			t.Errorf("without metadata: %v", err)
		}
		if _, err := c.Metadata().TopicByID(soon(t), topic.id); err != nil {
			t.Fatal(err)
		}
		var fence *brokerv1.ShardFence
		var f fault
		m.onBatch = func(_ *fakeBroker, b *brokerv1.ProduceBatch, _ record.Header) fault {
			fence = b.ShardFence
			return f
		}
		got, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "a", "b"), typev1.Acks_ACKS_ALL, &brokerv1.ShardFence{ShardEpoch: 7})
		if err != nil || got.BaseOffset != 0 || got.LeaderEpoch != 1 {
			t.Errorf("%+v %v", got, err)
		}
		m.update(func() {
			if fence.GetShardEpoch() != 7 {
				t.Errorf("the fence: %v", fence)
			}
			f = fault{silent: true}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.ProduceBatch(ctx, topic.at(0), encode(t, "c"), typev1.Acks_ACKS_ALL, nil)
		if rpc.FromError(err).Outcome != outcomeUnknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("unanswered: %v", err)
		}
		m.update(func() {
			f = fault{}
			topic.parts[0].leader, topic.parts[0].epoch = 2, 2
		})
		if _, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "d"), typev1.Acks_ACKS_ALL, nil); !rpc.IsReason(err, reasonNotLeader) {
			t.Errorf("at the old leader: %v", err)
		}
		if got, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "d"), typev1.Acks_ACKS_ALL, nil); err != nil || got.LeaderEpoch != 2 {
			t.Errorf("the hint was not followed: %+v %v", got, err)
		}
	})
}

// Records of a topic that is deleted fail soon, not at their timeout.
func TestDeletedTopicFailsSoon(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{})
		if _, err := p.SendSync(soon(t), Record{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
			delete(m.topics, topic.id) // as the batch arrives
			return fault{}
		}
		start := time.Now()
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); !rpc.IsReason(err, reasonTopicDeleted) || e.Outcome != outcomeNotDone {
			t.Errorf("%v", err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("told after %v", d)
		}
	})
}

// A record that was never sent, because its partition has no leader or the leader
// cannot be reached, is not done when its time is over, and the error tells why.
func TestLateRecordsThatWereNeverSentAreNotDone(t *testing.T) {
	for reason, breakIt := range map[string]func(*fakeMesh, *fakeTopic){
		"LEADER_NOT_AVAILABLE": func(m *fakeMesh, topic *fakeTopic) {
			m.update(func() { topic.parts[0].leader = -1 })
		},
		"UNREACHABLE": func(m *fakeMesh, _ *fakeTopic) {
			m.onOpen = func(*fakeBroker) bool { return true }
		},
	} {
		t.Run(reason, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newFakeMesh(t, 1)
				breakIt(m, m.topic("t", 1, 1<<20))
				p := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 3 * time.Second})
				start := time.Now()
				_, err := p.SendSync(soon(t), Record{Topic: "t"})
				e := rpc.FromError(err)
				if e == nil || rpc.ReasonName(e.Reason) != reason || e.Outcome != outcomeNotDone || e.Metadata["last_reason"] != reason || !strings.Contains(e.Message, reason) {
					t.Errorf("%+v", e)
				}
				if d := time.Since(start); d > 4*time.Second {
					t.Errorf("told after %v", d)
				}
			})
		})
	}
}

// However many partitions there are, no more batches are on their way to a broker
// than the window says, and no more of one partition than may be.
func TestWindowsBoundWhatIsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 20, 1<<20)
		hold := make(chan struct{})
		inFlight, perPart := 0, make(map[int32]int)
		m.onBatch = func(_ *fakeBroker, b *brokerv1.ProduceBatch, _ record.Header) fault {
			inFlight++
			perPart[b.Partition]++
			return fault{hold: hold}
		}
		p := newTestProducer(t, m.client(Config{MaxInFlightPerStream: 6}), ProducerConfig{BatchRecords: 1, Linger: -1})
		send := func(partition int32, n int) {
			for range n {
				if err := p.Send(soon(t), Record{Topic: "t", Partition: &partition}, nil); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		check := func(all, ofZero int) {
			t.Helper()
			m.mu.Lock()
			defer m.mu.Unlock()
			if inFlight != all || perPart[0] != ofZero {
				t.Errorf("%d in flight, %d of partition 0, want %d and %d", inFlight, perPart[0], all, ofZero)
			}
		}
		send(0, 1)
		check(1, 1)
		release := func() {
			m.mu.Lock()
			close(hold)
			hold = make(chan struct{})
			inFlight, perPart = 0, make(map[int32]int)
			m.mu.Unlock()
			synctest.Wait()
		}
		release()
		send(0, 9)
		check(5, 5)
		for i := range int32(10) {
			send(i+1, 1)
		}
		check(6, 5)
		for range 10 {
			release()
		}
		if s := p.Stats(); s.Acknowledged != 20 {
			t.Errorf("%+v", s)
		}
	})
}
