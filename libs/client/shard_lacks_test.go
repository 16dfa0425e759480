package client

import (
	"context"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
)

// What somebody waits to see ends soon where the group's shard can confirm nothing, with
// the coordinator's own words. Commits, and offsets to go on from, wait for the shard.
func TestQuestionsEndWhereTheShardConfirmsNothing(t *testing.T) {
	for _, reason := range []typev1.ErrorReason{reasonNotEnoughReplicas, reasonLeaderUnavailable} {
		inBubble(t, func(t *testing.T) {
			mesh := newFakeMesh(t, 1)
			topic := mesh.topic("t", 1, 1<<20)
			mesh.startCoordinator(1)
			mesh.shards(1)
			c := mesh.client(Config{})
			ctx := soon(t)
			offsets := []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5, LeaderEpoch: -1}}
			if _, err := c.CommitOffsets(ctx, "g", offsets); err != nil {
				t.Fatal(err)
			}
			mesh.refuse(func(string) *rpc.Error { return rpc.Errorf(reason, "its coordinator's words") })
			for name, ask := range map[string]func() error{
				"describe": func() error { _, err := c.DescribeGroup(ctx, "g"); return err },
				"delete":   func() error { return c.DeleteGroup(ctx, "g") },
			} {
				began := time.Now()
				e := rpc.FromError(ask())
				if e == nil || e.Reason != reason || e.Message != "its coordinator's words" || e.Metadata["group"] != "g" || e.Outcome != outcomeNotDone {
					t.Errorf("%s: %v", name, e)
				}
				if took := time.Since(began); took < shardPatience || took > 2*shardPatience {
					t.Errorf("%s: given up after %v", name, took)
				}
			}
			began := time.Now()
			_, err := c.ListGroups(ctx)
			if e := rpc.FromError(err); e == nil || e.Reason != reason || !strings.Contains(e.Message, "its coordinator's words") || e.Metadata["topic"] != OffsetsTopic {
				t.Errorf("list: %v", err)
			}
			if took := time.Since(began); took < shardPatience || took > 2*shardPatience {
				t.Errorf("list: given up after %v", took)
			}
			done := make(chan error, 2)
			go func() { _, err := c.CommitOffsets(ctx, "g", offsets); done <- err }()
			go func() { _, err := c.FetchOffsets(ctx, "g", []TopicPartition{topic.at(0)}); done <- err }()
			<-time.After(time.Minute)
			if len(done) > 0 {
				t.Fatalf("given up: %v", <-done)
			}
			mesh.refuse(nil)
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A shortage that passes is not told.
func TestQuestionsOutlastAnElection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh := newFakeMesh(t, 1)
		topic := mesh.topic("t", 1, 1<<20)
		mesh.startCoordinator(1)
		mesh.shards(1)
		c := mesh.client(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.CommitOffsets(ctx, "g", []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5, LeaderEpoch: -1}}); err != nil {
			t.Fatal(err)
		}
		left := 4
		mesh.refuse(func(string) *rpc.Error {
			if left--; left < 0 {
				return nil
			}
			return rpc.Errorf(reasonLeaderUnavailable, "an election")
		})
		if _, err := c.DescribeGroup(ctx, "g"); err != nil {
			t.Fatal(err)
		}
		mesh.mu.Lock()
		left = 4
		mesh.mu.Unlock()
		if groups, err := c.ListGroups(ctx); err != nil || len(groups) != 1 {
			t.Fatal(groups, err)
		}
	})
}
