package handler

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// lines is a log that a test can look into.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// count is how many lines contain a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// roomy is a file system in memory whose disks say that they have so much left.
func roomy(free int64) (*errorfs.FS, *atomic.Int64) {
	fsys, left := errorfs.Wrap(memfs.New()), &atomic.Int64{}
	left.Store(free)
	fsys.SetSpace(func(string) (vfs.Space, error) { return vfs.Space{Total: 1 << 30, Free: left.Load()}, nil })
	return fsys, left
}

// case 44
func TestFullDiskRefusesProduceAndRecovers(t *testing.T) {
	fsys, free := roomy(1 << 30)
	var log lines
	h := start(t, brokertest.Start(t), harnessOptions{
		fs: fsys, logger: log.logger(), dirs: []string{"/disk1"},
		space: store.Space{Reserve: 10 << 20, Throttle: 20 << 20, Warn: 40 << 20, ThrottleRate: 1 << 30},
	})
	id, other, internal := h.topic("t", 1, map[string]string{"retention.ms": "-1"}), h.topic("other", 1, nil), h.topic("__i", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "good")
	produce := func(id topicid.ID) *rpc.Error {
		return rpc.FromProto(p.result(p.send(id, 0, encode(t, "x"), nil)).GetError())
	}
	disk := h.store.Disks()[0]
	for _, stage := range []struct {
		free int64
		want store.Stage
	}{{39 << 20, store.Low}, {19 << 20, store.Throttled}} {
		free.Store(stage.free)
		brokertest.Await(t, stage.want.String(), func() bool { return disk.Stage() == stage.want })
		if err := produce(id); err != nil {
			t.Errorf("a disk that is %v: %v", stage.want, err)
		}
	}
	free.Store(9 << 20)
	brokertest.Await(t, "the disk is full", func() bool { return disk.Stage() == store.Full })
	for range 3 {
		err := produce(id)
		if err == nil || err.Reason != typev1.ErrorReason_ERROR_REASON_DISK_FULL || err.Outcome != typev1.Outcome_OUTCOME_NOT_DONE || !rpc.Retryable(err) ||
			err.Metadata["dir"] != "/disk1" || !strings.Contains(err.Message, "/disk1") || !strings.Contains(err.Message, "delete topics") {
			t.Fatalf("a full disk: %v", err)
		}
	}
	r := h.store.Replica(store.Key{Topic: internal})
	if delay, ok := h.store.Admit(r.Disk, 100, true); !ok || delay != 0 {
		t.Error("the internal topics may not use the reserve")
	}
	f := h.fetcher(1000, 0)
	f.add(1, id, 0, 0)
	if got := f.values(1); got[0] != "good" {
		t.Errorf("read %q", got)
	}
	h.ctl.DeleteTopic(other, brokerID)
	brokertest.Await(t, "a topic is deleted", func() bool { return slices.Contains(h.ctl.Confirmed(), other) })
	free.Store(1 << 30)
	brokertest.Await(t, "produce goes on", func() bool { return produce(id) == nil })
	if n := log.count("a disk is full"); n != 1 {
		t.Errorf("%d lines say that the disk is full, want 1", n)
	}
}

// case 44, when the system says that the disk is full before the reserve is known
// to be used up: by another program, say.
func TestWritesThatFindNoSpaceAreNotDone(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	var log lines
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys, logger: log.logger(), dirs: []string{"/disk1"}})
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "good")
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Err: syscall.ENOSPC, Short: 5})
	for range 3 {
		e := p.result(p.send(id, 0, encode(t, "x"), nil)).GetError()
		if e.GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_FULL || e.GetOutcome() != typev1.Outcome_OUTCOME_NOT_DONE {
			t.Fatalf("no space: %v", e)
		}
	}
	brokertest.Await(t, "the disk counts as full", func() bool { return h.store.Disks()[0].Stage() == store.Full })
	brokertest.Await(t, "the marks were tried", func() bool { return log.count("could not write the marks") > 0 })
	for range 5 { // it is told once, however often they are tried
		h.manager.Checkpoint(true)
	}
	if n := log.count("could not write the marks"); n != 1 {
		t.Errorf("%d lines about the marks of a full disk", n)
	}
	f := h.fetcher(1000, 0)
	f.add(1, id, 0, 0)
	f.values(1)
	fsys.Clear()
	if base := p.mustStore(id, 0, "goes on"); base != 1 {
		t.Errorf("the next record is at %d", base)
	}
	h.topic("new", 1, nil)
	h.manager.Checkpoint(true)
	if n := log.count("are written again"); n != 1 {
		t.Errorf("%d lines about marks that are written again", n)
	}
}

// failing is a file system on which one disk refuses everything while broken.
func failing(dir string) (fsys *errorfs.FS, broken *atomic.Bool) {
	fsys, broken = errorfs.Wrap(memfs.New()), &atomic.Bool{}
	fsys.OnCall(func(_ errorfs.Op, path string) error {
		if broken.Load() && strings.HasPrefix(path, dir) {
			return syscall.EIO
		}
		return nil
	})
	return fsys, broken
}

// case 45, at the start
func TestFailedDiskGoesOfflineAloneAtTheStart(t *testing.T) {
	fsys, broken := failing("/disk1")
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	one, two := h.topic("one", 1, nil), h.topic("two", 1, nil) // on disk 1, on disk 2
	p := h.producer()
	p.mustStore(one, 0, "on the first disk")
	p.mustStore(two, 0, "on the second disk")
	if dir := h.store.Replica(store.Key{Topic: one}).Dir; !strings.HasPrefix(dir, "/disk1") {
		t.Fatalf("the first replica is in %s", dir)
	}
	h.stop(true)

	broken.Store(true)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(two, 0)
	p = h.producer()
	p.mustStore(two, 0, "the other disk serves")
	if e := p.result(p.send(one, 0, encode(t, "x"), nil)).GetError(); e.GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE {
		t.Errorf("a replica of the failed disk: %v", e)
	}
	r, err := h.manager.Lookup(one.Bytes(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if e := r.Describe().GetError(); e.GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE {
		t.Errorf("it is described as %v", e)
	}
	h.topic("three", 1, nil)
	if dir := h.store.Replicas()[len(h.store.Replicas())-1].Dir; !strings.HasPrefix(dir, "/disk2") {
		t.Errorf("a new replica is in %s", dir)
	}
	if !h.manager.DisksOK() {
		t.Error("with one of two disks the broker counts as broken")
	}
	h.stop(true)

	broken.Store(false)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 3})
	h.awaitLeader(one, 0)
	f := h.fetcher(1000, 0)
	f.add(1, one, 0, 0)
	if got := f.values(1); got[0] != "on the first disk" {
		t.Errorf("after the repair: %q", got)
	}
	h.producer().mustStore(one, 0, "and on")
}

// A disk that breaks while its logs are recovered takes them along, and nobody takes
// the broker for their leader.
func TestDiskThatFailsDuringRecovery(t *testing.T) {
	mem := memfs.New()
	fsys := errorfs.Wrap(mem)
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1})
	one, two := h.topic("one", 1, nil), h.topic("two", 1, nil)
	p := h.producer()
	p.mustStore(one, 0, "x")
	p.mustStore(two, 0, "x")
	h.stop(false)
	mem.Crash(nil)
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRead}, Path: "one-0/00000000000000000000.log", Err: syscall.EIO})
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	h.awaitLeader(two, 0)
	p = h.producer()
	p.mustStore(two, 0, "y")
	if e := p.result(p.send(one, 0, encode(t, "y"), nil)).GetError(); e.GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE || e.GetMetadata()["dir"] != "/disk1" {
		t.Errorf("a replica of the failed disk: %v", e)
	}
	for _, v := range h.store.Vouches(nil) {
		if intact := v.Verdict == store.Intact; intact != (v.Key.Topic == two) {
			t.Errorf("vouched for %v as %v", v.Key, v.Verdict)
		}
	}
}

func TestNoDiskNoBroker(t *testing.T) {
	fsys, broken := failing("/disk")
	broken.Store(true)
	_, err := store.Open(store.Options{FS: fsys, Dirs: []string{"/disk1", "/disk2"}, BrokerID: brokerID, Incarnation: 1})
	var none *store.NoDiskError
	if !errors.As(err, &none) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "/disk2") {
		t.Errorf("with all disks broken: %v", err)
	}
}

// A topic on a disk that is offline can be deleted, and made again elsewhere; its
// remains go once the disk is back.
func TestTopicOfAFailedDiskIsDeletedLater(t *testing.T) {
	fsys, broken := failing("/disk1")
	ctl := brokertest.Start(t)
	var log lines
	h := start(t, ctl, harnessOptions{fs: fsys, incarnation: 1, logger: log.logger()})
	id := h.topic("t", 1, nil)
	p := h.producer()
	p.mustStore(id, 0, "old")
	broken.Store(true)
	if e := p.result(p.send(id, 0, encode(t, "x"), nil)).GetError(); e.GetReason() != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE {
		t.Fatalf("after the fault: %v", e)
	}
	brokertest.Await(t, "the disk is offline", func() bool { return h.store.Disks()[0].Err() != nil })
	ctl.DeleteTopic(id, brokerID)
	again := h.topic("t", 1, nil)
	if base := h.producer().mustStore(again, 0, "new"); base != 0 {
		t.Errorf("the new topic begins at %d", base)
	}
	other := h.topic("other", 1, nil)
	ctl.DeleteTopic(other, brokerID)
	brokertest.Await(t, "other deletions go on", func() bool { return slices.Contains(ctl.Confirmed(), other) })
	if n := log.count("are on a disk that is offline"); n != 1 {
		t.Errorf("%d lines say that a deletion has to wait", n)
	}
	if slices.Contains(ctl.Confirmed(), id) {
		t.Error("a deletion is confirmed whose files are still there")
	}
	h.stop(true)
	broken.Store(false)
	h = start(t, ctl, harnessOptions{fs: fsys, incarnation: 2})
	brokertest.Await(t, "the deletion is confirmed", func() bool { return slices.Contains(ctl.Confirmed(), id) })
	if exists(t, fsys, filepath.Join("/disk1", "t-0")) {
		t.Error("its folder is still there")
	}
	h.awaitLeader(again, 0)
	f := h.fetcher(1000, 0)
	f.add(1, again, 0, 0)
	if got := f.values(1); got[0] != "new" {
		t.Errorf("the new topic holds %q", got)
	}
}

// case 45: a disk that cannot be read is as bad as one that cannot be written.
func TestUnreadableDiskGoesOffline(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys, dirs: []string{"/disk1"}})
	id := h.topic("t", 1, nil)
	h.producer().mustStore(id, 0, "x")
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpRead}, Path: ".log", Err: syscall.EIO})
	f := h.fetcher(1000, 0)
	f.add(1, id, 0, 0)
	if _, err := f.partitionError(); err.Reason != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE {
		t.Errorf("a read that fails: %v", err)
	}
	brokertest.Await(t, "the broker lets itself be replaced", func() bool { return !h.manager.DisksOK() })
}

// case 47: a log that could not go on for want of descriptors says nothing about
// its disk.
func TestDescriptorsThatRanOutFailNoDisk(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys, dirs: []string{"/disk1"}})
	one, two := h.topic("one", 1, nil), h.topic("two", 1, nil)
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpWrite}, Path: "one-0", Err: syscall.EMFILE})
	p := h.producer()
	if e := p.result(p.send(one, 0, encode(t, "x"), nil)).GetError(); e == nil {
		t.Fatal("a write that failed was acknowledged")
	}
	for range 10 {
		p.mustStore(two, 0, "x")
	}
	if !h.manager.DisksOK() || h.store.Disks()[0].Err() != nil {
		t.Error("the disk is offline")
	}
}

// A disk that fails when a replica is made there takes those along that are there,
// and the new one goes elsewhere.
func TestDiskThatFailsAtACreation(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New())
	h := start(t, brokertest.Start(t), harnessOptions{fs: fsys})
	one, two := h.topic("one", 1, nil), h.topic("two", 1, nil) // on disk 1, on disk 2
	fsys.Add(errorfs.Rule{Ops: []errorfs.Op{errorfs.OpMkdirAll}, Path: "/disk1/three-0", Err: syscall.EIO})
	three := h.ctl.CreateTopic("three", brokerID, 1, nil)
	p := h.producer()
	brokertest.Await(t, "the other replica of the disk is offline", func() bool {
		return p.result(p.send(one, 0, encode(t, "x"), nil)).GetError().GetReason() == typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE
	})
	p.mustStore(two, 0, "x")
	h.ctl.Change(func(*brokertest.Controller) {}) // as the broker's own clock would
	h.awaitLeader(three, 0)
	p.mustStore(three, 0, "on the other disk")
}
