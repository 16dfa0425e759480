package groups

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// committing commits ever higher offsets for a group without members, and asks for
// them all the time: what is acknowledged must be there ever after, and what is told
// must have been committed.
type committing struct {
	t     *testing.T
	group string
	tp    client.TopicPartition
	wait  sync.WaitGroup
	stop  context.CancelFunc

	mu          sync.Mutex
	sent, acked int64
	asked       int
	last        time.Time // of the last acknowledgement
	longest     time.Duration
	refused     map[string]int
}

// attemptTimeout bounds one attempt to commit.
const attemptTimeout = 40 * time.Second

// startCommitting starts it with clients of its own.
func startCommitting(t *testing.T, r *rig.Rig, group string, tp client.TopicPartition) *committing {
	t.Helper()
	w := &committing{t: t, group: group, tp: tp, refused: map[string]int{}, last: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	// An attempt may take longer than any gap that a test allows: a client that sits it
	// out with a coordinator that is silent is found.
	patient := func(cfg *client.Config) { cfg.RequestTimeout = attemptTimeout }
	writer, reader := newClient(t, r, "writer", patient), newClient(t, r, "reader", patient)
	w.wait.Go(func() { w.write(ctx, writer) })
	w.wait.Go(func() { w.read(ctx, reader) })
	t.Cleanup(w.end)
	w.progress("the start")
	return w
}

func (w *committing) end() {
	w.stop()
	w.wait.Wait()
}

func (w *committing) write(ctx context.Context, c *client.Client) {
	for n := int64(1); ctx.Err() == nil; n++ {
		w.mu.Lock()
		w.sent = n
		w.mu.Unlock()
		err := commit(ctx, c, w.group, w.tp, n)
		if err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.refused[rpc.FromError(err).Reason.String()]++
			w.mu.Unlock()
		}
		if err == nil {
			w.acknowledged(n)
		}
	}
}

// commit commits an offset for a group without members.
func commit(ctx context.Context, c *client.Client, group string, tp client.TopicPartition, offset int64) error {
	res, err := c.CommitOffsets(ctx, group, []client.CommitOffset{{TopicPartition: tp, NextOffset: offset, LeaderEpoch: -1}})
	if err != nil {
		return err
	}
	return res.Refused[tp]
}

func (w *committing) acknowledged(n int64) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = n
	w.longest = max(w.longest, now.Sub(w.last))
	w.last = now
}

func (w *committing) read(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		floor := w.floor()
		got, err := c.FetchOffsets(ctx, w.group, []client.TopicPartition{w.tp})
		if err == nil {
			w.told("the group's coordinator", floor, got[0].NextOffset)
		}
	}
}

// nexts are the offsets alone, for people.
func nexts(of []client.CommittedOffset) (offsets []int64) {
	for _, o := range of {
		offsets = append(offsets, o.NextOffset)
	}
	return offsets
}

// floor is the last acknowledged offset: nothing lower may be told from now on.
func (w *committing) floor() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked
}

// told judges an offset that was asked for when floor was the last acknowledged one.
func (w *committing) told(by string, floor, offset int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	if floor > 0 && offset < floor || offset > w.sent {
		w.t.Errorf("%s told offset %d of group %s; %d was acknowledged before, and %d sent", by, offset, w.group, floor, w.sent)
	}
}

// progress waits until commits are acknowledged that are sent from now on, and
// returns the longest time without one since the last call.
func (w *committing) progress(after string) time.Duration {
	w.t.Helper()
	w.mu.Lock()
	sent, asked := w.sent, w.asked
	w.mu.Unlock()
	mesh.Eventually(w.t, limit, "commits after "+after, func() (bool, string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.acked > sent+3 && w.asked > asked+3, fmt.Sprintf("%d acknowledged, %d sent, refused %v", w.acked, w.sent, w.refused)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	gap := w.longest
	w.longest = 0
	return gap
}

// shardOwners names the coordinators that own shards, by shard; "": nobody does.
func shardOwners(t *testing.T, c *client.Client) []string {
	t.Helper()
	mesh.Eventually(t, limit, "somebody tells where things are", func() (bool, string) {
		err := c.Metadata().Refresh(within(t, limit))
		return err == nil, fmt.Sprint(err)
	})
	var owned []string
	for _, p := range lookUp(t, c, client.OffsetsTopic).Partitions {
		owner := ""
		if p.ShardOwner > 0 {
			owner = fmt.Sprintf("coordinator-%d", p.ShardOwner)
		}
		owned = append(owned, owner)
	}
	return owned
}

// shardOwner names the coordinator that owns a group's shard; "": nobody does.
func shardOwner(t *testing.T, c *client.Client, group string) string {
	t.Helper()
	all := shardOwners(t, c)
	return all[client.GroupShard(group, int32(len(all)))]
}

// groupsOf waits until the coordinators share the shards evenly, so that these stay where
// they are, and names as many groups that live in as many different shards of one of them.
func groupsOf(t *testing.T, r *rig.Rig, c *client.Client, coordinator string, n int) []string {
	t.Helper()
	tp := client.TopicPartition{TopicID: lookUp(t, c, "committed").ID}
	mesh.Eventually(t, limit, "the internal topic is made by a first commit", func() (bool, string) {
		err := commit(within(t, limit), c, "first", tp, 1) // its coordinator may not know the topic yet
		return err == nil, fmt.Sprint(err)
	})
	var found []string
	mesh.Eventually(t, limit, coordinator+" owns shards", func() (bool, string) {
		found = nil
		owned := shardOwners(t, c)
		has := map[string]int{}
		for _, owner := range owned {
			has[owner]++
		}
		for _, name := range r.Names(rig.Coordinator) {
			if has[name] < len(owned)/len(r.Names(rig.Coordinator)) {
				return false, fmt.Sprint(has)
			}
		}
		for i := 0; i < 500 && len(found) < n; i++ {
			group := fmt.Sprint("group-", i)
			if shard := client.GroupShard(group, int32(len(owned))); owned[shard] == coordinator {
				owned[shard] = "taken"
				found = append(found, group)
			}
		}
		return len(found) == n, fmt.Sprint(found)
	})
	return found
}

// TestCoordinatorKilled: the shards of a coordinator that is killed are served again
// after about a second, long before its lease ends. What was acknowledged is there,
// and members go on as if nothing had happened.
func TestCoordinatorKilled(t *testing.T) {
	const lease = 30 * time.Second // much longer than a machine that is busy takes to serve them
	r := start(t, rig.Options{Brokers: 3, Coordinators: 2, Set: []string{"coordinator.lease.ttl=" + lease.String()}})
	topic(t, r, "committed", 2)
	c := newClient(t, r, "killed")
	startLoad(t, r, "committed", 200)
	group := groupsOf(t, r, c, "coordinator-1", 1)[0]
	w := startCommitting(t, r, group, client.TopicPartition{TopicID: lookUp(t, c, "committed").ID})
	m := startMember(t, c, "member", memberOptions{ConsumerConfig: client.ConsumerConfig{
		Group: group + "-members", Topics: []string{"committed"}, AutoCommitInterval: 100 * time.Millisecond,
	}})
	awaitHolding(t, 2, m)
	var gaps []time.Duration
	for range count(2, 20) {
		victim := shardOwner(t, c, group)
		w.progress("a quiet time")
		r.Kill(victim)
		gap := w.progress("the death of " + victim)
		gaps = append(gaps, gap)
		if gap >= lease {
			t.Errorf("commits stood still for %v after the death of %s", gap, victim)
		}
		r.Up(victim)
		mesh.Eventually(t, limit, "both coordinators are registered", func() (bool, string) {
			n := len(c.Metadata().Coordinators())
			return n == 2 && shardOwner(t, c, group) != "", fmt.Sprint(n)
		})
	}
	t.Logf("longest times without a commit after a kill: %v (lease %v)", gaps, lease)
	if _, _, lost := m.counts(); lost > 0 {
		t.Errorf("the member lost its membership %d times: %v", lost, m.problems)
	}
}

// TestCoordinatorPaused: a coordinator stands still past its lease, and goes on. Its
// shards are served by another a lease's time and about a second later, and members go
// on. Of the first nothing is heard that is not true any more, and nothing that it is
// told takes effect; also not in a shard to which nobody has written for so long that
// the brokers have forgotten who did, and whose leader was restarted.
func TestCoordinatorPaused(t *testing.T) {
	lease := span(leaseTTL, 5*time.Second)
	r := start(t, rig.Options{Brokers: 3, Coordinators: 2, Set: []string{"broker.producer.id.expiration.ms=1000"}})
	topic(t, r, "committed", 1)
	c := newClient(t, r, "paused")
	startLoad(t, r, "committed", 100)
	tp := client.TopicPartition{TopicID: lookUp(t, c, "committed").ID}
	groups := groupsOf(t, r, c, "coordinator-1", 4)
	busy, written, quiet := groups[0], groups[1], groups[2]
	w := startCommitting(t, r, busy, tp)
	m := startMember(t, c, "member", memberOptions{ConsumerConfig: client.ConsumerConfig{
		Group: groups[3], Topics: []string{"committed"}, SessionTimeout: 4*lease + 4*time.Second, AutoCommitInterval: 100 * time.Millisecond,
	}})
	awaitHolding(t, 1, m)
	ctx := within(t, 10*time.Minute)
	for _, group := range []string{written, quiet} {
		if err := commit(ctx, c, group, tp, 5); err != nil {
			t.Fatal(err)
		}
	}
	old, next := newDirect(t, r, "coordinator-1"), newDirect(t, r, "coordinator-2")
	w.progress("a quiet time")
	began := time.Now()
	r.Pause("coordinator-1")
	mesh.Eventually(t, limit, "the second coordinator serves", func() (bool, string) {
		err := next.commit(ctx, written, tp, 7)
		return err == nil, fmt.Sprint(err)
	})
	served := time.Since(began)
	gap := w.progress("the standstill of coordinator-1")
	t.Logf("served by another after %v (lease %v); longest time without a commit of a client that asked the first: %v",
		served.Round(time.Millisecond), lease, gap.Round(time.Millisecond))
	// In the short form many tests share the machine.
	if most := 2*lease + span(10*time.Second, time.Second); served > most {
		t.Errorf("nobody served the shards for %v, which is more than %v", served, most)
	}
	if most := 2*lease + span(20*time.Second, 4*time.Second); gap > most {
		t.Errorf("a client stayed with the silent coordinator for %v, which is more than %v", gap, most)
	}
	shard := int(client.GroupShard(quiet, int32(len(lookUp(t, c, client.OffsetsTopic).Partitions))))
	leader := r.Leader(client.OffsetsTopic, shard)
	r.Stop(leader)
	r.LeaderOtherThan(client.OffsetsTopic, shard, leader)
	r.Up(leader)
	lasting(span(2*time.Second, 3*time.Minute)) // the brokers forget who wrote to the quiet shard
	askLate(ctx, t, r, old, w, tp, map[string]int64{written: 7, quiet: 5, busy: -1})
	for group, want := range map[string]int64{written: 7, quiet: 5} {
		got, err := c.FetchOffsets(ctx, group, []client.TopicPartition{tp})
		if err != nil || got[0].NextOffset != want {
			t.Errorf("group %s has %v, %v, want %d", group, nexts(got), err, want)
		}
	}
	w.progress("the return of coordinator-1")
	if _, _, lost := m.counts(); lost > 0 {
		t.Errorf("the member lost its membership %d times: %v", lost, m.problems)
	}
}

// askLate resumes a coordinator for which questions and commits wait, so that it sees
// them before it learns anything. What it answers must be true: each group's offset,
// or, where that is -1, what w has committed.
func askLate(ctx context.Context, t *testing.T, r *rig.Rig, old *direct, w *committing, tp client.TopicPartition, has map[string]int64) {
	t.Helper()
	var late sync.WaitGroup
	for group, want := range has {
		floor := w.floor()
		late.Go(func() {
			got, err := old.fetch(ctx, group, tp)
			switch {
			case err != nil:
			case want < 0:
				w.told("the old coordinator", floor, got)
			case got != want:
				t.Errorf("the old coordinator told offset %d of group %s, which has %d", got, group, want)
			}
		})
		late.Go(func() {
			if err := old.commit(ctx, group, tp, 3); err == nil {
				t.Errorf("the old coordinator took a commit of group %s", group)
			}
		})
	}
	old.sentAll(2 * len(has))
	r.Resume("coordinator-1")
	late.Wait()
	t.Logf("the old coordinator answered: %v", old.answers())
}

// believer is whoever believes in a coordinator that another has fenced.
type believer struct {
	t     *testing.T
	old   *direct
	group string
	tp    client.TopicPartition

	mu       sync.Mutex
	kept     int64 // the last acknowledged offset
	fenced   bool  // high is committed with the other coordinator
	onlyAsks bool  // commits no more
	after    int   // rounds that ended since it was fenced; the first may have begun before
}

// high is what the other coordinator is told to commit.
const high = 1_000_000

// ask commits ever higher offsets and asks for them until ctx ends.
func (b *believer) ask(ctx context.Context) {
	for n := int64(1); ctx.Err() == nil; n++ {
		b.mu.Lock()
		onlyAsks := b.onlyAsks
		b.mu.Unlock()
		committed := !onlyAsks && b.old.commit(ctx, b.group, b.tp, n) == nil
		got, failure := b.old.fetch(ctx, b.group, b.tp)
		b.mu.Lock()
		if committed {
			b.kept = n
		}
		if b.fenced {
			b.after++
		}
		if failure == nil && got < b.kept || b.fenced && failure == nil && got < high && b.after > 1 {
			b.t.Errorf("the first tells offset %d after %d was acknowledged; fenced: %v", got, b.kept, b.fenced)
		}
		if b.fenced && committed && b.after > 1 {
			b.t.Errorf("the first acknowledged offset %d after the second had fenced the shard", n)
		}
		b.mu.Unlock()
	}
}

func (b *believer) acknowledged() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept
}

// mark sets one of its flags and waits until so many rounds have ended since.
func (b *believer) mark(flag *bool, rounds int) {
	b.t.Helper()
	b.mu.Lock()
	*flag = true
	enough := b.after + rounds
	b.mu.Unlock()
	mesh.Eventually(b.t, limit, "the first is asked after it was fenced", func() (bool, string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.after >= enough, fmt.Sprint(b.after)
	})
}

// TestTwoCoordinatorsClaimOneShard: a coordinator is severed from etcd and the
// controllers, and reaches brokers and clients: when its lease has ended another owns
// its shards, and nobody can tell the first. What the first acknowledged is there,
// until the other has fenced the shard; from then on it acknowledges nothing and
// tells no old offset.
func TestTwoCoordinatorsClaimOneShard(t *testing.T) {
	// The first must not lose the shard before it is severed, should it stand still.
	r := start(t, rig.Options{Brokers: 3, Coordinators: 2, Set: []string{"coordinator.lease.ttl=6s"}})
	topic(t, r, "committed", 1)
	c := newClient(t, r, "claimed")
	tp := client.TopicPartition{TopicID: lookUp(t, c, "committed").ID}
	group := groupsOf(t, r, c, "coordinator-1", 1)[0]
	old := newDirect(t, r, "coordinator-1")
	ctx := within(t, 5*time.Minute)
	b := &believer{t: t, old: old, group: group, tp: tp}
	stop, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	t.Cleanup(func() { cancel(); wait.Wait() })
	wait.Go(func() { b.ask(stop) })
	mesh.Eventually(t, limit, "the first acknowledges commits", func() (bool, string) {
		return b.acknowledged() > 0, fmt.Sprint(old.answers())
	})
	r.Net.Stall("coordinator-1", r.Names(rig.Etcd, rig.Controller)...)
	mesh.Eventually(t, limit, "the second coordinator owns the shard", func() (bool, string) {
		owner := shardOwner(t, c, group)
		return owner == "coordinator-2", owner
	})
	got, err := c.FetchOffsets(ctx, group, []client.TopicPartition{tp})
	acknowledged := b.acknowledged()
	if err != nil || got[0].NextOffset < acknowledged {
		t.Errorf("the second tells %v, %v; the first had acknowledged %d", nexts(got), err, acknowledged)
	}
	if err := commit(ctx, c, group, tp, high); err != nil {
		t.Fatal(err)
	}
	b.mark(&b.fenced, 6)
	b.mark(&b.onlyAsks, 2) // by then no commit is on its way: the shard may come back to the first
	r.Net.HealAll()
	mesh.Eventually(t, limit, "the first is registered again", func() (bool, string) {
		return len(c.Metadata().Coordinators()) == 2, fmt.Sprint(c.Metadata().Coordinators())
	})
	cancel()
	wait.Wait()
	t.Logf("the first acknowledged %d commits before it was fenced; its answers: %v", acknowledged, old.answers())
	if got, err := c.FetchOffsets(ctx, group, []client.TopicPartition{tp}); err != nil || got[0].NextOffset != high {
		t.Errorf("the group has %v, %v", nexts(got), err)
	}
}
