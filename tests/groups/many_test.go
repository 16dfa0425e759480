package groups

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// crowd is many bare members of one client: they take in what they are assigned.
type crowd struct {
	t       *testing.T
	members []*client.Member
	holds   []atomic.Int64
	told    atomic.Int64 // assignments
	fenced  atomic.Int64
	cancel  context.CancelFunc
	wait    sync.WaitGroup
}

// startCrowd lets n members join at once, each with its own configuration.
func startCrowd(t *testing.T, c *client.Client, n int, config func(i int) client.MemberConfig) *crowd {
	t.Helper()
	d := &crowd{t: t, holds: make([]atomic.Int64, n)}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	for i := range n {
		m, err := c.JoinGroup(config(i))
		if err != nil {
			t.Fatal(err)
		}
		d.members = append(d.members, m)
		d.wait.Go(func() { d.live(ctx, m, &d.holds[i]) })
	}
	t.Cleanup(func() {
		cancel()
		d.wait.Wait()
		for _, m := range d.members {
			m.Detach()
		}
	})
	return d
}

func (d *crowd) live(ctx context.Context, m *client.Member, holds *atomic.Int64) {
	for {
		e, err := m.Next(ctx)
		switch {
		case err != nil:
			return
		case e.Fenced != nil:
			d.fenced.Add(1)
			return
		case e.Assignment != nil:
			d.told.Add(1)
			owned := []client.OwnedPartition{}
			for _, p := range e.Assignment.Partitions {
				owned = append(owned, p.OwnedPartition)
			}
			m.Ack(e.Assignment.MemberEpoch, owned)
			holds.Store(int64(len(owned)))
		}
	}
}

// share is the fewest and the most that a member holds, and all together.
func (d *crowd) share() (least, most, total int64) {
	var all []int64
	for i := range d.holds {
		n := d.holds[i].Load()
		all = append(all, n)
		total += n
	}
	return slices.Min(all), slices.Max(all), total
}

// TestThousandMembers: a thousand members (fewer in the short form) join a group over
// five thousand partitions at once. They cost some assignments, as many as fit into
// the time that the joins took at one in 100 ms, not one each; everybody has its
// share, nobody loses its session, and one that leaves moves its own share only.
func TestThousandMembers(t *testing.T) {
	members, partitions := count(150, 1000), count(450, 5000)
	r := start(t, rig.Options{})
	topic(t, r, "many", partitions)
	c := newClient(t, r, "many")
	began := time.Now()
	d := startCrowd(t, c, members, func(int) client.MemberConfig {
		return client.MemberConfig{Group: "many", Topics: []string{"many"}, SessionTimeout: 20 * time.Second}
	})
	share := int64(partitions / members)
	mesh.Eventually(t, 3*time.Minute, "everybody has its share", func() (bool, string) {
		least, most, total := d.share()
		return least >= share && most <= share+1 && total == int64(partitions), fmt.Sprintf("%d to %d, %d in all; %d fenced", least, most, total, d.fenced.Load())
	})
	took := time.Since(began)
	found := describe(t, c, "many")
	kept := since(found, 0)
	t.Logf("%d members share %d partitions %v after the first began to join; rebalances: %d (%d moves), assignments told: %d",
		members, partitions, took.Round(time.Millisecond), kept.rebalances, kept.moved, d.told.Load())
	// A machine on which joins come in slowly may have more of them in the short form.
	if most := min(2+int(took/(100*time.Millisecond)), count(members*2/3, members/5)); kept.rebalances > most {
		t.Errorf("%d joins within %v cost %d assignments: %v", members, took, kept.rebalances, kept.causes)
	}
	mesh.Eventually(t, limit, "the group is stable", func() (bool, string) {
		s := describe(t, c, "many").Summary
		return s.State == coordinatorv1.GroupState_GROUP_STATE_STABLE && int(s.Members) == members, s.String()
	})

	told := d.told.Load()
	left := time.Now()
	if err := d.members[0].Leave(within(t, limit)); err != nil {
		t.Fatal(err)
	}
	lost := d.holds[0].Swap(0)
	mesh.Eventually(t, limit, "the others hold everything", func() (bool, string) {
		_, _, total := d.share()
		return total == int64(partitions), fmt.Sprintf("%d of %d", total, partitions)
	})
	after := since(describe(t, c, "many"), found.Summary.GroupEpoch)
	t.Logf("one of them left: its %d partitions are held by others after %v; moved: %d, assignments told: %d", lost, time.Since(left).Round(time.Millisecond), after.moved, d.told.Load()-told)
	if int64(after.moved) != lost {
		t.Errorf("%d partitions moved: %v", after.moved, after.causes)
	}
	if n := d.fenced.Load(); n > 0 {
		t.Errorf("%d members were expelled", n)
	}
}

// TestThousandGroups: a thousand groups (fewer in the short form), each of one member,
// are served, listed and described, and their commits kept.
func TestThousandGroups(t *testing.T) {
	groups := count(150, 1000)
	r := start(t, rig.Options{Coordinators: 2})
	topic(t, r, "groups", 2)
	c := newClient(t, r, "groups")
	name := func(i int) string { return fmt.Sprintf("group-%04d", i) }
	began := time.Now()
	d := startCrowd(t, c, groups, func(i int) client.MemberConfig {
		return client.MemberConfig{Group: name(i), Topics: []string{"groups"}, SessionTimeout: 20 * time.Second}
	})
	mesh.Eventually(t, 3*time.Minute, "every group has its partitions", func() (bool, string) {
		least, _, total := d.share()
		return least == 2, fmt.Sprintf("%d in all; %d fenced", total, d.fenced.Load())
	})
	t.Logf("%d groups have their partitions after %v", groups, time.Since(began).Round(time.Millisecond))
	tp := client.TopicPartition{TopicID: lookUp(t, c, "groups").ID, Partition: 1}
	ctx := within(t, 2*time.Minute)
	for i, m := range d.members {
		offset := []client.CommitOffset{{TopicPartition: tp, NextOffset: int64(i), LeaderEpoch: -1, AssignmentEpoch: owned(t, c, name(i), tp.Partition)}}
		if res, err := m.Commit(ctx, offset); err != nil || len(res.Refused) > 0 {
			t.Fatalf("%s: %v %v", name(i), err, res.Refused)
		}
	}
	listed, err := c.ListGroups(ctx)
	if err != nil || len(listed) != groups {
		t.Errorf("%d groups are listed, %v", len(listed), err)
	}
	r.Kill("coordinator-1")
	for i := range groups {
		got, err := c.FetchOffsets(ctx, name(i), []client.TopicPartition{tp})
		if err != nil || got[0].NextOffset != int64(i) {
			t.Fatalf("%s has %v, %v", name(i), nexts(got), err)
		}
	}
	if n := d.fenced.Load(); n > 0 {
		t.Errorf("%d members were expelled", n)
	}
}

// owned waits until the only member of a group has said that a partition is its own,
// and returns since which epoch.
func owned(t *testing.T, c *client.Client, group string, partition int32) (epoch int64) {
	t.Helper()
	mesh.Eventually(t, limit, fmt.Sprintf("the member of %s owns partition %d", group, partition), func() (bool, string) {
		d := describe(t, c, group)
		for _, m := range d.Members {
			for _, o := range m.Owned {
				if o.Partition == partition {
					epoch = o.AssignmentEpoch
					return true, ""
				}
			}
		}
		return false, d.String()
	})
	return epoch
}

// TestHeartbeatsBesideData: pings are answered in time while readers of the same
// client and of the gateway take in all that the mesh has.
//
// case 42
func TestHeartbeatsBesideData(t *testing.T) {
	const session = 12 * time.Second // what is left when a ping is late outlasts a short standstill
	r := start(t, rig.Options{})
	topic(t, r, "data", 4)
	c := newClient(t, r, "data")
	fillLarge(t, c, "data", 400, 64<<10)
	ctx := within(t, 5*time.Minute)
	id := lookUp(t, c, "data").ID
	reading, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	t.Cleanup(func() { cancel(); readers.Wait() })
	var read atomic.Int64
	for n := range int32(4) {
		readers.Go(func() { saturate(reading, t, c, client.TopicPartition{TopicID: id, Partition: n}, &read) })
	}
	d := startCrowd(t, c, 20, func(int) client.MemberConfig {
		return client.MemberConfig{Group: "data", Topics: []string{"data"}, SessionTimeout: session}
	})
	mesh.Eventually(t, limit, "everybody is attached and data flows", func() (bool, string) {
		_, _, total := d.share()
		detached := slices.ContainsFunc(d.members, func(m *client.Member) bool { return m.DeliverUntil().IsZero() })
		return total == 4 && !detached && read.Load() > 16<<20, fmt.Sprint(total, read.Load())
	})
	before, began := read.Load(), time.Now()
	least := session
	deadline := time.Now().Add(span(session*3/2, 2*time.Minute))
	mesh.Eventually(t, 5*time.Minute, "the end of the readings", func() (bool, string) {
		for _, m := range d.members {
			least = min(least, time.Until(m.DeliverUntil()))
		}
		return time.Now().After(deadline), ""
	})
	rate := float64(read.Load()-before) / time.Since(began).Seconds() / (1 << 20)
	t.Logf("beside %.0f MiB/s, the least that was left of a session of %v: %v", rate, session, least.Round(time.Millisecond))
	if least < session/6 || d.fenced.Load() > 0 {
		t.Errorf("a session of %v came within %v of its end, %d ended", session, least, d.fenced.Load())
	}
}

// saturate reads a partition again and again.
func saturate(ctx context.Context, t *testing.T, c *client.Client, tp client.TopicPartition, read *atomic.Int64) {
	f, err := c.NewFetcher(client.FetcherConfig{})
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	f.Add(client.FetchStart{TopicPartition: tp, Topic: "data", LastEpoch: -1})
	for {
		e, err := f.Next(ctx)
		if err != nil {
			return
		}
		read.Add(int64(e.Bytes))
		again := e.NextOffset >= e.HighWatermark
		e.Release()
		if again {
			f.Add(client.FetchStart{TopicPartition: tp, Topic: "data", LastEpoch: -1})
		}
	}
}
