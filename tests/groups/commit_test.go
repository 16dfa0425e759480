package groups

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestCommitOfADeletedTopic: a topic is deleted and made again under its name. What
// is committed for the first is refused, by a member and without one; the second has
// none of its offsets, and is read from its beginning.
func TestCommitOfADeletedTopic(t *testing.T) {
	r := start(t, rig.Options{})
	topic(t, r, "again", 1)
	c := newClient(t, r, "deleted")
	fill(t, c, "again", 1, 50)
	old := client.TopicPartition{TopicID: lookUp(t, c, "again").ID}
	config := memberOptions{ConsumerConfig: client.ConsumerConfig{Group: "again", Topics: []string{"again"}, AutoCommitInterval: 50 * time.Millisecond}}
	m := startMember(t, c, "member", config)
	ctx := within(t, 2*time.Minute)
	committed := func(group string, tp client.TopicPartition) int64 {
		t.Helper()
		got, err := c.FetchOffsets(ctx, group, []client.TopicPartition{tp})
		if err != nil {
			t.Fatal(err)
		}
		return got[0].NextOffset
	}
	mesh.Eventually(t, limit, "everything is committed", func() (bool, string) {
		n := committed("again", old)
		return n == 50, fmt.Sprint(n)
	})
	if err := commit(ctx, c, "alone", old, 40); err != nil {
		t.Fatal(err)
	}

	// A deletion is on record until every broker has confirmed it. This one cannot before
	// the coordinator has seen the record, which drops the offsets.
	r.Net.Stall("broker-1", r.Names(rig.Controller)...)
	r.MustLeat("topic", "delete", "again")
	for _, group := range []string{"alone", "fresh"} {
		mesh.Eventually(t, limit, "the coordinator of "+group+" knows that the topic is deleted", func() (bool, string) {
			err := commit(ctx, c, group, old, 45)
			return noTopic(err), fmt.Sprint(err)
		})
	}
	mesh.Eventually(t, limit, "no offset of the deleted topic is told", func() (bool, string) {
		n := committed("alone", old)
		return n == -1, fmt.Sprint(n)
	})
	r.Net.HealAll()
	topic(t, r, "again", 1)
	var made client.TopicPartition
	mesh.Eventually(t, limit, "the new topic is known", func() (bool, string) {
		if err := c.Metadata().Refresh(ctx); err != nil {
			return false, err.Error()
		}
		now, err := c.Metadata().Topic(ctx, "again")
		if err != nil {
			return false, err.Error()
		}
		made.TopicID = now.ID
		return now.ID != old.TopicID, now.ID.String()
	})
	for _, group := range []string{"alone", "fresh"} {
		if err := commit(ctx, c, group, old, 45); !noTopic(err) {
			t.Errorf("a commit of group %s for the deleted topic: %v", group, err)
		}
		if n := committed(group, made); n != -1 {
			t.Errorf("group %s has offset %d of the new topic", group, n)
		}
	}
	if n := committed("alone", old); n != -1 {
		t.Errorf("offset %d of the deleted topic is told again", n)
	}
	if n := committed("again", made); n > 0 {
		t.Errorf("the new topic has the offset %d of the old one", n)
	}
	fill(t, c, "again", 1, 7)
	mesh.Eventually(t, limit, "the member reads the new topic from its beginning", func() (bool, string) {
		n := committed("again", made)
		m.mu.Lock()
		defer m.mu.Unlock()
		return n == 7 && m.delivered == 57, fmt.Sprintf("%d committed, %d delivered", n, m.delivered)
	})
}

func noTopic(err error) bool {
	return rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED, typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC)
}

// TestMemberThatDiesAfterJoining: a member that dies as soon as it has an id, before it
// has taken anything in, holds nobody up for longer than its session.
//
// case 24
func TestMemberThatDiesAfterJoining(t *testing.T) {
	r := start(t, rig.Options{})
	topic(t, r, "dead", 4)
	c := newClient(t, r, "dead")
	const session = 2 * time.Second
	dead, err := c.JoinGroup(client.MemberConfig{Group: "dead", Topics: []string{"dead"}, SessionTimeout: session})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, limit)
	for attached := false; !attached; {
		e, err := dead.Next(ctx)
		if err != nil || e.Fenced != nil {
			t.Fatal(err, e.Fenced)
		}
		attached = e.Attached != nil
	}
	dead.Detach() // it says no more, and has acknowledged nothing
	began := time.Now()
	m := startMember(t, c, "heir", memberOptions{ConsumerConfig: client.ConsumerConfig{Group: "dead", Topics: []string{"dead"}}})
	awaitHolding(t, 4, m)
	t.Logf("the heir holds everything %v after its join (session timeout %v)", time.Since(began).Round(time.Millisecond), session)
	if n := len(describe(t, c, "dead").Members); n != 1 {
		t.Errorf("the group has %d members", n)
	}
}

// TestCommitAfterAPause: a member stands still past its session with records in hand,
// and goes on. Its commit is refused, the offset stays where its heir has brought it,
// and it joins anew.
//
// case 27
func TestCommitAfterAPause(t *testing.T) {
	const session = 2 * time.Second
	r := start(t, rig.Options{})
	topic(t, r, "paused", 2)
	c := newClient(t, r, "paused")
	startLoad(t, r, "paused", 100)
	id := lookUp(t, c, "paused").ID
	parts := []client.TopicPartition{{TopicID: id, Partition: 0}, {TopicID: id, Partition: 1}}
	ctx := within(t, 2*time.Minute)
	committed := func() (offsets [2]int64) {
		t.Helper()
		got, err := c.FetchOffsets(ctx, "paused", parts)
		if err != nil {
			t.Fatal(err)
		}
		return [2]int64{got[0].NextOffset, got[1].NextOffset}
	}
	w := startWorker(t, workerConfig{Bootstrap: bootstrap(r), Group: "paused", Topic: "paused", Name: "sleeper", Session: session}, nil)
	mesh.Eventually(t, limit, "the sleeper commits", func() (bool, string) {
		now := committed()
		return now[0] > 10 && now[1] > 10, fmt.Sprint(now)
	})
	w.signal(syscall.SIGSTOP)
	heir := startMember(t, c, "heir", memberOptions{ConsumerConfig: client.ConsumerConfig{
		Group: "paused", Topics: []string{"paused"}, AutoCommitInterval: 50 * time.Millisecond, // it must not be expelled itself
	}})
	awaitHolding(t, 2, heir)
	before := committed()
	mesh.Eventually(t, limit, "the heir commits", func() (bool, string) {
		now := committed()
		return now[0] > before[0]+10 && now[1] > before[1]+10, fmt.Sprint(now)
	})
	last, times := committed(), w.told(assigned)
	w.signal(syscall.SIGCONT)
	mesh.Eventually(t, limit, "the sleeper has joined anew", func() (bool, string) {
		now := committed()
		for n := range now {
			if now[n] < last[n] {
				t.Errorf("the offset of partition %d went back from %d to %d", n, last[n], now[n])
			}
		}
		last = now
		return w.told(assigned) > times && len(heir.has()) == 1, fmt.Sprintf("%d assignments, the heir holds %v", w.told(assigned), heir.has())
	})
	w.leave()
	awaitHolding(t, 2, heir)
	if _, _, lost := heir.counts(); lost > 0 || len(heir.problems) > 0 {
		t.Errorf("the heir lost its membership %d times: %v", lost, heir.problems)
	}
}
