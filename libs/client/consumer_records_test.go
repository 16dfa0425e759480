package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// oneMesh has a topic with records in one partition, and a coordinator.
func oneMesh(t *testing.T, records int) (*fakeMesh, *fakeTopic) {
	t.Helper()
	m := newFakeMesh(t, 1)
	topic := m.topic("t", 1, 1<<20)
	m.startCoordinator(1)
	m.shards(1)
	m.put(topic, 0, numbered(t, 0, records)...)
	return m, topic
}

// A record counts as worked on when the loop asks for the next one, and not when it
// is left.
func TestRecordsReleasesOneByOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		n := 0
		for r, err := range k.Records(soon(t)) {
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%06d", n); string(r.Value) != want || r.Offset != int64(n) {
				t.Fatalf("record %q at %d, want %s", r.Value, r.Offset, want)
			}
			if n++; n == 8 {
				break // it could not be worked on
			}
		}
		if next, ok := k.Position(topic.at(0)); next != 8 || !ok {
			t.Errorf("position %d", next)
		}
		if lag, ok := k.Lag(topic.at(0)); lag != 22 || !ok {
			t.Errorf("lag %d, %v", lag, ok)
		}
		if err := k.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
		if got := m.committed("g", topic.at(0)); got != 7 {
			t.Errorf("%d is committed, want 7: the eighth was not worked on", got)
		}
		again := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}})
		wantNumbers(t, pollNumbers(t, again, 23), 7, 30)
	})
}

func TestRecordsEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		m.update(func() { topic.parts[0].start, topic.parts[0].batches = 15, topic.parts[0].batches[5:] })
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Reset: ResetNone})
		if err := k.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: 2, LeaderEpoch: -1}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got, failed int
		for _, err := range k.Records(ctx) {
			if err == nil {
				got++
				continue
			}
			failed++ // the sequence goes on after what the application can settle
			if !rpc.IsReason(err, reasonOffsetOutOfRange) {
				t.Fatal(err)
			}
			if err := k.SeekTo(topic.at(0), Earliest()); err != nil {
				t.Fatal(err)
			}
		}
		if got != 15 || failed != 1 || ctx.Err() == nil {
			t.Errorf("%d records and %d errors before the end", got, failed)
		}
		if err := k.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
		for _, err := range k.Records(soon(t)) {
			if failed++; !rpc.IsReason(err, reasonCancelled) {
				t.Errorf("a closed consumer: %v", err)
			}
		}
		if failed != 2 {
			t.Errorf("a closed consumer is told %d times", failed-1)
		}
	})
}

// What the last Poll handed out is not committed by Close, but for Release.
func TestCloseCommitsWhatWasReleased(t *testing.T) {
	for _, release := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			m, topic := oneMesh(t, 30)
			k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
			pollNumbers(t, k, 30)
			last, err := k.Committed(soon(t))
			if err != nil || len(last) != 1 || last[0].NextOffset != -1 {
				t.Errorf("committed before the end: %+v, %v", last, err)
			}
			if release {
				k.Release()
			}
			if err := k.Close(soon(t)); err != nil {
				t.Fatal(err)
			}
			if got := m.committed("g", topic.at(0)); (got == 30) != release {
				t.Errorf("released %v: %d is committed", release, got)
			}
		})
	}
}

// A position that is committed with metadata keeps it.
func TestCommitsCarryMetadata(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 3)
		c := m.client(Config{})
		m.update(func() { m.group("g").committed[topic.at(0)] = 1 })
		k := newTestConsumer(t, c, ConsumerConfig{Group: "g", Topics: []string{"t"}, AutoCommitInterval: -1})
		pollNumbers(t, k, 2)
		var done []error
		k.CommitAsync(func(err error) { done = append(done, err) },
			Position{TopicPartition: topic.at(0), NextOffset: 2, LeaderEpoch: 1, Metadata: "half"})
		synctest.Wait()
		if _, ok := k.Lag(topic.at(0)); !ok {
			t.Error("no lag")
		}
		pollNothing(t, k, time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(done) != 1 || done[0] != nil || m.group("g").metadata[topic.at(0)] != "half" {
			t.Errorf("results %v, metadata %v", done, m.group("g").metadata)
		}
	})
}

// A Commit keeps to its context, also behind one that has no answer.
func TestCommitKeepsToItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, AutoCommitInterval: -1})
		pollNumbers(t, k, 30)
		m.mu.Lock()
		m.mute = true
		m.mu.Unlock()
		var first error
		k.CommitAsync(func(err error) { first = err })
		for _, want := range []time.Duration{time.Second, 2 * time.Second} {
			began := time.Now()
			if err := k.Commit(soonAfter(t, want)); !rpc.IsReason(err, reasonDeadlineExceeded) || time.Since(began) != want {
				t.Errorf("after %v, want %v: %v", time.Since(began), want, err)
			}
		}
		m.mu.Lock()
		m.mute = false
		m.mu.Unlock()
		if err := k.Commit(soon(t)); err != nil || first == nil {
			t.Errorf("once there are answers again: %v, and the first: %v", err, first)
		}
		if got := m.committed("g", topic.at(0)); got != 30 {
			t.Errorf("committed %d", got)
		}
	})
}
