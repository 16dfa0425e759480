package client

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// join begins a membership that leaves nothing behind.
func join(t *testing.T, c *Client, cfg MemberConfig) *Member {
	t.Helper()
	m, err := c.JoinGroup(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Detach)
	return m
}

// nextAssignment reads up to the next assignment.
func nextAssignment(t *testing.T, m *Member) *Assignment {
	t.Helper()
	for {
		e, err := m.Next(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if e.Fenced != nil {
			t.Fatalf("fenced: %v", e.Fenced)
		}
		if e.Assignment != nil {
			return e.Assignment
		}
	}
}

func ownedOf(a *Assignment) []OwnedPartition {
	var owned []OwnedPartition
	for _, p := range a.Partitions {
		owned = append(owned, p.OwnedPartition)
	}
	return owned
}

func TestMembersShareAndHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		mesh.topic("t", 4, 1<<20)
		mesh.startCoordinator(1)
		mesh.shards(1)
		c := mesh.client(Config{})
		a := join(t, c, MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}})
		first := nextAssignment(t, a)
		if len(first.Partitions) != 4 || first.Partitions[0].StartOffset != -1 || first.Partitions[0].Topic != "t" {
			t.Fatalf("%+v", first)
		}
		a.Ack(first.MemberEpoch, ownedOf(first))
		b := join(t, c, MemberConfig{Group: "g", MemberID: "b", Topics: []string{"t"}})
		less := nextAssignment(t, a)
		if len(less.Partitions) != 2 {
			t.Fatalf("%+v", less)
		}
		// What is revoked may still be committed until it is given up.
		var commits []CommitOffset
		for _, p := range first.Partitions {
			commits = append(commits, CommitOffset{TopicPartition: p.TopicPartition, NextOffset: 7, LeaderEpoch: -1, AssignmentEpoch: p.AssignmentEpoch})
		}
		if r, err := a.Commit(soon(t), commits); err != nil || r.Refused != nil {
			t.Fatal(r, err)
		}
		a.Ack(less.MemberEpoch, ownedOf(less))
		got := nextAssignment(t, b)
		for len(got.Partitions) < 2 {
			got = nextAssignment(t, b)
		}
		for _, p := range got.Partitions {
			if p.StartOffset != 7 {
				t.Errorf("partition %d starts at %d, want the committed 7", p.Partition, p.StartOffset)
			}
			if slices.Contains(ownedOf(less), p.OwnedPartition) {
				t.Errorf("partition %d has two owners", p.Partition)
			}
		}
		b.Ack(got.MemberEpoch, ownedOf(got))
		if r, err := b.Commit(soon(t), commits); err != nil || len(r.Refused) != 4 {
			t.Errorf("commits of what is held under other epochs, or by others: %v, %v", r, err)
		}
		if err := b.Leave(soon(t)); err != nil {
			t.Fatal(err)
		}
		if all := nextAssignment(t, a); len(all.Partitions) != 4 {
			t.Errorf("after the other left: %+v", all)
		}
		if n := len(c.joins.byAddr); n != 1 {
			t.Errorf("%d join streams to one coordinator", n)
		}
	})
}

func TestMemberResumesAfterItsCoordinatorMoved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		mesh.topic("t", 2, 1<<20)
		mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(1)
		m := join(t, mesh.client(Config{}), MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}})
		a := nextAssignment(t, m)
		m.Ack(a.MemberEpoch, ownedOf(a))
		synctest.Wait()
		mesh.killCoordinator(1)
		done := make(chan error, 1)
		go func() { // a commit that is under way goes on by itself
			p := a.Partitions[0]
			r, err := m.Commit(soon(t), []CommitOffset{{TopicPartition: p.TopicPartition, NextOffset: 3, LeaderEpoch: -1, AssignmentEpoch: p.AssignmentEpoch}})
			if err == nil && r.Refused != nil {
				err = r.Refused[p.TopicPartition]
			}
			done <- err
		}()
		synctest.Wait()
		mesh.mu.Lock()
		mesh.group("g").members["a"].epoch = 0 // as if the acknowledgement had been lost
		mesh.mu.Unlock()
		for _, topic := range mesh.topics {
			if topic.name == OffsetsTopic {
				mesh.own(topic, 2)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if m.Attach() != 2 {
			t.Errorf("attach %d, want 2", m.Attach())
		}
		for {
			e, ok := m.TryNext()
			if !ok {
				break
			}
			if e.Fenced != nil {
				t.Errorf("fenced: %v", e.Fenced)
			}
		}
		before := m.DeliverUntil()
		<-time.After(20 * time.Second)
		if !m.DeliverUntil().After(before.Add(10 * time.Second)) {
			t.Errorf("deliveries until %v, no later than before", m.DeliverUntil())
		}
	})
}

// A coordinator that is stopped (SIGSTOP) keeps its connections. Its members go to the
// shard's next owner once the metadata shows one.
func TestMemberLeavesASilentCoordinator(t *testing.T) {
	for name, session := range map[string]time.Duration{"default session": 0, "short session": time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) { leavesASilentCoordinator(t, session) })
		})
	}
}

func leavesASilentCoordinator(t *testing.T, session time.Duration) {
	mesh := newFakeMesh(t, 1)
	topic := mesh.topic("t", 1, 1<<20)
	first := mesh.startCoordinator(1)
	mesh.startCoordinator(2)
	mesh.shards(1)
	m := join(t, mesh.client(Config{}), MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}, SessionTimeout: session})
	a := nextAssignment(t, m)
	m.Ack(a.MemberEpoch, ownedOf(a))
	epoch := a.Partitions[0].AssignmentEpoch
	if _, err := m.Commit(soon(t), []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 4, AssignmentEpoch: epoch}}); err != nil {
		t.Fatal(err)
	}
	// Where it only is slow, and the shard still its own, nobody leaves.
	attach := m.Attach()
	mesh.update(func() { first.silent = true })
	<-time.After(8 * time.Second)
	if got := m.Attach(); got != attach {
		t.Errorf("the member has left: its attach is %d, was %d", got, attach)
	}
	for _, t := range mesh.topics {
		if t.name == OffsetsTopic {
			mesh.own(t, 2)
		}
	}
	moved := time.Now()
	if _, err := m.Commit(soon(t), []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5, AssignmentEpoch: epoch}}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(moved); took > 3*silenceDoubt {
		t.Errorf("it took %v to go to the new owner", took)
	}
	if got := mesh.committed("g", topic.at(0)); got != 5 {
		t.Errorf("the offset is %d, want 5", got)
	}
}

// case 27: a member that was expelled is told to join anew, and its commits
// change nothing.
func TestExpelledMemberIsFenced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		mesh.startCoordinator(1)
		mesh.shards(1)
		m := join(t, mesh.client(Config{}), MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}})
		a := nextAssignment(t, m)
		m.Ack(a.MemberEpoch, ownedOf(a))
		mesh.expel("g", "a")
		for {
			e, err := m.Next(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			if e.Fenced != nil {
				if rpc.FromError(e.Fenced).Action != typev1.Action_ACTION_REJOIN {
					t.Errorf("fenced: %v", e.Fenced)
				}
				break
			}
		}
		_, err := m.Commit(soon(t), []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5}})
		if err == nil {
			t.Error("a commit after the end succeeded")
		}
		if mesh.committed("g", topic.at(0)) >= 0 {
			t.Error("a commit after the end took effect")
		}
		if err := m.Leave(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestMemberWaitsForACoordinator(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		mesh.topic("t", 1, 1<<20)
		c := mesh.client(Config{})
		m := join(t, c, MemberConfig{Group: "g", Topics: []string{"t"}})
		e, err := m.Next(soon(t))
		if err != nil || !rpc.IsReason(e.Waiting, reasonCoordUnavailable) {
			t.Fatal(e, err)
		}
		mesh.startCoordinator(1) // asked without shards, it has them made
		<-time.After(5 * time.Second)
		mesh.shards(1)
		if a := nextAssignment(t, m); len(a.Partitions) != 1 {
			t.Errorf("%+v", a)
		}
		// One that cannot join can still be ended.
		other := join(t, mesh.client(Config{Bootstrap: []string{"nowhere:1"}}), MemberConfig{Group: "g", Topics: []string{"t"}})
		if err := other.Leave(soon(t)); err != nil {
			t.Error(err)
		}
	})
}

// The session of a member that another process speaks for counts from its own last
// sign of life: nothing that is sent for it meanwhile makes it younger, there is no
// ping without a newer one, and one that comes late is told of soon.
func TestSessionCountsFromTheLastSign(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		mesh.startCoordinator(1)
		mesh.shards(1)
		const session = 15 * time.Second
		var sign atomic.Pointer[time.Time]
		give := func(at time.Time) { sign.Store(&at) }
		give(time.Now())
		m := join(t, mesh.client(Config{}), MemberConfig{
			Group: "g", MemberID: "a", Topics: []string{"t"}, SessionTimeout: session, LastSign: func() time.Time { return *sign.Load() },
		})
		as := nextAssignment(t, m)
		pings := func() (n int, silence time.Duration) {
			synctest.Wait()
			mesh.member("g", func(mem *fakeMember) { n, silence = mem.pings, mem.silence })
			return n, silence
		}
		first := *sign.Load()
		<-time.After(10 * time.Second)
		m.Ack(as.MemberEpoch, ownedOf(as))
		if _, err := m.Commit(soon(t), []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 1, LeaderEpoch: -1, AssignmentEpoch: as.Partitions[0].AssignmentEpoch}}); err != nil {
			t.Fatal(err)
		}
		if n, silence := pings(); n > 0 || silence < 10*time.Second {
			t.Errorf("%d pings for an application that is silent; a commit for it tells %v of silence", n, silence)
		}
		if until := m.DeliverUntil(); !until.Equal(first.Add(session)) {
			t.Errorf("deliveries stop %v after its last sign", until.Sub(first))
		}
		<-time.After(50 * time.Millisecond)
		give(time.Now())
		second := *sign.Load()
		<-time.After(signRetry + 10*time.Millisecond)
		if n, silence := pings(); n != 1 || silence > signRetry {
			t.Errorf("%d pings soon after a sign, the last telling %v of silence", n, silence)
		}
		if until := m.DeliverUntil(); !until.Equal(second.Add(session)) {
			t.Errorf("deliveries stop %v after its last sign", until.Sub(second))
		}
		<-time.After(session)
		if n, _ := pings(); n != 1 {
			t.Errorf("%d pings for one sign", n)
		}
		give(time.Now().Add(time.Hour))
		<-time.After(signRetry)
		pings()
		if until := m.DeliverUntil(); until.After(time.Now().Add(session)) {
			t.Errorf("after a sign from the future deliveries go on for %v", time.Until(until))
		}
	})
}

func TestGroupQuestions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 2, 1<<20)
		mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(2)
		c := mesh.client(Config{})
		ctx := soon(t)
		if _, err := c.CommitOffsets(ctx, "g", []CommitOffset{{TopicPartition: topic.at(1), NextOffset: 5, LeaderEpoch: -1}}); err != nil {
			t.Fatal(err)
		}
		got, err := c.FetchOffsets(ctx, "g", []TopicPartition{topic.at(0), topic.at(1)})
		if err != nil || len(got) != 2 || got[0].NextOffset != -1 || got[1].NextOffset != 5 {
			t.Errorf("%+v %v", got, err)
		}
		if _, err := c.DescribeGroup(ctx, "nobody"); !rpc.IsReason(err, reasonUnknownGroup) {
			t.Error(err)
		}
		if _, err := c.DescribeGroup(ctx, ""); !rpc.IsReason(err, reasonInvalidGroup) {
			t.Error(err)
		}
		if _, err := c.CommitOffsets(ctx, "h", []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 1, LeaderEpoch: -1}}); err != nil {
			t.Error(err)
		}
		if all, err := c.ListGroups(ctx); err != nil || len(all) != 2 || all[0].Group != "g" || all[1].Group != "h" {
			t.Errorf("%v %v", all, err)
		}
		for _, topic := range mesh.topics {
			if topic.name == OffsetsTopic {
				mesh.own(topic, 1) // the metadata that is held is old now: the hint leads on
			}
		}
		if err := c.DeleteGroup(ctx, "g"); err != nil {
			t.Error(err)
		}
		mesh.killCoordinator(1)
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if _, err := c.DescribeGroup(short, "h"); err == nil {
			t.Error("answered by nobody")
		}
	})
}

// Between its opening and the answer a member hears of the stream before.
func TestAssignmentsBeforeTheAnswerAreOld(t *testing.T) {
	m := &Member{client: &Client{}, ready: make(chan struct{}, 1)}
	s := &memberStream{m: m}
	old := frame("g", "a", &coordinatorv1.JoinResponse_Assignment{Assignment: &coordinatorv1.Assignment{MemberEpoch: 3}})
	opened := frame("g", "a", &coordinatorv1.JoinResponse_Opened{Opened: &coordinatorv1.MemberOpened{Attach: 2}})
	for i, want := range []bool{false, false, true} {
		if _, err := s.frame([]*coordinatorv1.JoinResponse{old, opened, old}[i]); err != nil {
			t.Fatal(err)
		}
		if got := m.assignment != nil; got != want {
			t.Errorf("after frame %d: an assignment is told of: %v", i, got)
		}
	}
}
