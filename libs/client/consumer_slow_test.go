package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// A record that takes ten minutes costs neither the membership nor the partition, and
// the coordinator is told what the partition waits for.
func TestASlowHandlerKeepsItsPartitions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		var told []string
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetEarliest,
			OnRevoked: func([]AssignedPartition) { told = append(told, "revoked") },
			OnLost:    func([]AssignedPartition) { told = append(told, "lost") },
		})
		n := 0
		for _, err := range k.Records(soonAfter(t, time.Hour)) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 1 {
				break
			}
			before := time.Now()
			<-time.After(10 * time.Minute)
			m.member("g", func(mem *fakeMember) {
				if since := time.Since(mem.pinged); since > 5*time.Second || mem.pings < 100 {
					t.Errorf("%d pings, the last %v ago", mem.pings, since)
				}
				if len(mem.progress) != 1 {
					t.Fatalf("progress: %v", mem.progress)
				}
				p := mem.progress[0]
				if p.DeliveredNext != 1 || p.ProcessedNext != 0 || p.WaitingFor != waitingApplication {
					t.Errorf("progress: %v", p)
				}
				if age := p.OldestUnprocessedAge.AsDuration(); age < time.Since(before)-10*time.Second {
					t.Errorf("the oldest record has waited for %v, as is told", age)
				}
			})
		}
		if next, ok := k.Position(topic.at(0)); next != 2 || !ok || told != nil {
			t.Errorf("position %d, %v; told %v", next, ok, told)
		}
	})
}

// soonAfter is soon for a test that takes its (virtual) time.
func soonAfter(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// case 25: a revocation waits for what was handed out: the coordinator hears at once
// that handing out has stopped, and the partition goes only after the release, with
// what was worked on committed.
func TestARevocationWaitsForTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := groupMesh(t, 120)
		var revoked []int32
		a := newTestConsumer(t, m.client(Config{}), ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetEarliest,
			OnRevoked: func(parts []AssignedPartition) {
				for _, p := range parts {
					revoked = append(revoked, p.Partition)
				}
			},
		})
		got := pollNumbers(t, a, 100) // and the last of them are being worked on
		aID := m.memberIDs("g")[0]
		b := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		pollNothing(t, b, 5*time.Minute)
		m.mu.Lock()
		if mem := m.group("g").members[aID]; len(mem.revoking) != 2 || len(mem.owned) != 4 {
			t.Errorf("%d partitions are said to be on their way, %d are held", len(mem.revoking), len(mem.owned))
		}
		m.mu.Unlock()
		if len(b.Assigned()) > 0 || len(revoked) > 0 {
			t.Errorf("the other has %v; told of %v", b.Assigned(), revoked)
		}
		for len(got) < 120 {
			for _, k := range []*Consumer{a, b} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				records, err := k.Poll(ctx, 5)
				if cancel(); err != nil && !rpc.IsReason(err, reasonDeadlineExceeded) {
					t.Fatal(err)
				}
				for _, r := range records {
					got = append(got, string(r.Value))
				}
			}
		}
		slices.Sort(got)
		wantNumbers(t, got, 0, 120) // each once: nothing was handed out twice
		if len(revoked) != 2 || len(a.Assigned()) != 2 || len(b.Assigned()) != 2 {
			t.Errorf("revoked %v; %d and %d are held", revoked, len(a.Assigned()), len(b.Assigned()))
		}
		for _, p := range revoked {
			if next := m.committed("g", topic.at(p)); next <= 0 {
				t.Errorf("partition %d was given up at %d", p, next)
			}
		}
	})
}

// The other partitions are read while the commit of what is revoked has no answer.
func TestOtherPartitionsGoOnDuringARevocation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := groupMesh(t, 120)
		a := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		pollNumbers(t, a, 120)
		b := join(t, m.client(Config{}), MemberConfig{Group: "g", MemberID: "zz", Topics: []string{"t"}})
		if first := nextAssignment(t, b); len(first.Partitions) > 0 {
			t.Fatalf("%+v", first)
		}
		m.mu.Lock()
		m.mute = true // commits
		m.mu.Unlock()
		m.put(topic, 0, numbered(t, 120, 123)...)
		m.put(topic, 2, numbered(t, 123, 126)...)
		wantNumbers(t, pollNumbers(t, a, 6), 120, 126)
		m.mu.Lock()
		m.mute = false
		m.mu.Unlock()
		for range 3 { // the commit that has had no answer is given up in time
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := a.Poll(ctx, 0)
			cancel()
			if err != nil && !rpc.IsReason(err, reasonDeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if len(a.Assigned()) != 2 {
			t.Errorf("%v are still held", a.Assigned())
		}
	})
}

// case 27: a lost membership is told apart: nothing is committed any more.
func TestALostMembershipCommitsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		var lost []AssignedPartition
		var k *Consumer
		k = newTestConsumer(t, m.client(Config{}), ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetEarliest,
			OnRevoked: func([]AssignedPartition) { t.Error("what is lost is told as revoked") },
			OnLost: func(parts []AssignedPartition) {
				lost = parts
				at := Position{TopicPartition: parts[0].TopicPartition, NextOffset: 30, LeaderEpoch: -1}
				if err := k.Commit(soon(t), at); err == nil {
					t.Error("what is lost was committed")
				}
			},
		})
		pollNumbers(t, k, 30)
		m.expel("g", m.memberIDs("g")[0])
		synctest.Wait()
		before := m.committed("g", topic.at(0))
		if _, err := k.Poll(soon(t), 0); err == nil || stops(err) {
			t.Errorf("the end of the membership is told as %v", err)
		}
		if len(lost) != 1 || len(k.Assigned()) > 0 {
			t.Errorf("lost %v; held %v", lost, k.Assigned())
		}
		<-time.After(time.Minute)
		if after := m.committed("g", topic.at(0)); after != before {
			t.Errorf("%d is committed, and was %d", after, before)
		}
		k.cfg.OnRevoked = nil
	})
}

// Deliveries stop one session timeout after the sending of the last ping that was
// confirmed, and go on once the session stands again.
func TestDeliveriesStopWithTheSession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 3)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, SessionTimeout: 9 * time.Second, AutoCommitInterval: -1})
		pollNumbers(t, k, 3)
		<-time.After(time.Minute)
		m.mu.Lock()
		m.coords[1].silent = true
		m.mu.Unlock()
		var confirmed time.Time
		m.member("g", func(mem *fakeMember) { confirmed = mem.pinged }) // it took no time
		next := 3
		var last time.Time
		for time.Since(confirmed) < 30*time.Second {
			m.put(topic, 0, numbered(t, next, next+1)...)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			records, err := k.Poll(ctx, 0)
			cancel()
			if err != nil && !rpc.IsReason(err, reasonDeadlineExceeded) {
				t.Fatal(err)
			}
			if len(records) > 0 {
				last = time.Now()
			}
			next++
			<-time.After(100 * time.Millisecond)
		}
		if after := last.Sub(confirmed); after > 9*time.Second || after < 8*time.Second {
			t.Errorf("the last record was handed out %v after the last confirmed ping was sent", after)
		}
		m.mu.Lock()
		m.coords[1].silent = false
		m.mu.Unlock()
		ctx := soon(t)
		for next, ok := int64(0), true; next < m.end(topic, 0); next, ok = k.Position(topic.at(0)) {
			if _, err := k.Poll(ctx, 0); err != nil || !ok {
				t.Fatal(err)
			}
		}
	})
}

// case 26: whoever is told that another process has taken its place stops.
func TestAReplacedConsumerStops(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := oneMesh(t, 3)
		var lost int
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{
			Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, InstanceID: "one",
			OnLost: func(parts []AssignedPartition) { lost += len(parts) },
		})
		pollNumbers(t, k, 3)
		m.fence("g", m.memberIDs("g")[0], rpc.Errorf(reasonInstanceFenced, "another process is called one"))
		synctest.Wait()
		for range 2 {
			if _, err := k.Poll(soon(t), 0); !rpc.IsReason(err, reasonInstanceFenced) {
				t.Fatal(err)
			}
		}
		for _, err := range k.Records(soon(t)) {
			if !rpc.IsReason(err, reasonInstanceFenced) {
				t.Fatal(err)
			}
		}
		if lost != 1 {
			t.Errorf("%d partitions were lost", lost)
		}
		if err := k.Commit(soon(t)); err != nil {
			t.Errorf("a commit of nothing: %v", err)
		}
		if err := errors.Join(k.Close(soon(t))); err != nil {
			t.Error(err)
		}
	})
}
