package replication

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/vfs/errorfs"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestDiskWipedUnderLoad: the leader's disk is lost for good. The broker comes back
// with an empty one, within its lease's time, and is no member in sync before it
// has fetched everything again.
func TestDiskWipedUnderLoad(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "wiped", 3)
		l := startLoad(t, r, "wiped", loadOptions{})
		for range count(1, 5) {
			leader := r.Leader("wiped", 0)
			r.Kill(leader)
			r.Wipe(leader)
			r.Up(leader)
			l.progress("the loss of the disk of "+leader, resume)
			r.WaitInSync("wiped", time.Minute)
		}
		l.finish()
	})
}

// TestWipedBrokerIsNotElected: all are killed, one loses its disk and comes back
// first. It says that its replicas are missing, and nobody leads until one comes
// back that has them.
func TestWipedBrokerIsNotElected(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "gone", 1)
		l := startLoad(t, r, "gone", loadOptions{})
		l.history.MayRepeat(byGateway)
		wiped := r.Leader("gone", 0)
		r.KillAll()
		r.Wipe(wiped)
		r.Launch(append(r.Names(rig.Etcd, rig.Controller, rig.Coordinator, rig.Gateway), wiped)...)
		mesh.Eventually(t, time.Minute, wiped+" is not fenced, and nobody leads", func() (bool, string) {
			c, err := r.Cluster()
			if err != nil {
				return false, err.Error()
			}
			for _, svc := range c.Services {
				if svc.Name == wiped && svc.Registered && !svc.Fenced {
					return true, ""
				}
			}
			return false, fmt.Sprintf("%+v", c)
		})
		l.standstill("only "+wiped+" is there, with an empty disk", span(2*time.Second, 10*time.Second))
		if all, err := r.Partitions("gone"); err != nil || all[0].Leader > 0 {
			t.Errorf("a wiped broker leads, or nobody knows: %+v, %v", all, err)
		}
		r.Up(r.Others(wiped, rig.Broker)...)
		l.progress("the return of those that have the records", resume)
		l.finish()
	})
}

// TestDiskFailsUnderLoad is case 45: every write and sync of the leader's disk
// fails, and reads too. Nothing is acknowledged from it any more, others lead, and
// what was acknowledged is there.
func TestDiskFailsUnderLoad(t *testing.T) {
	for name, ops := range map[string][]errorfs.Op{
		"every call": nil,
		"one sync":   {errorfs.OpSync},
		"one write":  {errorfs.OpWrite},
	} {
		t.Run(name, func(t *testing.T) {
			s := inProcess(t)
			r := s.start(rig.Options{})
			topic(t, r, "eio", 1)
			l := startLoad(t, r, "eio", loadOptions{})
			leader := r.Leader("eio", 0)
			rule := errorfs.Rule{Ops: ops, Path: ".log", Times: 1, Err: syscall.EIO}
			if ops == nil {
				rule = errorfs.Rule{Ops: []errorfs.Op{
					errorfs.OpRead, errorfs.OpWrite, errorfs.OpSync, errorfs.OpTruncate, errorfs.OpCreate, errorfs.OpOpen,
					errorfs.OpRename, errorfs.OpRemove, errorfs.OpSyncDir, errorfs.OpStat, errorfs.OpReadDir,
				}, Err: syscall.EIO}
			}
			s.disks.faults(leader).Add(rule)
			now := r.LeaderOtherThan("eio", 0, leader)
			l.progress("the failure of the disk of "+leader, resume)
			// The disk is replaced by an empty one.
			r.Kill(leader)
			r.Wipe(leader)
			r.Up(leader)
			t.Logf("%s leads in place of %s", now, leader)
			l.finish()
		})
	}
}

// TestDiskHangsUnderLoad: the leader's disk answers nothing any more. The watchdog
// lets the broker be replaced.
func TestDiskHangsUnderLoad(t *testing.T) {
	s := inProcess(t)
	r := s.start(rig.Options{Set: []string{"broker.disk.watchdog.timeout=2s", "broker.lease.ttl=2s"}})
	topic(t, r, "hung", 1)
	l := startLoad(t, r, "hung", loadOptions{})
	leader := r.Leader("hung", 0)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	faults := s.disks.faults(leader)
	faults.OnCall(func(op errorfs.Op, path string) error {
		<-release
		return fmt.Errorf("%s of %s on a disk that hung: %w", op, path, syscall.EIO)
	})
	began := time.Now()
	now := r.LeaderOtherThan("hung", 0, leader)
	t.Logf("%s leads after %v", now, time.Since(began).Round(time.Millisecond))
	l.progress("the hanging of the disk of "+leader, resume)
	free()
	r.Kill(leader)
	r.Wipe(leader)
	r.Up(leader)
	l.finish()
}

// TestPowerCutOfAll: the power of all hosts fails at once, again and again. What
// was acknowledged had been synced.
func TestPowerCutOfAll(t *testing.T) {
	s := inProcess(t)
	rng := random(t)
	r := s.start(rig.Options{})
	topic(t, r, "power", 3)
	l := startLoad(t, r, "power", loadOptions{})
	for range count(2, 20) {
		for _, name := range r.Names(rig.Broker) {
			s.disks.slowSyncs(name, 20*time.Millisecond)
		}
		l.progress("disks became slow", resume)
		leader := r.Leader("power", 0)
		r.Kill(r.Names(rig.Broker)...)
		for _, name := range r.Names(rig.Broker) {
			s.disks.powerOff(name, func() int { return rng.IntN(1001) })
		}
		// What followers acknowledged must be with them, so the leader comes late.
		r.Up(r.Others(leader, rig.Broker)...)
		l.progress("the power cut", resume)
		r.Up(leader)
		r.WaitInSync("power", time.Minute)
	}
	l.finish()
}

// TestPowerCutOfMinorityWithDurabilityOS: with acknowledgements from the page
// cache, one host may lose its power without losing a record: its replica is not
// trusted when it is back, is brought up to date by the leader, and only then
// counts.
func TestPowerCutOfMinorityWithDurabilityOS(t *testing.T) {
	s := inProcess(t)
	r := s.start(rig.Options{})
	topic(t, r, "os", 3, "durability=os")
	l := startLoad(t, r, "os", loadOptions{})
	for range count(2, 10) {
		leader := r.Leader("os", 0)
		r.Net.Delay(100*time.Millisecond, leader, r.Others(leader, rig.Broker)...)
		l.progress("followers became slow", resume)
		r.Kill(leader)
		s.disks.powerOff(leader, nil)
		r.Up(leader)
		r.Net.HealAll()
		l.progress("the power cut of "+leader, resume)
		r.WaitInSync("os", time.Minute)
	}
	l.finish()
}

// TestPowerCutOfAllWithDurabilityOS: with durability=os and all power gone the
// longest replica leads once all have told what they have; records may be lost,
// that is the bargain, but the replicas agree and writes go on.
func TestPowerCutOfAllWithDurabilityOS(t *testing.T) {
	s := inProcess(t)
	r := s.start(rig.Options{})
	topic(t, r, "os", 1, "durability=os")
	brokers := r.Names(rig.Broker)
	res := r.LeatInput("a\nb\nc\n", "produce", "os")
	if res.Code != 0 {
		t.Fatal(res)
	}
	r.Kill(brokers...)
	for _, name := range brokers {
		s.disks.powerOff(name, nil)
	}
	// Once all are fenced it is settled whose word counts.
	var last rig.Partition
	mesh.Eventually(t, time.Minute, "nobody leads", func() (bool, string) {
		all, err := r.Partitions("os")
		if err != nil {
			return false, err.Error()
		}
		last = all[0]
		return last.Leader < 1 && len(last.ISR) > 0, fmt.Sprintf("%+v", last)
	})
	member := fmt.Sprintf("broker-%d", last.ISR[0])
	r.Up(r.Others(member, rig.Broker)...)
	if all, err := r.Partitions("os"); err != nil || all[0].Leader > 0 {
		t.Errorf("%s has not told what it has, and somebody leads: %+v, before %+v, %v", member, all, last, err)
	}
	r.Up(member)
	r.Leader("os", 0)
	r.WaitInSync("os", time.Minute)
	if res := r.LeatInput("d\n", "produce", "os"); res.Code != 0 {
		t.Error(res)
	}
	r.SameLogs("os", time.Minute)
}

// TestBitRotOfAFollower is case 21: a bit of a sealed segment of a follower flips
// while it is down. It is found at the start, the replica is not elected before it
// is repaired from the leader, and nothing acknowledged is lost.
func TestBitRotOfAFollower(t *testing.T) {
	s := inProcess(t)
	r := s.start(rig.Options{})
	topic(t, r, "rot", 1, "segment.bytes=1048576")
	l := startLoad(t, r, "rot", loadOptions{})
	follower := r.Followers("rot", 0)[0]
	mesh.Eventually(t, time.Minute, follower+" has enough for a bit of it to flip", func() (bool, string) {
		log, err := r.Log(follower, "rot", 0)
		return len(log) >= minRot, fmt.Sprint(len(log), err)
	})
	r.Kill(follower)
	s.disks.flipBit(t, follower, r.Dir(follower)+"/rot-0")
	r.Up(follower)
	l.progress("the return of "+follower, resume)
	r.WaitInSync("rot", time.Minute)
	// Only those that had a flipped bit are left beside one other.
	leader := r.Leader("rot", 0)
	if leader != follower {
		r.Kill(leader)
		l.progress("the death of "+leader, resume)
		r.Up(leader)
	}
	l.finish()
}

// slowSyncs lets a broker's syncs take their time in its present life, so that much
// is written and not durable.
func (d *disks) slowSyncs(name string, by time.Duration) {
	d.faults(name).OnCall(func(op errorfs.Op, _ string) error {
		if op == errorfs.OpSync {
			pause(by)
		}
		return nil
	})
}

// minRot is how long a log has to be for flipBit to meet a record.
const minRot = 1000

// flipBit changes the middle of the first segment in a folder.
func (d *disks) flipBit(t *testing.T, name, path string) {
	t.Helper()
	memory := d.disk(name).memory
	files, err := d.readFolder(name, path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	if len(names) == 0 || len(files[names[0]]) < minRot {
		t.Fatalf("no segment of some length in %s: %v", path, strings.Join(names, " "))
	}
	text := files[names[0]]
	f, err := memory.Open(path + "/" + names[0])
	if err != nil {
		t.Fatal(err)
	}
	at := int64(len(text) / 2)
	if _, err := f.WriteAt([]byte{text[at] ^ 0x10}, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
