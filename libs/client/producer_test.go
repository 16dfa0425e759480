package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

func newTestProducer(t *testing.T, c *Client, cfg ProducerConfig) *Producer {
	t.Helper()
	p, err := c.NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// collect sends n numbered records and returns the results in the order they came.
func collect(t *testing.T, p *Producer, topic string, partition int32, n int) []Result {
	t.Helper()
	got := make(chan Result, n)
	for i := range n {
		r := Record{Topic: topic, Partition: &partition, Value: fmt.Appendf(nil, "%06d", i)}
		if err := p.Send(soon(t), r, func(res Result) { got <- res }); err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
	}
	all := make([]Result, n)
	for i := range all {
		all[i] = <-got
	}
	return all
}

// checkStored wants exactly n numbered records, in order.
func checkStored(t *testing.T, m *fakeMesh, topic *fakeTopic, partition int32, n int) {
	t.Helper()
	recs := m.records(topic, partition)
	if len(recs) != n {
		t.Errorf("%d records are stored, want %d", len(recs), n)
	}
	for i, r := range recs {
		if want := fmt.Sprintf("%06d", i); string(r.Value) != want {
			t.Fatalf("record %d is %q, want %q", i, r.Value, want)
		}
	}
}

func TestProducerDelivers(t *testing.T) {
	for c := record.CompressionNone; c <= record.CompressionZstd; c++ {
		t.Run(c.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newFakeMesh(t, 2)
				topic := m.topic("t", 2, 1<<20)
				p := newTestProducer(t, m.client(Config{}), ProducerConfig{Compression: c, BatchRecords: 7})
				for i, r := range collect(t, p, "t", 1, 100) {
					if r.Err != nil || r.Offset != int64(i) || r.Partition != 1 || r.LeaderEpoch != 1 || r.MaybeDuplicated {
						t.Fatalf("result %d: %+v", i, r)
					}
				}
				checkStored(t, m, topic, 1, 100)
				if s := p.Stats(); s.Records != 100 || s.Acknowledged != 100 || s.BufferedBytes != 0 {
					t.Errorf("stats: %+v", s)
				}
			})
		})
	}
}

// A batch is refused once by each of the partition's failures that pass; whatever
// was in flight behind it, the order stays.
func TestProducerKeepsOrderThroughRetries(t *testing.T) {
	faults := map[string]fault{
		"not leader":           {err: rpc.Errorf(reasonNotLeader, "for the test")},
		"killed before append": {kill: true},
		"killed after append":  {kill: true, store: true},
		"unknown, appended":    {err: rpc.Errorf(reasonDeadlineExceeded, "for the test"), store: true},
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) { keepsOrder(t, f, IdempotenceOff) })
		// case 23: what is sent again after a lost answer is stored once.
		t.Run(name+", idempotent", func(t *testing.T) { keepsOrder(t, f, IdempotenceOn) })
	}
}

func keepsOrder(t *testing.T, f fault, idempotence Idempotence) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		n := 0
		m.onBatch = func(_ *fakeBroker, _ *brokerv1.ProduceBatch, h record.Header) fault {
			// Now and then an arrival fails, and as many behind it as may be on their way.
			if n++; n%20 < 6 && n >= 20 {
				return f
			}
			return fault{}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{BatchRecords: 3, Linger: -1, Idempotence: idempotence})
		last := int64(-1)
		for i, r := range collect(t, p, "t", 0, 300) {
			if r.Err != nil {
				t.Fatalf("result %d: %v", i, r.Err)
			}
			if idempotence == IdempotenceOn && (r.Offset != int64(i) || r.MaybeDuplicated) {
				t.Fatalf("result %d: %+v", i, r)
			}
			if r.Offset <= last {
				t.Fatalf("offset %d after %d", r.Offset, last)
			}
			last = r.Offset
		}
		seen := make(map[string]bool)
		next := 0
		for _, r := range m.records(topic, 0) {
			if !seen[string(r.Value)] { // the first copy of each is in order
				if want := fmt.Sprintf("%06d", next); string(r.Value) != want {
					t.Fatalf("first copy of %s where %s should be", r.Value, want)
				}
				seen[string(r.Value)] = true
				next++
			}
		}
		if next != 300 {
			t.Errorf("%d of 300 records are there", next)
		}
	})
}

func TestUnknownThenStoredMayBeDuplicated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		first := true
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
			defer func() { first = false }()
			return fault{kill: first, store: first}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Idempotence: IdempotenceOff})
		r, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("v")})
		if err != nil || !r.MaybeDuplicated || r.Offset != 1 {
			t.Errorf("result %+v, %v", r, err)
		}
		if n := len(m.records(topic, 0)); n != 2 {
			t.Errorf("%d copies, want 2", n)
		}
	})
}

func TestUnknownIsReportedWhereRetryIsOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault { return fault{kill: true} }
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{NoRetryUnknown: true})
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); !rpc.IsReason(err, reasonConnectionLost) || e.Outcome != outcomeUnknown {
			t.Errorf("error %v, outcome %v", err, e.Outcome)
		}
	})
}

// A refused batch that a later one has overtaken is not sent again: it would come
// after it.
func TestOvertakenBatchIsNotReordered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.onBatch = func(_ *fakeBroker, _ *brokerv1.ProduceBatch, h record.Header) fault {
			if h.NumRecords == 2 { // only the batch in the middle has two records
				return fault{err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "for the test")}
			}
			return fault{}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: time.Second, Idempotence: IdempotenceOff})
		results := make(chan Result, 10)
		send := func(v string) {
			if err := p.Send(soon(t), Record{Topic: "t", Value: []byte(v)}, func(r Result) { results <- r }); err != nil {
				t.Fatal(err)
			}
		}
		flush := func() {
			if err := p.Flush(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		send("a") // so that the leader has taken a batch, and more than one may be in flight
		flush()
		hold := make(chan struct{})
		m.mu.Lock()
		refuse := m.onBatch
		m.onBatch = func(b *fakeBroker, pb *brokerv1.ProduceBatch, h record.Header) fault {
			f := refuse(b, pb, h)
			if h.NumRecords == 2 {
				f.hold = hold
			}
			return f
		}
		m.mu.Unlock()
		part := p.partitions()[0]
		send("b")
		send("b")
		part.flush(false)
		send("c")
		part.flush(false)
		close(hold)
		flush()
		var errs, oks int
		for range 4 {
			r := <-results
			if r.Err == nil {
				oks++
				continue
			}
			errs++
			if e := rpc.FromError(r.Err); e.Outcome != outcomeNotDone {
				t.Errorf("outcome %v", e.Outcome)
			}
		}
		if oks != 2 || errs != 2 {
			t.Errorf("%d stored and %d failed, want 2 and 2", oks, errs)
		}
		if recs := m.records(topic, 0); len(recs) != 2 || string(recs[1].Value) != "c" {
			t.Errorf("stored: %v", recs)
		}
	})
}

func TestProducerFollowsTheLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{BatchRecords: 5})
		collect(t, p, "t", 0, 20)
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		asked := m.requests()
		for _, r := range collect(t, p, "t", 0, 20) {
			if r.Err != nil || r.LeaderEpoch != 2 {
				t.Fatalf("%+v", r)
			}
		}
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 3, 3 })
		m.kill(2)
		for _, r := range collect(t, p, "t", 0, 20) {
			if r.Err != nil || r.LeaderEpoch != 3 {
				t.Fatalf("%+v", r)
			}
		}
		if n := m.requests() - asked; n > 50 {
			t.Errorf("%d metadata requests for two moves", n)
		}
	})
}

// case 48: a mesh that cannot be reached gives errors, never OK.
func TestUnreachableMesh(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 10 * time.Second})
		if _, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		m.kill(1)
		_, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("y")})
		if e := rpc.FromError(err); rpc.ReasonName(e.Reason) != "UNREACHABLE" || e.Outcome != outcomeNotDone || e.Metadata["last_reason"] != "UNREACHABLE" {
			t.Errorf("error %v, outcome %v, %v", err, e.Outcome, e.Metadata)
		}
		other := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 10 * time.Second})
		_, err = other.SendSync(soon(t), Record{Topic: "t", Value: []byte("y")})
		if e := rpc.FromError(err); err == nil || e.Outcome != outcomeNotDone {
			t.Errorf("a client that has never seen the mesh: %v", err)
		}
	})
}

// A broker that takes a batch and never answers leaves its outcome unknown.
func TestSilentBrokerIsUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault { return fault{silent: true} }
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 10 * time.Second})
		start := time.Now()
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); !rpc.IsReason(err, reasonDeadlineExceeded) || e.Outcome != outcomeUnknown {
			t.Errorf("error %v", err)
		}
		if d := time.Since(start); d > 11*time.Second {
			t.Errorf("told after %v", d)
		}
	})
}

// A leader that falls silent and is replaced holds nothing up for long.
func TestSilentOldLeaderIsGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		m.onBatch = func(b *fakeBroker, _ *brokerv1.ProduceBatch, _ record.Header) fault { return fault{silent: b.id == 1} }
		p := newTestProducer(t, m.client(Config{Source: m.watcherSource()}), ProducerConfig{Idempotence: IdempotenceOff})
		got := make(chan Result, 1)
		if err := p.Send(soon(t), Record{Topic: "t", Value: []byte("v")}, func(r Result) { got <- r }); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		start := time.Now()
		r := <-got
		if r.Err != nil || r.LeaderEpoch != 2 || !r.MaybeDuplicated {
			t.Errorf("%+v", r)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// A leader that was cut off, and answers nothing, is doubted: a client that nobody
// tells of its successor asks others.
func TestSilentLeaderIsDoubted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		m.onBatch = func(b *fakeBroker, _ *brokerv1.ProduceBatch, _ record.Header) fault { return fault{silent: b.id == 1} }
		p := newTestProducer(t, m.client(Config{MetadataMaxAge: time.Hour}), ProducerConfig{Idempotence: IdempotenceOff})
		got := make(chan Result, 1)
		if err := p.Send(soon(t), Record{Topic: "t", Value: []byte("v")}, func(r Result) { got <- r }); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		start := time.Now()
		r := <-got
		if r.Err != nil || r.LeaderEpoch != 2 {
			t.Errorf("%+v", r)
		}
		if d := time.Since(start); d > 2*unansweredDoubt {
			t.Errorf("it took %v", d)
		}
	})
}

// case 22: the first batch of a fresh partition is refused while later ones press
// on. None of them is stored before it, and none is lost.
func TestRefusedFirstBatchIsNotOvertaken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		arrived := 0
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
			if arrived++; arrived == 1 {
				return fault{err: rpc.Errorf(reasonNotLeader, "not yet")}
			}
			return fault{}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{BatchRecords: 17})
		for i, r := range collect(t, p, "t", 0, 17*6) {
			if r.Err != nil || r.Offset != int64(i) || r.MaybeDuplicated {
				t.Fatalf("result %d: %+v", i, r)
			}
		}
		checkStored(t, m, topic, 0, 17*6)
	})
}
