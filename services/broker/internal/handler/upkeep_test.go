package handler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/replica"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// often has retention and cleaning look all the time.
var often = replica.Upkeep{RetentionInterval: 5 * time.Millisecond, CleanerBackoff: 5 * time.Millisecond, CleanerBuffer: 1 << 20}

// keyed makes a batch of one record with a key, stamped now.
func keyed(t testing.TB, key, value []byte) []byte {
	t.Helper()
	b, err := record.NewBuilder(record.DefaultBuilderOptions())
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Append(&record.Record{Timestamp: time.Now().UnixMilli(), Key: key, Value: value}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func (h *harness) earliest(id topicid.ID) int64 {
	h.t.Helper()
	r, err := h.manager.Lookup(id.Bytes(), 0)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.Describe().GetLogStartOffset()
}

func TestRetentionFollowsTheTopicsConfigs(t *testing.T) {
	fsys := memfs.New()
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys, upkeep: often})
	small := map[string]string{"segment.bytes": "65536", "retention.ms": "-1", "file.delete.delay.ms": "0"}
	id := h.topic("t", 1, small)
	p := h.producer()
	value := []byte(strings.Repeat("x", 30_000))
	for range 10 {
		if r := p.result(p.send(id, 0, keyed(t, nil, value), nil)); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	if start := h.earliest(id); start != 0 {
		t.Fatalf("without a limit the log begins at %d", start)
	}
	small["retention.bytes"] = "100000"
	h.ctl.SetConfigs(id, small)
	brokertest.Await(t, "retention.bytes is in force", func() bool { return h.earliest(id) > 0 })
	f := h.fetcher(1<<20, 0)
	f.add(1, id, 0, 0)
	if _, err := f.partitionError(); err.Reason != typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE || err.Metadata["end_offset"] != "10" {
		t.Errorf("a read of what is gone: %v", err)
	}
	f.add(2, id, 0, h.earliest(id))
	f.values(1)
	small["retention.ms"] = "1"
	h.ctl.SetConfigs(id, small)
	brokertest.Await(t, "retention.ms is in force", func() bool { return h.earliest(id) == 10 })
	dir := h.store.Replica(store.Key{Topic: id}).Dir
	brokertest.Await(t, "the files are gone", func() bool {
		entries, err := fsys.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		logs := 0
		for _, e := range entries {
			if strings.Contains(e.Name, ".log") {
				logs++
			}
		}
		return logs == 1
	})
	if r := p.result(p.send(id, 0, keyed(t, nil, value), nil)); r.GetError() != nil || r.GetBaseOffset() != 10 {
		t.Errorf("the log goes on with %v", r)
	}
}

func TestCompactionKeepsTheNewestOfEachKey(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, upkeep: often, incarnation: 1})
	configs := map[string]string{"segment.bytes": "65536", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0.01"}
	id := h.topic("t", 1, configs)
	p := h.producer()
	const n, keys = 60, 4
	for i := range n {
		value := fmt.Sprintf("%d %s", i, strings.Repeat("x", 10_000))
		if r := p.result(p.send(id, 0, keyed(t, fmt.Appendf(nil, "k%d", i%keys), []byte(value)), nil)); r.GetError() != nil {
			t.Fatal(r)
		}
	}
	size := func() int64 {
		r, err := h.manager.Lookup(id.Bytes(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return r.Describe().GetSizeBytes()
	}
	if size() < n*10_000 {
		t.Fatalf("a log with cleanup.policy=delete shrank to %d bytes", size())
	}
	configs["cleanup.policy"] = "compact"
	h.ctl.SetConfigs(id, configs)
	brokertest.Await(t, "the log is compacted", func() bool { return size() < 200_000 })
	check := func() {
		t.Helper()
		f := h.fetcher(1<<20, 0)
		f.add(1, id, 0, 0)
		last := ""
		for !strings.HasPrefix(last, fmt.Sprint(n-1, " ")) {
			for _, v := range f.values(1) {
				last = v
			}
		}
	}
	check()
	h.stop(true)
	h = start(t, ctl, harnessOptions{fs: fsys, upkeep: often, incarnation: 2})
	h.awaitLeader(id, 0)
	check()
}

func TestCompactedTopicsRefuseRecordsWithoutKeys(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	id := h.topic("t", 1, map[string]string{"cleanup.policy": "compact,delete"})
	p := h.producer()
	e := p.result(p.send(id, 0, keyed(t, nil, []byte("v")), nil)).GetError()
	if e.GetReason() != typev1.ErrorReason_ERROR_REASON_INVALID_RECORD || e.GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE || !strings.Contains(e.GetMessage(), "key is null") {
		t.Errorf("a null key: %v", e)
	}
	for _, key := range []string{"", "k"} { // an empty key is a key
		if r := p.result(p.send(id, 0, keyed(t, []byte(key), nil), nil)); r.GetError() != nil {
			t.Errorf("key %q: %v", key, r)
		}
	}
	h.ctl.SetConfigs(id, map[string]string{"cleanup.policy": "delete"})
	brokertest.Await(t, "keys are no longer asked for", func() bool { return p.result(p.send(id, 0, keyed(t, nil, nil), nil)).GetError() == nil })
}

// With durability=os appends are acknowledged before they are synced, and syncs
// come no later than flush.messages and flush.ms say.
func TestFlushBounds(t *testing.T) {
	for name, configs := range map[string]map[string]string{
		"messages": {"flush.messages": "5"},
		"ms":       {"flush.ms": "20"},
	} {
		t.Run(name, func(t *testing.T) {
			gate := brokertest.NewSyncGate(memfs.New())
			h := start(t, brokertest.Start(t), harnessOptions{fs: gate, noCheckpoints: true})
			configs["durability"] = "os"
			id := h.topic("t", 1, configs)
			gate.Hold(".log")
			defer gate.Release()
			p := h.producer()
			for range 4 {
				p.mustStore(id, 0, "x")
			}
			if n := gate.Count(); name == "messages" && n != 0 {
				t.Errorf("%d syncs before flush.messages is reached", n)
			}
			p.mustStore(id, 0, "x")
			brokertest.Await(t, "a sync is asked for", func() bool { return gate.Count() == 1 })
			p.mustStore(id, 0, "appends go on meanwhile")
			gate.Release()
			durable := func() int64 {
				r, err := h.manager.Lookup(id.Bytes(), 0)
				if err != nil {
					t.Fatal(err)
				}
				return r.Describe().GetDurableEndOffset()
			}
			brokertest.Await(t, "what was appended is durable", func() bool { return durable() >= 5 || name == "ms" && durable() > 0 })
		})
	}
}
