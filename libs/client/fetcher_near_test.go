package client

import (
	"testing"
	"testing/synctest"
	"time"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// rackMesh has one partition, led in rack a and followed in rack b.
func rackMesh(t *testing.T) (*fakeMesh, *fakeTopic) {
	t.Helper()
	m := newFakeMesh(t, 3)
	m.racks = map[int32]string{1: "a", 2: "b", 3: "a"}
	topic := m.topic("t", 1, 1<<20)
	m.update(func() { topic.parts[0].isr, topic.parts[0].replicas = []int32{1, 2, 3}, []int32{2} })
	return m, topic
}

// nearReader reads from the start in a rack.
func nearReader(t *testing.T, m *fakeMesh, topic *fakeTopic, rack string) *Fetcher {
	t.Helper()
	c := m.client(Config{})
	if _, err := c.Metadata().TopicByID(soon(t), topic.id); err != nil {
		t.Fatal(err)
	}
	f := newTestFetcher(t, c, FetcherConfig{Rack: rack})
	f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
	return f
}

// wantReads checks how many batches each broker has sent since the last time.
func (m *fakeMesh) wantReads(t *testing.T, want map[int32]int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.brokers {
		if m.read[id] != want[id] {
			t.Errorf("broker %d has sent %d batches, want %d", id, m.read[id], want[id])
		}
	}
	clear(m.read)
}

func TestTheReplicaInTheRackIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		m.put(topic, 0, numbered(t, 0, 30)...)
		readNumbers(t, nearReader(t, m, topic, "b"), 0, 30)
		m.wantReads(t, map[int32]int{2: 10})
		readNumbers(t, nearReader(t, m, topic, "a"), 0, 30) // the leader is there, as is another
		m.wantReads(t, map[int32]int{1: 10})
		readNumbers(t, nearReader(t, m, topic, "c"), 0, 30)
		m.wantReads(t, map[int32]int{1: 10})
	})
}

func TestTheLeaderIsReadWhenTheReplicaInTheRackFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		f := nearReader(t, m, topic, "b")
		m.put(topic, 0, numbered(t, 0, 30)...)
		readNumbers(t, f, 0, 30)
		m.wantReads(t, map[int32]int{2: 10})
		m.kill(2)
		m.put(topic, 0, numbered(t, 30, 60)...)
		began := time.Now()
		readNumbers(t, f, 30, 60)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the leader was read after %v", waited)
		}
		m.wantReads(t, map[int32]int{1: 10})
		m.startBroker(2)
		<-time.After(nearPause + nearRefresh + time.Second)
		m.put(topic, 0, numbered(t, 60, 90)...)
		readNumbers(t, f, 60, 90)
		m.wantReads(t, map[int32]int{2: 10})
	})
}

// A replica that is not in sync any more is left as soon as that is known.
func TestAReplicaThatIsNotInSyncIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		f := nearReader(t, m, topic, "b")
		m.put(topic, 0, numbered(t, 0, 30)...)
		readNumbers(t, f, 0, 30)
		m.update(func() { topic.parts[0].behind = map[int32]int64{2: 30} })
		m.put(topic, 0, numbered(t, 30, 60)...)
		m.update(func() { topic.parts[0].isr = []int32{1, 3} })
		<-time.After(nearRefresh + time.Second)
		began := time.Now()
		readNumbers(t, f, 30, 60)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the leader was read %v late", waited)
		}
		m.update(func() { topic.parts[0].isr, topic.parts[0].behind = []int32{1, 2, 3}, nil })
		<-time.After(2 * time.Minute) // metadata grows old by itself
		m.wantReads(t, map[int32]int{1: 10, 2: 10})
		m.put(topic, 0, numbered(t, 60, 90)...)
		readNumbers(t, f, 60, 90)
		m.wantReads(t, map[int32]int{2: 10})
	})
}

// What a follower says about a position is not the last word: the leader has it.
func TestOnlyTheLeadersWordEndsAPartition(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		reasons := []typev1.ErrorReason{
			reasonOffsetOutOfRange, typev1.ErrorReason_ERROR_REASON_LOG_TRUNCATED, reasonUnknownTopic, reasonCorruptBatch,
		}
		at := 0
		m.onFetch = func(b *fakeBroker, _ *brokerv1.FetchPartition) *rpc.Error {
			if b.id != 2 {
				return nil
			}
			return rpc.Errorf(reasons[at], "so says the follower")
		}
		m.put(topic, 0, numbered(t, 0, 30)...)
		for at = range reasons {
			readNumbers(t, nearReader(t, m, topic, "b"), 0, 30)
			m.wantReads(t, map[int32]int{1: 10})
		}
	})
}

// A replica in the rack that is behind what was seen of the leader is not read until
// it has caught up.
func TestAReplicaBehindWhatWasSeenIsNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		m.update(func() { topic.parts[0].isr = []int32{1, 3} })
		f := nearReader(t, m, topic, "b")
		m.put(topic, 0, numbered(t, 0, 30)...)
		readNumbers(t, f, 0, 30)
		m.update(func() { topic.parts[0].isr, topic.parts[0].behind = []int32{1, 2, 3}, map[int32]int64{2: 3} })
		<-time.After(2 * time.Minute) // metadata grows old by itself
		for e := f.TryNext(); e != nil; e = f.TryNext() {
			if e.HighWatermark < 30 {
				t.Errorf("%d is told as the visible end after 30", e.HighWatermark)
			}
			e.Release()
		}
		late := newTestFetcher(t, f.client, FetcherConfig{Rack: "b"})
		late.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		for range 30 / 3 {
			e, err := late.Next(soon(t))
			if err != nil || e.HighWatermark < 30 {
				t.Fatalf("another reader of the process is told of %+v, %v", e, err)
			}
			e.Release()
		}
		m.update(func() { topic.parts[0].behind = nil })
		<-time.After(2 * nearPause)
		if err := late.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		m.mu.Lock()
		clear(m.read)
		m.mu.Unlock()
		m.put(topic, 0, numbered(t, 30, 60)...)
		readNumbers(t, f, 30, 60)
		m.wantReads(t, map[int32]int{2: 10})
	})
}

// A replica that follows at its usual distance is read, also where others in the
// process see more all the time.
func TestAReplicaAtItsUsualDistanceIsRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		c := m.client(Config{})
		m.put(topic, 0, numbered(t, 0, 30)...)
		p, known, asked := topic.parts[0], int64(0), int64(-1)
		m.onFetch = func(b *fakeBroker, ask *brokerv1.FetchPartition) *rpc.Error {
			if b.id == 2 && ask.FetchId != asked {
				asked = ask.FetchId
				was := p.end
				p.store(encode(t, "more"))
				p.behind, known = map[int32]int64{2: p.end - known}, was
			}
			c.seen.note(topic.at(0), p.epoch, p.end) // by somebody who reads the leader
			return nil
		}
		c.seen.note(topic.at(0), 1, 30)
		if _, err := c.Metadata().TopicByID(soon(t), topic.id); err != nil {
			t.Fatal(err)
		}
		f := newTestFetcher(t, c, FetcherConfig{Rack: "b"})
		f.Add(FetchStart{TopicPartition: topic.at(0), LastEpoch: -1})
		readNumbers(t, f, 0, 30)
		if m.mu.Lock(); m.read[1] > 0 {
			t.Error("the leader was read")
		}
		m.mu.Unlock()
	})
}

// What was seen never goes back, and nothing past the high watermark that a replica
// knows is given, also across changes of the leader.
func TestReadingNearNeverGoesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := rackMesh(t)
		f := nearReader(t, m, topic, "b")
		next, seen := 0, int64(-1)
		drain := func(round int32) {
			for e := f.TryNext(); e != nil; e = f.TryNext() {
				if e.Kind == FetchError || e.HighWatermark < seen || e.NextOffset > e.HighWatermark {
					t.Fatalf("round %d: %+v after %d was seen", round, e, seen)
				}
				for _, r := range e.Records {
					if r.Offset != int64(next) {
						t.Fatalf("round %d: record %d, want %d", round, r.Offset, next)
					}
					next++
				}
				seen = e.HighWatermark
				e.Release()
			}
		}
		for round := range int32(24) {
			m.put(topic, 0, numbered(t, int(round)*6, int(round)*6+6)...)
			<-time.After(2 * time.Second)
			drain(round)
			m.update(func() {
				p := topic.parts[0]
				switch round % 4 {
				case 0: // the follower falls behind what was seen, and is asked anew
					p.behind = map[int32]int64{2: 3}
					p.leader, p.epoch = 3, p.epoch+1
				case 1:
					p.isr = []int32{1, 3}
				case 2: // it leads, and does not know yet what is committed
					p.isr, p.behind, p.hidden = []int32{1, 2, 3}, nil, 3
					p.leader, p.epoch = 2, p.epoch+1
				case 3:
					p.hidden, p.leader, p.epoch = 0, 1, p.epoch+1
				}
			})
			<-time.After(time.Duration(round) * time.Second)
			drain(round)
		}
		m.update(func() { topic.parts[0].hidden, topic.parts[0].behind = 0, nil })
		<-time.After(time.Minute)
		if drain(24); next != 24*6 {
			t.Errorf("%d records were read, want %d", next, 24*6)
		}
	})
}
