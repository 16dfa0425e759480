package client

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// offsetsTopic is the topic of the shards.
func (m *fakeMesh) offsetsTopic() *fakeTopic {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.topics {
		if t.name == OffsetsTopic {
			return t
		}
	}
	m.t.Fatal("there are no shards")
	return nil
}

// attachedWithin waits for a member's attach number.
func attachedWithin(t *testing.T, m *Member, attach int64, limit time.Duration) {
	t.Helper()
	began := time.Now()
	for m.Attach() != attach {
		if time.Since(began) > limit {
			t.Fatalf("attach %d after %v, want %d", m.Attach(), limit, attach)
		}
		<-time.After(time.Millisecond)
	}
}

// A member follows its shard when the metadata names a new owner, without a word of
// the old one.
func TestMemberFollowsItsShardAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		mesh.topic("t", 2, 1<<20)
		mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(1)
		c := mesh.client(Config{})
		m := join(t, c, MemberConfig{Group: "g", MemberID: "a", Topics: []string{"t"}})
		a := nextAssignment(t, m)
		m.Ack(a.MemberEpoch, ownedOf(a))
		synctest.Wait()
		mesh.mu.Lock()
		mesh.coords[1].silent = true // it is paused, and its connection stands
		mesh.mu.Unlock()
		mesh.own(mesh.offsetsTopic(), 2)
		c.refreshSoon() // what a stream of metadata brings by itself
		attachedWithin(t, m, 2, 300*time.Millisecond)
		// News that changes nothing moves nobody.
		for range 5 {
			mesh.update(func() {})
			c.refreshSoon()
			<-time.After(time.Second)
		}
		if m.Attach() != 2 {
			t.Errorf("attach %d after news of nothing", m.Attach())
		}
	})
}

// After the death of a coordinator its members are at the next one as soon as there
// is one.
func TestMemberFindsTheNextOwnerAtOnce(t *testing.T) {
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
		for round := range int64(6) {
			dies, next := int32(round%2)+1, int32(2-round%2)
			mesh.killCoordinator(dies)
			<-time.After(3 * time.Second) // its waits are long by now
			mesh.own(mesh.offsetsTopic(), next)
			attachedWithin(t, m, 2+round, 300*time.Millisecond)
			mesh.startCoordinator(dies)
		}
	})
}

// A hint may be ahead of the metadata, which must not lead back.
func TestOldMetadataDoesNotMoveAMember(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		mesh.topic("t", 2, 1<<20)
		mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(1)
		c := mesh.client(Config{})
		if _, err := c.Metadata().Topic(soon(t), OffsetsTopic); err != nil {
			t.Fatal(err)
		}
		shard := c.shardOf(soon(t), "g")
		_, epoch := c.shardOwner(shard)
		seatAt := func(hint *typev1.LeaderHint) seat {
			at, err := c.coordinator(soon(t), "g", hint)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		if c.moved(seatAt(&typev1.LeaderHint{Address: "coordinator-2:1", Epoch: epoch + 1})) {
			t.Error("the metadata is older than the hint, and is followed")
		}
		if !c.moved(seatAt(&typev1.LeaderHint{Address: "coordinator-2:1", Epoch: epoch - 1})) {
			t.Error("the metadata is newer than the hint, and is not followed")
		}
		if same := seatAt(nil); c.moved(same) || same.epoch != epoch || same.addr != "coordinator-1:1" {
			t.Errorf("%+v", same)
		}
	})
}

// A question at a coordinator that is paused goes on at the shard's next owner.
func TestQuestionsLeaveASilentCoordinator(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		first := mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(1)
		c := mesh.client(Config{})
		if _, err := c.CommitOffsets(soon(t), "g", []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5, LeaderEpoch: -1}}); err != nil {
			t.Fatal(err)
		}
		mesh.update(func() { first.silent = true })
		began := time.Now()
		time.AfterFunc(2*time.Second, func() { mesh.own(mesh.offsetsTopic(), 2) })
		got, err := c.FetchOffsets(soon(t), "g", []TopicPartition{topic.at(0)})
		if err != nil || got[0].NextOffset != 5 {
			t.Errorf("%+v, %v", got, err)
		}
		if took := time.Since(began); took > 3*time.Second+500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// Where nobody answers for as long as the caller waits, the error tells who, and what
// may be the matter.
func TestUnansweredQuestionTellsWhom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		first := mesh.startCoordinator(1)
		mesh.shards(1)
		c := mesh.client(Config{})
		mesh.update(func() { first.silent = true })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := c.FetchOffsets(ctx, "g", []TopicPartition{topic.at(0)})
		if e := rpc.FromError(err); e.Reason != reasonDeadlineExceeded || !strings.Contains(e.Error(), "coordinator-1:1") || !strings.Contains(e.Error(), "in-sync replicas") {
			t.Errorf("%v", err)
		}
	})
}

// Questions to a coordinator that has died are asked at the next one as soon as there
// is one, however old metadata may get.
func TestQuestionsFindTheNextOwnerAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		mesh.startCoordinator(1)
		mesh.startCoordinator(2)
		mesh.shards(1)
		c := mesh.client(Config{MetadataMaxAge: time.Hour})
		commit := func(next int64) error {
			_, err := c.CommitOffsets(soon(t), "g", []CommitOffset{{TopicPartition: topic.at(0), NextOffset: next, LeaderEpoch: -1}})
			return err
		}
		if err := commit(1); err != nil {
			t.Fatal(err)
		}
		for round := range int64(6) {
			dies, next := int32(round%2)+1, int32(2-round%2)
			mesh.killCoordinator(dies)
			var owned time.Time
			time.AfterFunc(3*time.Second, func() { // its waits are long by then
				owned = time.Now()
				mesh.own(mesh.offsetsTopic(), next)
			})
			if err := commit(2 + round); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(owned); took > 300*time.Millisecond {
				t.Errorf("a commit came through %v after there was an owner", took)
			}
			mesh.startCoordinator(dies)
		}
	})
}
