package handler

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// flipBit changes a bit of the first batch of a log.
func flipBit(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	f, err := fsys.Open(filepath.Join(dir, "00000000000000000000.log"))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, 80)
	b[0] ^= 4
	_, werr := f.WriteAt(b, 80)
	if err := errors.Join(err, werr, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Compaction reads everything, and so finds what no client has asked for.
func TestDamageFoundByTheCleaner(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	configs := map[string]string{"segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.01", "cleanup.policy": "compact"}
	id := h.topic("t", 1, configs)
	p := h.producer()
	for range 10 {
		if r := p.result(p.send(id, 0, keyed(t, []byte("k"), []byte(strings.Repeat("x", 20_000))), nil)); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	dir := h.store.Replica(store.Key{Topic: id}).Dir
	h.stop(true)
	flipBit(t, fsys, dir)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2, upkeep: often})
	brokertest.Await(t, "the damage is counted", func() bool { return counter(t, h, "leat_broker_damaged_logs_total") == 1 })
}

// case 21, with one copy: nobody gets the damaged record, and the others stay
// readable, since there is nothing better anywhere.
func TestDamageOfTheOnlyCopy(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, strings.Repeat("a", 100))
	p.mustStore(id, 0, strings.Repeat("b", 100))
	p.mustStore(id, 0, "c")
	dir := h.store.Replica(store.Key{Topic: id}).Dir
	h.stop(true)
	flipBit(t, fsys, dir)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(id, 0)
	for range 2 {
		f := h.fetcher(1<<20, 0)
		f.add(1, id, 0, 0)
		if _, err := f.partitionError(); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_CORRUPT_LOG) || err.Metadata["path"] == "" {
			t.Fatalf("reading damage: %v", err)
		}
	}
	after := h.fetcher(1<<20, 0)
	after.add(1, id, 0, 1)
	if got := after.values(2); got[0] != strings.Repeat("b", 100) || got[1] != "c" {
		t.Errorf("behind the damage: %q", got)
	}
	resp, err := h.client.DigestReplicas(t.Context(), &brokerv1.DigestReplicasRequest{Replicas: []*brokerv1.DigestReplica{{TopicId: id.Bytes(), ToOffset: 3}}})
	if err != nil || resp.GetResults()[0].GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_CORRUPT_LOG {
		t.Errorf("digest %v, %v", resp, err)
	}
	if base := h.producer().mustStore(id, 0, "d"); base != 3 {
		t.Errorf("the next record is at %d", base)
	}
	if n := len(ctl.Reports()); n != 0 || h.store.Verdict(store.Key{Topic: id}) != store.Intact {
		t.Errorf("%d reports, verdict %v of the only copy", n, h.store.Verdict(store.Key{Topic: id}))
	}
}

// The highest fence in the log holds also on a leader that did not see it written.
func TestTheFenceIsInTheLog(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	id := ctl.CreateTopic("__shards", brokerID, 1, nil)
	ctl.SetPartition(id, 0, func(p *controllerv1.Partition) { p.ShardEpoch = 5 })
	h.awaitLeader(id, 0)
	send := func(h *harness, batch []byte, attempt int32) *rpc.Error {
		t.Helper()
		p := h.producer()
		return rpc.FromProto(p.result(p.send(id, 0, batch, func(b *brokerv1.ProduceBatch) {
			b.ShardFence = &brokerv1.ShardFence{ShardEpoch: 5, Attempt: attempt}
		})).GetError())
	}
	fence, err := record.BuildFence(record.Fence{ShardEpoch: 5, Attempt: 2}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(h, fence, 2); err != nil {
		t.Fatalf("the fence: %v", err)
	}
	h.stop(true)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(id, 0)
	if err := send(h, encode(t, "late"), 1); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_SHARD_FENCED) || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
		t.Errorf("an earlier attempt: %v", err)
	}
	if err := send(h, encode(t, "now"), 2); err != nil {
		t.Errorf("the attempt of the fence: %v", err)
	}
}
