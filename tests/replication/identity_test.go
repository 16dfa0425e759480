package replication

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestTwoBrokersWithOneID: a process with an id that another one has, alive, is
// refused and says so; the first goes on.
func TestTwoBrokersWithOneID(t *testing.T) {
	r := processes(t).plan(rig.Options{Brokers: 4})
	r.Set("broker-4", "node.id", "1")
	others := without(r.Names(), "broker-4")
	launchInOrder(r, others)
	for _, name := range others {
		r.AwaitUp(name, time.Minute)
	}
	topic(t, r, "twins", 1)
	l := startLoad(t, r, "twins", loadOptions{})
	r.Launch("broker-4")
	mesh.Eventually(t, 30*time.Second, "the second broker 1 says that it is refused", func() (bool, string) {
		log := r.LogTail("broker-4", 5000)
		return strings.Contains(log, "DUPLICATE_ID"), log
	})
	if err := r.Ready("broker-4"); err == nil {
		t.Error("two brokers with one id are ready")
	}
	l.progress("the arrival of a twin", resume)
	awaitEnd(t, r, "broker-4")
	l.finish()
}

// TestBrokerWithAnotherClustersDisk: a disk belongs to a cluster; a broker that
// brings another's refuses to start and touches nothing.
func TestBrokerWithAnotherClustersDisk(t *testing.T) {
	s := processes(t)
	a := s.start(rig.Options{})
	b := s.start(rig.Options{Brokers: 1, Controllers: 1})
	b.MustLeat("topic", "create", "theirs", "--partitions", "1")
	topic(t, a, "ours", 1)
	a.Kill("broker-3")
	b.Kill("broker-1")
	a.Set("broker-3", "log.dirs", b.Dir("broker-1"))
	a.Launch("broker-3")
	mesh.Eventually(t, 30*time.Second, "it says what is wrong", func() (bool, string) {
		log := a.LogTail("broker-3", 5000)
		return strings.Contains(log, "WRONG_CLUSTER") || strings.Contains(log, "cluster") || strings.Contains(log, "belongs to broker"), log
	})
	if err := a.Ready("broker-3"); err == nil {
		t.Error("it is ready, with another cluster's disk")
	}
	awaitEnd(t, a, "broker-3")
	b.Up("broker-1")
	b.Leader("theirs", 0)
}

// awaitEnd waits until a process that was refused has ended by itself.
func awaitEnd(t *testing.T, r *rig.Rig, name string) {
	t.Helper()
	mesh.Eventually(t, time.Minute, name+" ends", func() (bool, string) { return !r.Running(name), r.LogTail(name, 2000) })
}

// TestBrokerUnderANewAddress: a broker that comes back elsewhere is found there.
func TestBrokerUnderANewAddress(t *testing.T) {
	r := processes(t).plan(rig.Options{Brokers: 4})
	others := without(r.Names(), "broker-4")
	launchInOrder(r, others)
	for _, name := range others {
		r.AwaitUp(name, time.Minute)
	}
	topic(t, r, "moved", 1)
	l := startLoad(t, r, "moved", loadOptions{})
	moved := r.Leader("moved", 0)
	r.Kill(moved)
	// The fourth place, with its address, gets the id and the disk.
	r.Set("broker-4", "node.id", strings.TrimPrefix(moved, "broker-"))
	r.Set("broker-4", "log.dirs", r.Dir(moved))
	r.Launch("broker-4")
	l.progress("the death of "+moved, resume)
	mesh.Eventually(t, time.Minute, "the ISR is whole with the broker elsewhere", func() (bool, string) {
		all, err := r.Partitions("moved")
		if err != nil {
			return false, err.Error()
		}
		c, err := r.Cluster()
		for _, s := range c.Services {
			if s.Name == moved && s.Address != r.Addr("broker-4") {
				return false, fmt.Sprintf("%+v", s)
			}
		}
		return err == nil && len(all[0].ISR) == 3, fmt.Sprintf("%+v", all)
	})
	all, err := r.Partitions("moved")
	if err != nil {
		t.Fatal(err)
	}
	// Only if the moved one can be reached is this over.
	if leader := fmt.Sprintf("broker-%d", all[0].Leader); leader != moved {
		r.Kill(leader)
		l.progress("the death of "+leader, resume)
		r.Up(leader)
	}
	l.feed()
	if code := l.command.Wait(4 * time.Minute); code != 0 {
		t.Errorf("the producer exited with %d: %v", code, l.history.Failures(byGateway))
	}
	l.direct.stop()
	l.ends.stop()
	l.check()
	l.sameDigests()
}

func without(names []string, one string) []string {
	var left []string
	for _, n := range names {
		if n != one {
			left = append(left, n)
		}
	}
	return left
}

// launchInOrder starts etcd before the others.
func launchInOrder(r *rig.Rig, names []string) {
	for _, etcd := range r.Names(rig.Etcd) {
		r.Up(etcd)
		names = without(names, etcd)
	}
	r.Launch(names...)
}
