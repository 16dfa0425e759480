package client

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/rpc"
)

// listMesh is a mesh whose coordinator has two groups.
func listMesh(t *testing.T) (*fakeMesh, *Client) {
	t.Helper()
	mesh := newFakeMesh(t, 1)
	topic := mesh.topic("t", 1, 1<<20)
	mesh.startCoordinator(1)
	mesh.shards(1)
	c := mesh.client(Config{})
	for _, group := range []string{"g", "h"} {
		offsets := []CommitOffset{{TopicPartition: topic.at(0), NextOffset: 5, LeaderEpoch: -1}}
		if _, err := c.CommitOffsets(soon(t), group, offsets); err != nil {
			t.Fatal(err)
		}
	}
	return mesh, c
}

// giveShard changes the owner of one shard.
func (m *fakeMesh) giveShard(partition int, owner int32) {
	m.update(func() {
		for _, t := range m.topics {
			if t.name == OffsetsTopic {
				t.parts[partition].owner = owner
			}
		}
	})
}

func wantGroups(t *testing.T, c *Client, ctx context.Context, want string) {
	t.Helper()
	all, err := c.ListGroups(ctx)
	var names []string
	for _, g := range all {
		names = append(names, g.Group)
	}
	if got := strings.Join(names, " "); err != nil || got != want {
		t.Errorf("listed %q, %v; want %q", got, err, want)
	}
}

// A load takes as long as it takes: half a list would look like a whole one.
func TestListWaitsForLoadingShards(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh, c := listMesh(t)
		began := time.Now()
		mesh.refuse(func(string) *rpc.Error {
			if time.Since(began) < 10*shardPatience {
				return rpc.Errorf(reasonCoordLoading, "a shard is being loaded")
			}
			return nil
		})
		wantGroups(t, c, soon(t), "g h")
		if took := time.Since(began); took < 10*shardPatience {
			t.Errorf("listed after %v, while a shard was loading", took)
		}
		mesh.refuse(func(string) *rpc.Error { return rpc.Errorf(reasonCoordLoading, "a shard is being loaded") })
		ctx, cancel := context.WithTimeout(t.Context(), 10*shardPatience)
		defer cancel()
		_, err := c.ListGroups(ctx)
		if e := rpc.FromError(err); e == nil || e.Reason != reasonCoordLoading || !strings.Contains(e.Message, "a shard is being loaded") {
			t.Errorf("at the deadline: %v", err)
		}
	})
}

// A shard that changes hands is listed by nobody for a moment. Its groups are waited for,
// and one that stays without an owner is told.
func TestListSeesShardsWithoutOwner(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh, c := listMesh(t)
		orphan := int(GroupShard("g", 4))
		mesh.giveShard(orphan, 0)
		began := time.Now()
		all, err := c.ListGroups(soon(t))
		e := rpc.FromError(err)
		if e == nil || e.Reason != reasonCoordUnavailable || !strings.Contains(e.Message, fmt.Sprintf("partition %d is the first", orphan)) {
			t.Errorf("a shard without an owner: %v", err)
		}
		if len(all) != 1 || all[0].Group != "h" {
			t.Errorf("beside the error it lists %v", all)
		}
		if took := time.Since(began); took < shardPatience || took > 2*shardPatience {
			t.Errorf("given up after %v", took)
		}
		time.AfterFunc(shardPatience/2, func() { mesh.giveShard(orphan, 1) })
		wantGroups(t, c, soon(t), "g h")
		mesh.mu.Lock()
		mesh.vague = true
		mesh.mu.Unlock()
		mesh.giveShard(orphan, 0)
		wantGroups(t, c, soon(t), "h") // an older coordinator cannot be asked for more
	})
}

// What will not pass is told at once.
func TestListEndsAtWhatCannotBeRetried(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		mesh, c := listMesh(t)
		mesh.refuse(func(string) *rpc.Error { return rpc.Errorf(reasonInvalidGroup, "never") })
		began := time.Now()
		_, err := c.ListGroups(soon(t))
		if err == nil || !strings.Contains(err.Error(), "never") || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
