package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/core/group"
	"github.com/leat-io/leat/services/coordinator/internal/logtest"
)

// BenchmarkLoadMillion decodes and loads a shard of a million commits, from a log in
// memory. What the brokers add is measured by the fault runs.
func BenchmarkLoadMillion(b *testing.B) {
	const groups, partitions = 100, 10_000
	log := &logtest.Log{}
	for g := range groups {
		name := fmt.Sprintf("group-%d", g)
		kvs := []group.KV{{Key: group.Key{Kind: group.KindGroup, Group: name}, Value: group.GroupValue{Epoch: 1, Assignor: group.AssignorUniform}}}
		for p := range int32(partitions) {
			kvs = append(kvs, group.KV{
				Key:   group.Key{Kind: group.KindOffset, Group: name, Part: group.Part{Topic: topicA.ID, Partition: p}},
				Value: group.OffsetValue{NextOffset: 123456, LeaderEpoch: 3, Member: "member-0123456789", Attach: 7, Sequence: 99, CommitMs: 1},
			})
		}
		if err := log.Seed(kvs...); err != nil {
			b.Fatal(err)
		}
	}
	epoch := int64(0)
	for b.Loop() {
		epoch++
		s, stop := start(b, log, epoch)
		for !s.serving.Load() {
			<-time.After(time.Millisecond)
		}
		stop(nil)
	}
	b.ReportMetric(groups*partitions*float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}
