package handler

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	controllerv1 "github.com/leat-io/leat/gen/go/leat/controller/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
)

// reportsOf are the reports about a topic so far.
func reportsOf(ctl *brokertest.Controller, id topicid.ID) (found []*controllerv1.ReplicaVouch) {
	for _, v := range ctl.Reports() {
		if topicid.ID(v.GetTopicId()) == id {
			found = append(found, v)
		}
	}
	return found
}

func TestNewFoldersAreReportedUntilThereIsALeader(t *testing.T) {
	ctl := brokertest.Start(t)
	h := start(t, ctl, harnessOptions{})
	led := h.topic("led", 1, nil)
	var refusals atomic.Int64
	ctl.OnReport(func(*brokertest.Controller, *controllerv1.ReportReplicasRequest) error {
		if refusals.Add(1) <= 2 {
			return errors.New("not now")
		}
		return nil
	})
	const partitions = 40
	id := ctl.NewID()
	ctl.Change(func(c *brokertest.Controller) { c.CreateUnled(id, "t", partitions, brokerID) })
	brokertest.Await(t, "every folder is reported", func() bool {
		seen := map[int32]bool{}
		for _, v := range reportsOf(ctl, id) {
			seen[v.GetPartition()] = true
			if v.GetVerdict() != controllerv1.ReplicaVerdict_REPLICA_VERDICT_INTACT || v.GetLastEpoch() != -1 || v.GetEndOffset() != 0 || v.GetDiskId() == "" {
				t.Fatalf("report %v", v)
			}
		}
		return len(seen) == partitions
	})
	// What has been told is not told at every change, but it is to a new controller.
	count := func() int { return len(reportsOf(ctl, id)) }
	brokertest.Await(t, "the reports rest", func() bool {
		before := count()
		ctl.Change(func(*brokertest.Controller) {})
		h.awaitLeader(led, 0)
		return refusals.Load() > 2 && count() == before
	})
	before := count()
	ctl.Change(func(c *brokertest.Controller) { c.Elected() })
	brokertest.Await(t, "a new controller is told again", func() bool { return count() >= before+partitions })
	for n := range int32(partitions) {
		ctl.SetPartition(id, n, func(p *controllerv1.Partition) {
			p.LeaderEpoch, p.Leader = 1, &typev1.Process{Id: brokerID, Incarnation: 7}
		})
	}
	for n := range int32(partitions) {
		h.awaitLeader(id, n)
	}
	before = count()
	ctl.Change(func(c *brokertest.Controller) { c.Elected() })
	h.producer().mustStore(id, 0, "a")
	if after := count(); after != before {
		t.Errorf("%d reports of folders whose partitions are led", after-before)
	}
	if n := len(reportsOf(ctl, led)); n != 0 {
		t.Errorf("%d reports about a topic that was led from the start", n)
	}
}

// case 45
func TestAFailedDiskIsReported(t *testing.T) {
	ctl := brokertest.Start(t)
	fsys := errorfs.Wrap(memfs.New())
	h := start(t, ctl, harnessOptions{fs: fsys})
	id := h.topic("t", 2, nil)
	p := h.producer()
	p.mustStore(id, 0, "a")
	p.mustStore(id, 1, "b")
	r, err := h.manager.Lookup(id.Bytes(), 0)
	if err != nil {
		t.Fatal(err)
	}
	failed := h.store.Replica(r.Key).Disk
	fsys.Add(errorfs.Rule{Path: failed.Dir, Err: syscall.EIO})
	res := p.result(p.send(id, 0, encode(t, "c"), nil))
	if res.GetError() == nil {
		t.Fatal("stored on a disk that refuses to write")
	}
	brokertest.Await(t, "the replica on the failed disk is reported", func() bool {
		found := reportsOf(ctl, id)
		if len(found) > 0 && (found[0].GetVerdict() != controllerv1.ReplicaVerdict_REPLICA_VERDICT_CORRUPT || found[0].GetPartition() != 0) {
			t.Fatalf("report %v", found[0])
		}
		return len(found) > 0
	})
	if p.mustStore(id, 1, "d") != 1 {
		t.Error("the other disk does not go on")
	}
}
