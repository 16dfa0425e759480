package groups

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// member is a consumer of the test's own process, polled until it is ended.
type member struct {
	t      *testing.T
	name   string
	k      *client.Consumer
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu        sync.Mutex
	holds     map[int]time.Time // since when
	changes   int               // assignments, revocations and losses told
	gained    int               // partitions told to be its own
	lost      int               // memberships lost
	delivered int
	first     map[int]time.Time // first record since the last assignment
	problems  []error
}

// memberOptions are a consumer's, and what is done with records.
type memberOptions struct {
	client.ConsumerConfig
	handle func(m *member, got []client.ConsumerRecord) // nil: nothing
}

// startMember starts one; it leaves when the test ends, if it is there then.
func startMember(t *testing.T, c *client.Client, name string, o memberOptions) *member {
	t.Helper()
	m := &member{t: t, name: name, holds: map[int]time.Time{}, first: map[int]time.Time{}}
	o.Reset = client.ResetEarliest
	o.OnAssigned = func(p []client.AssignedPartition) { m.changed(p, true, false) }
	o.OnRevoked = func(p []client.AssignedPartition) { m.changed(p, false, false) }
	o.OnLost = func(p []client.AssignedPartition) { m.changed(p, false, true) }
	var err error
	if m.k, err = c.NewConsumer(o.ConsumerConfig); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.wait.Go(func() { m.poll(ctx, o.handle) })
	t.Cleanup(func() { m.end() })
	return m
}

func (m *member) changed(parts []client.AssignedPartition, gained, lost bool) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes++; lost {
		m.lost++
	}
	for _, n := range numbers(parts) {
		delete(m.first, n)
		if gained {
			m.gained++
			m.holds[n] = now
		} else {
			delete(m.holds, n)
		}
	}
}

func (m *member) poll(ctx context.Context, handle func(*member, []client.ConsumerRecord)) {
	for ctx.Err() == nil {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		got, err := m.k.Poll(short, 0)
		waited := idle(short, err)
		cancel()
		now := time.Now()
		m.mu.Lock()
		if err != nil && !waited && ctx.Err() == nil {
			m.problems = append(m.problems, err)
		}
		for i := range got {
			m.delivered++
			if n := int(got[i].Partition); m.first[n].IsZero() {
				m.first[n] = now
			}
		}
		m.mu.Unlock()
		if handle != nil && len(got) > 0 {
			handle(m, got)
		}
		m.k.Release()
	}
}

// end leaves the group in order, once; it returns when the leave was begun.
func (m *member) end() time.Time {
	m.cancel()
	m.wait.Wait()
	began := time.Now()
	if m.k == nil {
		return began
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := m.k.Close(ctx); err != nil {
		m.t.Errorf("%s: close: %v", m.name, err)
	}
	m.k = nil
	return began
}

// has is what it holds, in order.
func (m *member) has() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := []int{}
	for n := range m.holds {
		held = append(held, n)
	}
	slices.Sort(held)
	return held
}

// counts tells how many changes and gained partitions it was told of, and how many
// memberships it lost.
func (m *member) counts() (changes, gained, lost int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes, m.gained, m.lost
}

// awaitHolding waits until members hold so many partitions each.
func awaitHolding(t *testing.T, n int, members ...*member) {
	t.Helper()
	mesh.Eventually(t, limit, fmt.Sprintf("%d members hold %d partitions each", len(members), n), func() (bool, string) {
		for _, m := range members {
			if held := m.has(); len(held) != n {
				return false, fmt.Sprintf("%s holds %v", m.name, held)
			}
		}
		return true, ""
	})
}

// TestHandover: a member that leaves in order hands its partitions over at once:
// from the beginning of its leave, with its last commit, until its successor is told
// and until that has the first record. The round trip of a bare commit in the same
// minute stands beside it.
func TestHandover(t *testing.T) {
	const partitions = 4
	r := start(t, rig.Options{Brokers: 3})
	topic(t, r, "handed", partitions)
	startLoad(t, r, "handed", 400)
	c := newClient(t, r, "handover")
	id := lookUp(t, c, "handed").ID
	config := memberOptions{ConsumerConfig: client.ConsumerConfig{Group: "handover", Topics: []string{"handed"}, AutoCommitInterval: time.Second}}
	stays := startMember(t, c, "who stays", config)
	awaitHolding(t, partitions, stays)
	var told, read, commits []time.Duration
	for round := range count(15, 200) {
		leaves := startMember(t, c, fmt.Sprint("who leaves ", round), config)
		awaitHolding(t, partitions/2, stays, leaves)
		for range 3 {
			began := time.Now()
			if _, err := c.CommitOffsets(within(t, limit), "bare", []client.CommitOffset{{TopicPartition: client.TopicPartition{TopicID: id}, NextOffset: int64(round), LeaderEpoch: -1}}); err != nil {
				t.Fatal(err)
			}
			commits = append(commits, time.Since(began))
		}
		handed := leaves.has()
		began := leaves.end()
		awaitHolding(t, partitions, stays)
		mesh.Eventually(t, limit, "records of what was handed over", func() (bool, string) {
			stays.mu.Lock()
			defer stays.mu.Unlock()
			for _, n := range handed {
				if stays.first[n].IsZero() {
					return false, fmt.Sprintf("none of partition %d", n)
				}
			}
			return true, ""
		})
		stays.mu.Lock()
		for _, n := range handed {
			told = append(told, stays.holds[n].Sub(began))
			read = append(read, stays.first[n].Sub(began))
		}
		stays.mu.Unlock()
	}
	kept := since(describe(t, c, "handover"), 0)
	t.Logf("a graceful leave until the successor is told: p50 %v, p99 %v; until it has a record: p50 %v, p99 %v; a bare commit: p50 %v, p99 %v; longest without an owner by the ledger: %v",
		quantile(told, 0.5), quantile(told, 0.99), quantile(read, 0.5), quantile(read, 0.99), quantile(commits, 0.5), quantile(commits, 0.99), kept.longest)
	// It takes a commit, the leave and the new assignment, one after the other.
	if p50, most := quantile(told, 0.5), 100*time.Millisecond+4*quantile(commits, 0.99); p50 > most {
		t.Errorf("half of all leaves took longer than %v", p50)
	}
	if _, _, lost := stays.counts(); lost > 0 || len(stays.problems) > 0 {
		t.Errorf("who stays lost its membership %d times; %v", lost, stays.problems)
	}
}
