package client

import (
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// case 42: data that fills its connection for minutes does not delay the signs of
// life, which have one of their own, although both go to one address.
func TestHeartbeatsAreTimelyWhileDataSaturatesTheLink(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 0)
		m.together = true
		m.startBroker(1)
		topic := m.topic("t", 1, 4<<20)
		m.shards(1)
		m.net.rate = 50 << 10
		value := strings.Repeat("data ", 50<<10)
		for range 15 {
			m.put(topic, 0, encode(t, value))
		}
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		began, bytes, worst := time.Now(), 0, time.Duration(0)
		for bytes < 15*len(value) {
			records, err := k.Poll(soonAfter(t, 100*time.Millisecond), 0)
			if err != nil && !rpc.IsReason(err, reasonDeadlineExceeded) {
				t.Fatal(err)
			}
			for _, r := range records {
				bytes += len(r.Value)
			}
			if k.member != nil && k.member.Attach() > 0 {
				// Since the last confirmed ping was sent; they go out every three seconds.
				worst = max(worst, time.Since(k.member.DeliverUntil().Add(-15*time.Second)))
			}
		}
		if took := time.Since(began); took < 50*time.Second {
			t.Fatalf("%d bytes took %v: nothing was saturated", bytes, took)
		}
		if worst > 3500*time.Millisecond {
			t.Errorf("a ping was without an answer for %v", worst-3*time.Second)
		}
	})
}

// All members of a process share one stream to a coordinator.
func TestOneJoinStreamForAProcessAndCoordinator(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := oneMesh(t, 0)
		c := m.client(Config{})
		for _, group := range []string{"g", "h", "i", "j", "k", "l"} {
			nextAssignment(t, join(t, c, MemberConfig{Group: group, MemberID: "a", Topics: []string{"t"}}))
		}
		<-time.After(time.Minute)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.joined != 1 {
			t.Errorf("%d join streams were opened", m.joined)
		}
	})
}

// Pings tell what a partition waits for, once as long as it is the same.
func TestPingsTellProgress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, topic := oneMesh(t, 30)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest})
		newest := func() []*coordinatorv1.MemberProgress {
			var told []*coordinatorv1.MemberProgress
			m.member("g", func(mem *fakeMember) { told = mem.progress })
			return told
		}
		want := func(what string, waiting coordinatorv1.WaitingFor, delivered, processed int64) {
			t.Helper()
			<-time.After(3100 * time.Millisecond)
			got := newest()
			if len(got) != 1 || got[0].WaitingFor != waiting || got[0].DeliveredNext != delivered || got[0].ProcessedNext != processed {
				t.Errorf("%s: %v", what, got)
			}
		}
		released := int64(0)
		for read := int64(0); read < 30; {
			records, err := k.Poll(soon(t), 7)
			if err != nil {
				t.Fatal(err)
			}
			released, read = read, read+int64(len(records))
		}
		want("in the application's hands", waitingApplication, 30, released)
		want("still there", waitingApplication, 30, released)
		pollNothing(t, k, 100*time.Millisecond)
		want("at the end", waitingNothing, 30, 30)
		<-time.After(10 * time.Second)
		if got := newest(); len(got) > 0 {
			t.Errorf("told again: %v", got)
		}
		m.put(topic, 0, numbered(t, 30, 33)...)
		want("ready", waitingApplication, 30, 30)
		wantNumbers(t, pollNumbers(t, k, 3), 30, 33)
		k.Release()
		m.mu.Lock()
		topic.parts[0].leader = 9
		m.touch()
		m.mu.Unlock()
		m.kill(1)
		for began := time.Now(); ; {
			got := newest()
			if len(got) == 1 && (got[0].WaitingFor == waitingNetwork || got[0].WaitingFor == waitingBroker) && got[0].Detail != "" {
				break
			}
			if <-time.After(100 * time.Millisecond); time.Since(began) > time.Minute {
				t.Fatalf("without a broker: %v", got)
			}
		}
	})
}

// A member whose records may not wait for long tells of them sooner than its session
// would have it.
func TestPingsComeInTimeForMaxProcessing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, _ := oneMesh(t, 3)
		k := newTestConsumer(t, m.client(Config{}), ConsumerConfig{Group: "g", Topics: []string{"t"}, Reset: ResetEarliest, MaxProcessing: 2 * time.Second})
		wantNumbers(t, pollNumbers(t, k, 3), 0, 3)
		pings := func() (n int, told []*coordinatorv1.MemberProgress) {
			m.member("g", func(mem *fakeMember) { n, told = mem.pings, mem.progress })
			return n, told
		}
		before, _ := pings()
		<-time.After(2100 * time.Millisecond)
		if after, told := pings(); after-before != 4 || len(told) != 1 || told[0].OldestUnprocessedAge.AsDuration() < time.Second {
			t.Errorf("%d pings in 2 s, the last telling %v", after-before, told)
		}
	})
}
