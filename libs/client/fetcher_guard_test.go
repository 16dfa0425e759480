package client

import (
	"testing"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// case 2: leaders that come with a lower high watermark are asked again until they
// have caught up; what a reader sees never goes back, also for a reader that comes
// later in the same process.
func TestVisibleEndNeverGoesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{})
		f := newTestFetcher(t, c, FetcherConfig{})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		next, seen := 0, int64(-1)
		for round := range int32(10) {
			m.put(topic, 0, numbered(t, next, next+30)...)
			readNumbers(t, f, next, next+30)
			next += 30
			// The next leader has it all, and does not know yet that it is committed.
			m.update(func() {
				p := topic.parts[0]
				p.leader, p.epoch, p.hidden = round%3+1, round+2, 20
			})
			late := newTestFetcher(t, c, FetcherConfig{})
			late.Add(FetchStart{TopicPartition: topic.at(0), Offset: int64(next - 25), LastEpoch: -1})
			<-time.After(time.Second)
			if e := late.TryNext(); e != nil {
				t.Fatalf("round %d: a reader was given %+v by a leader that is behind", round, e)
			}
			for e := f.TryNext(); e != nil; e = f.TryNext() {
				if e.Kind == FetchError || e.HighWatermark < seen {
					t.Fatalf("round %d: %+v after %d was seen", round, e, seen)
				}
				seen = e.HighWatermark
				e.Release()
			}
			m.update(func() { topic.parts[0].hidden = 0 })
			readNumbers(t, late, next-25, next)
		}
	})
}

// What was seen goes along with questions for offsets, too.
func TestSeenEpochGoesAlong(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{})
		if _, err := c.Metadata().TopicByID(soon(t), topic.id); err != nil {
			t.Fatal(err)
		}
		c.seen.note(topic.at(0), 7, 12)
		c.seen.note(topic.at(0), 6, 13)
		m.update(func() { topic.parts[0].epoch = 7 })
		ask := []OffsetQuery{{TopicPartition: topic.at(0), Spec: Latest()}}
		if r := c.ListOffsets(soon(t), ask, 0); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.listed) != 1 || m.listed[0] != 7 {
			t.Errorf("asked with epochs %v", m.listed)
		}
	})
}

// What one replica has shown, and what an earlier answer told, is seen like the rest:
// a leader that does not know yet that it was replaced cannot take it back.
func TestWhateverIsSeenGoesAlong(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		c := m.client(Config{})
		follower := int32(2)
		f := newTestFetcher(t, c, FetcherConfig{Replica: &follower})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		readNumbers(t, f, 0, 30)
		if got, want := c.seen.of(topic.at(0)), (seenMarks{epoch: 1, end: 30}); got != want {
			t.Errorf("after reading a follower %+v was seen, want %+v", got, want)
		}

		asker := m.client(Config{})
		ask := []OffsetQuery{{TopicPartition: topic.at(0), Spec: Latest()}}
		if r := asker.ListOffsets(soon(t), ask, 0); r[0].Err != nil || asker.seen.of(topic.at(0)).end != r[0].Offset || r[0].Offset != 30 {
			t.Errorf("the answer was %+v, seen is %+v", r[0], asker.seen.of(topic.at(0)))
		}
	})
}

// One broker's replica is read there, whoever leads, and as far as it knows.
func TestFetcherReadsOneReplica(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 3)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		var asked []int32
		m.onFetch = func(b *fakeBroker, a *brokerv1.FetchPartition) *rpc.Error {
			asked = append(asked, b.id)
			if a.SeenVisibleEnd > 12 {
				t.Errorf("what was seen of the leader was asked of a follower: %d", a.SeenVisibleEnd)
			}
			return nil
		}
		c := m.client(Config{})
		k := newTestConsumer(t, c, ConsumerConfig{Reset: ResetEarliest, Fetch: FetcherConfig{Replica: new(int32)}})
		*k.cfg.Fetch.Replica = 2
		if err := k.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: -1}); !rpc.IsReason(err, reasonInvalidRequest) {
			t.Errorf("a broker without a replica: %v", err)
		}
		c.seen.note(topic.at(0), 1, 30)
		m.update(func() { topic.parts[0].hidden = 18 })
		r := c.ListReplicaOffsets(soon(t), 2, []OffsetQuery{{TopicPartition: topic.at(0), Spec: Latest()}}, 0)
		if r[0].Err != nil || r[0].Offset != 12 {
			t.Errorf("latest of the replica: %+v", r[0])
		}
		f := newTestFetcher(t, c, FetcherConfig{Replica: k.cfg.Fetch.Replica})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		readNumbers(t, f, 0, 12)
		for _, id := range asked {
			if id != 2 {
				t.Errorf("asked brokers %v", asked)
			}
		}
		m.kill(2)
		<-time.After(2 * time.Second)
		if why := f.Waiting()[topic.at(0)]; !rpc.IsReason(why, reasonUnreachable) {
			t.Errorf("without the broker it waits for %v", why)
		}
	})
}

// A cut by an unclean election is told, whatever the reset policy says, and reading
// goes on where the application chooses.
func TestConsumerIsToldOfTruncation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Reset: ResetEarliest})
		if err := k.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: 0, LeaderEpoch: -1}); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, k, 30), 0, 30)
		m.mu.Lock()
		m.onFetch = func(_ *fakeBroker, a *brokerv1.FetchPartition) *rpc.Error {
			if a.FetchOffset != 30 || a.LastFetchedEpoch != 1 {
				return nil
			}
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED, "cut").With("diverging_offset", "15", "diverging_epoch", "1")
		}
		m.mu.Unlock()
		m.kill(1)
		m.startBroker(1)
		_, err := k.Poll(soon(t), 0)
		if e := rpc.FromError(err); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED) || e.Action != typev1.Action_ACTION_CHOOSE || e.Metadata["diverging_offset"] != "15" {
			t.Fatalf("%v, %v", err, e.Metadata)
		}
		if at, ok := k.Position(topic.at(0)); !ok || at != 30 {
			t.Errorf("the position is %d", at)
		}
		if err := k.Seek(topic.at(0), 15); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, k, 15), 15, 30)
	})
}

// A leader that falls silent and is replaced does not hold a batch of a shard.
func TestProduceBatchLeavesASilentLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{Source: m.watcherSource()})
		<-time.After(time.Second)
		m.update(func() { m.deaf = 1 })
		go func() {
			<-time.After(2 * time.Second)
			m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		}()
		start := time.Now()
		_, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "a"), typev1.Acks_ACKS_ALL, nil)
		if e := rpc.FromError(err); !rpc.IsReason(err, reasonConnectionLost) || e.Outcome != outcomeUnknown || time.Since(start) > 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if got, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "a"), typev1.Acks_ACKS_ALL, nil); err != nil || got.LeaderEpoch != 2 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// Whoever has a batch for a partition that is being made is told so: that nobody leads it
// is no sign that anything is missing.
func TestProduceBatchKnowsWhatWasNeverLed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{Source: m.watcherSource()})
		<-time.After(time.Second)
		for epoch, never := range map[int32]bool{0: true, 2: false} {
			m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = -1, epoch })
			<-time.After(time.Second)
			_, err := c.ProduceBatch(soon(t), topic.at(0), encode(t, "a"), typev1.Acks_ACKS_ALL, nil)
			if !rpc.IsReason(err, reasonLeaderUnavailable) || NeverLed(err) != never {
				t.Errorf("without a leader in epoch %d: %v, never led: %v", epoch, err, NeverLed(err))
			}
		}
	})
}
