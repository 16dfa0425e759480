package handler

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

func TestAcknowledgedRecordsSurviveAPowerCut(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	var id topicid.ID
	stored := map[int64]string{}
	for life := range 4 {
		h := start(t, ctl, harnessOptions{fs: fsys, incarnation: uint64(10 + life)})
		if life == 0 {
			id = h.topic("t", 1, nil)
		}
		h.awaitLeader(id, 0)
		f := h.fetcher(1<<20, 0)
		f.add(1, id, 0, 0)
		if len(stored) > 0 {
			for i, v := range f.values(len(stored)) {
				if stored[int64(i)] != v {
					t.Fatalf("life %d, offset %d: %q, want %q", life, i, v, stored[int64(i)])
				}
			}
		}
		p := h.producer()
		for i := range 30 {
			v := fmt.Sprintf("%d-%d", life, i)
			stored[p.mustStore(id, 0, v)] = v
		}
		if len(stored) != 30*(life+1) {
			t.Fatalf("life %d: %d different offsets", life, len(stored))
		}
		h.stop(false)
		fsys.Crash(nil)
	}
}

func TestCleanStopIsKnownAtTheNextStart(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "a")
	h.stop(true)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(id, 0)
	if r := h.store.Replicas(); len(r) != 1 || !r[0].Report.Clean {
		t.Errorf("after a clean stop: %+v", r[0].Report)
	}
	h.stop(false)
	fsys.Crash(nil)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 3})
	if r := h.store.Replicas(); len(r) != 1 || r[0].Report.Clean || r[0].Report.End != 1 {
		t.Errorf("after a crash: %+v", r[0].Report)
	}
}

func TestSecondBrokerOnTheSameDisk(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	_, err := store.Open(store.Options{FS: h.fs, Dirs: []string{"/other", "/disk2"}, BrokerID: 2, Incarnation: 5})
	var locked *store.LockedError
	if !errors.As(err, &locked) || locked.Dir != "/disk2" || !strings.Contains(err.Error(), "/disk2") {
		t.Errorf("got %v", err)
	}
}

func TestDisksOfOthersAreRefused(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys})
	h.stop(true)
	_, err := store.Open(store.Options{FS: fsys, Dirs: []string{"/disk1", "/disk2"}, BrokerID: 2, Incarnation: 5})
	var owner *store.WrongOwnerError
	if !errors.As(err, &owner) || owner.What != "broker" {
		t.Errorf("another broker's disk: %v", err)
	}
	s, err := store.Open(store.Options{FS: fsys, Dirs: []string{"/disk1", "/disk2"}, BrokerID: brokerID, Incarnation: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Adopt("BBBBBBBBBBBBBBBBBBBBBB", nil); !errors.As(err, &owner) || owner.What != "cluster" {
		t.Errorf("another mesh's disk: %v", err)
	}
}

func exists(t *testing.T, fsys vfs.FS, parts ...string) bool {
	t.Helper()
	ok, err := vfs.Exists(fsys, filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// case 14
func TestDeletionUnderLoad(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	gone, stays := h.topic("gone", 2, nil), h.topic("stays", 1, nil)
	p := h.producer()
	f := h.fetcher(1<<20, 0)
	f.add(1, gone, 0, 0)
	f.add(2, stays, 0, 0)
	for known := 0; known < 2; { // both askings wait at the end
		resp, _ := f.recv()
		known += len(resp.GetWatermarks().GetWatermarks())
	}
	ctl.DeleteTopic(gone, brokerID)
	for i := 0; ; i++ {
		r := p.result(p.send(gone, int32(i%2), encode(t, "x"), nil))
		if e := r.GetError(); e != nil {
			if e.GetReason() != typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED && e.GetReason() != typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC {
				t.Fatalf("a batch for a deleted topic: %v", r)
			}
			break
		}
	}
	if id, err := f.partitionError(); id != 1 || err.Reason != typev1.ErrorReason_ERROR_REASON_TOPIC_DELETED {
		t.Errorf("asking %d ends with %v", id, err)
	}
	brokertest.Await(t, "the deletion is confirmed", func() bool { return slices.Contains(ctl.Confirmed(), gone) })
	for _, d := range []string{"/disk1", "/disk2"} {
		if exists(t, h.fs, d, "gone-0") || exists(t, h.fs, d, "gone-1") {
			t.Errorf("the folders are still on %s", d)
		}
	}
	p.mustStore(stays, 0, "still served")
	f.values(1)
}

func TestTopicIsMadeAgainWhileTheOldOneGoes(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	for range 5 {
		id := h.topic("t", 3, nil)
		p := h.producer()
		for n := range int32(3) {
			if base := p.mustStore(id, n, "x"); base != 0 {
				t.Fatalf("the new topic begins at %d", base)
			}
		}
		ctl.DeleteTopic(id, brokerID)
	}
	brokertest.Await(t, "all deletions are confirmed", func() bool { return len(ctl.Confirmed()) == 5 })
	if r := h.store.Replicas(); len(r) != 0 {
		t.Errorf("%d replicas are left", len(r))
	}
}

func TestManyReplicasAreMadeInChunks(t *testing.T) {
	h := start(t, brokertest.Start(t), harnessOptions{})
	h.topic("t", 300, nil)
	brokertest.Await(t, "nothing is pending", func() bool { return !h.manager.Pending() })
	if n := len(h.store.Replicas()); n != 300 {
		t.Errorf("%d replicas", n)
	}
}

// case 15
func TestRecreatedTopicNeverServesTheOldOne(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	old := h.topic("t", 1, nil)
	h.producer().mustStore(old, 0, "old")
	dir := h.store.Replicas()[0].Disk.Dir
	h.stop(true)
	// While the broker is away the topic goes without a trace, and comes back.
	ctl.ForgetTopic(old)
	again := ctl.CreateTopic("t", brokerID, 1, nil)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(again, 0)
	f := h.fetcher(1<<20, 0)
	f.add(1, again, 0, 0)
	if resp, values := f.recv(); len(values) > 0 || len(resp.GetWatermarks().GetWatermarks()) != 1 {
		t.Fatalf("the new topic serves %q", values)
	}
	f.add(2, old, 0, 0)
	if _, err := f.partitionError(); err.Reason != typev1.ErrorReason_ERROR_REASON_UNKNOWN_TOPIC {
		t.Errorf("the old topic: %v", err)
	}
	aside := []string{dir, "quarantine", fmt.Sprintf("%s-0", old.Hex())}
	if !exists(t, fsys, aside...) {
		t.Error("the old replica is not in the quarantine")
	}
	ctl.Change(func(*brokertest.Controller) {})
	ctl.CreateTopicWithID(old, "gone", 99, 1, nil)
	ctl.DeleteTopic(old, brokerID)
	brokertest.Await(t, "its deletion is confirmed", func() bool { return slices.Contains(ctl.Confirmed(), old) })
	if exists(t, fsys, aside...) {
		t.Error("a deletion record did not empty the quarantine")
	}
	h.producer().mustStore(again, 0, "new")
}

func TestReplicaSetAsideComesBackWithItsTopic(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "kept")
	ctl.ForgetTopic(id)
	brokertest.Await(t, "it is set aside", func() bool { return h.store.Replica(store.Key{Topic: id}) == nil })
	ctl.CreateTopicWithID(id, "t", brokerID, 1, nil)
	h.awaitLeader(id, 0)
	f := h.fetcher(1<<20, 0)
	f.add(1, id, 0, 0)
	if got := f.values(1); got[0] != "kept" {
		t.Errorf("got %q", got)
	}
}

func TestMissingReplicaIsNotServedUntilTheStreamPermits(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "a")
	h.stop(true)
	fresh := memfs.New() // the disks were replaced
	for life := uint64(2); life < 4; life++ {
		h = start(t, ctl, harnessOptions{fs: fresh, incarnation: life})
		if v := h.store.Verdict(store.Key{Topic: id}); v != store.Missing {
			t.Fatalf("life %d: verdict %v", life, v)
		}
		p := h.producer()
		r := p.result(p.send(id, 0, encode(t, "b"), nil))
		if r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD {
			t.Fatalf("life %d: %v", life, r)
		}
		if life == 2 {
			h.stop(true)
		}
	}
	// An operator's unclean election.
	ctl.SetPartition(id, 0, func(p *controllerv1.Partition) {
		p.Barred, p.Leader, p.LeaderEpoch = nil, &typev1.Process{Id: brokerID, Incarnation: 3}, p.LeaderEpoch+1
	})
	h.awaitLeader(id, 0)
	if base := h.producer().mustStore(id, 0, "b"); base != 0 {
		t.Errorf("the new replica begins at %d", base)
	}
	h.stop(false)
	fresh.Crash(nil)
	h = start(t, ctl, harnessOptions{fs: fresh, incarnation: 4})
	if v := h.store.Verdict(store.Key{Topic: id}); v != store.Intact {
		t.Errorf("the verdict came back: %v", v)
	}
	h.awaitLeader(id, 0)
}

func TestDamagedReplicaIsWithheld(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	id, other := h.topic("t", 1, nil), h.topic("other", 1, nil)
	p := h.producer()
	for range 5 {
		p.mustStore(id, 0, strings.Repeat("x", 100))
	}
	r := h.store.Replica(store.Key{Topic: id})
	h.stop(true)
	path := filepath.Join(r.Dir, "00000000000000000000.log")
	f, err := fsys.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(200), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(other, 0)
	p = h.producer()
	if r := p.result(p.send(id, 0, encode(t, "b"), nil)); r.GetError().GetReason() != typev1.ErrorReason_ERROR_REASON_REPLICA_WITHHELD {
		t.Errorf("a replica that was cut below its marks: %v", r)
	}
	p.mustStore(other, 0, "still served")
	if !exists(t, fsys, path) {
		t.Error("the damaged log is gone")
	}
	h.stop(true)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 3})
	if v := h.store.Verdict(store.Key{Topic: id}); v != store.Corrupt {
		t.Errorf("the verdict does not survive a restart: %v", v)
	}
}

func TestUncleanHostStopCountsUnderDurabilityOS(t *testing.T) {
	ctl, fsys := brokertest.Start(t), memfs.New()
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1, bootID: "a"})
	os := h.topic("os", 1, map[string]string{"durability": "os"})
	fsync := h.topic("fsync", 1, nil)
	p := h.producer()
	p.mustStore(os, 0, "x")
	p.mustStore(fsync, 0, "x")
	isOS := func(k store.Key) bool { return k.Topic == os }
	verdicts := func(h *harness) map[topicid.ID]store.Verdict {
		all := map[topicid.ID]store.Verdict{}
		for _, v := range h.store.Vouches(isOS) {
			all[v.Key.Topic] = v.Verdict
		}
		return all
	}
	h.stop(false)
	s, err := store.Open(store.Options{FS: crashed(fsys), Dirs: []string{"/disk1", "/disk2"}, BrokerID: brokerID, Incarnation: 2, BootID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if v := verdicts(&harness{store: s}); v[os] != store.Intact || v[fsync] != store.Intact {
		t.Errorf("the process died and the host did not: %v", v)
	}
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	for life := range uint64(2) { // the verdict survives restarts
		s, err = store.Open(store.Options{FS: crashed(fsys), Dirs: []string{"/disk1", "/disk2"}, BrokerID: brokerID, Incarnation: 3 + life, BootID: "b"})
		if err != nil {
			t.Fatal(err)
		}
		if v := verdicts(&harness{store: s}); v[os] != store.UncleanOS || v[fsync] != store.Intact {
			t.Errorf("the host went down, start %d: %v", life, v)
		}
		if err := s.Abort(); err != nil {
			t.Fatal(err)
		}
	}
}

func crashed(fsys *memfs.FS) *memfs.FS {
	fsys.Crash(nil)
	return fsys
}
