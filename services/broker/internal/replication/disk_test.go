package replication

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/vfs"
	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/libs/vfs/memfs"
	"github.com/leat-io/leat/services/broker/internal/brokertest"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// keepAll is for topics on disks that fill up: then old records go at once, and those of
// these tests are from 1970.
var keepAll = map[string]string{"retention.ms": "-1"}

// A follower whose disk fails is left behind; a leader whose disk fails acknowledges
// nothing more, and what it had acknowledged is with the next one.
func TestDisksFail(t *testing.T) {
	disks := map[int32]*errorfs.FS{}
	m := newMesh(t, 3, meshOptions{lag: time.Second, fs: func(id int32) vfs.FS {
		disks[id] = errorfs.Wrap(memfs.New())
		return disks[id]
	}})
	id := m.ctl.CreateReplicated("t", 1, 1, nil, 1, 2, 3)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	broken := errorfs.Rule{Ops: []errorfs.Op{errorfs.OpSync}, Path: "t-0", Err: syscall.EIO}
	disks[3].Add(broken)
	m.nodes[1].mustStore(id, 0, "b")
	m.awaitISR(id, 0, 2)
	m.awaitSame(id, 0, 2, 1, 2)
	disks[1].Add(broken)
	res := m.nodes[1].produce(id, 0, acksAll, "c")
	if res.Err == nil || res.Err.Reason != typev1.ErrorReason_ERROR_REASON_DISK_OFFLINE || res.Err.Outcome != typev1.Outcome_OUTCOME_UNKNOWN {
		t.Fatalf("a batch on a disk that fails ends with %+v", res)
	}
	brokertest.Await(t, "the leader serves nothing more", func() bool { return m.nodes[1].describe(id, 0).GetError() != nil })
	m.ctl.SetISR(id, 0, 2)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	base := m.nodes[2].mustStore(id, 0, "d")
	if base < 2 || base > 3 {
		t.Errorf("the next leader goes on at %d", base)
	}
}

// case 44: a truncation that finds no room on the disk waits for it, and the replica goes
// on by itself.
func TestATruncationWaitsForRoom(t *testing.T) {
	disk := errorfs.Wrap(memfs.New())
	m := newMesh(t, 2, meshOptions{fs: func(id int32) vfs.FS {
		if id == 2 {
			return disk
		}
		return memfs.New()
	}})
	id := m.ctl.CreateReplicated("t", 1, 1, keepAll, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "common")
	m.awaitSame(id, 0, 1, 1, 2)
	m.kill(1)
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	if res := m.nodes[2].produce(id, 0, partition.AcksLeader, "b1", "b2"); res.Err != nil || res.Base != 1 {
		t.Fatalf("b1: %+v", res)
	}
	m.ctl.Elect(id, 0, 1) // it is away, so that nothing is cut yet
	met := make(chan struct{}, 1)
	disk.OnCall(func(op errorfs.Op, _ string) error {
		switch op {
		case errorfs.OpWrite, errorfs.OpCreate:
			select {
			case met <- struct{}{}:
			default:
			}
			return syscall.ENOSPC
		}
		return nil
	})
	m.restart(1)
	m.ctl.Elect(id, 0, 1)
	m.awaitLeads(1, id, 0)
	<-met
	disk.Clear()
	m.nodes[1].mustStore(id, 0, "a1")
	m.awaitSame(id, 0, 2, 1, 2)
}

// case 44: a replica that begins anew, and finds no room once that is on record, waits for
// it and goes on by itself; also where the leader's log starts within a batch.
func TestANewBeginningWaitsForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		batches [][]string
		resets  int32 // the last of them finds no room
	}{
		"at a batch":     {[][]string{{"b"}, {"c"}}, 1},
		"within a batch": {[][]string{{"b", "c"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			disk := errorfs.Wrap(memfs.New())
			m := newMesh(t, 2, meshOptions{lag: time.Second, fs: func(id int32) vfs.FS {
				if id == 2 {
					return disk
				}
				return memfs.New()
			}})
			id := m.ctl.CreateReplicated("t", 1, 1, keepAll, 1, 2)
			m.awaitLeads(1, id, 0)
			m.nodes[1].mustStore(id, 0, "a")
			m.awaitSame(id, 0, 1, 1, 2)
			m.nodes[2].stop(true)
			m.ctl.SetISR(id, 0, 1)
			for _, b := range c.batches {
				m.nodes[1].mustStore(id, 0, b...)
			}
			deleteTo(t, m.nodes[1], id, 2)
			met := make(chan struct{}, 1)
			var removed int32
			disk.OnCall(func(op errorfs.Op, path string) error {
				if op == errorfs.OpRemove && strings.HasSuffix(path, ".log") {
					removed++
				}
				if removed < c.resets || op != errorfs.OpCreate && op != errorfs.OpWrite {
					return nil
				}
				select {
				case met <- struct{}{}:
				default:
				}
				return syscall.ENOSPC
			})
			m.restart(2)
			for range 2 { // at first and tried again
				select {
				case <-met:
				case <-time.After(brokertest.Patience):
					t.Fatal("no reset found no room")
				}
			}
			disk.Clear()
			m.nodes[1].mustStore(id, 0, "d")
			m.awaitISR(id, 0, 2)
			m.awaitSame(id, 0, 4, 1, 2)
			if got := m.nodes[2].describe(id, 0).GetLogStartOffset(); got != 2 {
				t.Errorf("the log starts at %d", got)
			}
		})
	}
}

// case 44: a replica that begins within a batch and finds no room anywhere on the way ends
// up as one that had room: begun where its leader's log is, with what that knows of
// producers. So does one whose host goes down meanwhile.
func TestABeginningWithinABatchIsFinished(t *testing.T) {
	var met atomic.Int32
	const calls = 14 // that a beginning takes
	t.Run("without room", func(t *testing.T) {
		for after := range calls {
			for name, down := range map[string]bool{"tried again": false, "host down": true} {
				t.Run(fmt.Sprintf("%s after %d calls", name, after), func(t *testing.T) {
					t.Parallel()
					if beginsWithinABatch(t, after, down) {
						met.Add(1)
					}
				})
			}
		}
	})
	if n := met.Load(); n < 2*(calls-2) {
		t.Errorf("%d beginnings found no room", n)
	}
}

// beginsWithinABatch is one beginning that finds no room after so many calls; it reports
// whether it took as many.
func beginsWithinABatch(t *testing.T, after int, down bool) (met bool) {
	mem := memfs.New()
	disk := errorfs.Wrap(mem)
	m := newMesh(t, 2, meshOptions{fs: func(id int32) vfs.FS {
		if id == 2 {
			return disk
		}
		return memfs.New()
	}})
	id := m.ctl.CreateReplicated("t", 1, 1, keepAll, 1, 2)
	m.awaitLeads(1, id, 0)
	send := func(broker int32, sequence int32, records int, base int64) {
		t.Helper()
		if res := m.nodes[broker].idempotent(id, 7, sequence, records); res.Err != nil || res.Base != base {
			t.Fatalf("broker %d stored a batch at %d, want %d: %v", broker, res.Base, base, res.Err)
		}
	}
	send(1, 0, 1, 0)
	m.awaitSame(id, 0, 1, 1, 2)
	m.nodes[2].stop(true)
	m.ctl.SetISR(id, 0, 1)
	brokertest.Await(t, "the leader counts alone", func() bool {
		res := m.nodes[1].idempotent(id, 7, 1, 2)
		return res.Err == nil && res.Base == 1
	})
	deleteTo(t, m.nodes[1], id, 2)
	// The second log that goes is the one that was begun within the batch.
	refused, removed, seen := make(chan struct{}, 2), 0, 0
	disk.OnCall(func(op errorfs.Op, path string) error {
		if op == errorfs.OpRemove && strings.HasSuffix(path, ".log") {
			removed++
		}
		if removed < 2 || op != errorfs.OpCreate && op != errorfs.OpWrite || !strings.Contains(path, "t-0") {
			return nil
		}
		if seen++; seen <= after || len(refused) == cap(refused) {
			return nil
		}
		refused <- struct{}{}
		return syscall.ENOSPC
	})
	m.restart(2)
	brokertest.Await(t, "the beginning finds no room, or ends", func() bool {
		return len(refused) > 0 || m.nodes[2].describe(id, 0).GetLogEndOffset() == 3
	})
	if met = len(refused) > 0; met && down {
		m.nodes[2].stop(false)
		mem.Crash(nil)
		disk.Clear()
		m.restart(2)
	}
	m.awaitISR(id, 0, 2)
	m.awaitSame(id, 0, 3, 1, 2)
	brokertest.Await(t, "the log starts where its leader's does", func() bool { return m.nodes[2].describe(id, 0).GetLogStartOffset() == 2 })
	if start := m.nodes[2].store.Replica(store.Key{Topic: id}).Log.StartOffset(); start != 2 {
		t.Errorf("the log on the disk starts at %d", start)
	}
	m.ctl.Elect(id, 0, 2)
	m.awaitLeads(2, id, 0)
	send(2, 0, 1, 0)
	send(2, 1, 2, 1)
	send(2, 3, 1, 3)
	return met
}

// A topic is deleted while a bad copy of it has found no room to be put aside: a topic of
// the same name finds nothing in its way.
func TestATopicIsDeletedWhoseReplacementFindsNoRoom(t *testing.T) {
	disk := errorfs.Wrap(memfs.New())
	m := newMesh(t, 2, meshOptions{fs: func(id int32) vfs.FS {
		if id == 2 {
			return disk
		}
		return memfs.New()
	}})
	id := m.ctl.CreateReplicated("t", 1, 1, keepAll, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "a")
	m.awaitSame(id, 0, 1, 1, 2)
	m.nodes[2].stop(true)
	damageHeader(t, m.nodes[2])
	met := make(chan struct{}, 1)
	disk.OnCall(func(op errorfs.Op, path string) error {
		if op != errorfs.OpMkdirAll || !strings.Contains(path, "quarantine") {
			return nil
		}
		select {
		case met <- struct{}{}:
		default:
		}
		return syscall.ENOSPC
	})
	m.ctl.SetISR(id, 0, 1)
	m.restart(2)
	select {
	case <-met:
	case <-time.After(brokertest.Patience):
		t.Fatal("the bad copy was not to be put aside")
	}
	m.ctl.DeleteTopic(id, 1, 2)
	for _, n := range m.nodes {
		brokertest.Await(t, "its replica is gone", func() bool { return len(n.store.Keys()) == 0 })
	}
	id = m.ctl.CreateReplicated("t", 1, 1, keepAll, 1, 2)
	m.awaitLeads(1, id, 0)
	m.nodes[1].mustStore(id, 0, "anew")
	m.awaitSame(id, 0, 1, 1, 2)
}
