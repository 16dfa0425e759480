package client

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// At most once: whatever is handed out is committed by then, and nothing is handed
// out twice, however often the membership ends.
func TestAtMostOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := groupMesh(t, 600)
		c := m.client(Config{})
		k := newTestConsumer(t, c, ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, AtMostOnce: true})
		seen := make(map[string]bool)
		fenced, expelled := 0, 0
		stop := soonAfter(t, 5*time.Minute)
		for n := 0; ; n++ {
			ctx, cancel := context.WithTimeout(stop, 20*time.Second)
			records, err := k.Poll(ctx, 9)
			idle := ctx.Err() != nil
			cancel()
			if idle {
				break
			}
			if err != nil {
				if stops(err) {
					t.Fatal(err)
				}
				fenced++
				continue
			}
			for _, r := range records {
				if seen[string(r.Value)] {
					t.Fatalf("record %s is handed out twice", r.Value)
				}
				seen[string(r.Value)] = true
				if next := m.committed("g", r.TopicPartition); next <= r.Offset {
					t.Fatalf("record %d is handed out, and %d is committed", r.Offset, next)
				}
			}
			switch n {
			case 3, 20:
				m.expel("g", m.memberIDs("g")[0])
				expelled++
				synctest.Wait()
			case 10: // a process that dies at once
				m.kill(1)
				m.startBroker(1)
			}
		}
		if fenced != expelled || expelled == 0 || len(seen) < 10 {
			t.Errorf("%d records, %d memberships lost of %d", len(seen), fenced, expelled)
		}
		for i := range int32(4) {
			if next := m.committed("g", topic.at(i)); next != m.end(topic, i) {
				t.Errorf("partition %d is committed up to %d", i, next)
			}
		}
	})
}

// Without a failure at most once leaves nothing out, also through revocations, seeks
// and the iterator.
func TestAtMostOnceLeavesNothingOutByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := groupMesh(t, 240)
		cfg := ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, AtMostOnce: true}
		a := newTestConsumer(t, m.client(Config{}), cfg)
		seen := make(map[string]int)
		n := 0
		for r, err := range a.Records(soon(t)) {
			if err != nil {
				t.Fatal(err)
			}
			seen[string(r.Value)]++
			if first, ok := a.Position(r.TopicPartition); !ok || first != r.Offset+1 {
				t.Fatalf("position %d after record %d", first, r.Offset)
			}
			if n++; n == 50 {
				break
			}
		}
		b := newTestConsumer(t, m.client(Config{}), cfg)
		for idle := 0; idle < 6; {
			for _, k := range []*Consumer{a, b} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				records, err := k.Poll(ctx, 5)
				if cancel(); err != nil && !rpc.IsReason(err, reasonDeadlineExceeded) {
					t.Fatal(err)
				}
				if idle++; len(records) > 0 {
					idle = 0
				}
				for _, r := range records {
					seen[string(r.Value)]++
				}
			}
		}
		for i := range 240 {
			if v := fmt.Sprintf("%06d", i); seen[v] != 1 {
				t.Errorf("record %s was handed out %d times", v, seen[v])
			}
		}
		if len(a.Assigned()) != 2 || len(b.Assigned()) != 2 {
			t.Errorf("%d and %d partitions", len(a.Assigned()), len(b.Assigned()))
		}
		tp := a.Assigned()[0].TopicPartition
		if err := a.Seek(tp, 58); err != nil {
			t.Fatal(err)
		}
		if got := pollNumbers(t, a, 2); len(got) != 2 {
			t.Errorf("%q", got)
		}
		if next := m.committed("g", tp); next != 60 {
			t.Errorf("committed %d", next)
		}
	})
}

// A commit without an answer hands nothing out; once it has one, everything comes.
func TestAtMostOnceWaitsForTheCommit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, AtMostOnce: true})
		mute := func(on bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.mute = on
		}
		mute(true)
		pollNothing(t, k, 5*time.Second)
		if next, ok := k.Position(topic.at(0)); !ok || next != 0 {
			t.Errorf("position %d, %v", next, ok)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		records, err := k.Poll(ctx, 0)
		if err == nil || len(records) > 0 || ctx.Err() != nil {
			t.Fatalf("%d records, %v", len(records), err)
		}
		mute(false)
		wantNumbers(t, pollNumbers(t, k, 30), 0, 30)
		pollNothing(t, k, time.Minute)
		if next := m.committed("g", topic.at(0)); next != 30 {
			t.Errorf("committed %d", next)
		}
	})
}
