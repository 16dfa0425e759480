package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

func newTestConsumer(t *testing.T, c *Client, cfg ConsumerConfig) *Consumer {
	t.Helper()
	k, err := c.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := k.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return k
}

// pollNumbers polls until it has n records and returns their values, sorted.
func pollNumbers(t *testing.T, k *Consumer, n int) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		records, err := k.Poll(soon(t), 7)
		if err != nil {
			t.Fatalf("after %d records: %v", len(got), err)
		}
		for _, r := range records {
			got = append(got, string(r.Value))
		}
	}
	slices.Sort(got)
	return got
}

// pollNothing polls for a time in which nothing may come.
func pollNothing(t *testing.T, k *Consumer, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if r, err := k.Poll(ctx, 0); !rpc.IsReason(err, reasonDeadlineExceeded) {
		t.Fatalf("%d records, %v", len(r), err)
	}
}

func wantNumbers(t *testing.T, got []string, from, to int) {
	t.Helper()
	if len(got) != to-from {
		t.Errorf("%d records, want %d", len(got), to-from)
	}
	for i, v := range got {
		if want := fmt.Sprintf("%06d", from+i); v != want {
			t.Fatalf("record %d is %s, want %s", i, v, want)
		}
	}
}

// groupMesh has a topic with records spread over four partitions.
func groupMesh(t *testing.T, records int) (*fakeMesh, *fakeTopic) {
	t.Helper()
	m := newFakeMesh(t, 2)
	topic := m.topic("t", 4, 1<<20)
	m.startCoordinator(1)
	m.shards(1)
	for i, b := range numbered(t, 0, records) {
		m.put(topic, int32(i%4), b)
	}
	return m, topic
}

func TestConsumerInAGroup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := groupMesh(t, 120)
		cfg := ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest}
		k := newTestConsumer(t, m.client(Config{}), cfg)
		wantNumbers(t, pollNumbers(t, k, 120), 0, 120)
		k.Release()
		if err := k.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			if got := m.committed("g", topic.at(int32(i))); got != 30 {
				t.Errorf("partition %d is committed up to %d", i, got)
			}
		}
		if n := len(m.memberIDs("g")); n > 0 {
			t.Errorf("%d members after the close", n)
		}
		for i, b := range numbered(t, 120, 132) {
			m.put(topic, int32(i), b)
		}
		again := newTestConsumer(t, m.client(Config{}), cfg)
		wantNumbers(t, pollNumbers(t, again, 12), 120, 132)
	})
}

func TestConsumersHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := groupMesh(t, 120)
		var assigned, revoked int
		cfg := ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetEarliest,
			OnAssigned: func(p []AssignedPartition) { assigned += len(p) },
			OnRevoked:  func(p []AssignedPartition) { revoked += len(p) },
		}
		a := newTestConsumer(t, m.client(Config{}), cfg)
		pollNumbers(t, a, 120)
		b := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		stop, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, k := range []*Consumer{b, a, b, a, b} { // both have to take part
			ctx, cancel := context.WithTimeout(stop, time.Second)
			if r, err := k.Poll(ctx, 0); !rpc.IsReason(err, reasonDeadlineExceeded) {
				t.Fatalf("records %v after everything was read and committed: %v", r, err)
			}
			cancel()
		}
		if len(a.Assigned()) != 2 || len(b.Assigned()) != 2 || assigned != 4 || revoked != 2 {
			t.Errorf("%d and %d partitions; %d assigned and %d revoked", len(a.Assigned()), len(b.Assigned()), assigned, revoked)
		}
		if err := a.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
		for i, batch := range numbered(t, 120, 132) {
			m.put(topic, int32(i), batch)
		}
		wantNumbers(t, pollNumbers(t, b, 12), 120, 132)
	})
}

// Auto-commit covers what earlier Polls handed out, and no more.
func TestAutoCommitCoversWhatWasReleased(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.startCoordinator(1)
		m.shards(1)
		m.put(topic, 0, numbered(t, 0, 30)...)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, AutoCommitInterval: time.Second})
		committed := func() int64 {
			synctest.Wait()
			return m.committed("g", topic.at(0))
		}
		poll := func() int {
			r, err := k.Poll(soon(t), 5) // as many of the five as are there
			if err != nil || len(r) == 0 || len(r) > 5 {
				t.Fatal(len(r), err)
			}
			return len(r)
		}
		first := poll()
		<-time.After(2 * time.Second)
		if got := committed(); got > 0 {
			t.Errorf("%d is committed before a second Poll", got)
		}
		poll()
		<-time.After(2 * time.Second) // by itself: the application is busy with these
		if got := committed(); got != int64(first) {
			t.Errorf("%d is committed, want the %d of the first Poll", got, first)
		}
	})
}

// case 27: a consumer whose membership has ended joins anew; what it had and did
// not commit in time is handed out again.
func TestExpelledConsumerJoinsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := groupMesh(t, 12)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		pollNumbers(t, k, 12)
		for _, id := range m.memberIDs("g") {
			m.expel("g", id)
		}
		synctest.Wait()
		_, err := k.Poll(soon(t), 0)
		if !rpc.IsReason(err, 103) {
			t.Fatalf("the end of the membership is told as %v", err)
		}
		wantNumbers(t, pollNumbers(t, k, 12), 0, 12)
	})
}

func TestConsumerByHand(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 2, 1<<20)
		m.startCoordinator(1)
		m.shards(1)
		m.put(topic, 0, numbered(t, 0, 30)...)
		c := m.client(Config{})
		k := newTestConsumer(t, c, ConsumerConfig{Group: "g", Reset: ResetEarliest, AutoCommitInterval: -1})
		ctx := soon(t)
		if err := k.Assign(ctx, Position{TopicPartition: topic.at(0), NextOffset: 10, LeaderEpoch: -1}, Position{TopicPartition: topic.at(1), NextOffset: -1}); err != nil {
			t.Fatal(err)
		}
		if err := k.Assign(ctx, Position{TopicPartition: topic.at(9), NextOffset: 0}); !rpc.IsReason(err, reasonUnknownPartition) {
			t.Errorf("a partition that is not there: %v", err)
		}
		wantNumbers(t, pollNumbers(t, k, 20), 10, 30)
		if err := k.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if got := m.committed("g", topic.at(0)); got != 30 {
			t.Errorf("committed: %d", got)
		}
		if err := k.Seek(topic.at(0), 4); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, k, 26), 4, 30)
		asyncErr := errors.New("not told")
		k.CommitAsync(func(err error) { asyncErr = err }, Position{TopicPartition: topic.at(0), NextOffset: 6, LeaderEpoch: -1})
		if err := k.Commit(ctx, Position{TopicPartition: topic.at(0), NextOffset: 7, LeaderEpoch: -1}); err != nil || asyncErr != nil {
			t.Error(err, asyncErr)
		}
		if got := m.committed("g", topic.at(0)); got != 7 {
			t.Errorf("the later commit is overtaken: %d", got)
		}
		if err := k.Assign(ctx, Position{TopicPartition: topic.at(0), NextOffset: -1}); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, k, 23), 7, 30)

		k.Pause(topic.at(0))
		m.put(topic, 0, numbered(t, 30, 33)...)
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if r, err := k.Poll(short, 0); err == nil {
			t.Errorf("records of a paused partition: %v", r)
		}
		k.Resume(topic.at(0))
		wantNumbers(t, pollNumbers(t, k, 3), 30, 33)
	})
}

func TestConsumerResetsOnlyWhatIsOutOfRange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		m.update(func() { topic.parts[0].start, topic.parts[0].batches = 15, topic.parts[0].batches[5:] })
		c := m.client(Config{})
		k := newTestConsumer(t, c, ConsumerConfig{Reset: ResetEarliest})
		if err := k.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: 2, LeaderEpoch: -1}); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, k, 15), 15, 30)
		none := newTestConsumer(t, c, ConsumerConfig{Reset: ResetNone})
		if err := none.Assign(soon(t), Position{TopicPartition: topic.at(0), NextOffset: 2, LeaderEpoch: -1}); err != nil {
			t.Fatal(err)
		}
		if _, err := none.Poll(soon(t), 0); !rpc.IsReason(err, reasonOffsetOutOfRange) {
			t.Errorf("without a reset policy: %v", err)
		}
		if err := none.Seek(topic.at(0), 20); err != nil {
			t.Fatal(err)
		}
		wantNumbers(t, pollNumbers(t, none, 10), 20, 30)
		if err := none.Commit(soon(t)); !rpc.IsReason(err, reasonInvalidRequest) {
			t.Errorf("a commit without a group: %v", err)
		}
	})
}
