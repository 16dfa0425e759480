package groups

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// direct asks one coordinator, whoever owns the group's shard.
type direct struct {
	t       *testing.T
	service coordinatorv1.GroupServiceClient

	mu   sync.Mutex
	sent int
	said map[string]int // answers by reason
}

func newDirect(t *testing.T, r *rig.Rig, coordinator string) *direct {
	t.Helper()
	conn, err := rpc.Dial(r.Addr(coordinator), rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	d := &direct{t: t, service: coordinatorv1.NewGroupServiceClient(conn), said: map[string]int{}}
	// It connects, and what the coordinator owns by now is loaded.
	mesh.Eventually(t, limit, coordinator+" has loaded its shards", func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_, err := d.service.ListGroups(ctx, &coordinatorv1.ListGroupsRequest{})
		return err == nil, fmt.Sprint(err)
	})
	return d
}

func (d *direct) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	d.mu.Lock()
	d.sent++
	d.mu.Unlock()
	return context.WithTimeout(ctx, 30*time.Second)
}

func (d *direct) answered(what string, err error) error {
	reason := "ok"
	if err != nil {
		reason = rpc.FromError(err).Reason.String()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said[what+": "+reason]++
	return err
}

// sentAll waits until so many requests have been begun.
func (d *direct) sentAll(n int) {
	d.t.Helper()
	mesh.Eventually(d.t, limit, "requests are on their way", func() (bool, string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.sent >= n, fmt.Sprint(d.sent)
	})
}

func (d *direct) answers() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.said)
}

func (d *direct) fetch(ctx context.Context, group string, tp client.TopicPartition) (int64, error) {
	ctx, cancel := d.begin(ctx)
	defer cancel()
	resp, err := d.service.FetchOffsets(ctx, &coordinatorv1.FetchOffsetsRequest{
		Group: group, Partitions: []*coordinatorv1.GroupPartition{{TopicId: tp.TopicID[:], Partition: tp.Partition}},
	})
	if d.answered("fetch", err) != nil {
		return -1, err
	}
	return resp.Offsets[0].NextOffset, nil
}

func (d *direct) commit(ctx context.Context, group string, tp client.TopicPartition, offset int64) error {
	ctx, cancel := d.begin(ctx)
	defer cancel()
	resp, err := d.service.CommitOffsets(ctx, &coordinatorv1.CommitOffsetsRequest{
		Group: group, Offsets: []*coordinatorv1.OffsetCommit{{TopicId: tp.TopicID[:], Partition: tp.Partition, NextOffset: offset, LeaderEpoch: -1}},
	})
	if err == nil && len(resp.PartitionErrors) > 0 {
		err = rpc.FromProto(resp.PartitionErrors[0].Error)
	}
	return d.answered("commit", err)
}
