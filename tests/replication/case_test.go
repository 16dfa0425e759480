package replication

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/client"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/tests/internal/history"
	"github.com/leat-io/leat/tests/internal/mesh"
	"github.com/leat-io/leat/tests/internal/rig"
)

// TestUnreplicatedTailIsCutByEpoch is case 1: what A alone has appended, with
// acks=1, while nobody hears it, is cut when A follows B; also when A led once
// more in between and B starts again. The replicas are byte-identical in the end.
func TestUnreplicatedTailIsCutByEpoch(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "epochs", 1, "unclean.leader.election.enable=false")
		if res := r.LeatInput("kept-1\nkept-2\n", "produce", "epochs"); res.Code != 0 {
			t.Fatal(res)
		}
		for range count(1, 5) {
			a := r.Leader("epochs", 0)
			r.Net.Stall(a, r.Others(a, rig.Broker)...)
			// The gateway may send it to A, or already to its successor.
			r.LeatInput("tail\n", "produce", "epochs", "--acks", "1", "--delivery-timeout", "2s")
			b := r.LeaderOtherThan("epochs", 0, a)
			if res := r.LeatInput("later\n", "produce", "epochs", "--delivery-timeout", "20s"); res.Code != 0 {
				t.Fatal(res)
			}
			r.Net.HealAll()
			r.WaitInSync("epochs", time.Minute)
			r.Kill(b)
			r.LeaderOtherThan("epochs", 0, b)
			if res := r.LeatInput("last\n", "produce", "epochs", "--delivery-timeout", "20s"); res.Code != 0 {
				t.Fatal(res)
			}
			r.Up(b)
			r.WaitInSync("epochs", time.Minute)
			r.SameLogs("epochs", time.Minute)
		}
		if out := r.MustLeat("consume", "epochs", "--from-beginning", "--follow=false"); !strings.HasPrefix(out, "kept-1\nkept-2\n") || !strings.Contains(out, "later\n") || !strings.Contains(out, "last\n") {
			t.Errorf("read %q", out)
		}
	})
}

// TestRetryAfterFailoverIsOneCopy is case 23: the same batch, with its sequence,
// sent again after the leader has been killed, also to the new leader, has one
// copy and its original offset. Case 22: a later sequence is refused until the
// earlier one is stored.
func TestRetryAfterFailoverIsOneCopy(t *testing.T) {
	inForms(t, func(t *testing.T, s *starter) {
		r := s.start(rig.Options{})
		topic(t, r, "retry", 1)
		c := newClient(t, r)
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		meta, err := c.Metadata().Topic(ctx, "retry")
		if err != nil {
			t.Fatal(err)
		}
		tp := client.TopicPartition{TopicID: meta.ID, Partition: 0}
		const producer = 1 << 50 // of no block
		send := func(sequence int32) (int64, error) {
			return produceUntilSure(ctx, c, tp, batchOf(t, producer, sequence))
		}
		if _, err := send(1); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, typev1.ErrorReason_ERROR_REASON_UNKNOWN_PRODUCER_ID) {
			t.Errorf("sequence 1 before 0: %v", err)
		}
		for sequence := range int32(6) {
			base, err := send(sequence)
			if err != nil || base != int64(sequence) {
				t.Fatalf("sequence %d is at %d, %v", sequence, base, err)
			}
		}
		for range count(2, 6) {
			leader := r.Leader("retry", 0)
			r.Kill(leader)
			for _, sequence := range []int32{1, 5, 3} {
				if base, err := send(sequence); err != nil || base != int64(sequence) {
					t.Errorf("sequence %d sent again is at %d, %v", sequence, base, err)
				}
			}
			r.Up(leader)
			r.WaitInSync("retry", time.Minute)
		}
		if _, err := send(8); !rpc.IsReason(err, typev1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE) {
			t.Errorf("sequence 8 after 5: %v", err)
		}
		if base, err := send(6); err != nil || base != 6 {
			t.Errorf("sequence 6 is at %d, %v", base, err)
		}
		if out := r.MustLeat("consume", "retry", "--from-beginning", "--follow=false"); strings.Count(out, "\n") != 7 {
			t.Errorf("read %q", out)
		}
	})
}

func batchOf(t *testing.T, producer int64, sequence int32) []byte {
	t.Helper()
	o := record.DefaultBuilderOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence = producer, 0, sequence
	b, err := record.NewBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Append(&record.Record{Timestamp: 1, Value: fmt.Appendf(nil, "sequence %d", sequence)}); err != nil {
		t.Fatal(err)
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// produceUntilSure sends a batch again until its outcome is known for good.
func produceUntilSure(ctx context.Context, c *client.Client, tp client.TopicPartition, batch []byte) (int64, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		done, err := c.ProduceBatch(attempt, tp, append([]byte(nil), batch...), typev1.Acks_ACKS_ALL, nil)
		cancel()
		typed := rpc.FromError(err)
		if err == nil || typed.Outcome != typev1.Outcome_OUTCOME_UNKNOWN && !rpc.Retryable(typed) || ctx.Err() != nil {
			return done.BaseOffset, err
		}
		_ = c.Metadata().Refresh(ctx) // the next attempt shows whether it helped
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestDeletedWhileDown is cases 14 and 15: a topic is deleted under load and made
// again while a broker is down: only that topic fails, and what the broker had of
// the old one is never served.
func TestDeletedWhileDown(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "other", 1)
	l := startLoad(t, r, "other", loadOptions{})
	topic(t, r, "again", 1)
	if res := r.LeatInput("old-1\nold-2\nold-3\n", "produce", "again"); res.Code != 0 {
		t.Fatal(res)
	}
	r.SameLogs("again", time.Minute)
	down := r.Leader("again", 0)
	r.Kill(down)
	input, stop := history.Feed("x", 200)
	churn := r.Run(input, nil, "produce", "again", "--input", "json", "--delivery-timeout", "20s")
	r.LeaderOtherThan("again", 0, down)
	r.MustLeat("topic", "delete", "again")
	stop()
	churn.Wait(time.Minute) // its records may fail, since their topic is gone
	r.CreateTopic("again", "--partitions", "1", "--replication-factor", "2")
	r.Leader("again", 0)
	if res := r.LeatInput("new-1\n", "produce", "again"); res.Code != 0 {
		t.Fatal(res)
	}
	r.Up(down)
	r.WaitInSync("again", time.Minute)
	for _, leader := range []string{r.Leader("again", 0), down} {
		if r.Running(leader) && leader == r.Leader("again", 0) && leader != down {
			r.Kill(leader)
			r.LeaderOtherThan("again", 0, leader)
			defer r.Up(leader)
		}
	}
	if out := r.MustLeat("consume", "again", "--from-beginning", "--follow=false"); out != "new-1\n" {
		t.Errorf("read %q from the new topic", out)
	}
	for _, name := range r.Names(rig.Broker) {
		for line := range strings.Lines(r.LogTail(name, 1<<20)) {
			if strings.Contains(line, "offline") && strings.Contains(line, "disk") && strings.Contains(line, "level=ERROR") {
				t.Errorf("the deletion took a disk of %s offline: %s", name, line)
			}
		}
	}
	l.progress("the deletion", resume)
	l.feed()
	l.command.Wait(time.Minute)
	l.direct.stop()
	l.ends.stop()
	l.check()
}

// TestLastReplicaThatLostItsTail is case 32: the ISR shrinks to one, that one
// loses its power and its tail, all start again. It leads only if it is complete;
// otherwise nobody does, rather than losing what was acknowledged.
func TestLastReplicaThatLostItsTail(t *testing.T) {
	s := inProcess(t)
	r := s.start(rig.Options{})
	topic(t, r, "last", 1)
	l := startLoad(t, r, "last", loadOptions{})
	leader := r.Leader("last", 0)
	followers := r.Followers("last", 0)
	r.Kill(followers[0])
	l.progress("the death of the first", resume)
	r.Kill(followers[1])
	r.WaitISR("last", 0, time.Minute, leader)
	r.Kill(leader)
	s.disks.powerOff(leader, nil)
	r.Up(leader, followers[0], followers[1])
	l.progress("the return of all", resume)
	l.finish()
}

// TestPreferredLeaderReturns is case 33 on a few partitions: a preferred leader
// that was restarted leads again, by itself, only after it is in sync.
func TestPreferredLeaderReturns(t *testing.T) {
	r := processes(t).start(rig.Options{Set: []string{"controller.leader.imbalance.check.interval.seconds=1"}})
	topic(t, r, "preferred", 6)
	l := startLoad(t, r, "preferred", loadOptions{})
	r.Kill("broker-2")
	l.progress("the death of broker-2", resume)
	r.Up("broker-2")
	mesh.Eventually(t, time.Minute, "preferred leaders lead", func() (bool, string) {
		all, err := r.Partitions("preferred")
		for _, p := range all {
			if p.Leader != p.Replicas[0] {
				return false, fmt.Sprintf("%+v", p)
			}
		}
		return err == nil, fmt.Sprint(err)
	})
	l.finish()
}

// TestUncleanElectionByOperator: the only replicas with all records are gone for
// good. Nobody leads until the operator forces it by name; then writes go on.
func TestUncleanElectionByOperator(t *testing.T) {
	r := processes(t).start(rig.Options{})
	topic(t, r, "forced", 1)
	leader := r.Leader("forced", 0)
	followers := r.Followers("forced", 0)
	if res := r.LeatInput("old\n", "produce", "forced"); res.Code != 0 {
		t.Fatal(res)
	}
	r.Kill(followers[0])
	r.WaitISR("forced", 0, time.Minute, leader, followers[1])
	if res := r.LeatInput("new\n", "produce", "forced", "--delivery-timeout", "20s"); res.Code != 0 {
		t.Fatal(res)
	}
	r.Kill(leader, followers[1])
	r.Wipe(leader)
	r.Wipe(followers[1])
	r.Up(followers[0])
	mesh.Eventually(t, time.Minute, "nobody leads", func() (bool, string) {
		c, err := r.Cluster()
		return err == nil && c.Offline == 1, fmt.Sprintf("%+v %v", c, err)
	})
	requireReason(t, r.Leat("cluster", "elect-leaders", "--topic", "forced"), "LEADER_NOT_AVAILABLE", "NOT_ENOUGH", "UNREACHABLE", "INVALID")
	r.MustLeat("cluster", "elect-leaders", "--topic", "forced", "--partition", "0", "--unclean")
	if now := r.Leader("forced", 0); now != followers[0] {
		t.Errorf("%s leads", now)
	}
	r.Up(leader, followers[1])
	r.WaitInSync("forced", time.Minute)
	if res := r.LeatInput("after\n", "produce", "forced", "--delivery-timeout", "20s"); res.Code != 0 {
		t.Error(res)
	}
	if out := r.MustLeat("consume", "forced", "--from-beginning", "--follow=false"); out != "old\nafter\n" {
		t.Errorf("read %q", out)
	}
	r.SameLogs("forced", time.Minute)
}

// TestRetentionWithALaggingFollower is case 8: retention by size leaves the active
// segment alone and all that is not committed, while a follower stands still.
func TestRetentionWithALaggingFollower(t *testing.T) {
	r := processes(t).start(rig.Options{Set: []string{"broker.log.retention.check.interval.ms=200"}})
	topic(t, r, "small", 1, "retention.bytes=1000", "segment.bytes=1048576")
	follower := r.Followers("small", 0)[0]
	r.Pause(follower)
	lines := strings.Repeat(strings.Repeat("x", 999)+"\n", 3000)
	if res := r.LeatInput(lines, "produce", "small", "--acks", "all", "--delivery-timeout", "60s"); res.Code != 0 {
		t.Fatal(res)
	}
	r.Resume(follower)
	r.WaitInSync("small", time.Minute)
	mesh.Eventually(t, time.Minute, "old segments go on all replicas", func() (bool, string) {
		var sizes []string
		for _, name := range r.Names(rig.Broker) {
			logs, err := filepath.Glob(filepath.Join(r.Dir(name), "small-0", "*.log"))
			if err != nil {
				t.Fatal(err)
			}
			size := int64(0)
			for _, f := range logs {
				if info, err := os.Stat(f); err == nil {
					size += info.Size()
				}
			}
			sizes = append(sizes, fmt.Sprint(name, " ", size))
			if size > 2<<20 {
				return false, strings.Join(sizes, ", ")
			}
		}
		return true, ""
	})
	all, err := r.Partitions("small")
	if err != nil {
		t.Fatal(err)
	}
	if all[0].HighWatermark != 3000 || all[0].LogStart >= 3000 || all[0].Leader < 1 {
		t.Errorf("%+v", all[0])
	}
	out := r.MustLeat("consume", "small", "--from-beginning", "--follow=false")
	if n := int64(strings.Count(out, "\n")); n == 0 || n > all[0].HighWatermark-all[0].LogStart {
		t.Errorf("%d records are read; %+v", n, all[0])
	}
}
