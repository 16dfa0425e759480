package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
)

func TestProducerConfigOfIdempotence(t *testing.T) {
	for _, c := range []struct {
		cfg  ProducerConfig
		want Idempotence // IdempotenceDefault: refused
	}{
		{ProducerConfig{}, IdempotenceOn},
		{ProducerConfig{Acks: typev1.Acks_ACKS_LEADER}, IdempotenceOff},
		{ProducerConfig{Acks: typev1.Acks_ACKS_NONE}, IdempotenceOff},
		{ProducerConfig{MaxInFlightPerPartition: 6}, IdempotenceOff},
		{ProducerConfig{Idempotence: IdempotenceOff}, IdempotenceOff},
		{ProducerConfig{Idempotence: IdempotenceOn, Acks: typev1.Acks_ACKS_LEADER}, IdempotenceDefault},
		{ProducerConfig{Idempotence: IdempotenceOn, Acks: typev1.Acks_ACKS_NONE}, IdempotenceDefault},
		{ProducerConfig{Idempotence: IdempotenceOn, MaxInFlightPerPartition: 6}, IdempotenceDefault},
		{ProducerConfig{Idempotence: IdempotenceOn, Acks: typev1.Acks_ACKS_ALL}, IdempotenceOn},
		{ProducerConfig{Idempotence: 7}, IdempotenceDefault},
	} {
		got := IdempotenceDefault
		if c.cfg.Validate() == nil {
			got = c.cfg.withDefaults().Idempotence
		}
		if got != c.want {
			t.Errorf("%+v: %v, want %v", c.cfg, got, c.want)
		}
	}
}

// A batch that was stored before its in-sync set shrank is sent again under its
// number, and answered with its offset; without a number it is not sent again.
func TestShrunkAfterAppend(t *testing.T) {
	for _, mode := range []Idempotence{IdempotenceOn, IdempotenceOff} {
		inBubble(t, func(t *testing.T) {
			m := newFakeMesh(t, 1)
			topic := m.topic("t", 1, 1<<20)
			first := true
			m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
				defer func() { first = false }()
				if first {
					return fault{err: rpc.Errorf(reasonShrunkAfterAppend, "for the test"), store: true}
				}
				return fault{}
			}
			p := newTestProducer(t, m.client(Config{}), ProducerConfig{Idempotence: mode})
			r, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("v")})
			switch e := rpc.FromError(err); {
			case mode == IdempotenceOn && (err != nil || r.Offset != 0 || r.MaybeDuplicated):
				t.Errorf("%+v, %v", r, err)
			case mode == IdempotenceOff && (!rpc.IsReason(err, reasonShrunkAfterAppend) || e.Outcome != outcomeUnknown):
				t.Errorf("%+v, %v", r, err)
			}
			if n := len(m.records(topic, 0)); n != 1 {
				t.Errorf("%d copies", n)
			}
		})
	}
}

// A producer id comes from any broker that gives one, and is waited for.
func TestProducerIDFromAnyBroker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		m.topic("t", 1, 1<<20)
		refuse, asked := true, 0
		m.onInit = func(b *fakeBroker) *rpc.Error {
			if asked++; refuse || b.id != 2 {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_METADATA_UNAVAILABLE, "no ids are left").WithOutcome(outcomeNotDone)
			}
			return nil
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 5 * time.Second})
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); rpc.ReasonName(e.Reason) != "METADATA_UNAVAILABLE" || e.Outcome != outcomeNotDone {
			t.Errorf("without an id: %v", err)
		}
		m.update(func() {
			if refuse = false; asked < 9 || asked > 100 {
				t.Errorf("%d requests for an id in 5 s", asked)
			}
		})
		if r, err := p.SendSync(soon(t), Record{Topic: "t"}); err != nil || r.Offset != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A later producer of the process goes on with the id of a closed one.
func TestProducerIDsAreUsedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		m.topic("t", 1, 1<<20)
		var headers []record.Header
		m.onBatch = func(_ *fakeBroker, _ *brokerv1.ProduceBatch, h record.Header) fault {
			headers = append(headers, h)
			return fault{}
		}
		c := m.client(Config{})
		for range 3 {
			p, err := c.NewProducer(ProducerConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.SendSync(soon(t), Record{Topic: "t"}); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		for i, h := range headers {
			if h.ProducerID != headers[0].ProducerID || h.ProducerEpoch != 0 || h.BaseSequence != int32(i) {
				t.Errorf("batch %d: producer %d, epoch %d, sequence %d", i, h.ProducerID, h.ProducerEpoch, h.BaseSequence)
			}
		}
	})
}

// case 31: too few in-sync replicas fail the records in the end, without having
// been asked for ever more often.
func TestTooFewReplicasAreNotAskedEndlessly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		attempts := 0
		m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
			attempts++
			return fault{err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "1 of 3")}
		}
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{DeliveryTimeout: 30 * time.Second})
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); rpc.ReasonName(e.Reason) != "NOT_ENOUGH_REPLICAS" || e.Outcome != outcomeNotDone {
			t.Errorf("%v, outcome %v", err, e.Outcome)
		}
		if attempts < 10 || attempts > 90 {
			t.Errorf("%d attempts in 30 s", attempts)
		}
		m.update(func() { m.onBatch = nil })
		if r, err := p.SendSync(soon(t), Record{Topic: "t", Value: []byte("v")}); err != nil || r.Offset != 0 || len(m.records(topic, 0)) != 1 {
			t.Errorf("afterwards: %+v, %v", r, err)
		}
	})
}

// A hint is followed without a pause.
func TestHintIsFollowedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: -1})
		collect(t, p, "t", 0, 1)
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		start := time.Now()
		if r := collect(t, p, "t", 0, 1)[0]; r.Err != nil || r.LeaderEpoch != 2 {
			t.Fatalf("%+v", r)
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// A lost leader costs about as long as it takes until somebody knows the new one,
// also where the old one was asked for metadata before, and only falls silent.
func TestFailoverIsQuick(t *testing.T) {
	for name, lose := range map[string]func(m *fakeMesh){
		"killed": func(m *fakeMesh) { m.kill(1) },
		"silent": func(m *fakeMesh) { m.update(func() { m.deaf = 1 }) },
		"refuses": func(m *fakeMesh) {
			m.update(func() {
				m.onBatch = func(b *fakeBroker, _ *brokerv1.ProduceBatch, _ record.Header) fault {
					if b.id == 1 {
						return fault{err: rpc.Errorf(reasonLeaderUnavailable, "not any more")}
					}
					return fault{}
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newFakeMesh(t, 3)
				topic := m.topic("t", 1, 1<<20)
				p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: -1})
				collect(t, p, "t", 0, 1)
				lose(m)
				got := make(chan Result, 1)
				if err := p.Send(soon(t), Record{Topic: "t", Value: []byte("v")}, func(r Result) { got <- r }); err != nil {
					t.Fatal(err)
				}
				<-time.After(3 * time.Second) // pauses have grown long by now
				m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
				start := time.Now()
				if name == "silent" {
					p.client.refreshSoon() // nothing has failed that would make it ask
				}
				if r := <-got; r.Err != nil || r.LeaderEpoch != 2 || r.MaybeDuplicated {
					t.Errorf("%+v", r)
				}
				if d := time.Since(start); d > hedgeAfter+100*time.Millisecond {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

// Once a later leader was heard of, nothing goes to an earlier one: it could take a
// batch for missing that the later one has.
func TestNothingGoesBackToAnOlderLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: -1, DeliveryTimeout: 5 * time.Second})
		collect(t, p, "t", 0, 1)
		hinted, older := false, 0
		m.update(func() {
			m.onBatch = func(b *fakeBroker, _ *brokerv1.ProduceBatch, _ record.Header) fault {
				if b.id == 1 && !hinted {
					hinted = true
					return fault{err: rpc.Errorf(reasonNotLeader, "it is 2").WithLeader(2, "broker-2:1", 2)}
				}
				if b.id == 1 {
					older++
				}
				return fault{kill: true} // which makes the hint forgotten
			}
		})
		_, err := p.SendSync(soon(t), Record{Topic: "t"})
		if e := rpc.FromError(err); err == nil || e.Outcome != outcomeUnknown || older > 0 {
			t.Errorf("%v; %d batches went to the older leader", err, older)
		}
		m.update(func() { m.onBatch, topic.parts[0].leader, topic.parts[0].epoch = nil, 2, 2 })
		if r := collect(t, p, "t", 0, 1)[0]; r.Err != nil {
			t.Errorf("%+v", r)
		}
	})
}

// A producer that was forgotten goes on under a new epoch.
func TestForgottenProducerGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		p := newTestProducer(t, m.client(Config{}), ProducerConfig{Linger: -1, BatchRecords: 1})
		collect(t, p, "t", 0, 10)
		m.update(func() { topic.parts[0].producers = nil })
		for i, r := range collect(t, p, "t", 0, 20) {
			if r.Err != nil || r.Offset != int64(10+i) || r.MaybeDuplicated {
				t.Errorf("result %d: %+v", i, r)
			}
		}
	})
}

// cases 22, 23: over a network that loses batches and answers, with leaders that
// move and refuse, every record is stored once and in order.
func TestIdempotentProducerUnderFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		inBubble(t, func(t *testing.T) {
			m := newFakeMesh(t, 3)
			topic := m.topic("t", 1, 1<<20)
			rng := rand.New(rand.NewPCG(seed, 1))
			faults := 60
			m.onBatch = func(*fakeBroker, *brokerv1.ProduceBatch, record.Header) fault {
				if faults == 0 || rng.IntN(3) > 0 {
					return fault{}
				}
				faults--
				switch rng.IntN(6) {
				case 0:
					return fault{kill: true}
				case 1:
					return fault{kill: true, store: true}
				case 2:
					return fault{err: rpc.Errorf(typev1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, "few")}
				case 3:
					return fault{err: rpc.Errorf(reasonShrunkAfterAppend, "shrunk"), store: true}
				case 4:
					topic.parts[0].leader, topic.parts[0].epoch = 1+rng.Int32N(3), topic.parts[0].epoch+1
					m.touch()
				}
				return fault{err: rpc.Errorf(reasonNotLeader, "moving")}
			}
			p := newTestProducer(t, m.client(Config{}), ProducerConfig{BatchRecords: 3, Linger: time.Millisecond})
			var results sync.WaitGroup
			for i := range 300 {
				results.Add(1)
				if err := p.Send(soon(t), Record{Topic: "t", Value: fmt.Appendf(nil, "%06d", i)}, func(r Result) {
					defer results.Done()
					if r.Err != nil || r.Offset != int64(i) || r.MaybeDuplicated {
						t.Errorf("seed %d, record %d: %+v", seed, i, r)
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			results.Wait()
			checkStored(t, m, topic, 0, 300)
		})
		if t.Failed() {
			rt.Fatalf("seed %d", seed)
		}
	})
}
