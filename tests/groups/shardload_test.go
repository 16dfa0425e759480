package groups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// steadyOwners lets no coordinator that stands still for a moment lose its shards: only
// who is killed does, which does not wait for the lease.
const steadyOwners = "coordinator.lease.ttl=20s"

// shardful is groups of one shard, each with a committed offset in every partition.
type shardful struct {
	t          *testing.T
	client     *client.Client
	topic      *client.Topic
	groups     []string
	partitions int
	round      int    // how often everything was committed before
	metadata   string // of every offset
}

// newShardful names groups of one shard, of which coordinator-1 is the owner.
func newShardful(t *testing.T, r *rig.Rig, groups, partitions int) *shardful {
	t.Helper()
	topic(t, r, "committed", partitions)
	s := &shardful{t: t, client: newClient(t, r, "large"), partitions: partitions}
	s.topic = lookUp(t, s.client, "committed")
	first := groupsOf(t, r, s.client, "coordinator-1", 1)[0] // it has the shards made
	mesh.Eventually(t, limit, "the shard takes commits for the topic", func() (bool, string) {
		err := commit(within(t, limit), s.client, first, client.TopicPartition{TopicID: s.topic.ID}, 1)
		return err == nil, fmt.Sprint(err)
	})
	shards := int32(len(lookUp(t, s.client, client.OffsetsTopic).Partitions))
	for n := 0; len(s.groups) < groups; n++ {
		if name := fmt.Sprint("large-", n); client.GroupShard(name, shards) == client.GroupShard(first, shards) {
			s.groups = append(s.groups, name)
		}
	}
	return s
}

// offset is what is committed for a partition of a group.
func (s *shardful) offset(group, partition int) int64 {
	return int64((s.round*len(s.groups)+group)*s.partitions+partition) + 1
}

// each calls f for every group, some at a time, until one fails.
func (s *shardful) each(f func(ctx context.Context, group int) error) {
	s.t.Helper()
	ctx := within(s.t, 10*time.Minute)
	var next atomic.Int64
	var wait sync.WaitGroup
	var failed atomic.Bool
	for range 32 {
		wait.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(s.groups) && !failed.Load(); n = int(next.Add(1)) - 1 {
				if err := f(ctx, n); err != nil {
					failed.Store(true)
					s.t.Errorf("group %s: %v", s.groups[n], err)
				}
			}
		})
	}
	wait.Wait()
	if failed.Load() {
		s.t.FailNow()
	}
}

// commit commits the offsets of all partitions of a group in one request.
func (s *shardful) commit(ctx context.Context, group int) error {
	all := make([]client.CommitOffset, s.partitions)
	for p := range all {
		tp := client.TopicPartition{TopicID: s.topic.ID, Partition: int32(p)}
		all[p] = client.CommitOffset{TopicPartition: tp, NextOffset: s.offset(group, p), LeaderEpoch: -1, Metadata: s.metadata}
	}
	res, err := s.client.CommitOffsets(ctx, s.groups[group], all)
	if err == nil && len(res.Refused) > 0 {
		err = fmt.Errorf("refused: %v", res.Refused)
	}
	return err
}

// check asks for all offsets of a group.
func (s *shardful) check(ctx context.Context, group int) error {
	got, err := s.client.FetchOffsets(ctx, s.groups[group], nil)
	if err != nil {
		return err
	}
	if len(got) != s.partitions {
		return fmt.Errorf("offsets of %d partitions are there, of %d", len(got), s.partitions)
	}
	for _, o := range got {
		if want := s.offset(group, int(o.Partition)); o.NextOffset != want {
			return fmt.Errorf("partition %d has offset %d, want %d", o.Partition, o.NextOffset, want)
		}
	}
	return nil
}

// asking asks one coordinator for an offset, all the time, and keeps what it answers.
type asking struct {
	mu     sync.Mutex
	counts map[string]int
	fatal  error // an answer that nobody should try again after
	spans  map[string][2]time.Time
	wrong  error
}

// startAsking asks until ctx ends.
func (s *shardful) startAsking(ctx context.Context, wait *sync.WaitGroup, d *direct) *asking {
	a := &asking{counts: map[string]int{}, spans: map[string][2]time.Time{}}
	wait.Go(func() {
		for ctx.Err() == nil {
			got, err := d.fetch(ctx, s.groups[0], client.TopicPartition{TopicID: s.topic.ID})
			if ctx.Err() == nil {
				a.answer(got, err, s.offset(0, 0))
			}
		}
	})
	return a
}

func (a *asking) answer(got int64, err error, want int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	reason := "ok"
	switch {
	case err == nil && got != want:
		a.wrong = fmt.Errorf("offset %d was told, want %d", got, want)
	case err != nil:
		e := rpc.FromError(err)
		reason = e.Reason.String()
		if !rpc.Retryable(e) {
			a.fatal = err
		}
	}
	now := time.Now()
	if a.counts[reason]++; a.counts[reason] == 1 {
		a.spans[reason] = [2]time.Time{now, now}
	}
	a.spans[reason] = [2]time.Time{a.spans[reason][0], now}
}

// TestLargeShardIsLoaded: one shard holds a million committed offsets (fewer in the
// short form), none of which compaction could drop. Its coordinator is killed: another
// loads it, and tells whoever asks meanwhile that it is loading, which is to be tried
// again; then every acknowledged offset is there.
func TestLargeShardIsLoaded(t *testing.T) {
	r := start(t, rig.Options{Brokers: 3, Coordinators: 2, Set: []string{steadyOwners}})
	s := newShardful(t, r, count(400, 10_000), count(50, 100))
	total := len(s.groups) * s.partitions
	began := time.Now()
	s.each(s.commit)
	took := time.Since(began)
	t.Logf("%d offsets of %d groups are committed in %v, %.0f/s", total, len(s.groups), took.Round(time.Millisecond), float64(total)/took.Seconds())
	for range count(1, 4) {
		s.failOver(r)
	}
	began = time.Now()
	s.each(s.check)
	t.Logf("all %d offsets are there, asked for in %v", total, time.Since(began).Round(time.Millisecond))
}

var loadSeconds = regexp.MustCompile(`(?m)^(leat_\S*load\S*_(?:sum|count)\S*) (\S+)$`)

// failOver kills the owner of the shard and waits until it is served again.
func (s *shardful) failOver(r *rig.Rig) {
	s.t.Helper()
	victim := shardOwner(s.t, s.client, s.groups[0])
	heir := r.Others(victim, rig.Coordinator)[0]
	d := newDirect(s.t, r, heir)
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer wait.Wait()
	defer cancel()
	asked := s.startAsking(ctx, &wait, d)
	mesh.Eventually(s.t, limit, heir+" is asked", func() (bool, string) {
		asked.mu.Lock()
		defer asked.mu.Unlock()
		return asked.counts["ERROR_REASON_NOT_COORDINATOR"] > 0, fmt.Sprint(asked.counts)
	})
	killed := time.Now()
	r.Kill(victim)
	last := len(s.groups) - 1
	served := within(s.t, 5*time.Minute)
	if err := s.commit(served, last); err != nil {
		s.t.Fatalf("a commit after the death of %s: %v", victim, err)
	}
	committed := time.Since(killed)
	if err := s.check(served, 0); err != nil {
		s.t.Fatalf("group %s after the death of %s: %v", s.groups[0], victim, err)
	}
	fetched := time.Since(killed)
	mesh.Eventually(s.t, limit, heir+" answers", func() (bool, string) {
		asked.mu.Lock()
		defer asked.mu.Unlock()
		return asked.counts["ok"] > 0, fmt.Sprint(asked.counts)
	})
	cancel()
	wait.Wait()
	loading := typev1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING.String()
	since := func(reason string) time.Duration { return asked.spans[reason][0].Sub(killed).Round(time.Millisecond) }
	s.t.Logf("%s is killed: a commit is served after %v, then a question at %v; %s was first heard to be loading after %v and to serve after %v; answers: %v; %v",
		victim, committed.Round(time.Millisecond), fetched.Round(time.Millisecond), heir, since(loading), since("ok"), asked.counts,
		loadSeconds.FindAllString(r.Metrics(served, heir), -1))
	if asked.fatal != nil || asked.wrong != nil {
		s.t.Errorf("%s answered what nobody tries again after: %v; %v", heir, asked.fatal, asked.wrong)
	}
	if *full && len(s.groups)*s.partitions >= 1_000_000 && asked.counts[loading] == 0 {
		s.t.Errorf("%s never told that it was loading: %v", heir, asked.counts)
	}
	r.Up(victim)
	mesh.Eventually(s.t, limit, "both coordinators are registered", func() (bool, string) {
		n := len(s.client.Metadata().Coordinators())
		return n == 2 && shardOwner(s.t, s.client, s.groups[0]) != "", fmt.Sprint(n)
	})
}

// TestShardIsCompacted: the same offsets are committed again and again, millions of
// times in all (fewer in the short form, with much metadata). The shard holds little
// more than the segment that is written to, is loaded soon, and has the last of all.
func TestShardIsCompacted(t *testing.T) {
	r := start(t, rig.Options{Coordinators: 2, Set: []string{steadyOwners, "broker.log.cleaner.backoff.ms=500"}})
	s := newShardful(t, r, count(10, 200), count(50, 100))
	const segment = 64 << 20 // that of the topic, which nobody can change
	if !*full {
		s.metadata = strings.Repeat("m", 4000)
	}
	shard := client.GroupShard(s.groups[0], int32(len(lookUp(t, s.client, client.OffsetsTopic).Partitions)))
	s.each(s.commit)
	once := shardBytes(t, r, shard)
	rounds := count(100, 150)
	for s.round = 1; s.round < rounds-1; s.round++ {
		s.each(s.commit)
	}
	s.each(s.commit)
	total, most := once*int64(rounds), int64(segment+segment/4)+2*once
	if total < 2*most {
		t.Fatalf("all commits take %d bytes, too few to tell whether %d are kept", total, most)
	}
	mesh.Eventually(t, 2*limit, "the shard is small", func() (bool, string) {
		size := shardBytes(t, r, shard)
		return size <= most, fmt.Sprintf("%d bytes of about %d, want at most %d", size, total, most)
	})
	t.Logf("%d commits of %d offsets took about %d bytes; the shard holds %d, in segments of %d",
		rounds*len(s.groups)*s.partitions, len(s.groups)*s.partitions, total, shardBytes(t, r, shard), segment)
	s.failOver(r)
	s.each(s.check)
}

// shardBytes is how large the log of a shard is at the first broker.
func shardBytes(t *testing.T, r *rig.Rig, shard int32) int64 {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(r.Dir("broker-1"), fmt.Sprintf("%s-%d", client.OffsetsTopic, shard), "*.log"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("the log of shard %d has %d segments, %v", shard, len(segments), err)
	}
	var size int64
	for _, path := range segments {
		switch info, err := os.Stat(path); {
		case err == nil:
			size += info.Size()
		case !errors.Is(err, fs.ErrNotExist): // it may just have been cleaned
			t.Fatal(err)
		}
	}
	return size
}
