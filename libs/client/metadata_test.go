package client

import (
	"context"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
)

func TestPollingSharesRequests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 3, 1<<20)
		c := m.client(Config{Bootstrap: []string{"nowhere:1", "broker-2:1"}})
		src := c.Metadata()
		done := make(chan error, 50)
		for range cap(done) {
			go func() {
				got, err := src.Topic(soon(t), "t")
				if err == nil && (got.ID != topic.id || len(got.Partitions) != 3 || len(got.Available()) != 3) {
					err = context.Canceled
				}
				done <- err
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if n := m.requests(); n > 3 {
			t.Errorf("%d requests for one topic", n)
		}
		if l, ok := src.Leader(topic.at(1)); !ok || l.Addr != "broker-2:1" || l.Epoch != 1 {
			t.Errorf("%+v", l)
		}
		if _, ok := src.Leader(TopicPartition{TopicID: topic.id, Partition: 9}); ok {
			t.Error("a leader of a partition that is not there")
		}
		if _, err := src.Topic(soon(t), "nope"); !rpc.IsReason(err, reasonUnknownTopic) {
			t.Error(err)
		}
		if _, err := src.TopicByID(soon(t), topicid.ID{9}); !rpc.IsReason(err, reasonUnknownTopic) {
			t.Error(err)
		}
		if all, err := src.Topics(soon(t)); err != nil || len(all) != 1 {
			t.Error(all, err)
		}
		m.kill(2)
		if err := src.Refresh(soon(t)); err != nil {
			t.Errorf("another broker is there: %v", err)
		}
		m.kill(1)
		if err := src.Refresh(soon(t)); !rpc.IsReason(err, reasonUnreachable) || rpc.FromError(err).Outcome != outcomeNotDone {
			t.Error(err)
		}
	})
}

// A picture never goes back to an older one, and a mesh that took the place of the
// one that was known is accepted.
func TestPollingNeverGoesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		topic := m.topic("t", 1, 1<<20)
		c := m.client(Config{})
		if _, err := c.Metadata().Topic(soon(t), "t"); err != nil {
			t.Fatal(err)
		}
		m.mu.Lock()
		m.revision = 1
		topic.parts[0].leader = -1
		m.mu.Unlock()
		if err := c.Metadata().Refresh(soon(t)); !rpc.IsReason(err, reasonUnreachable) {
			t.Errorf("an older picture: %v", err)
		}
		if _, ok := c.Metadata().Leader(topic.at(0)); !ok {
			t.Error("the older picture was taken")
		}
		m.mu.Lock()
		m.cluster = "another"
		m.mu.Unlock()
		if err := c.Metadata().Refresh(soon(t)); err != nil {
			t.Errorf("another mesh: %v", err)
		}
		if _, ok := c.Metadata().Leader(topic.at(0)); ok {
			t.Error("a leader of the mesh that is gone")
		}
	})
}

func TestListOffsetsAndDescribe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 2)
		topic := m.topic("t", 2, 1<<20)
		m.put(topic, 0, numbered(t, 0, 30)...)
		c := m.client(Config{})
		none := TopicPartition{TopicID: topic.id, Partition: 9}
		ask := func(ctx context.Context) []OffsetResult {
			return c.ListOffsets(ctx, []OffsetQuery{
				{TopicPartition: topic.at(0), Spec: Latest()}, {TopicPartition: none, Spec: Latest()}, {TopicPartition: topic.at(1), Spec: Earliest()},
			}, typev1.IsolationLevel_ISOLATION_LEVEL_UNSPECIFIED)
		}
		check := func(r []OffsetResult) {
			t.Helper()
			if len(r) != 3 || r[0].Err != nil || r[0].Offset != 30 || !rpc.IsReason(r[1].Err, reasonUnknownPartition) || r[2].Offset != 0 || r[2].TimestampMs != -1 {
				t.Errorf("%+v", r)
			}
		}
		check(ask(soon(t)))
		m.update(func() { topic.parts[0].leader, topic.parts[0].epoch = 2, 2 })
		check(ask(soon(t)))
		all := c.DescribeReplicas(soon(t), []TopicPartition{topic.at(0), none, topic.at(1)}, true)
		if len(all) != 3 || all[0].Broker != 2 || all[0].Replica.GetHighWatermark() != 30 || all[1].Err == nil || all[2].Err != nil {
			t.Errorf("%+v", all)
		}
		m.kill(2)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if r := ask(ctx); r[0].Err == nil || rpc.FromError(r[0].Err).Outcome != outcomeNotDone || !strings.Contains(r[0].Err.Error(), "t-0") {
			t.Errorf("a dead leader: %+v", r[0])
		}
	})
}

// A broker may hear of a topic that has just been created a moment late. That is no reason
// to say that there is none.
func TestTopicThatIsHeardOfLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newFakeMesh(t, 1)
		c := m.client(Config{})
		time.AfterFunc(500*time.Millisecond, func() { m.topic("late", 1, 1<<20) })
		if _, err := c.Metadata().Topic(soon(t), "late"); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if _, err := c.Metadata().Topic(soon(t), "never"); !rpc.IsReason(err, reasonUnknownTopic) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
