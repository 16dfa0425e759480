package handler

import (
	"fmt"
	"path/filepath"
	"testing"

	brokerv1 "github.com/leat-io/leat/gen/go/leat/broker/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// idempotent makes a batch of an idempotent producer.
func idempotent(t testing.TB, id int64, epoch int16, sequence int32, values ...string) []byte {
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = id, epoch, sequence
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		if _, err := b.Append(&record.Record{Timestamp: 1, Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// try sends one batch and returns its offset, or the reason for which it was refused.
func (p *producer) try(id topicid.ID, batch []byte) (int64, *rpc.Error) {
	p.t.Helper()
	r := p.result(p.send(id, 0, batch, nil))
	return r.GetBaseOffset(), rpc.FromProto(r.GetError())
}

func TestSequences(t *testing.T) {
	ctl := brokertest.Start(t)
	fsys := memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys})
	id := h.topic("t", 1, nil)
	const (
		none        = typev1.ErrorReason_ERROR_REASON_UNSPECIFIED
		outOfOrder  = typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE
		unknown     = typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID
		fenced      = typev1.ErrorReason_ERROR_REASON_PRODUCER_FENCED
		duplicate   = typev1.ErrorReason_ERROR_REASON_DUPLICATE_SEQUENCE
		notDone     = typev1.Outcome_OUTCOME_NOT_DONE
		unknownDone = typev1.Outcome_OUTCOME_UNKNOWN
	)
	check := func(p *producer, name string, batch []byte, offset int64, reason typev1.ErrorReason, outcome typev1.Outcome) {
		t.Helper()
		got, err := p.try(id, batch)
		if reason == none {
			if err != nil || got != offset {
				t.Errorf("%s: offset %d, %v; want %d", name, got, err, offset)
			}
			return
		}
		if !rpc.IsReason(err, reason) || err.Outcome != outcome || err.Metadata["producer_id"] == "" {
			t.Errorf("%s: offset %d, %v; want %v", name, got, err, reason)
		}
	}
	p := h.producer()
	check(p, "the first batch", idempotent(t, 5, 0, 0, "a", "b"), 0, none, 0)
	check(p, "the next one", idempotent(t, 5, 0, 2, "c"), 2, none, 0)
	check(p, "the first again", idempotent(t, 5, 0, 0, "a", "b"), 0, none, 0)
	check(p, "a gap", idempotent(t, 5, 0, 4, "e"), 0, outOfOrder, notDone)
	check(p, "another producer's second", idempotent(t, 6, 0, 1, "x"), 0, unknown, notDone)
	check(p, "a part of an earlier batch", idempotent(t, 5, 0, 1, "b", "c"), 0, duplicate, unknownDone)
	check(p, "without a producer", encode(t, "y"), 3, none, 0)
	for n := range int32(5) {
		check(p, "one more", idempotent(t, 5, 0, 3+n, "z"), int64(4+n), none, 0)
	}
	check(p, "one that is out of the last five", idempotent(t, 5, 0, 0, "a", "b"), 0, duplicate, unknownDone)
	check(p, "a new epoch that does not begin", idempotent(t, 5, 1, 3, "n"), 0, outOfOrder, notDone)
	check(p, "a new epoch", idempotent(t, 5, 1, 0, "n"), 9, none, 0)
	check(p, "the older epoch", idempotent(t, 5, 0, 8, "o"), 0, fenced, notDone)
	h.stop(true)

	// case 23: the answer was lost with the leader; the retry meets the next one.
	again := start(t, ctl, harnessOptions{fs: fsys, incarnation: 8})
	again.awaitLeader(id, 0)
	p = again.producer()
	check(p, "the last batch again", idempotent(t, 5, 1, 0, "n"), 9, none, 0)
	check(p, "the next one after a restart", idempotent(t, 5, 1, 1, "p"), 10, none, 0)
	got := again.fetcher(1<<20, 0)
	got.add(1, id, 0, 0)
	if values := fmt.Sprint(got.values(11)); values != "[a b c y z z z z z n p]" {
		t.Errorf("the log holds %s", values)
	}
}

// case 22
func TestPipelinedBatchesOnAFreshPartition(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	// The first request was refused by an earlier leader; what was sent behind it
	// arrives here, all at once.
	var early []int64
	for n := range int32(4) {
		early = append(early, p.send(id, 0, idempotent(t, 1, 0, 17+5*n, "e1", "e2", "e3", "e4", "e5"), nil))
	}
	for _, c := range early {
		if err := rpc.FromProto(p.result(c).GetError()); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID) || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE {
			t.Fatalf("a batch from the middle: %v", err)
		}
	}
	values := make([]string, 17)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	first, second := p.send(id, 0, idempotent(t, 1, 0, 0, values...), nil), p.send(id, 0, idempotent(t, 1, 0, 17, "a", "b", "c", "d", "e"), nil)
	for correlation, want := range map[int64]int64{first: 0, second: 17} {
		if r := p.result(correlation); r.GetError() != nil || r.GetBaseOffset() != want {
			t.Errorf("in order: %v", r)
		}
	}
	// Batches that wait behind one that is refused are refused with it.
	gap, behind := p.send(id, 0, idempotent(t, 1, 0, 23, "g"), nil), p.send(id, 0, idempotent(t, 1, 0, 24, "h"), nil)
	for _, c := range []int64{gap, behind} {
		if err := rpc.FromProto(p.result(c).GetError()); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE) {
			t.Errorf("behind a gap: %v", err)
		}
	}
}

func TestADuplicateWaitsLikeItsOriginal(t *testing.T) {
	gate := brokertest.NewSyncGate(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: gate, noCheckpoints: true})
	id := h.topic("t", 1, nil)
	p := h.producer()
	began := gate.Hold(".log")
	first := p.send(id, 0, idempotent(t, 1, 0, 0, "a"), nil)
	<-began
	if err := p.overdue(id, idempotent(t, 1, 0, 0, "a")); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED) || err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("a duplicate of what is not durable yet: %v", err)
	}
	third := p.send(id, 0, idempotent(t, 1, 0, 0, "a"), nil)
	gate.Release()
	for _, c := range []int64{first, third} {
		if r := p.result(c); r.GetError() != nil || r.GetBaseOffset() != 0 {
			t.Errorf("once it is durable: %v", r)
		}
	}
}

func TestIdempotenceAsksForAcksAll(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, nil)
	p := h.producer()
	c := p.send(id, 0, idempotent(t, 1, 0, 0, "a"), func(b *brokerv1.ProduceBatch) { b.Acks = typev1.Acks_ACKS_LEADER })
	if err := rpc.FromProto(p.result(c).GetError()); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_INVALID_REQUEST) {
		t.Errorf("acks=1: %v", err)
	}
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = 1, 0, 0, true
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(&record.Record{Value: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.try(id, batch); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_UNSUPPORTED_FEATURE) {
		t.Errorf("a transaction: %v", err)
	}
	if offset, err := p.try(id, idempotent(t, 1, 0, 0, "a")); err != nil || offset != 0 {
		t.Errorf("afterwards: %d, %v", offset, err)
	}
}

func TestProducersAreCheckpointedWithTheRecoveryPoint(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys})
	id := h.topic("t", 1, nil)
	p := h.producer()
	for n := range int32(3) {
		if _, err := p.try(id, idempotent(t, 1, 0, n, "a")); err != nil {
			t.Fatal(err)
		}
	}
	dir := h.store.Replica(store.Key{Topic: id}).Dir
	brokertest.Await(t, "the producers are written down", func() bool { return exists(t, fsys, filepath.Join(dir, "00000000000000000003.snapshot")) })
	h.manager.Checkpoint(true)
	h.stop(false)
	fsys.Crash(nil)
	again := start(t, ctl, harnessOptions{fs: fsys, incarnation: 8})
	again.awaitLeader(id, 0)
	p = again.producer()
	if offset, err := p.try(id, idempotent(t, 1, 0, 1, "a")); err != nil || offset != 1 {
		t.Errorf("a retry after the crash: %d, %v", offset, err)
	}
	if offset, err := p.try(id, idempotent(t, 1, 0, 3, "a")); err != nil || offset != 3 {
		t.Errorf("the next batch after the crash: %d, %v", offset, err)
	}
}
